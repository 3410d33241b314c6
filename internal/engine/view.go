package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
)

// A View is the engine as one caller has it. What answers callers has a View,
// and no Engine: all that a caller names is looked for here, so that a use case
// which this file does not have can't be reached from outside.
//
// A caller that is restricted to labels sees the cells that carry all of them, and
// what belongs to those: runs, commands, checkpoints, receipts, approvals. All
// others are as if they did not exist. Templates without labels are there for
// all, to be looked at and forked; those with labels are as cells are.
// Images and the names of credentials are for all. What is about the whole
// installation is refused.
type View struct {
	e      *Engine
	token  string
	bounds *access.Bounds // nil: nothing binds the caller
	claim  *state.Claim   // of the request under way
	// door is by which the caller comes, see package ceiling; "" for the engine's own work.
	// tokenName is the token's name, asked are labels of what a request is for, and bounded
	// is what holds for the request under way.
	door, tokenName string
	asked           map[string]string
	bounded         ceiling.Bounds
	// here and process: see access.Principal.
	here    bool
	process int
	// confined says why the caller may not name files of the host or do anything there;
	// "" for one that may.
	confined string
	// step is what a cell is made for that makes an image; nil for all others.
	step *imageStep
	// service is what a cell is made for in which a service is to run; nil for all others.
	service *serving
	// again is the run of which the command is executed again; nil for all others.
	again *again
	// forRace is the race that works for the caller; "" for all other requests.
	forRace cell.RaceID
	// askedBy is the caller that asked for that race, as its record has it.
	askedBy *state.Asked
	// operators: the policy of what is made is the operator's, and not the caller's.
	operators bool
}

// All is the engine as the user has it, and everything that works for them.
func (e *Engine) All() *View { return &View{e: e} }

// As is the engine as a caller has it.
func (v *View) As(p access.Principal) *View {
	own := &View{e: v.e, token: p.Token, tokenName: p.Name, bounds: p.Bounds, here: p.Here, process: p.Process, door: cmp.Or(v.door, doorOf(p))}
	switch {
	case p.MayNameHost():
	case p.Token == "":
		own.confined = "the caller has no token for that"
	default:
		own.confined = "the token " + p.Name + " is of scope " + string(p.Level)
		if p.Restricted() {
			own.confined += ", restricted to " + access.LabelText(p.Bounds.Labels)
		}
	}
	return own
}

// ByOperator is the engine for a request under the operator's policy, which has nothing of
// the caller's in it: it may name the daemon's machine.
func (v *View) ByOperator() *View {
	own := *v
	own.operators = true
	return &own
}

// isConfined reports whether the caller may not name files of the host, or do anything
// there.
func (v *View) isConfined() bool { return v != nil && v.confined != "" }

// restricted reports whether there is something that the caller does not see.
func (v *View) restricted() bool { return v != nil && v.bounds != nil && len(v.bounds.Labels) > 0 }

// sees reports whether the caller sees a cell.
func (v *View) sees(id cell.ID) bool {
	if !v.restricted() {
		return true
	}
	return v.e.reg.Carries(id, v.bounds.Labels)
}

// carried reports whether labels are those of what the caller sees.
func (v *View) carried(labels map[string]string) bool {
	for k, want := range v.bounds.Labels {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}

// cell is a cell that the caller sees; NotFound, in the same words, for others.
func (v *View) cell(id cell.ID) (state.Cell, error) {
	if !v.sees(id) {
		return state.Cell{}, state.NoCell(id)
	}
	return v.e.reg.Cell(id)
}

// must refuses a cell that the caller does not see, as if it were not there.
func (v *View) must(id cell.ID) error {
	if !v.sees(id) {
		return state.NoCell(id)
	}
	return nil
}

// Enter refuses a cell that the caller does not see, and a cell without isolation
// to a caller that may do nothing on the host: what is started, written or reached
// there is the host's own.
func (v *View) Enter(id cell.ID) error {
	if c, err := v.e.reg.Cell(id); err == nil && c.Builds && v.step == nil {
		return cell.Errorf(cell.Conflict, "engine.View", "wait until the image is made", "cannot work in cell %s: image %s is being made in it", c.Title(), c.Image)
	}
	if err := v.must(id); err != nil || !v.isConfined() {
		return err
	}
	if c, err := v.e.reg.Cell(id); err == nil && !policy.Isolates(c.Backend) {
		return cell.Errorf(cell.Denied, "engine.View", "use a token of scope admin without labels, or a cell that is isolated", "cell %s is %s: what happens there happens on the daemon's host, and %s", c.Title(), api.NotIsolated, v.confined)
	}
	return nil
}

// enterRun is Enter for the cell of a run.
func (v *View) enterRun(id cell.RunID) error {
	if err := v.mustRun(id); err != nil {
		return err
	}
	if r, err := v.e.reg.Run(id); err == nil {
		return v.Enter(r.CellID())
	}
	return nil
}

// enterExec is Enter for the cell of a command.
func (v *View) enterExec(id string) error {
	if err := v.mustExec(id); err != nil {
		return err
	}
	x, err := v.e.alive.Exec(id)
	if err != nil {
		return nil
	}
	return v.Enter(x.Cell())
}

// mustRun refuses a run that the caller does not see, as if it were not there.
func (v *View) mustRun(id cell.RunID) error {
	if !v.restricted() {
		return nil
	}
	if r, err := v.e.reg.Run(id); err != nil || !v.sees(r.CellID()) {
		return state.NoRun(id)
	}
	return nil
}

// mustExec refuses a command that the caller does not see, as if it were not there.
func (v *View) mustExec(id string) error {
	if !v.restricted() {
		return nil
	}
	if x, err := v.e.alive.Exec(id); err != nil || !v.sees(x.Cell()) {
		return live.NoExec(id)
	}
	return nil
}

// mustTemplate refuses a template that the caller does not see, as if it were not
// there, and with own one that is not theirs alone.
func (v *View) mustTemplate(name string, own bool) error {
	if !v.restricted() {
		return nil
	}
	t, err := v.e.reg.Template(name)
	switch {
	case err != nil || !v.seesTemplate(&t):
		return state.NoTemplate(name)
	case own && !v.sees(t.Cell):
		return cell.Errorf(cell.Denied, "engine.View", "use a token without labels", "template %s is for all callers, and the token is restricted to %s", name, v.restriction())
	}
	return nil
}

// seesTemplate reports whether the caller may look at a template and fork it.
func (v *View) seesTemplate(t *state.Template) bool {
	if !v.restricted() {
		return true
	}
	l := v.e.reg.Lease(t.Cell)
	if l == nil {
		return true
	}
	for k := range l.Labels {
		if !strings.Contains(k, ":") {
			return v.carried(l.Labels)
		}
	}
	return true
}

// whole refuses what is about the whole installation.
func (v *View) whole(what string) error {
	if !v.restricted() {
		return nil
	}
	return cell.Errorf(cell.Denied, "engine.View", "use a token without labels", "%s: that is about the whole installation, and the token is restricted to %s", what, v.restriction())
}

func (v *View) restriction() string { return access.LabelText(v.bounds.Labels) }

// labelled adds what the caller is restricted to to labels that are asked for.
func (v *View) labelled(labels map[string]string) (map[string]string, error) {
	if !v.restricted() {
		return labels, nil
	}
	out := map[string]string{}
	maps.Copy(out, labels)
	for k, own := range v.bounds.Labels {
		if asked, ok := out[k]; ok && asked != own {
			return nil, cell.Errorf(cell.Denied, "engine.View", "leave it out, or use another token", "cannot label with %s=%s: the token is restricted to %s", clip(k), clip(asked), v.restriction())
		}
		out[k] = own
	}
	return out, nil
}

// shown is a cell without what the caller does not see of it.
func (v *View) shown(c api.Cell) api.Cell {
	if !v.restricted() || c.Parent == nil || v.sees(cell.ID(c.Parent.Cell)) {
		return c
	}
	if up, err := v.e.reg.Cell(cell.ID(c.Parent.Cell)); err == nil && up.Template != "" {
		if t, err := v.e.reg.Template(up.Template); err == nil && t.Cell == up.ID && v.seesTemplate(&t) {
			return c
		}
	}
	c.Parent = nil
	return c
}

// shownAll is shown for several.
func (v *View) shownAll(cells []api.Cell) []api.Cell {
	if v.restricted() {
		for i := range cells {
			cells[i] = v.shown(cells[i])
		}
	}
	return cells
}

// titles are the names of the cells among list that the caller sees.
func (v *View) titles(list []state.Cell) []string {
	out := []string{}
	for _, c := range list {
		if v.sees(c.ID) {
			out = append(out, c.Title())
		}
	}
	return out
}

// onCell does something with a cell that the caller sees.
func onCell[T any](v *View, id cell.ID, do func() (T, error)) (out T, err error) {
	if err := v.must(id); err != nil {
		return out, err
	}
	return do()
}

// entered does something in a cell that the caller may enter.
func entered[T any](v *View, id cell.ID, do func() (T, error)) (out T, err error) {
	if err := v.Enter(id); err != nil {
		return out, err
	}
	return do()
}

// onRun does something with a run that the caller sees.
func onRun[T any](v *View, id cell.RunID, do func() (T, error)) (out T, err error) {
	if err := v.mustRun(id); err != nil {
		return out, err
	}
	return do()
}

// onTarget does something with a cell or a run that the caller sees.
func onTarget[T any](v *View, t result.Target, do func() (T, error)) (out T, err error) {
	if t.Run != "" {
		err = v.mustRun(t.Run)
	} else {
		err = v.must(t.Cell)
	}
	if err != nil {
		return out, err
	}
	return do()
}

// cellOn is onCell for what shows the cell.
func cellOn(v *View, id cell.ID, do func() (api.Cell, error)) (api.Cell, error) {
	c, err := onCell(v, id, do)
	return v.shown(c), err
}

// Busy: see Engine.
func (v *View) Busy() bool { return v.e.Busy() }

// User: see Engine.
func (v *View) User() cell.User { return v.e.User() }

// HomePlace: see Engine.
func (v *View) HomePlace(asked string) string { return v.e.HomePlace(asked) }

// PublicKey: see evidence.Manager.
func (v *View) PublicKey() []byte { return v.e.evidence.PublicKey() }

// Cell: see Engine.
func (v *View) Cell(id cell.ID) (api.Cell, error) {
	return cellOn(v, id, func() (api.Cell, error) { return v.e.Cell(id) })
}

// Record: see Engine.
func (v *View) Record(id cell.ID) (api.Cell, error) {
	return cellOn(v, id, func() (api.Cell, error) { return v.e.Record(id) })
}

// Limits: see Engine.
func (v *View) Limits(id cell.ID) cell.Limits {
	if !v.sees(id) {
		return cell.Limits{}
	}
	return v.e.Limits(id)
}

// LeasedEnv: see Engine.
func (v *View) LeasedEnv(id cell.ID) []string {
	if !v.sees(id) {
		return nil
	}
	return v.e.alive.LeasedEnv(id)
}

// Create: see Engine.
func (v *View) Create(ctx context.Context, req api.CreateRequest) (_ api.Cell, err error) {
	if err := v.e.gc.Room(); err != nil {
		return api.Cell{}, err
	}
	if req.Labels, err = v.labelled(req.Labels); err != nil {
		return api.Cell{}, err
	}
	if err := v.mayImport(req.From, req.Upload); err != nil {
		return api.Cell{}, err
	}
	ctx, done, err := v.making(ctx, 1+len(req.Services), req.Labels)
	if err != nil {
		return api.Cell{}, err
	}
	defer done()
	c, err := v.e.Create(ctx, req)
	return v.shown(c), err
}

// Lease: see Engine. The labels that the caller is restricted to stay, and no cell
// is given more time than the caller may give.
func (v *View) Lease(ctx context.Context, id cell.ID, req api.LeaseRequest, seen ...Seen) (_ api.Cell, err error) {
	if err := v.Enter(id); err != nil {
		return api.Cell{}, err
	}
	if req.Labels != nil {
		if req.Labels, err = v.labelled(req.Labels); err != nil {
			return api.Cell{}, err
		}
	}
	c, err := v.e.Lease(v.with(ctx), id, req, seen...)
	return v.shown(c), err
}

// LeaseLike: see Engine. As with Lease, what binds the caller stays.
func (v *View) LeaseLike(ctx context.Context, of cell.ID, period string, ids ...cell.ID) error {
	for _, id := range append([]cell.ID{of}, ids...) {
		if err := v.Enter(id); err != nil {
			return err
		}
	}
	return v.e.alive.LeaseLike(of, makerOf(v.with(ctx)), period, ids...)
}

// Park: see Engine.
func (v *View) Park(ctx context.Context, id cell.ID) (bool, error) {
	return onCell(v, id, func() (bool, error) { return v.e.alive.Park(ctx, id) })
}

// Unpark: see Engine.
func (v *View) Unpark(ctx context.Context, id cell.ID) (bool, error) {
	return entered(v, id, func() (was bool, err error) {
		done, err := v.goingOn(ctx, id)
		if err != nil {
			return false, err
		}
		defer done()
		return v.e.alive.Unpark(ctx, id)
	})
}

// Pause: see Engine.
func (v *View) Pause(ctx context.Context, id cell.ID) (api.Cell, error) {
	return cellOn(v, id, func() (api.Cell, error) { return v.e.Pause(ctx, id) })
}

// Resume: see Engine.
func (v *View) Resume(ctx context.Context, id cell.ID) (api.Cell, error) {
	if err := v.Enter(id); err != nil {
		return api.Cell{}, err
	}
	return cellOn(v, id, func() (api.Cell, error) {
		done, err := v.goingOn(ctx, id)
		if err != nil {
			return api.Cell{}, err
		}
		defer done()
		return v.e.Resume(ctx, id)
	})
}

// Stop: see Engine.
func (v *View) Stop(ctx context.Context, id cell.ID) (api.Cell, error) {
	return v.StopWithin(ctx, id, api.StopGrace)
}

// StopWithin: see Engine.
func (v *View) StopWithin(ctx context.Context, id cell.ID, grace time.Duration) (api.Cell, error) {
	return cellOn(v, id, func() (api.Cell, error) {
		stop := func() (api.Cell, error) { return v.e.StopWithin(ctx, id, grace) }
		if v.token == "" { // the user frees the memory of any cell at once
			return stop()
		}
		return goesOn(ctx, v, id, stop)
	})
}

// Remove: see Engine.
func (v *View) Remove(ctx context.Context, id cell.ID, dry bool) (api.Cell, error) {
	return cellOn(v, id, func() (api.Cell, error) {
		if err := v.e.ofService(id); err != nil {
			return api.Cell{}, err
		}
		return v.e.Remove(ctx, id, dry)
	})
}

// Regovern: see govern.Manager.SetPolicy.
func (v *View) Regovern(ctx context.Context, id cell.ID, text string) error {
	if err := v.Enter(id); err != nil {
		return err
	}
	return v.e.govern.SetPolicy(ctx, id, text, v.isConfined() && !v.operators)
}

// Processes: see Engine.
func (v *View) Processes(ctx context.Context, id cell.ID) ([]api.Process, error) {
	return onCell(v, id, func() ([]api.Process, error) { return v.e.alive.Processes(ctx, id) })
}

// Stats: see Engine.
func (v *View) Stats(ctx context.Context, id cell.ID) (api.Stats, error) {
	return onCell(v, id, func() (api.Stats, error) { return v.e.Stats(ctx, id) })
}

// AllStats: see Engine.
func (v *View) AllStats(ctx context.Context) (api.Overview, error) {
	out, err := v.e.AllStats(ctx)
	out.Ceilings, out.Waiting = v.Ceilings()
	if err != nil || !v.restricted() {
		return out, err
	}
	out.Templates = slices.DeleteFunc(out.Templates, func(u api.TemplateUse) bool { return v.mustTemplate(u.Template, false) != nil })
	out.Host.Pooled = 0
	for i := range out.Templates {
		u := &out.Templates[i]
		out.Host.Pooled += u.Ready
		u.Cells = len(v.titles(v.e.spawn.Dependents(u.Template)))
		if v.mustTemplate(u.Template, true) != nil {
			u.Hits, u.Misses = 0, 0
		}
	}
	out.Stats = slices.DeleteFunc(out.Stats, func(s api.Stats) bool { return !v.sees(cell.ID(s.Cell)) })
	out.Cells = map[string]int{}
	for k, n := range v.Standing() {
		out.Cells[k[0]] += n
	}
	return out, nil
}

// History: see Engine.
func (v *View) History(id cell.ID) ([]api.Checkpoint, error) {
	return onCell(v, id, func() ([]api.Checkpoint, error) { return v.e.History(id) })
}

// Checkpoint: see Engine.
func (v *View) Checkpoint(ctx context.Context, id cell.ID, req api.CheckpointRequest) (api.Checkpoint, error) {
	return entered(v, id, func() (out api.Checkpoint, err error) {
		if err := v.e.gc.Room(); err != nil {
			return out, err
		}
		return v.e.Checkpoint(ctx, id, req)
	})
}

// NameCheckpoint: see Engine.
func (v *View) NameCheckpoint(ctx context.Context, id cell.ID, number int, message string) (api.Checkpoint, error) {
	return onCell(v, id, func() (api.Checkpoint, error) { return v.e.NameCheckpoint(ctx, id, number, message) })
}

// RemoveCheckpoint: see Engine.
func (v *View) RemoveCheckpoint(ctx context.Context, id cell.ID, number int) error {
	if err := v.must(id); err != nil {
		return err
	}
	return v.e.RemoveCheckpoint(ctx, id, number)
}

// Fork: see spawn.Manager.
func (v *View) Fork(ctx context.Context, id cell.ID, req api.ForkRequest) (api.ForkResult, error) {
	return entered(v, id, func() (api.ForkResult, error) {
		if err := v.e.gc.Room(); err != nil {
			return api.ForkResult{}, err
		}
		n, err := v.e.copyCount(id, req.Count)
		if err != nil {
			return api.ForkResult{}, err
		}
		ctx, done, err := v.making(ctx, n, v.e.labelsOf(id))
		if err != nil {
			return api.ForkResult{}, err
		}
		defer done()
		ctx, a := v.e.act(ctx, "fork", id)
		defer a.over(&err)
		began := time.Now()
		res, err := v.e.spawn.Fork(ctx, id, req)
		a.say(attribute.Int("pando.forks", len(res.Cells)))
		for _, c := range res.Cells {
			v.e.figures.note(v.e.figures.forks, timingKey{backend: c.Backend, from: fromCheckpoint}, time.Since(began))
		}
		res.Cells = v.shownAll(res.Cells)
		return res, err
	})
}

// Branch: see spawn.Manager.
func (v *View) Branch(ctx context.Context, id cell.ID, req api.BranchRequest) (api.BranchResult, error) {
	return entered(v, id, func() (api.BranchResult, error) {
		n, err := v.e.copyCount(id, req.Count)
		if err != nil {
			return api.BranchResult{}, err
		}
		ctx, done, err := v.making(ctx, n, v.e.labelsOf(id))
		if err != nil {
			return api.BranchResult{}, err
		}
		defer done()
		ctx, a := v.e.act(ctx, "branch", id)
		defer a.over(&err)
		res, err := v.e.spawn.Branch(ctx, id, req)
		if res.PauseMS > 0 {
			a.say(attribute.Float64("pando.pause_ms", res.PauseMS), attribute.Int("pando.branches", len(res.Cells)))
			v.e.figures.paused(v.e.reg, id, res.PauseMS)
		}
		res.Cells = v.shownAll(res.Cells)
		return res, err
	})
}

// Execs: see live.Manager.
func (v *View) Execs(id cell.ID) ([]api.Exec, error) {
	return onCell(v, id, func() ([]api.Exec, error) { return v.e.alive.Execs(id) })
}

// SignalExec: see live.Manager.
func (v *View) SignalExec(ctx context.Context, id, signal string) (api.Exec, error) {
	if err := v.enterExec(id); err != nil {
		return api.Exec{}, err
	}
	return v.e.alive.SignalExec(ctx, id, signal)
}

// StartExec: see Engine.
func (v *View) StartExec(ctx context.Context, id cell.ID, req api.ExecRequest) (api.Exec, error) {
	return entered(v, id, func() (api.Exec, error) { return v.e.StartExec(ctx, id, req) })
}

// Exec is what is known of a command outside runs.
func (v *View) Exec(id string) (api.Exec, error) {
	if err := v.mustExec(id); err != nil {
		return api.Exec{}, err
	}
	return v.e.alive.ShowExec(id)
}

// AttachExec: see Engine.
func (v *View) AttachExec(id string, input bool) (*run.Attachment, error) {
	if err := v.enterExec(id); err != nil {
		return nil, err
	}
	return v.e.AttachExec(id, input)
}

// StartRun: see Engine.
func (v *View) StartRun(ctx context.Context, req api.RunRequest) (api.Run, error) {
	if err := v.e.gc.Room(); err != nil {
		return api.Run{}, err
	}
	return v.e.StartRun(v.with(ctx), req)
}

// Plan: see Engine.
func (v *View) Plan(ctx context.Context, req api.RunRequest) (api.Plan, error) {
	return v.e.Plan(v.with(ctx), req)
}

// Run: see Engine.
func (v *View) Run(id cell.RunID) (api.Run, error) {
	return onRun(v, id, func() (api.Run, error) { return v.e.Run(id) })
}

// Runs: see Engine.
func (v *View) Runs(id cell.ID) []api.Run {
	return slices.DeleteFunc(v.e.Runs(id), func(r api.Run) bool { return !v.sees(cell.ID(r.Cell)) })
}

// WaitRun: see run.Manager.
func (v *View) WaitRun(ctx context.Context, id cell.RunID) (api.Run, error) {
	return onRun(v, id, func() (api.Run, error) { return v.e.runs.Wait(ctx, id) })
}

// AttachRun: see run.Manager.
func (v *View) AttachRun(id cell.RunID, input bool) (*run.Attachment, error) {
	if err := v.enterRun(id); err != nil {
		return nil, err
	}
	a, err := v.e.runs.Attach(id, input)
	if err != nil || !input {
		return a, err
	}
	if r, err := v.e.reg.Run(id); err == nil { // the run knows of the client by now, so it stays awake
		if err := v.e.alive.Rouse(v.e.life, r.CellID()); err != nil {
			a.Release(false)
			return nil, err
		}
	}
	return a, nil
}

// Interrupt: see run.Manager.
func (v *View) Interrupt(id cell.RunID, why string) error {
	if err := v.mustRun(id); err != nil {
		return err
	}
	v.e.runs.Interrupt(id, why)
	return nil
}

// Log: see evidence.Manager.
func (v *View) Log(id cell.RunID, name string) (*os.File, error) {
	return onRun(v, id, func() (*os.File, error) { return v.e.evidence.Log(id, name) })
}

// Events: see evidence.Manager.
func (v *View) Events(ctx context.Context, id cell.RunID, q evidence.EventQuery) (iter.Seq2[json.RawMessage, error], error) {
	return onRun(v, id, func() (iter.Seq2[json.RawMessage, error], error) { return v.e.evidence.Events(ctx, id, q) })
}

// Export: see evidence.Manager.
func (v *View) Export(id cell.RunID, w io.Writer) error {
	if err := v.mustRun(id); err != nil {
		return err
	}
	return v.e.evidence.Export(id, w)
}

// ReplayPolicy: see evidence.Manager.
func (v *View) ReplayPolicy(ctx context.Context, id cell.RunID, req api.PolicyReplayRequest) (api.PolicyReplay, error) {
	return onRun(v, id, func() (api.PolicyReplay, error) { return v.e.evidence.ReplayPolicy(ctx, id, req) })
}

// ShowPolicy: see govern.Manager.
func (v *View) ShowPolicy(ctx context.Context, req api.PolicyRequest) (api.Policy, error) {
	return v.e.govern.Show(ctx, v, req)
}

// WhyPolicy: see govern.Manager.
func (v *View) WhyPolicy(req api.PolicyRequest) (api.PolicyAnswer, error) {
	return v.e.govern.Why(v, req)
}

// DiffPolicies: see govern.Manager.
func (v *View) DiffPolicies(req api.PolicyDiffRequest) (api.PolicyDiff, error) {
	return v.e.govern.Diff(v, req)
}

// CheckPolicy: see govern.Manager.
func (v *View) CheckPolicy(req api.PolicyCheckRequest) (api.PolicyCheck, error) {
	return v.e.govern.Check(req)
}

// AllowPolicy: see govern.Manager.
func (v *View) AllowPolicy(req api.PolicyAllowRequest) (api.PolicyAllowed, error) {
	if err := v.whole("allowing a policy"); err != nil {
		return api.PolicyAllowed{}, err
	}
	return v.e.govern.Allow(req)
}

// AllowedPolicies: see govern.Manager.
func (v *View) AllowedPolicies() ([]api.PolicyAllowed, error) {
	if err := v.whole("the policies that were allowed"); err != nil {
		return nil, err
	}
	return v.e.govern.Allowed()
}
