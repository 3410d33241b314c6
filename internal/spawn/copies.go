package spawn

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// copiesAtOnce is how many copies of a cell are made at a time.
const copiesAtOnce = 4

// copyOut branches a cell of a backend that captures all that runs in it: the branches
// are copies of one moment, each with a keeper of its own. The source stands still
// for that, and goes on as it was.
func (b *branching) copyOut(ctx context.Context, names []string) (err error) {
	m, src := b.m, &b.src
	in, captured := m.cfg.Stage(ctx, "capture")
	t, err := m.snapshotOf(in, b.p, b.w, src, true)
	b.goOn()
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
		State: t.state, Under: state.UnderFiles, PauseMS: ms(t.pause), MemoryTaken: t.taken, Services: b.services}
	src.Next++
	src.Head = b.at.ID
	like, err := m.rootOf(ctx, &before)
	if err != nil {
		return err
	}
	in, copied := m.cfg.Stage(ctx, "copy")
	err = b.copies(in, t, names, like)
	if copied(err); err != nil {
		return err
	}
	t.dropAbove()
	return nil
}

// copies makes the branches out of a snapshot, and records them; all or none. like
// is the top of their workspace.
func (b *branching) copies(ctx context.Context, t *snapshot, names []string, like workspace.Entry) (err error) {
	m, src := b.m, &b.src
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	if b.shared, err = sharedAs(src, src.Setup.Mounts); err != nil {
		return err
	}
	for range names {
		ch := newChild(src, &b.at, b.shared)
		ch.terms, ch.c.Maker = b.terms, m.cfg.Maker(ctx) // its limits are its maker's
		b.all = append(b.all, ch)
	}
	undo.Add("remove the copies", func(ctx context.Context) error {
		for _, ch := range b.all {
			if ch.w != nil { // else nothing of it is there
				m.dropChild(ctx, ch, "the branch was given up")
			}
		}
		return nil
	})
	var g errgroup.Group
	g.SetLimit(copiesAtOnce)
	for i, ch := range b.all {
		g.Go(func() error { return b.copy(ctx, ch, names[i], &copying{t, like}) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return b.record(ctx)
}

// tryAt returns the error with which a cell would be refused to go on at a checkpoint
// with memory, which is loaded. It asks a copy that no record names and that is thrown
// away: the cell itself is not touched. The command of want runs in the copy; what else
// was captured does not go on there, unless it has an interpreter.
func (m *Manager) tryAt(ctx context.Context, t *snapshot, c *state.Cell, k *state.Checkpoint, want terms) error {
	done, err := m.promise(1, true)
	if err != nil {
		return err
	}
	defer done()
	tree, err := m.cfg.Tree(ctx, k)
	if err != nil {
		return err
	}
	trial := newChild(c, k, nil)
	trial.c.Name = c.Name
	if err := m.begin(ctx, trial, t.provider, &copying{t, tree.Root}); err != nil {
		return err
	}
	defer m.dropChild(ctx, trial, "the trial is over")
	cert, err := trial.w.Adopt(ctx, want.adoption(m.cfg.Env(c), c, true))
	if err == nil {
		err = cell.Uncertified(cert.Inherited())
	}
	return m.adoptError(want, err)
}

// copy makes one of the branches.
func (b *branching) copy(ctx context.Context, ch *child, name string, how *copying) error {
	m := b.m
	if err := m.begin(ctx, ch, b.p, how); err != nil {
		return err
	}
	if err := m.adopt(ctx, ch, name, b.began); err != nil {
		return err
	}
	if st, err := ch.w.Warmth(ctx); err == nil {
		ch.depth = st.Depth
		ch.interp = &state.Interp{Cell: ch.c.ID, Kind: st.Kind, Version: st.Version, Started: b.began.UTC(), Depth: st.Depth, Template: b.interp.Template}
	}
	return nil
}

// rootOf is what the top of a cell's workspace looked like at its head.
func (m *Manager) rootOf(ctx context.Context, c *state.Cell) (workspace.Entry, error) {
	head, err := m.reg.Checkpoint(c.Head)
	if err != nil {
		return workspace.Entry{}, err
	}
	t, err := m.headTree(ctx, &head)
	if err != nil {
		return workspace.Entry{}, err
	}
	return t.Root, nil
}

// goOnAt lets a cell at rest go on at a checkpoint with memory, which is loaded: its
// processes, its interpreter, and files of its own over those of that moment. It
// returns how many processes those are, and the certificate of what they have in common
// with the other cells that go on there. c is committed.
func (m *Manager) goOnAt(ctx context.Context, t *snapshot, c *state.Cell, k *state.Checkpoint, want terms) (resumed int, cert cell.Certificate, err error) {
	if err := m.live.AwaitGone(ctx, c.ID); err != nil {
		return 0, cert, err
	}
	tree, err := m.cfg.Tree(ctx, k)
	if err != nil {
		return 0, cert, err
	}
	next := *c
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	undo.Add("drop the cell's layers", func(context.Context) error {
		for _, g := range next.Gens() {
			if !named(c, g) {
				m.space.DropLayer(c.Provider, g.Layer)
			}
		}
		return nil
	})
	next.Home, next.Tmp = nil, nil
	if err := t.begin(ctx, &next, tree.Root); err != nil {
		return 0, cert, err
	}
	next.Family = m.live.FreeKeeper(c.ID)
	if err := m.cfg.ClearOverlays(c); err != nil { // what it wrote there since
		return 0, cert, err
	}
	if err := m.cfg.Refit(&next, t.provider, nil); err != nil {
		return 0, cert, err
	}
	spec, err := m.cfg.Specify(&next)
	if err != nil {
		return 0, cert, err
	}
	w, err := t.copy(ctx, &next, spec)
	if err != nil {
		return 0, cert, err
	}
	undo.Add("remove the copy", func(ctx context.Context) error { return m.live.Remove(ctx, w, "it could not go on") })
	cert, err = w.Adopt(ctx, want.adoption(m.cfg.Env(&next), &next, false))
	if err == nil && want.strict {
		err = cell.Uncertified(cert.Inherited())
	}
	if err != nil {
		return 0, cert, m.adoptError(want, err)
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
	if err := m.reg.Commit(objects...); err != nil {
		return 0, cert, err
	}
	old := c.Gens()
	*c = next
	m.live.Add(c, w, interp)
	m.equip(ctx, c, w)
	if err := m.cfg.Serve(ctx, c, w); err != nil {
		m.log.Warn("a cell goes on without its services, which start when it was at rest", "cell", c.ID, "error", err)
	}
	for _, g := range old {
		if !named(c, g) {
			m.space.DropLayer(c.Provider, g.Layer)
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
