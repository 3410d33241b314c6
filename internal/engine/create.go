package engine

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
)

// Create makes a cell in which nothing has run yet: of a source, or with an
// empty workspace. It is at rest, and comes to life with the first command.
func (e *Engine) Create(ctx context.Context, req api.CreateRequest) (_ api.Cell, err error) {
	const opName = "engine.Create"
	ctx, a := e.act(ctx, "create", "")
	defer a.over(&err)
	id := cell.NewID()
	p, err := e.planCreate(viewOf(ctx), &req, id)
	if err != nil {
		return api.Cell{}, err
	}
	if err := viewOf(ctx).samePaths(p); err != nil {
		return api.Cell{}, err
	}
	p.confined = viewOf(ctx).isConfined()
	if v := viewOf(ctx); v == nil || !v.operators {
		if err := p.ownMachine(); err != nil {
			return api.Cell{}, err
		}
	}
	a.backend = p.backend.Name()
	lease, err := live.NewLease(req.Lease)
	if err != nil {
		return api.Cell{}, err
	}
	lease.Labels = maps.Clone(req.Labels)
	ctx, cancel := e.bound(ctx)
	defer cancel()
	x := &execution{e: e, p: p, l: run.Unwatched(ctx), run: &state.Run{}, made: e.pins.Begin()}
	defer x.made.End()
	x.c = state.Cell{ID: id, Name: req.Name, State: cell.Creating, Source: p.source, Repositories: p.further, NoSource: p.from != "", Backend: p.backend.Name(),
		Image: p.image.String(), Created: time.Now().UTC(), Next: 1, Guest: p.confined}
	if p.step != nil {
		x.c.Builds, x.c.Image, x.c.ImageKey = true, p.step.name, p.step.on
	}
	if s := p.service; s != nil {
		x.c.Serves = &state.Serves{Of: s.of.ID, Name: s.ask.Name}
	}
	lease.Cell = x.c.ID
	x.c.Maker = makerOf(ctx)
	x.c.Maker.Sign(lease, false)
	if x.c.Serves != nil { // its end is that of the cell it serves
		lease.Until = time.Time{}
	}
	a.say(attribute.String("pando.cell", string(x.c.ID)))
	err = e.spawn.Name(req.Name, func(taken string) error {
		if taken != "" {
			return cell.Errorf(cell.Exists, opName, "choose another name", "cannot create cell %s: %s %s exists", req.Name, taken, req.Name)
		}
		return e.reg.Commit(&x.c, lease) // what a crash leaves of it is known by this
	})
	if err != nil {
		return api.Cell{}, err
	}
	defer func() {
		if err != nil {
			x.c.Head = ""
			e.removeUnmade(x.c)
			if cell.HintOf(err) == "" {
				err = full(err)
			}
		}
	}()
	if err := e.gc.KeepReserve(); err != nil {
		return api.Cell{}, full(err)
	}
	if err = x.planImage(ctx); err != nil {
		return api.Cell{}, err
	}
	in, imported := stage(ctx, "import")
	err = x.source(in)
	if imported(err); err != nil {
		return api.Cell{}, err
	}
	if err := x.firstCheckpoint(); err != nil {
		return api.Cell{}, err
	}
	x.nameOutside()
	if err := x.makeServices(ctx, req.Labels); err != nil {
		return api.Cell{}, err
	}
	if err := x.setUp(); err != nil {
		return api.Cell{}, err
	}
	if err := x.c.To(cell.Idle); err != nil {
		return api.Cell{}, err
	}
	x.c.Setup.Notes = append(x.run.Notes, p.notes...)
	e.alive.SetLeaseEnv(lease, p.policy.Env)
	made, err := operation.Outcome(ctx, madeCell, x.c.ID)
	if err != nil {
		return api.Cell{}, err
	}
	if err := e.reg.Commit(append(made, &x.c, &x.before, lease)...); err != nil {
		return api.Cell{}, err
	}
	return e.cellView(&x.c), nil
}

// planCreate checks everything about a request for a cell that can be checked
// without work. A cell without a name is called by its id, which no other has.
func (e *Engine) planCreate(by *View, req *api.CreateRequest, id cell.ID) (*runPlan, error) {
	const opName = "engine.Create"
	if req.Name == "" {
		req.Name = string(id)
	} else if err := cell.CheckName(req.Name); err != nil {
		return nil, err
	}
	if c, ok := e.findCell(req.Name); ok {
		return nil, cell.Errorf(cell.Exists, opName, "choose another name", "cannot create cell %s: it exists", c.Title())
	}
	if req.Limits.Timeout != "" {
		return nil, cell.Errorf(cell.Invalid, opName, "give a time-out to each command", "cannot create cell %s: a cell has no limit on time but its lease", req.Name)
	}
	if err := checkLabels(req.Labels); err != nil {
		return nil, err
	}
	run := api.RunRequest{
		Command: []string{"sh"}, From: req.From, Repositories: req.Repositories, Upload: req.Upload, Backend: req.Backend, Image: req.Image, Kernel: req.Kernel, Policy: req.Policy, Env: req.Env,
		WithSecret: req.WithSecret, Allow: req.Allow, Credentials: req.Credentials, Mounts: req.Mounts, ReadOnly: req.ReadOnly, Caches: req.Caches, Services: req.Services, CacheWrite: req.CacheWrite, Limits: req.Limits,
		CallerEnv: req.CallerEnv, CallerDir: req.CallerDir,
	}
	if req.Policy != "" {
		run.PolicyName = govern.PolicyOfCell + req.Name
	}
	empty := ""
	switch {
	case req.From == "":
		empty = orElse(req.Place, emptyWorkspace)
		if !filepath.IsAbs(empty) || filepath.Clean(empty) != empty || empty == "/" {
			return nil, cell.Errorf(cell.Invalid, opName, "give a clean absolute path", "cannot show a workspace at %q", clip(empty))
		}
		if empty == e.cfg.User.Home {
			return nil, cell.Errorf(cell.Conflict, opName, "choose another place", "cannot show a workspace at %s: the cell's home is there", empty)
		}
	case req.Place != "":
		return nil, cell.Errorf(cell.Invalid, opName, "leave out place, or from", "cannot create cell %s: a source is seen where it lies", req.Name)
	}
	if by != nil && by.service != nil && len(by.service.ask.Command) > 0 {
		run.Command = by.service.ask.Command // what image host has to have
	}
	v := e.All()
	if by != nil { // callers are counted elsewhere
		v.door, v.tokenName, v.asked, v.step, v.service = by.door, by.tokenName, by.caller(req.Labels).Labels, by.step, by.service
	}
	return v.planFrom(run, empty)
}

// HomePlace is where a workspace without a source can be shown that programs
// take for their home, of those that are asked for: the first that is not in the
// way of the cell's own home.
func (e *Engine) HomePlace(asked string) string {
	if _, err := os.Lstat(asked); asked == e.cfg.User.Home || err == nil || !errors.Is(err, fs.ErrNotExist) {
		return emptyWorkspace
	}
	return asked
}

// checkLabels bounds what a cell carries.
func checkLabels(labels map[string]string) error {
	size := 0
	for k, v := range labels {
		size += len(k) + len(v)
		if k == "" {
			return cell.Errorf(cell.Invalid, "engine.checkLabels", "give each label a name", "cannot label with an empty name")
		}
	}
	if size > maxLabels {
		return cell.Errorf(cell.Invalid, "engine.checkLabels", "", "cannot label: more than %s of labels", policy.FormatSize(maxLabels))
	}
	return nil
}

// emptyWorkspace is where cells without a source work.
const emptyWorkspace = "/workspace"

// maxLabels bounds the names and values of a cell's labels, in bytes.
const maxLabels = 64 << 10
