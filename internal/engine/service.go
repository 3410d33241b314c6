package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/service"
	"github.com/pando-dev/pando/internal/state"
)

// A service is the program of an image in a cell of its own, which is made with the cell that wants it: on its backend,
// under its policy and limits, without its files, variables, credentials and network. The workspace of such a cell lies
// where the image has its data (VOLUME), so that checkpoints have that.

const (
	serviceLinger = 30 * time.Second // Docker has no such time: its services run until they are stopped
	serviceReady  = 2 * time.Minute
	serviceGrace  = 10 * time.Second // as docker stop
	// serviceLog is how much of each output stream of a service is kept, from its last start, in bytes.
	serviceLog = 16 << 20
	// serviceFolder holds, in the folder of its cell, what a service wrote.
	serviceFolder = "service"
	// maxServices bounds the services of a cell.
	maxServices = 16
)

// newServices makes the manager of services.
func (e *Engine) newServices() *service.Manager {
	return service.New(service.Config{Records: e.reg, Cells: serviceCells{e}, Log: e.log, Background: e.background, Linger: serviceLinger, Ready: serviceReady, Grace: serviceGrace})
}

// plannedService is a service that a request asks for, checked.
type plannedService struct {
	api.ServiceRequest
	image image.Name
}

// serving is what a cell is made for in which a service runs.
type serving struct {
	of      *state.Cell
	ask     *plannedService
	policy  policy.Result
	confine bool // its maker may not name files of the host
}

// planServices checks the services that a request asks for.
func (e *Engine) planServices(p *runPlan) error {
	const opName = "engine.StartRun"
	if len(p.req.Services) == 0 {
		return nil
	}
	if len(p.req.Services) > maxServices {
		return cell.Errorf(cell.Invalid, opName, "", "cannot have %d services beside a cell: at most %d", len(p.req.Services), maxServices)
	}
	for _, s := range p.req.Services {
		planned := plannedService{ServiceRequest: s}
		var err error
		if planned.image, err = e.serviceImage(s.Image, p.req.CallerDir); err != nil {
			return err
		}
		if planned.Name == "" {
			planned.Name = serviceName(planned.image)
		}
		if !policy.IsName(planned.Name) || strings.ContainsAny(planned.Name, "._") || cell.CheckName(planned.Name) != nil {
			return cell.Errorf(cell.Invalid, opName, "give it a name of small letters, digits and hyphens: --service NAME="+s.Image, "%q cannot be the name of a service", cell.Clip(planned.Name))
		}
		if slices.ContainsFunc(p.services, func(o plannedService) bool { return o.Name == planned.Name }) {
			return cell.Errorf(cell.Invalid, opName, "name one of them: --service NAME="+s.Image, "cannot have two services of the name %s", planned.Name)
		}
		if err := cell.CheckArguments(opName, append(slices.Clone(planned.Command), planned.Ready), planned.Env); err != nil {
			return err
		}
		if redactor.String(planned.Ready) != planned.Ready {
			return cell.Errorf(cell.Invalid, opName, "put it into a variable of the service (--service-env), and write $NAME", "cannot ask service %s so: the command has a secret in it, and is recorded", planned.Name)
		}
		for _, kv := range planned.Env {
			if _, err := policy.CheckEnv(kv); err != nil {
				return err
			}
		}
		p.services = append(p.services, planned)
	}
	if p.cell == nil {
		return nil
	}
	for _, s := range p.services { // as with its image: the same again changes nothing
		if !slices.ContainsFunc(p.cell.Services, func(has state.Service) bool { return has.Name == s.Name && has.Image == s.image.String() }) {
			return cell.Errorf(cell.Conflict, opName, "leave out --service, or work in a new cell", "cell %s has no service %s from %s: services are chosen when a cell is made", p.cell.Title(), s.Name, s.image)
		}
	}
	p.services = nil
	return nil
}

// serviceImage reads the image of a service. Without a kind it is a reference, as Docker has them.
func (e *Engine) serviceImage(s, dir string) (image.Name, error) {
	kind, _, _ := strings.Cut(s, ":")
	if s != "" && s != image.KindHost && !slices.Contains([]string{image.KindDir, image.KindOCI, image.KindDockerfile}, kind) {
		s = image.KindOCI + ":" + s
	}
	n, err := image.ParseName(s, dir)
	if err != nil {
		return n, err
	}
	switch n.Kind {
	case image.KindOCI:
		r, err := oci.Parse(n.Ref, dir)
		if err != nil {
			return n, err
		}
		n.Ref = r.String()
	case image.KindDockerfile:
		_, _, err = e.readDockerfile(n.Path)
	}
	return n, err
}

// serviceName is the name of a service that was given none.
func serviceName(n image.Name) string {
	if n.Kind != image.KindOCI {
		return ""
	}
	return api.ServiceName(n.Ref)
}

// serviceHosts lets a cell talk to its services, which are those of the cell or of the plan that makes it.
func (p *runPlan) serviceHosts(req *api.RunRequest, said map[string]string) {
	var names []string
	for _, s := range p.services {
		names = append(names, s.Name)
	}
	if p.cell != nil {
		names = append(names, p.cell.ServiceNames()...)
	}
	for _, name := range names {
		host := name + ":*"
		if !slices.Contains(req.Allow, host) {
			req.Allow = append(slices.Clone(req.Allow), host)
			said["allow "+host] = "--service " + name
		}
	}
}

// mayServe refuses services on a backend that has no gateways.
func (e *Engine) mayServe(p *runPlan) error {
	if len(p.services) == 0 {
		return nil
	}
	caps, err := e.caps(e.life, p.backend)
	if err == nil && caps.Mounts != "" {
		err = cell.Errorf(cell.Unsupported, "engine.StartRun", "leave out --service, or "+cell.Isolated, "cannot run services beside a cell: %s", caps.Mounts)
	}
	return err
}

// makeServices makes the cells of the services that a new cell is to have.
func (x *execution) makeServices(ctx context.Context, labels map[string]string) error {
	e := x.e
	for i := range x.p.services {
		s := &x.p.services[i]
		x.report(api.Progress{Step: "service", Note: s.Name + " from " + s.image.String()})
		v := e.All()
		if by := cmp.Or(x.p.made, viewOf(ctx)); by != nil { // its maker's, as the cell is
			*v = *by
		}
		pol := x.p.policy.WithoutKeys()
		pol.Files, pol.Home, pol.Env, pol.Network, pol.Environment.Set = policy.Files{}, policy.Home{}, slices.Clone(s.Env), policy.Network{}, nil
		v.service = &serving{of: &x.c, ask: s, policy: pol, confine: x.p.confined}
		made, err := e.Create(context.WithValue(ctx, viewKey{}, v), api.CreateRequest{
			Name: e.serviceCellName(&x.c, s.Name), Backend: x.p.backend.Name(), Kernel: x.p.req.Kernel, Image: s.image.String(), Env: s.Env, Labels: labels, CallerDir: x.p.req.CallerDir, CallerEnv: x.p.req.CallerEnv,
		})
		if err != nil {
			return cell.Errorf(cell.KindOf(err), "engine.service", cell.HintOf(err), "cannot make service %s: %w", s.Name, err)
		}
		x.c.Services = append(x.c.Services, state.Service{Name: s.Name, Cell: cell.ID(made.ID), Image: made.Image, ImageID: made.ImageID})
		of, err := e.reg.Cell(cell.ID(made.ID))
		if err != nil {
			return err
		}
		if x.before.Services == nil {
			x.before.Services = map[string]cell.CheckpointID{}
		}
		x.before.Services[s.Name] = of.Head
	}
	return nil
}

// serve says what a cell serves, by its image.
func (x *execution) serve(img *oci.Image) error {
	s := x.p.service
	var says oci.Service
	workdir := "" // where its data is
	if img != nil {
		says, workdir = img.Service, cmp.Or(img.Workdir, "/")
	}
	command := says.Command
	if len(s.ask.Command) > 0 {
		command = s.ask.Command
	}
	command = slices.Concat(says.Entrypoint, command)
	if len(command) == 0 {
		return cell.Errorf(cell.Invalid, "engine.service", "name it after the image: --service '"+s.ask.Name+"="+s.ask.Image+" PROGRAM…'", "image %s does not say what to start", s.image())
	}
	switch shell := []string{"/bin/sh", "-c"}; {
	case s.ask.Ready != "":
		x.c.Serves.Ready = append(shell, s.ask.Ready)
	case says.ReadyShell:
		if len(img.Shell) > 0 {
			shell = img.Shell
		}
		x.c.Serves.Ready = slices.Concat(shell, says.Ready)
	default:
		x.c.Serves.Ready = says.Ready
	}
	x.c.Serves.Command, x.c.Serves.Workdir, x.c.Serves.Ports, x.c.Serves.Signal = command, workdir, says.Ports, says.StopSignal
	if dirs := dataDirs(says.Volumes); len(dirs) > 0 {
		x.c.Source, x.c.Repositories = dirs[0], dirs[1:]
	}
	return nil
}

// dataDirs are the directories in which a service has its data, of those that its image names, in ascending order. What lies
// in another one comes with that.
func dataDirs(volumes []string) (dirs []string) {
	for _, v := range volumes {
		if v != "/" && !slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(v, d+"/") }) {
			dirs = append(dirs, v)
		}
	}
	return dirs
}

func (s *serving) image() string { return s.ask.image.String() }

// serviceCells is what the manager of services does with cells.
type serviceCells struct{ e *Engine }

func (s serviceCells) AtRest(id cell.ID) bool { return s.e.alive.AtRest(id) }

func (s serviceCells) Ref(id cell.ID) (backend.Instance, func()) { return s.e.alive.Ref(id) }

func (s serviceCells) Running(id cell.ID) bool {
	x, err := s.e.alive.Exec(live.ServiceExec(id))
	if err != nil {
		return false
	}
	select {
	case <-x.Done():
		return false
	default:
		return true
	}
}

func (s serviceCells) Launch(ctx context.Context, c *state.Cell) error {
	e := s.e
	x, err := e.alive.ReadyExec(ctx, c.ID, &api.ExecRequest{Command: c.Serves.Command, Workdir: c.Serves.Workdir})
	if err != nil {
		return err
	}
	folder := e.serviceFolder(c.ID)
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		x.Release()
		return err
	}
	var logs [2]*os.File
	defer func() { closeLogs([3]*os.File{logs[0], logs[1]}) }()
	for i, name := range []string{"stdout", "stderr"} {
		if logs[i], err = evidence.CreateRecord(folder, name); err != nil {
			x.Release()
			return err
		}
	}
	x.Serves(logs[0], logs[1], serviceLog)
	_, err = e.alive.StartExec(ctx, x, nil)
	return err
}

// readyTimeout bounds a command that asks a service whether it can be used.
const readyTimeout = 30 * time.Second

// postgresPort is PostgreSQL's. It listens there while it recovers what a copy or a crash left, and refuses to work, and
// its images have no HEALTHCHECK: their own pg_isready is asked, where it is there.
const postgresPort = 5432

func (s serviceCells) Ready(ctx context.Context, c *state.Cell, ports []cell.Listening) (ready bool, why string, err error) {
	command, asked := c.Serves.Ready, len(c.Serves.Ready) > 0
	switch {
	case asked:
	case slices.ContainsFunc(ports, func(l cell.Listening) bool { return l.Port == postgresPort }):
		command = []string{"pg_isready", "-q", "-h", "127.0.0.1"}
	default:
		return true, "", nil
	}
	e := s.e
	inst, release := e.alive.Ref(c.ID)
	if inst == nil {
		return false, "", nil
	}
	defer release()
	env, workdir := cell.CommandEnv(e.govern.Env(c), e.alive.LeasedEnv(c.ID), c.Setup.User, false, ""), cmp.Or(c.Serves.Workdir, c.Source)
	done, err := inst.Do(ctx, "ready-"+rand.Text(), cell.Start{Timeout: readyTimeout, LogLimit: 64 << 10, Process: cell.Process{
		Args: command, Env: env, Path: cell.Candidates(command[0], env, workdir), Workdir: workdir,
	}})
	cannot := cell.KindOf(err) == cell.NoSuchBinary || cell.KindOf(err) == cell.NotRunnable
	switch {
	case !asked:
		if cannot || err == nil && done.Status.Exit != nil && done.Status.Exit.Code == 0 {
			return true, "", nil
		}
		return false, "pg_isready: --service-ready true takes it as it is", nil
	case cannot:
		return false, "", cell.Errorf(cell.KindOf(err), "engine.service", "choose another command: --service-ready", "cannot ask whether it is ready: %w", err)
	case err != nil: // it may just be ending
		return false, err.Error(), nil
	}
	said := strings.ToValidUTF8(string(done.Stdout)+string(done.Stderr), "�")
	return done.Status.Exit != nil && done.Status.Exit.Code == 0, clip(strings.TrimSpace(redactor.String(said))), nil
}

func (e *Engine) serviceFolder(id cell.ID) string { return filepath.Join(e.private(id), serviceFolder) }

func (s serviceCells) Said(id cell.ID) string {
	folder := s.e.serviceFolder(id)
	return strings.TrimPrefix(lastLines(folder, "stdout")+lastLines(folder, "stderr"), "\n")
}

func (s serviceCells) Ask(ctx context.Context, id cell.ID, signal string) (<-chan struct{}, error) {
	x, err := s.e.alive.Exec(live.ServiceExec(id))
	if err != nil {
		return nil, err
	}
	_, err = s.e.alive.SignalExec(ctx, live.ServiceExec(id), signal)
	return x.Done(), err
}

func (s serviceCells) Pause(ctx context.Context, id cell.ID) error { return s.e.alive.Pause(ctx, id) }

func (s serviceCells) Resume(ctx context.Context, id cell.ID) error { return s.e.alive.Resume(ctx, id) }

func (s serviceCells) Stop(ctx context.Context, id cell.ID) error {
	_, err := s.e.stopWithin(ctx, id, api.StopGrace)
	return err
}

func (s serviceCells) Remove(ctx context.Context, id cell.ID) error {
	_, err := s.e.Remove(ctx, id, false)
	return err
}

// followServed removes the cell of a service that belongs to no cell, because a daemon ended before it could be recorded.
func (e *Engine) followServed(c *state.Cell) {
	if c.Serves == nil || c.State == cell.Removed {
		return
	}
	of, err := e.reg.Cell(c.Serves.Of)
	if err == nil && of.State != cell.Removed && slices.ContainsFunc(of.Services, func(s state.Service) bool { return s.Cell == c.ID }) {
		return
	}
	id := c.ID
	e.background(func(ctx context.Context) {
		if _, err := e.Remove(ctx, id, false); err != nil {
			e.log.Warn("cannot remove the cell of a service that was given up", "cell", id, "error", err)
		}
	})
}

// viewServices says what a cell has of services, and serves.
func (e *Engine) viewServices(c *state.Cell, v *api.Cell) {
	runs := serviceCells{e}.Running
	for _, s := range c.Services {
		beside := api.Service{Name: s.Name, Cell: string(s.Cell), CellName: string(s.Cell), Image: s.Image, ImageID: s.ImageID, Running: runs(s.Cell)}
		if of, err := e.reg.Cell(s.Cell); err == nil {
			beside.CellName = of.Title()
		}
		v.Services = append(v.Services, beside)
	}
	if s := c.Serves; s != nil {
		v.Serves = &api.Serves{Cell: string(s.Of), CellName: string(s.Of), Name: s.Name, Command: redactArgs(s.Command), Exec: live.ServiceExec(c.ID), Running: runs(c.ID)}
		if of, err := e.reg.Cell(s.Of); err == nil {
			v.Serves.CellName = of.Title()
		}
	}
}

// ServiceOutput opens what the service of a cell wrote to a stream, "stdout" or "stderr", since it was last started.
func (v *View) ServiceOutput(id cell.ID, name string) (*os.File, error) {
	c, err := v.cell(id)
	if err != nil {
		return nil, err
	}
	if c.Serves == nil {
		return nil, cell.Errorf(cell.Conflict, "engine.ServiceOutput", "pando logs CELL shows its latest run", "cell %s is not that of a service", c.Title())
	}
	if name != "stdout" && name != "stderr" {
		return nil, cell.Errorf(cell.NotFound, "engine.ServiceOutput", "name stdout or stderr", "a service has no output %s", clip(name))
	}
	f, err := evidence.OpenRecord(v.e.serviceFolder(id), name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cell.Errorf(cell.NotFound, "engine.ServiceOutput", "", "service %s was never started", c.Title())
	}
	return f, err
}

// ofService refuses to remove the cell of a service that another cell has.
func (e *Engine) ofService(id cell.ID) error {
	c, err := e.reg.Cell(id)
	if err != nil || c.Serves == nil || c.State == cell.Removed {
		return nil
	}
	of, err := e.reg.Cell(c.Serves.Of)
	if err != nil || of.State == cell.Removed {
		return nil
	}
	return cell.Errorf(cell.Conflict, "engine.Remove", "pando rm "+of.Title()+" removes both; pando stop "+c.Title()+" ends it", "cannot remove cell %s: it is service %s of cell %s", c.Title(), c.Serves.Name, of.Title())
}
