package spawn

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	interpreters "github.com/pando-dev/pando/internal/repl"
	"github.com/pando-dev/pando/internal/state"
)

// The states of a template.
const (
	templateBuilding = "building"
	templateWarm     = "warm"
	templateCold     = "cold"
	templateFailed   = "failed"
)

// templatePlan is a checked request for a template.
type templatePlan struct {
	req  api.TemplateRequest
	warm cell.Warm // without its process
	// image: the template is an image of all that runs in a cell.
	image bool
}

// planTemplate checks everything about a request that can be checked without
// work.
func (m *Manager) planTemplate(ctx context.Context, req api.TemplateRequest) (*templatePlan, Draft, error) {
	const opName = "spawn.BuildTemplate"
	if err := cell.CheckName(req.Name); err != nil {
		return nil, nil, err
	}
	for _, s := range []string{req.Warm, req.Setup, req.Ready} {
		if strings.ContainsRune(s, 0) {
			return nil, nil, cell.Errorf(cell.Invalid, opName, "", "cannot build template %s: its code contains a NUL", req.Name)
		}
	}
	p, err := m.planWarm(req)
	if err != nil {
		return nil, nil, err
	}
	run := api.RunRequest{
		Command: p.command(), From: req.From, Upload: req.Upload, Backend: req.Backend, Image: req.Image, Kernel: req.Kernel, Policy: req.Policy, Env: req.Env,
		WithSecret: req.WithSecret, Allow: req.Allow, Credentials: req.Credential, Limits: req.Limits, CallerEnv: req.CallerEnv, CallerDir: req.CallerDir,
	}
	if req.Policy != "" {
		run.PolicyName = "the policy of template " + req.Name
	}
	if req.Limits.Timeout != "" {
		return nil, nil, cell.Errorf(cell.Invalid, opName, "give --timeout to each evaluation", "cannot build template %s: a template has no limit on time", req.Name)
	}
	d, err := m.cfg.Plan(ctx, run)
	if err != nil {
		return nil, nil, err
	}
	b := d.Facts().Backend
	if p.image, err = m.capturesOn(ctx, b); err != nil || p.image {
		return p, d, err
	}
	return p, d, m.canFork(ctx, b)
}

// planWarm is the part of a plan that is about the interpreter alone.
func (m *Manager) planWarm(req api.TemplateRequest) (_ *templatePlan, err error) {
	p := &templatePlan{req: req, warm: cell.Warm{Kind: warmKind(req.Warm), Setup: req.Setup, Ready: req.Ready, Timeout: m.cfg.WarmTimeout, ToFork: true}}
	if req.Timeout != "" {
		p.warm.Timeout, err = policy.ParseTimeout(req.Timeout)
	}
	return p, err
}

// warmKind is the kind of interpreter that a template asks for.
func warmKind(warm string) string {
	kind := strings.TrimSpace(cmp.Or(warm, cell.WarmPython))
	if _, builtIn := interpreters.KindOf(kind); builtIn {
		return kind
	}
	return cell.WarmCommand
}

// command is what a template's interpreter is started by; of one that is built
// in, by the first of its names.
func (p *templatePlan) command() []string {
	if k, builtIn := interpreters.KindOf(p.warm.Kind); builtIn {
		return k.Programs[:1]
	}
	return []string{"sh", "-c", "exec " + strings.TrimSpace(p.req.Warm)}
}

// programs are the files to try as the interpreter's program, by each of its
// names.
func (p *templatePlan) programs(look func(name string) ([]string, error)) (files []string, err error) {
	names := p.command()[:1]
	if k, builtIn := interpreters.KindOf(p.warm.Kind); builtIn {
		names = k.Programs
	}
	for _, name := range names {
		more, lerr := look(name)
		files = append(files, more...)
		if lerr != nil && err == nil {
			err = lerr
		}
	}
	if len(files) > 0 {
		return files, nil
	}
	return nil, err
}

// canFork says why a backend can't keep templates.
func (m *Manager) canFork(ctx context.Context, b backend.Backend) error {
	caps, err := m.cfg.Caps(ctx, b)
	if err != nil {
		return err
	}
	for _, why := range []string{caps.Eval, caps.Fork} {
		if why != "" {
			return cell.Errorf(cell.Unsupported, "spawn.BuildTemplate", cell.Isolated, "cannot keep a template on backend %s: %s", b.Name(), why)
		}
	}
	return nil
}

// claimTemplate makes sure that one piece of work at a time changes a template.
func (m *Manager) claimTemplate(name, act string) (release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.building[name] {
		return nil, cell.Errorf(cell.Conflict, "spawn.claimTemplate", "wait until that has ended", "cannot %s template %s: it is being built, warmed or removed", act, name)
	}
	if m.taken(name) == TakenByCell {
		return nil, cell.Errorf(cell.Exists, "spawn.claimTemplate", "choose another name", "cannot %s template %s: cell %s exists", act, name, name)
	}
	m.building[name] = true
	return sync.OnceFunc(func() {
		m.mu.Lock()
		delete(m.building, name)
		m.mu.Unlock()
		m.FillPools()
	}), nil
}

// Templates lists the templates there are.
func (m *Manager) Templates() []api.Template {
	out := []api.Template{}
	for _, t := range m.reg.Templates() {
		out = append(out, m.view(&t))
	}
	m.mu.Lock()
	var building []string
	for name := range m.building {
		if _, err := m.reg.Template(name); err != nil {
			building = append(building, name)
		}
	}
	m.mu.Unlock()
	for _, name := range building {
		out = append(out, api.Template{Name: name, State: templateBuilding, Spec: api.TemplateRequest{Name: name}, Cells: []string{}})
	}
	slices.SortFunc(out, func(a, b api.Template) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Template shows a template.
func (m *Manager) Template(name string) (api.Template, error) {
	t, err := m.reg.Template(name)
	if err != nil {
		return api.Template{}, err
	}
	v := m.view(&t)
	if inst := m.live.Instance(t.Cell); inst != nil {
		if st, err := inst.Stats(m.cfg.Life); err == nil {
			v.Memory = st.Memory
		}
	}
	return v, nil
}

func (m *Manager) view(t *state.Template) api.Template {
	v := m.standing(t)
	for _, c := range m.Dependents(t.Name) {
		v.Cells = append(v.Cells, c.Title())
	}
	return v
}

// standing is view without the cells that were forked from it.
func (m *Manager) standing(t *state.Template) api.Template {
	v := api.Template{Name: t.Name, Cell: string(t.Cell), Spec: t.Spec, Digest: t.Digest.String(), Built: t.Built, TookMS: t.TookMS, Version: t.Version,
		Forks: t.Forks, Receipt: t.Receipt, Notes: slices.Clone(t.Notes), Inherited: t.Inherited, Cells: []string{}}
	warm := m.live.HasInterp(t.Cell)
	m.mu.Lock()
	busy := m.building[t.Name]
	v.Ready = m.pools[t.Name].size()
	m.mu.Unlock()
	switch {
	case warm:
		v.State = templateWarm
		if why := m.damagedImage(t); why != "" { // its forks are refused
			v.State, v.Cause = templateFailed, why
		}
		if busy {
			v.Notes = append(v.Notes, "it is being built anew")
		}
	case busy:
		v.State = templateBuilding
	case t.Failed != "":
		v.State, v.Cause = templateFailed, t.Failed
	default:
		v.State = templateCold
	}
	if c, err := m.reg.Cell(t.Cell); err == nil {
		if v.State == templateCold {
			v.Cause = c.Cause
		}
		v.Policy = c.Setup.Policy.String()
	}
	if t.Slow != "" {
		v.Notes = append(v.Notes, "forks take a few milliseconds longer, because this Python makes each of them itself: "+t.Slow)
	}
	if len(t.Unkept) > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("the values of %s look like secrets and are in no record: give them again to warm the template", several(t.Unkept)))
	}
	return v
}

// Dependents are the cells that were forked from a template, oldest first,
// whatever became of their interpreters.
func (m *Manager) Dependents(name string) []state.Cell {
	out := m.reg.ForksOf(name)
	slices.SortFunc(out, func(a, b state.Cell) int {
		return cmp.Or(a.Created.Compare(b.Created), cell.CompareNames(a.Name, b.Name))
	})
	return out
}

// templateDigest is of all that a template was built from.
func templateDigest(spec api.TemplateRequest, tree cell.Digest, image string, sum cell.Digest, version string) (cell.Digest, error) {
	spec.CallerEnv, spec.CallerDir, spec.DryRun, spec.Upload = nil, "", false, "" // it is gone by then
	b, err := json.Marshal(struct {
		Spec    api.TemplateRequest `json:"spec"`
		Tree    cell.Digest         `json:"tree"`
		Image   string              `json:"image"`
		Program cell.Digest         `json:"program"`
		Version string              `json:"version"`
	}{spec, tree, image, sum, version})
	return cell.Sum(b), err
}

// keepable takes what must not be written down out of a request: the values of
// variables that look like secrets, which are named, also of those in its policy.
func (m *Manager) keepable(req api.TemplateRequest) (_ api.TemplateRequest, unkept []string) {
	spec, redactor := req, m.cfg.Redactor
	spec.CallerEnv, spec.CallerDir, spec.DryRun = nil, "", false
	spec.Env = nil
	for _, kv := range req.Env {
		if name, _, _ := strings.Cut(kv, "="); redactor.String(kv) != kv {
			unkept = append(unkept, name)
		} else {
			spec.Env = append(spec.Env, kv)
		}
	}
	spec.Setup, spec.Ready, spec.Warm = redactor.String(req.Setup), redactor.String(req.Ready), redactor.String(req.Warm)
	if spec.Setup != req.Setup || spec.Ready != req.Ready || spec.Warm != req.Warm {
		unkept = append(unkept, "its code")
	}
	if redactor.String(req.Policy) != req.Policy {
		var variables bool
		var err error
		if spec.Policy, variables, err = m.cfg.KeepablePolicy(req.Policy); variables || err != nil {
			unkept = append(unkept, "its policy's variables")
		}
	}
	return spec, unkept
}

// RemoveTemplate removes a template. If it has living forks it is refused and they are named, unless the
// request says whether they are removed or stay.
func (m *Manager) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (api.Template, error) {
	const opName = "spawn.RemoveTemplate"
	t, err := m.reg.Template(name)
	if err != nil {
		return api.Template{}, err
	}
	v := m.view(&t)
	if req.DryRun {
		return v, nil
	}
	if req.Cascade && req.Force {
		return v, cell.Errorf(cell.Invalid, opName, "choose --cascade or --force", "cannot remove template %s: its cells can't both go and stay", name)
	}
	release, err := m.claimTemplate(name, "remove")
	if err != nil {
		return v, err
	}
	defer release()
	cells := m.Dependents(name)
	if len(cells) > 0 && !req.Cascade && !req.Force {
		return v, cell.Errorf(cell.Conflict, opName, "remove them, too, with --cascade, or leave them with --force: the template's memory stays until the last is gone",
			"cannot remove template %s: cells live that were forked from it: %s", name, several(v.Cells))
	}
	m.Drain(ctx, name, "its template was removed")
	if req.Cascade {
		if err := m.cfg.RemoveCells(ctx, cells); err != nil {
			return v, err
		}
	}
	if err := m.space.Freeing(func() error { return m.reg.Commit(state.Forget(state.ForgetTemplate + name)) }); err != nil {
		return v, err
	}
	return v, m.removeCell(ctx, t.Cell)
}

// removeCell removes a cell, whatever it is the warm parent of.
func (m *Manager) removeCell(ctx context.Context, id cell.ID) error {
	release, err := m.cfg.Locks.Acquire(ctx, id, "remove", nil)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	delete(m.forked, id)
	m.mu.Unlock()
	return m.cfg.Remove(ctx, id)
}
