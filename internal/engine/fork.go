package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/state"
)

// Where forks come from, in figures.
const (
	fromPool       = "pool"
	fromTemplate   = "template"
	fromCheckpoint = "checkpoint"
)

// maxFork bounds one fork.
const maxFork = 1000

// Fork makes new cells from a checkpoint: their files are its files, their
// processes none. Nothing is copied; each writes into a layer of its own.
func (e *Engine) Fork(ctx context.Context, id cell.ID, req api.ForkRequest) (res api.ForkResult, err error) {
	const opName = "engine.Fork"
	ctx, a := e.act(ctx, "fork", id)
	defer a.over(&err)
	began := time.Now()
	defer func() {
		a.say(attribute.Int("pando.forks", len(res.Cells)))
		for _, c := range res.Cells {
			e.figures.note(e.figures.forks, timingKey{backend: c.Backend, from: fromCheckpoint}, time.Since(began))
		}
	}()
	count := max(req.Count, 1)
	if req.Count < 0 || count > maxFork {
		return api.ForkResult{}, cell.Errorf(cell.Invalid, opName, fmt.Sprintf("ask for 1 to %d", maxFork), "cannot make %d cells", req.Count)
	}
	want, err := termsOf(req.Certify, req.AtFork)
	if err != nil {
		return api.ForkResult{}, err
	}
	release, err := e.alive.Lock(ctx, id, "fork")
	if err != nil {
		return api.ForkResult{}, err
	}
	defer release()
	defer e.pins.Begin().End()
	src, err := e.alive.Usable(id)
	if err != nil {
		return api.ForkResult{}, err
	}
	var k state.Checkpoint
	if req.Number > 0 {
		k, err = e.reg.Numbered(src.ID, req.Number)
	} else {
		if inst := e.alive.Instance(src.ID); inst != nil {
			if !live.NothingRuns(ctx, inst) {
				return api.ForkResult{}, cell.Errorf(cell.Unsupported, opName, e.branchOrFiles(ctx, &src),
					"cannot fork %s: it has processes, whose memory a fork of files would leave behind", src.Title())
			}
		}
		k, err = e.settle(ctx, &src, state.KindFork, "", "")
	}
	if err != nil {
		return api.ForkResult{}, err
	}
	if k.Gone {
		return api.ForkResult{}, cell.Errorf(cell.NotFound, opName, "pando history "+src.Title()+" shows those that are there", "checkpoint %s@%d was removed: it expired, was given up, or made room", src.Title(), k.Number)
	}
	if _, err := e.tree(ctx, &k); err != nil {
		return api.ForkResult{}, err
	}
	if err := e.govern.MayFork(&src, count); err != nil {
		return api.ForkResult{}, err
	}
	if k.Memory != nil && !req.Files {
		return e.forkWhole(ctx, &src, &k, req.Name, count, want, began)
	}
	if err := want.filesAlone(fmt.Sprintf("%s@%d", src.Title(), k.Number)); err != nil {
		return api.ForkResult{}, err
	}
	names, err := e.forkNames(&src, req.Name, count)
	if err != nil {
		return api.ForkResult{}, err
	}
	setup, lost := src.Setup, dropped(&src)
	if e.isBuilt(src.ID) { // a template that was built has what its steps wrote to the image
		setup.Mounts, lost = e.stackedOf(&src), droppedOfBuilt
	}
	var objects []any
	var cells []*state.Cell
	var ids []string
	now := time.Now().UTC()
	for _, name := range names {
		c := &state.Cell{
			ID: cell.NewID(), Name: name, State: cell.Idle, Source: src.Source, NoSource: src.NoSource, Guest: src.Guest || viewOf(ctx).isConfined(), Backend: src.Backend, Image: src.Image, ImageID: src.ImageID, ImageKey: src.ImageKey, Created: now, Next: 2,
			Parent: &state.Origin{Cell: src.ID, Checkpoint: k.ID}, Provider: src.Provider, WhyNot: src.WhyNot, LeftOut: src.LeftOut, ImportKey: src.ImportKey,
			Known: src.Known, KnownAt: src.KnownAt, KnownHead: src.KnownHead, Agent: src.Agent, Setup: setup, Maker: makerOf(ctx),
		}
		first := &state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: 1, Parent: k.ID, Kind: state.KindFork, Created: now,
			State: k.State, Tree: k.Tree, Content: k.Content}
		c.Head = first.ID
		objects = append(objects, c, first)
		cells = append(cells, c)
		ids = append(ids, string(c.ID))
	}
	if run, ok := e.pendingOf(&k); ok {
		if err := run.Decide(cell.Forked, "forked as "+join(names), "user"); err != nil {
			return api.ForkResult{}, err
		}
		objects = append(objects, run)
	}
	e.mu.Lock()
	for _, name := range names { // somebody else may have come first
		if what := e.taken(name); what != "" {
			e.mu.Unlock()
			return api.ForkResult{}, cell.Errorf(cell.Exists, opName, "choose another --name", "cannot fork %s: %s %s exists", src.Title(), what, name)
		}
	}
	in, sealed := stage(ctx, "record")
	act := state.ActOn(&src, "fork", cell.Forked, "")
	act.Run, act.From, act.Children = string(k.Run), point(&k), ids
	d, err := e.evidence.Seal(in, fmt.Sprintf("%s/fork/%d", src.ID, now.UnixNano()), act, objects...)
	e.mu.Unlock()
	if sealed(err); err != nil {
		return api.ForkResult{}, err
	}
	res = api.ForkResult{Took: fmt.Sprintf("files as of %s@%d", src.Title(), k.Number), Dropped: lost,
		TookMS: ms(time.Since(began)), Receipt: d.String()}
	for _, c := range cells {
		res.Cells = append(res.Cells, e.cellView(c))
	}
	return res, nil
}

// forkWhole makes cells that go on at a checkpoint with memory.
func (e *Engine) forkWhole(ctx context.Context, src *state.Cell, k *state.Checkpoint, name string, count int, want terms, began time.Time) (api.ForkResult, error) {
	took := fmt.Sprintf("memory, files, home and /tmp as of %s@%d", src.Title(), k.Number)
	b := &branching{e: e, began: began, count: count, src: *src, terms: want, whole: true, act: evidence.Fork, took: took, at: *k}
	res := api.ForkResult{Took: took}
	names, done, err := e.claimNumbered(src.Title(), src.Title()+"-fork-", name, count)
	if err != nil {
		return res, err
	}
	defer done()
	promised, err := e.promise(count, true)
	if err != nil {
		return res, err
	}
	defer promised()
	if b.p, err = e.providerOf(src.Provider); err != nil {
		return res, err
	}
	tree, err := e.tree(ctx, k)
	if err != nil {
		return res, err
	}
	res.Notes = e.unjoined(b.p, tree, "a copy")
	t, err := e.instantAt(ctx, b.p, k)
	if err != nil {
		return res, err
	}
	defer t.forget()
	if err := b.copies(ctx, t, names, tree.Root); err != nil {
		return res, err
	}
	for _, ch := range b.all {
		res.Cells = append(res.Cells, e.briefView(ch.c))
	}
	res.Inherited, res.Renewed = generators(b.all)
	res.Dropped, res.TookMS, res.Receipt = droppedByCopy, ms(time.Since(began)), b.receipt.String()
	return res, nil
}

// droppedByCopy is what a copy of a whole cell has not.
const droppedByCopy = "connections to others, terminals"

// pendingOf returns the run whose pending result k is.
func (e *Engine) pendingOf(k *state.Checkpoint) (*state.Run, bool) {
	if k.Run == "" || k.Kind != state.KindAfter {
		return nil, false
	}
	r, err := e.reg.Run(k.Run)
	if err != nil || (r.Verdict != cell.Pending && r.Verdict != cell.Forked) {
		return nil, false
	}
	return &r, true
}

// forkNames chooses and checks the names of children.
func (e *Engine) forkNames(src *state.Cell, prefix string, count int) ([]string, error) {
	names := make([]string, 0, count)
	taken := func(n string) bool { _, ok := e.reg.Named(n); return ok }
	if prefix != "" && count == 1 {
		names = append(names, prefix)
	}
	stem := orElse(prefix, src.Title())
	if prefix == "" {
		stem += "-fork"
	}
	for i := 1; prefix != "" && len(names) < count; i++ {
		names = append(names, fmt.Sprintf("%s-%d", stem, i))
	}
	if len(names) < count {
		for i := range e.reg.NumbersOf(stem + "-") {
			if n := fmt.Sprintf("%s-%d", stem, i); !taken(n) {
				names = append(names, n)
			}
			if len(names) == count {
				break
			}
		}
	}
	for _, n := range names {
		if err := cell.CheckName(n); err != nil {
			return nil, err
		}
		if taken(n) {
			return nil, cell.Errorf(cell.Exists, "engine.Fork", "choose another --name", "cannot fork %s: cell %s exists", src.Title(), n)
		}
	}
	return names, nil
}

func (e *Engine) headNumber(c *state.Cell) int {
	k, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return 0
	}
	return k.Number
}

// forkFiles says how the files of a cell can be forked now. While something runs in it,
// they are forked as of a checkpoint.
func (e *Engine) forkFiles(c *state.Cell) string {
	if e.alive.AtRest(c.ID) {
		return "fork its files: pando fork " + c.Title()
	}
	return fmt.Sprintf("fork its files as of a checkpoint: pando fork %s@%d --files, or make one now: pando checkpoint %s", c.Title(), e.headNumber(c), c.Title())
}

// branchOrFiles is forkFiles of a cell that runs, with the branch where that can be had.
func (e *Engine) branchOrFiles(ctx context.Context, c *state.Cell) string {
	i := e.reg.Interp(c.ID)
	whole, err := e.captures(ctx, c)
	if c.Volume > 0 || err != nil || !whole && (i == nil || i.Ended != "") {
		return e.forkFiles(c)
	}
	return "branch it: pando branch " + c.Title() + "; or " + e.forkFiles(c)
}

// orFiles adds to the refusal of a branch what always can be had, unless its hint names it.
func (e *Engine) orFiles(id cell.ID, err error) error {
	k, hint := cell.KindOf(err), cell.HintOf(err)
	c, cerr := e.reg.Cell(id)
	if cerr != nil || strings.Contains(hint, "pando fork") || k != cell.Unsupported && !strings.HasSuffix(hint, cell.ForkSandbox) {
		return err
	}
	if hint != "" {
		hint += "; or "
	}
	return cell.Errorf(k, "engine.Branch", hint+e.forkFiles(&c), "%w", err)
}
