package engine

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
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/live"
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

// emptyWorkspace is where the cells of a template without a source work.
const emptyWorkspace = "/workspace"

// templatePlan is a checked request for a template.
type templatePlan struct {
	req  api.TemplateRequest
	run  *runPlan
	warm cell.Warm // without its process
	// whole: the template is an image of all that runs in a cell.
	whole bool
}

// planTemplate checks everything about a request that can be checked without
// work.
func (e *Engine) planTemplate(req api.TemplateRequest) (*templatePlan, error) {
	const opName = "engine.BuildTemplate"
	if err := cell.CheckName(req.Name); err != nil {
		return nil, err
	}
	for _, s := range []string{req.Warm, req.Setup, req.Ready} {
		if strings.ContainsRune(s, 0) {
			return nil, cell.Errorf(cell.Invalid, opName, "", "cannot build template %s: its code contains a NUL", req.Name)
		}
	}
	p := &templatePlan{req: req, warm: cell.Warm{Kind: warmKind(req.Warm), Setup: req.Setup, Ready: req.Ready, Timeout: live.WarmTimeout, ToFork: true}}
	if req.Timeout != "" {
		var err error
		if p.warm.Timeout, err = policy.ParseTimeout(req.Timeout); err != nil {
			return nil, err
		}
	}
	run := api.RunRequest{
		From: req.From, Upload: req.Upload, Backend: req.Backend, Image: req.Image, Kernel: req.Kernel, Policy: req.Policy, Env: req.Env, WithSecret: req.WithSecret,
		Allow: req.Allow, Credentials: req.Credential, Limits: req.Limits, CallerEnv: req.CallerEnv, CallerDir: req.CallerDir,
	}
	if req.Policy != "" {
		run.PolicyName = "the policy of template " + req.Name
	}
	if req.Limits.Timeout != "" {
		return nil, cell.Errorf(cell.Invalid, opName, "give --timeout to each evaluation", "cannot build template %s: a template has no limit on time", req.Name)
	}
	run.Command = p.command()
	empty := ""
	if req.From == "" {
		empty = emptyWorkspace
	}
	var err error
	if p.run, err = e.All().planFrom(run, empty); err != nil {
		return nil, err
	}
	if p.whole, err = e.capturesOn(e.life, p.run.backend); err != nil || p.whole {
		return p, err
	}
	return p, e.canFork(p.run.backend)
}

// warmKind is the kind of interpreter that a template asks for.
func warmKind(warm string) string {
	kind := strings.TrimSpace(orElse(warm, cell.WarmPython))
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
func (e *Engine) canFork(b backend.Backend) error {
	caps, err := e.caps(e.life, b)
	if err != nil {
		return err
	}
	for _, why := range []string{caps.Eval, caps.Fork} {
		if why != "" {
			return cell.Errorf(cell.Unsupported, "engine.BuildTemplate", cell.Isolated, "cannot keep a template on backend %s: %s", b.Name(), why)
		}
	}
	return nil
}

// What may have a name already: see taken.
const (
	takenByCell     = "cell"
	takenByTemplate = "template"
)

// taken says what has a name; "" for nothing. The caller holds e.mu.
func (e *Engine) taken(name string) string {
	if _, ok := e.reg.Named(name); ok || e.names[name] {
		return takenByCell
	}
	if _, err := e.reg.Template(name); err == nil || e.building[name] {
		return takenByTemplate
	}
	return ""
}

// claimTemplate makes sure that one piece of work at a time changes a template.
func (e *Engine) claimTemplate(name, act string) (release func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.building[name] {
		return nil, cell.Errorf(cell.Conflict, "engine.claimTemplate", "wait until that has ended", "cannot %s template %s: it is being built, warmed or removed", act, name)
	}
	if e.taken(name) == takenByCell {
		return nil, cell.Errorf(cell.Exists, "engine.claimTemplate", "choose another name", "cannot %s template %s: cell %s exists", act, name, name)
	}
	e.building[name] = true
	return sync.OnceFunc(func() {
		e.mu.Lock()
		delete(e.building, name)
		e.mu.Unlock()
		e.fillPools()
	}), nil
}

// Templates lists the templates there are.
func (e *Engine) Templates() []api.Template {
	out := []api.Template{}
	for _, t := range e.reg.Templates() {
		out = append(out, e.templateView(&t))
	}
	e.mu.Lock()
	var building []string
	for name := range e.building {
		if _, err := e.reg.Template(name); err != nil {
			building = append(building, name)
		}
	}
	e.mu.Unlock()
	for _, name := range building {
		out = append(out, api.Template{Name: name, State: templateBuilding, Spec: api.TemplateRequest{Name: name}, Cells: []string{}})
	}
	slices.SortFunc(out, func(a, b api.Template) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Template shows a template.
func (e *Engine) Template(name string) (api.Template, error) {
	t, err := e.reg.Template(name)
	if err != nil {
		return api.Template{}, err
	}
	v := e.templateView(&t)
	if inst := e.alive.Instance(t.Cell); inst != nil {
		if st, err := inst.Stats(e.life); err == nil {
			v.Memory = st.Memory
		}
	}
	return v, nil
}

func (e *Engine) templateView(t *state.Template) api.Template {
	v := e.templateStanding(t)
	for _, c := range e.dependents(t.Name) {
		v.Cells = append(v.Cells, c.Title())
	}
	return v
}

// templateStanding is templateView without the cells that were forked from it.
func (e *Engine) templateStanding(t *state.Template) api.Template {
	v := api.Template{Name: t.Name, Cell: string(t.Cell), Spec: t.Spec, Digest: t.Digest.String(), Built: t.Built, TookMS: t.TookMS, Version: t.Version,
		Forks: t.Forks, Receipt: t.Receipt, Notes: slices.Clone(t.Notes), Inherited: t.Inherited, Cells: []string{}}
	warm := e.alive.HasInterp(t.Cell)
	e.mu.Lock()
	busy := e.building[t.Name]
	v.Ready = e.pools[t.Name].size()
	e.mu.Unlock()
	switch {
	case warm:
		v.State = templateWarm
		if why := e.damagedImage(t); why != "" { // its forks are refused
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
	if c, err := e.reg.Cell(t.Cell); err == nil {
		if v.State == templateCold {
			v.Cause = c.Cause
		}
		v.Policy = c.Setup.Policy.String()
	}
	if t.Slow != "" {
		v.Notes = append(v.Notes, "forks take a few milliseconds longer, because this Python makes each of them itself: "+t.Slow)
	}
	if len(t.Unkept) > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("the values of %s look like secrets and are in no record: it can't be warmed again without them", join(t.Unkept)))
	}
	return v
}

// dependents are the cells that were forked from a template, oldest first,
// whatever became of their interpreters.
func (e *Engine) dependents(name string) []state.Cell {
	out := e.reg.ForksOf(name)
	slices.SortFunc(out, func(a, b state.Cell) int {
		return cmp.Or(a.Created.Compare(b.Created), cell.CompareNames(a.Name, b.Name))
	})
	return out
}

// forksOf counts dependents.
func (e *Engine) forksOf(name string) int {
	return e.reg.CountForks(name)
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
func keepable(req api.TemplateRequest) (spec api.TemplateRequest, unkept []string) {
	spec = req
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
		if spec.Policy, variables, err = govern.Keepable(&redactor, req.Policy); variables || err != nil {
			unkept = append(unkept, "its policy's variables")
		}
	}
	return spec, unkept
}

// RemoveTemplate takes a template away. Its living forks are named, and go with
// it, or stay, only when that is asked for.
func (e *Engine) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (api.Template, error) {
	const opName = "engine.RemoveTemplate"
	t, err := e.reg.Template(name)
	if err != nil {
		return api.Template{}, err
	}
	v := e.templateView(&t)
	if req.DryRun {
		return v, nil
	}
	if req.Cascade && req.Force {
		return v, cell.Errorf(cell.Invalid, opName, "choose --cascade or --force", "cannot remove template %s: its cells can't both go and stay", name)
	}
	release, err := e.claimTemplate(name, "remove")
	if err != nil {
		return v, err
	}
	defer release()
	cells := e.dependents(name)
	if len(cells) > 0 && !req.Cascade && !req.Force {
		return v, cell.Errorf(cell.Conflict, opName, "remove them, too, with --cascade, or leave them with --force: the template's memory stays until the last is gone",
			"cannot remove template %s: cells live that were forked from it: %s", name, join(v.Cells))
	}
	e.drain(ctx, name, "its template was removed")
	if req.Cascade {
		if err := e.removeCells(ctx, cells); err != nil {
			return v, err
		}
	}
	if err := e.gc.Freeing(func() error { return e.reg.Commit(state.Forget(state.ForgetTemplate + name)) }); err != nil {
		return v, err
	}
	return v, e.removeCell(ctx, t.Cell)
}
