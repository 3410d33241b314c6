package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Cell shows a cell.
func (e *Engine) Cell(id cell.ID) (api.Cell, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return api.Cell{}, err
	}
	v := e.cellView(&c)
	if cert := e.evidence.Certificate(&c); cert != nil {
		v.Certificate, _ = json.Marshal(cert)
	}
	if v.Interpreter != nil {
		e.lookInside(&c, v.Interpreter)
	}
	return v, nil
}

// Record is Cell without what only the cell itself and the ledger can tell: its
// processes, its assurance, its certificate. It asks no keeper, and takes no time.
func (e *Engine) Record(id cell.ID) (api.Cell, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return api.Cell{}, err
	}
	return e.recordView(&c), nil
}

// Run shows a run.
func (e *Engine) Run(id cell.RunID) (api.Run, error) {
	r, err := e.reg.Run(id)
	return e.runView(r), err
}

// runView is what is told of a run now.
func (e *Engine) runView(r state.Run) api.Run {
	v := r.API()
	v.Detached = e.runs.Detached(&r)
	return v
}

// Runs lists runs of a cell, or of all for "", newest first.
func (e *Engine) Runs(id cell.ID) []api.Run {
	out := []api.Run{}
	for _, r := range e.reg.Runs(id) {
		out = append(out, e.runView(r))
	}
	return out
}

// History lists a cell's checkpoints by number.
func (e *Engine) History(id cell.ID) ([]api.Checkpoint, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return nil, err
	}
	out := []api.Checkpoint{}
	for _, k := range e.reg.Checkpoints(id) {
		out = append(out, e.checkpointView(&k, &c))
	}
	return out, nil
}

func (e *Engine) cellView(c *state.Cell) api.Cell {
	v := e.recordView(c)
	if inst := e.alive.Instance(c.ID); inst != nil {
		a := state.AssuranceOf(inst.Assurance()).API()
		v.Assurance = &a
		v.Downgrades = append(append([]string{}, inst.Assurance().Downgrades...), v.Downgrades...)
		if list, err := inst.List(context.Background()); err == nil {
			v.Processes = len(list)
		}
	}
	return v
}

// recordView is what the registry says of a cell.
func (e *Engine) recordView(c *state.Cell) api.Cell {
	v := api.Cell{
		ID: string(c.ID), Name: c.Title(), Anonymous: c.Anonymous(), State: string(c.State), Cause: c.Cause, Source: c.Source, Repositories: c.Repositories,
		Backend: c.Backend, Isolation: api.IsolationOf(c.Backend), Image: c.Image, ImageID: c.ImageID, Created: c.Created, Expires: c.Expires, Hold: c.Hold.API(), Runs: len(e.reg.Runs(c.ID)),
		Agent: c.Agent, LatestRun: string(e.latestRun(c.ID)), Provider: api.Provider{Name: c.Provider, Why: c.WhyNot},
		Downgrades: orEmpty(c.Setup.Downgrades), LeftOut: state.LeftOutAPI(leftOutOf(c.LeftOut, c.Setup.Hidden)), Policy: c.Setup.Policy.String(),
		Checkpoints: len(e.reg.Checkpoints(c.ID)), Head: e.reg.HeadNumber(c),
	}
	e.viewServices(c, &v)
	v.Labels, v.Lease = e.leaseView(c.ID)
	v.Budget = e.govern.BudgetView(c)
	for i, r := range e.reg.Runs(c.ID) {
		if i == 0 {
			v.Verdict = string(r.Verdict)
		}
		if e.runs.Detached(&r) {
			v.Detached = r.ID
		}
		if r.Verdict == cell.Pending {
			v.Pending = append(v.Pending, r.ID)
		}
	}
	v.Parent, v.Interpreter, v.Template = e.parentView(c), e.interpView(c), c.Template
	return v
}

func (e *Engine) checkpointView(k *state.Checkpoint, c *state.Cell) api.Checkpoint {
	v := api.Checkpoint{
		ID: string(k.ID), Cell: string(k.Cell), Isolation: api.IsolationOf(c.Backend), Number: k.Number, Kind: k.Kind, Run: string(k.Run), Message: k.Message, Turn: k.Turn, Home: k.Home != nil || k.Memory != nil, Created: k.Created,
		Expires: k.Expires, TreeDigest: k.Tree.String(), ContentDigest: k.Content.String(), Layers: len(k.State.Layers), Head: c.Head == k.ID,
		TookMS: k.TookMS, Under: k.Under, Memory: k.Memory != nil, PauseMS: k.PauseMS, MemoryTaken: k.MemoryTaken,
	}
	if up, err := e.reg.Checkpoint(k.Parent); err == nil && up.Cell == k.Cell {
		v.Parent = up.Number
	}
	return v
}

// Tree is the family of a cell, or of all cells for "", as trees.
func (v *View) Tree(id cell.ID) ([]api.TreeNode, error) {
	e := v.e
	all := map[cell.ID]state.Cell{}
	e.reg.Look(func(now state.Records) {
		for c := range now.Cells() {
			all[c.ID] = *c
		}
	})
	maps.DeleteFunc(all, func(id cell.ID, _ state.Cell) bool { return !v.sees(id) })
	children := map[cell.ID][]cell.ID{}
	var roots []cell.ID
	for cid, c := range all {
		if c.Parent != nil {
			if _, ok := all[c.Parent.Cell]; ok {
				children[c.Parent.Cell] = append(children[c.Parent.Cell], cid)
				continue
			}
		}
		roots = append(roots, cid)
	}
	if id != "" {
		c, err := v.cell(id)
		if err != nil {
			return nil, err
		}
		for c.Parent != nil { // up to the founder
			up, ok := all[c.Parent.Cell]
			if !ok {
				break
			}
			c = up
		}
		roots = []cell.ID{c.ID}
	}
	older := func(list []cell.ID) {
		slices.SortFunc(list, func(a, b cell.ID) int {
			return cmp.Or(all[a].Created.Compare(all[b].Created), cell.CompareNames(all[a].Name, all[b].Name))
		})
	}
	var build func(cell.ID) (api.TreeNode, bool)
	build = func(cid cell.ID) (api.TreeNode, bool) {
		c := all[cid]
		n := api.TreeNode{Cell: v.shown(e.cellView(&c)), Checkpoints: []api.Checkpoint{}, Children: []api.TreeNode{}}
		kids := children[cid]
		older(kids)
		for _, k := range kids {
			if child, ok := build(k); ok {
				n.Children = append(n.Children, child)
			}
		}
		for _, k := range e.reg.Checkpoints(cid) {
			n.Checkpoints = append(n.Checkpoints, e.checkpointView(&k, &c))
		}
		return n, c.State != cell.Removed || len(n.Children) > 0
	}
	older(roots)
	out := []api.TreeNode{}
	for _, r := range roots {
		if n, ok := build(r); ok {
			out = append(out, n)
		}
	}
	return out, nil
}

// redactor hides what looks like a live token in what we write about a run.
var redactor receipt.Redactor

func redactArgs(args []string) []string { return redactor.Args(args) }

func join(list []string) string {
	if len(list) > 5 {
		list = append(append([]string{}, list[:5]...), "…")
	}
	return strings.Join(list, ", ")
}

// briefView is a cell that was just made, without looking into it.
func (e *Engine) briefView(c *state.Cell) api.Cell {
	labels, lease := e.leaseView(c.ID)
	return api.Cell{
		ID: string(c.ID), Name: c.Title(), Anonymous: c.Anonymous(), State: string(c.State), Source: c.Source, Repositories: c.Repositories, Backend: c.Backend, Isolation: api.IsolationOf(c.Backend), Image: c.Image,
		Created: c.Created, Provider: api.Provider{Name: c.Provider, Why: c.WhyNot}, Downgrades: orEmpty(c.Setup.Downgrades), LeftOut: state.LeftOutAPI(leftOutOf(c.LeftOut, c.Setup.Hidden)),
		Policy: c.Setup.Policy.String(), Checkpoints: 1, Head: 1, Parent: e.parentView(c), Interpreter: e.interpView(c),
		Labels: labels, Lease: lease,
	}
}

// interpView is what is recorded of a cell's interpreter.
func (e *Engine) interpView(c *state.Cell) *api.Interpreter {
	i := e.reg.Interp(c.ID)
	if i == nil {
		return nil
	}
	v := &api.Interpreter{Kind: i.Kind, Version: i.Version, Started: i.Started, Depth: i.Depth, Ended: i.Ended, Template: i.Template}
	if v.Ended == "" && e.alive.AtRest(c.ID) {
		v.Ended = orElse(c.Cause, state.PutToRest)
	}
	return v
}

// lookInside adds what the interpreter itself says.
func (e *Engine) lookInside(c *state.Cell, v *api.Interpreter) {
	w, ok := e.alive.Instance(c.ID).(backend.Warmer)
	if !ok || v.Ended != "" {
		return
	}
	if st, err := w.Warmth(e.life); err == nil {
		v.PID, v.Evals, v.Depth, v.Memory, v.Busy = st.PID, st.Evals, st.Depth, st.Memory, st.Busy
	}
}

// parentView is where a cell was forked from.
func (e *Engine) parentView(c *state.Cell) *api.Parent {
	if c.Parent == nil {
		return nil
	}
	v := &api.Parent{Cell: string(c.Parent.Cell), Checkpoint: string(c.Parent.Checkpoint)}
	if up, err := e.reg.Cell(c.Parent.Cell); err == nil {
		v.Name = up.Title()
	}
	if k, err := e.reg.Checkpoint(c.Parent.Checkpoint); err == nil {
		v.Number = k.Number
	}
	return v
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
