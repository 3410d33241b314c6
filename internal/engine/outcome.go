package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
)

// The kinds of outcomes that no receipt tells of: see operation.Outcome.
const (
	madeCell = "made a cell"
	madeRun  = "started a run"
)

// Outcome returns what became of a request that an earlier daemon began and did not end: the
// answer, of the type that its route has, as far as records have it and the caller sees what they
// name. A NotFound error says that it was done, and that the caller does not see what it made; any
// other that it was not done.
func (v *View) Outcome(request string, route any) (any, error) {
	f := &remade{v: v, list: v.e.reg.Outcomes(request)}
	if out, err := f.answer(route); out != nil || err != nil {
		return out, err
	}
	const opName = "engine.Outcome"
	for _, o := range f.list {
		if o.Phase == operation.GivenUp {
			return nil, cell.Errorf(cell.Unavailable, opName, "look at why, then send it again", "it was begun by a daemon that ended, and could not be finished: %s", o.Error)
		}
	}
	if len(f.list) > 0 { // a template was warmed, or what was applied taken back
		return nil, cell.Errorf(cell.Unavailable, opName, "send it again: it goes on from there", "it was not finished: the daemon ended in the middle")
	}
	switch route.(type) {
	case api.RestoreResult, api.DiscardResult, api.SyncResult:
		return nil, cell.Errorf(cell.Unavailable, opName, "send it again", "it was not done: the daemon ended first; the files of the cell are as they were, but what ran in it may have ended")
	}
	return nil, cell.Errorf(cell.Unavailable, opName, "send it again", "it was not done: the daemon ended first, and nothing was changed")
}

// SettleRequest forgets what records say of a request, which has its answer.
func (e *Engine) SettleRequest(id string) {
	e.reg.SettleRequests(func(request string) bool { return request == id })
}

// SettleAllBut is SettleRequest for all requests but those that an earlier daemon did not end.
func (e *Engine) SettleAllBut(open []string) {
	e.reg.SettleRequests(func(request string) bool { return !slices.Contains(open, request) })
}

// remade makes the answer of a request out of what it has made.
type remade struct {
	v    *View
	list []operation.Redo
}

// answer is nil if the request did not come to its end.
func (f *remade) answer(route any) (any, error) {
	switch route.(type) {
	case api.Cell:
		if id := made[cell.ID](f, madeCell); id != "" {
			return f.cell(string(id)), nil
		}
	case api.Run:
		if id := made[cell.RunID](f, madeRun); id != "" {
			return found(f.v.Run(id))
		}
	case api.Race:
		if id := made[cell.RaceID](f, madeRace); id != "" {
			return found(f.v.Race(id))
		}
	case api.Template:
		if b, _ := f.batch(state.BatchBuild); b != nil {
			return found(f.v.Template(b.Template))
		}
	case api.ForkResult:
		return f.fork(), nil
	case api.WarmForkResult:
		return f.warmFork(), nil
	case api.BranchResult:
		return f.branch(), nil
	case api.AcceptResult:
		return f.accept(), nil
	case api.RevertResult:
		return f.revert(), nil
	case api.RestoreResult:
		return f.restore(), nil
	case api.DiscardResult:
		return f.discard(), nil
	case api.SyncResult:
		return f.sync(), nil
	}
	return nil, nil
}

// found is what a request has made, or the error that the caller does not see it.
func found[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, fmt.Errorf("what it made is not there any more: %w", err)
	}
	return v, nil
}

// made is what an outcome of a kind names; "" for none.
func made[T ~string](f *remade, kind string) (id T) {
	for _, o := range f.list {
		if o.Kind == kind && json.Unmarshal(o.Args, &id) == nil {
			return id
		}
	}
	return ""
}

// act returns the act of one of these names that was sealed, with its receipt; nil for none.
func (f *remade) act(names ...string) (*state.Act, string) {
	for _, o := range f.list {
		if t, ok := evidence.ToldBy(&o); ok && t.Act != nil && o.Phase == operation.Done && slices.Contains(names, t.Act.Act) {
			return t.Act, f.v.e.evidence.ReceiptOf(t)
		}
	}
	return nil, ""
}

// batch is act for a batch. It is done with its records, whatever became of its receipt, unless
// its cells were removed because the request failed.
func (f *remade) batch(name string) (*evidence.Batch, string) {
	for _, o := range f.list {
		if t, ok := evidence.ToldBy(&o); ok && t.Batch != nil && t.Batch.Act == name && !f.isTakenBack(t.Batch) {
			return t.Batch, f.v.e.evidence.ReceiptOf(t)
		}
	}
	return nil, ""
}

// isTakenBack reports whether the cells of a batch were removed because the request failed. Its
// repetition may have made others.
func (f *remade) isTakenBack(b *evidence.Batch) bool {
	for _, o := range f.list {
		var ids []string
		if o.Kind == spawn.OpTakeBack && json.Unmarshal(o.Args, &ids) == nil &&
			slices.ContainsFunc(b.Cells, func(c state.BatchCell) bool { return slices.Contains(ids, c.Cell) }) {
			return true
		}
	}
	return false
}

// cell is a cell as it is now; one that is gone, or that the caller does not see any more, has its
// id.
func (f *remade) cell(id string) api.Cell {
	c, err := f.v.cell(cell.ID(id))
	if err != nil {
		return api.Cell{ID: id, Name: id, Anonymous: true, State: string(cell.Removed), Isolation: api.IsolationOf(""), Downgrades: []string{}, LeftOut: []api.LeftOut{}}
	}
	return f.v.shown(f.v.e.cellView(&c))
}

// runs are the runs that an act has decided, and that the caller sees.
func (f *remade) runs(a *state.Act) []api.Run {
	out := []api.Run{}
	for _, d := range a.Runs {
		if r, err := f.v.Run(cell.RunID(d.Run)); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// lostAnswers is the note of forks that were made, and asked something by a daemon that ended.
const lostAnswers = "the daemon ended after the cells were made: what they answered, if they were asked something, is lost"

func (f *remade) fork() any {
	if b, receipt := f.batch(state.BatchFork); b != nil { // of a checkpoint with memory
		out := api.ForkResult{Took: b.Took, Dropped: b.Dropped, Receipt: receipt}
		out.Inherited, out.Renewed = generators(b)
		for _, c := range b.Cells {
			out.Cells = append(out.Cells, f.cell(c.Cell))
		}
		return out
	}
	a, receipt := f.act("fork")
	if a == nil {
		return nil
	}
	out := api.ForkResult{Took: "files", Dropped: "memory, processes, home and /tmp", Receipt: receipt}
	for _, id := range a.Children {
		out.Cells = append(out.Cells, f.cell(id))
		if c, err := f.v.cell(cell.ID(id)); err == nil && c.Home != nil {
			out.Took, out.Dropped = "files and home", "memory, processes and /tmp"
		}
	}
	return out
}

func (f *remade) warmFork() any {
	b, receipt := f.batch(state.BatchFork)
	if b == nil {
		return nil
	}
	out := api.WarmForkResult{Template: b.Template, Forks: []api.WarmFork{}, Took: b.Took, Dropped: b.Dropped, Notes: []string{lostAnswers}, Receipt: receipt}
	out.Inherited, out.Renewed = generators(b)
	for _, c := range b.Cells {
		if c.Ahead {
			out.Hits++
		}
		out.Forks = append(out.Forks, api.WarmFork{Cell: f.cell(c.Cell), Hit: c.Ahead})
	}
	for _, why := range b.Failed {
		out.Notes = append(out.Notes, "it could not be made: "+why)
	}
	return out
}

func (f *remade) branch() any {
	b, receipt := f.batch(state.BatchBranch)
	if b == nil || len(b.Cells) == 0 { // the source went on without any
		return nil
	}
	out := api.BranchResult{Source: b.Cell, PauseMS: b.PauseMS, MemoryTaken: b.MemoryTaken, Took: b.Took, Dropped: []string{}, Receipt: receipt}
	if b.From != nil {
		out.Checkpoint = b.From.Number
	}
	out.Inherited, out.Renewed = generators(b)
	for _, c := range b.Cells {
		out.Cells = append(out.Cells, f.cell(c.Cell))
		if i := f.v.e.reg.Interp(cell.ID(c.Cell)); i != nil {
			out.Depth = i.Depth
		}
		if c.Certificate != nil {
			out.Dropped = withAll(out.Dropped, c.Certificate.Dropped)
		}
	}
	return out
}

func (f *remade) accept() any {
	a, receipt := f.act("accept")
	if a == nil {
		return nil
	}
	out := api.AcceptResult{Cell: a.Cell, CellName: cmp.Or(a.CellName, a.Cell), Isolation: api.IsolationOf(a.Backend), Source: a.Source, Runs: f.runs(a), Digest: a.Digest, Receipt: receipt,
		Applied: append([]string{}, a.Applied...), Merged: []api.Merged{}, Held: []api.Held{}, First: []api.Look{}, Kept: []string{}, Parts: a.Parts, Left: a.Left, During: string(a.During)}
	if a.During != "" && a.To != nil {
		if k, err := f.v.e.reg.Checkpoint(cell.CheckpointID(a.To.Checkpoint)); err == nil {
			out.Looked = k.Created
		}
	}
	if a.Left > 0 { // they wait
		out.Runs = []api.Run{}
	}
	for _, h := range a.Held {
		out.Held = append(out.Held, api.Held(h))
	}
	for _, f := range a.Merged {
		out.Merged = append(out.Merged, api.Merged(f))
	}
	if h := a.Head; h != nil {
		out.Head = &api.HeadMoved{Source: h.Source, Was: api.GitHead(h.Was), Now: api.GitHead(h.Now), OtherFiles: h.OtherFiles}
	}
	return out
}

func (f *remade) revert() any {
	a, receipt := f.act(result.OpRevert)
	if a == nil {
		return nil
	}
	return api.RevertResult{Cell: f.cell(a.Cell), CellName: cmp.Or(a.CellName, a.Cell), Source: a.Source, Runs: f.runs(a),
		Reverted: append([]string{}, a.Reverted...), Already: append([]string{}, a.Already...), Receipt: receipt}
}

func (f *remade) restore() any {
	a, receipt := f.act("restore", "reopen")
	if a == nil || a.To == nil {
		return nil
	}
	out := api.RestoreResult{Cell: f.cell(a.Cell), Number: a.To.Number, Lost: append([]string{}, a.Lost...), Proof: a.Proof, TreeDigest: a.To.TreeDigest, Receipt: receipt}
	for _, d := range a.Runs {
		if d.Verdict == cell.Pending {
			out.Reopened = append(out.Reopened, d.Run)
		}
	}
	if back, _ := f.act(result.OpRevert); back != nil {
		out.Reverted = back.Reverted
	}
	if k, err := f.v.e.reg.Checkpoint(cell.CheckpointID(a.To.Checkpoint)); err == nil && k.Memory != nil {
		out.Memory = api.MemoryRestored
		if f.v.e.alive.Instance(cell.ID(a.Cell)) == nil {
			out.Memory = "the daemon ended before the cell went on: nothing runs in it"
		}
	}
	return out
}

func (f *remade) discard() any {
	a, receipt := f.act("discard")
	if a == nil {
		return nil
	}
	out := api.DiscardResult{Cell: f.cell(a.Cell), CellName: cmp.Or(a.CellName, a.Cell), Runs: f.runs(a), Receipt: receipt}
	if a.To != nil {
		out.Number = a.To.Number
		if a.From != nil && a.From.Checkpoint != a.To.Checkpoint {
			out.Kept = a.From.Number
		}
	} else if c, err := f.v.cell(cell.ID(a.Cell)); err == nil { // it gave up what was kept: the head stays
		out.Number = f.v.e.reg.HeadNumber(&c)
	}
	return out
}

func (f *remade) sync() any {
	a, receipt := f.act(result.OpSync)
	if a == nil || a.From == nil || a.To == nil {
		return nil
	}
	out := api.SyncResult{Cell: a.Cell, CellName: cmp.Or(a.CellName, a.Cell), Source: a.Source, Synced: append([]string{}, a.Synced...), Merged: []api.Merged{},
		Before: a.From.Number, Number: a.To.Number, Receipt: receipt}
	for _, m := range a.Merged {
		out.Merged = append(out.Merged, api.Merged(m))
	}
	return out
}

// generators names the random number generators that the cells of a batch have in common, and
// those that were renewed.
func generators(b *evidence.Batch) (inherited, renewed []string) {
	for _, c := range b.Cells {
		if c.Certificate != nil {
			inherited, renewed = withAll(inherited, c.Certificate.Inherited()), withAll(renewed, c.Certificate.Renewed())
		}
	}
	return inherited, renewed
}

// withAll adds to a list what it does not have.
func withAll(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
