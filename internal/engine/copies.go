package engine

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// copiesAtOnce is how many copies of a cell are made at a time.
const copiesAtOnce = 4

// copyOut branches a cell whose backend captures all that runs in it: the branches
// are copies of one instant, each with a keeper of its own. The source stands still
// for that, and goes on as it was.
func (b *branching) copyOut(ctx context.Context, names []string) (err error) {
	e, src := b.e, &b.src
	in, captured := stage(ctx, "capture")
	t, err := e.instantOf(in, b.p, b.w, src, true)
	if captured(err); err != nil {
		return err
	}
	defer t.forget()
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	undo.Add("drop the copied layers", func(context.Context) error { t.drop(); return nil })
	b.pause.Gap = t.pause
	before := *src
	b.at = state.Checkpoint{ID: cell.NewCheckpointID(), Cell: src.ID, Number: src.Next, Parent: src.Head, Kind: state.KindBranch, Created: time.Now().UTC(),
		State: t.state, Under: underFiles, PauseMS: ms(t.pause), MemoryTaken: t.taken}
	src.Next++
	src.Head = b.at.ID
	like, err := e.rootOf(ctx, &before)
	if err != nil {
		return err
	}
	in, copied := stage(ctx, "copy")
	err = b.copies(in, t, names, like)
	if copied(err); err != nil {
		return err
	}
	t.dropAbove()
	return nil
}

// copies makes the branches out of an instant, and records them; all or none. like
// is the top of their workspace.
func (b *branching) copies(ctx context.Context, t *instant, names []string, like workspace.Entry) (err error) {
	e, src := b.e, &b.src
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	if b.shared, err = sharedAs(src, src.Setup.Mounts); err != nil {
		return err
	}
	for range names {
		c := copyOf(src, b.at.ID)
		c.Shared, c.Setup = b.shared.Digest, b.shared.Setup
		ch := &child{c: c, terms: b.terms}
		ch.first = &state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: 1, Parent: b.at.ID, Kind: state.KindFork, State: b.at.State, Tree: b.at.Tree, Content: b.at.Content}
		c.Head = ch.first.ID
		b.all = append(b.all, ch)
	}
	undo.Add("remove the copies", func(ctx context.Context) error {
		for _, ch := range b.all {
			if ch.w != nil {
				e.dropChild(ctx, ch, "the branch was given up")
			} else {
				e.dropFiles(ch.c)
			}
		}
		return nil
	})
	var g errgroup.Group
	g.SetLimit(copiesAtOnce)
	for i, ch := range b.all {
		g.Go(func() error { return b.copy(ctx, t, ch, names[i], like) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return b.record(ctx)
}

// copyOf is a new cell that goes on where src was at a checkpoint.
func copyOf(src *state.Cell, at cell.CheckpointID) *state.Cell {
	return &state.Cell{
		ID: cell.NewID(), State: cell.Running, Source: src.Source, NoSource: src.NoSource, Guest: src.Guest, Backend: src.Backend, Image: src.Image, ImageID: src.ImageID, ImageKey: src.ImageKey,
		Next: 2, Parent: &state.Origin{Cell: src.ID, Checkpoint: at}, Provider: src.Provider, WhyNot: src.WhyNot, LeftOut: src.LeftOut,
		ImportKey: src.ImportKey, Known: src.Known, KnownAt: src.KnownAt, KnownHead: src.KnownHead, Agent: src.Agent, Of: src.Of, Setup: src.Setup,
	}
}

// tryAt returns the error with which a cell would be refused to go on at a checkpoint
// with memory, which is loaded. It asks a copy that no record names and that is thrown
// away: the cell itself is not touched. The command of want runs in the copy; what else
// was captured does not go on there, unless it has an interpreter.
func (e *Engine) tryAt(ctx context.Context, t *instant, c *state.Cell, k *state.Checkpoint, want terms) error {
	done, err := e.promise(1, true)
	if err != nil {
		return err
	}
	defer done()
	tree, err := e.tree(ctx, k)
	if err != nil {
		return err
	}
	trial := copyOf(c, k.ID)
	trial.Name = c.Name
	failpoint.Step("make the folder of a trial")
	if err := os.Mkdir(e.private(trial.ID), 0o700); err != nil {
		return full(err)
	}
	var w backend.Warmer
	defer func() {
		if w != nil {
			e.dropChild(ctx, &child{c: trial, w: w}, "the trial is over")
		} else {
			e.dropFiles(trial)
		}
	}()
	if err := t.begin(ctx, trial, tree.Root); err != nil {
		return err
	}
	mounts, err := e.forkMounts(trial, t.provider)
	if err != nil {
		return err
	}
	n, err := e.govern.ForkGovernance(trial)
	if err != nil {
		return err
	}
	if w, err = t.copy(ctx, trial, mounts, n, false); err != nil {
		return err
	}
	cert, err := w.Adopt(ctx, want.adoption(e.govern.Env(c), c, true))
	if err == nil {
		err = cell.Uncertified(cert.Inherited())
	}
	return want.adoptError(err)
}

// copy makes one of the branches.
func (b *branching) copy(ctx context.Context, t *instant, ch *child, name string, like workspace.Entry) error {
	e := b.e
	failpoint.Step("make the folder of a branch")
	if err := os.Mkdir(e.private(ch.c.ID), 0o700); err != nil {
		return full(err)
	}
	if err := t.begin(ctx, ch.c, like); err != nil {
		return err
	}
	mounts, err := e.forkMounts(ch.c, b.p)
	if err != nil {
		return err
	}
	n, err := e.govern.ForkGovernance(ch.c)
	if err != nil {
		return err
	}
	if ch.w, err = t.copy(ctx, ch.c, mounts, n, false); err != nil {
		return err
	}
	if err := e.adopt(ctx, ch, name, b.began); err != nil {
		return err
	}
	if st, err := ch.w.Warmth(ctx); err == nil {
		ch.depth = st.Depth
		ch.interp = &state.Interp{Cell: ch.c.ID, Kind: st.Kind, Version: st.Version, Started: b.began.UTC(), Depth: st.Depth, Template: b.interp.Template}
	}
	return nil
}

// rootOf is what the top of a cell's workspace looked like at its head.
func (e *Engine) rootOf(ctx context.Context, c *state.Cell) (workspace.Entry, error) {
	head, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return workspace.Entry{}, err
	}
	t, err := e.headTree(ctx, &head)
	if err != nil {
		return workspace.Entry{}, err
	}
	return t.Root, nil
}

// goOnAt lets a cell at rest go on at a checkpoint with memory, which is loaded: its
// processes, its interpreter, and files of its own over those of that instant. It
// returns how many processes those are, and the certificate of what they have in common
// with the other cells that go on there. c is committed.
func (e *Engine) goOnAt(ctx context.Context, t *instant, c *state.Cell, k *state.Checkpoint, want terms) (resumed int, cert cell.Certificate, err error) {
	if err := e.alive.AwaitGone(ctx, c.ID); err != nil {
		return 0, cert, err
	}
	tree, err := e.tree(ctx, k)
	if err != nil {
		return 0, cert, err
	}
	next := *c
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	undo.Add("drop the cell's layers", func(context.Context) error {
		for _, g := range next.Gens() {
			if !named(c, g) {
				e.gc.DropLayer(c.Provider, g.Layer)
			}
		}
		return nil
	})
	next.Home, next.Tmp = nil, nil
	if err := t.begin(ctx, &next, tree.Root); err != nil {
		return 0, cert, err
	}
	next.Family = e.alive.FreeKeeper(c.ID)
	for _, own := range []string{"cache", numbered(rootFolder, c.Roots)} { // what it wrote there since
		if err := workspace.RemoveTree(filepath.Join(e.private(c.ID), own)); err != nil {
			return 0, cert, err
		}
	}
	if err := e.refit(&next, t.provider, nil); err != nil {
		return 0, cert, err
	}
	n, err := e.govern.Governance(&next, "")
	if err != nil {
		return 0, cert, err
	}
	if err := e.makeWay(&next); err != nil {
		return 0, cert, err
	}
	w, err := t.copy(ctx, &next, next.Setup.Mounts, n, false)
	if err != nil {
		return 0, cert, err
	}
	undo.Add("remove the copy", func(ctx context.Context) error { return e.alive.Remove(ctx, w, "it could not go on") })
	cert, err = w.Adopt(ctx, want.adoption(e.govern.Env(&next), &next, false))
	if err == nil && want.strict {
		err = cell.Uncertified(cert.Inherited())
	}
	if err != nil {
		return 0, cert, want.adoptError(err)
	}
	if err := next.To(cell.Running); err != nil {
		return 0, cert, err
	}
	next.Cause = ""
	objects := []any{&next}
	st, werr := w.Warmth(ctx)
	var interp *state.Interp
	if werr == nil {
		interp = &state.Interp{Cell: next.ID, Kind: st.Kind, Version: st.Version, Started: st.Started, Depth: st.Depth}
		objects = append(objects, interp)
	}
	failpoint.Step("record a cell that goes on")
	if err := e.reg.Commit(objects...); err != nil {
		return 0, cert, err
	}
	old := c.Gens()
	*c = next
	e.alive.Add(c, w, interp)
	if c.Talks() {
		e.woken(ctx, c, w)
	}
	for _, g := range old {
		if !named(c, g) {
			e.gc.DropLayer(c.Provider, g.Layer)
		}
	}
	if list, err := w.List(ctx); err == nil {
		resumed = len(list)
	}
	return resumed, cert, nil
}

// named reports whether a cell has a layer.
func named(c *state.Cell, g *workspace.Generation) bool {
	for _, o := range c.Gens() {
		if o.Layer == g.Layer {
			return true
		}
	}
	return false
}
