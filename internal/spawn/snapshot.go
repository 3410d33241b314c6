package spawn

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A snapshot is all that a living cell was at one moment: its files, and what ran
// in it. Cells can begin there.
type snapshot struct {
	m                *Manager
	provider         workspace.Provider
	state, home, tmp workspace.State
	above            map[string]workspace.State // what it wrote over its image and caches, by where that is seen
	made             []string                   // layers that no record names yet
	dir              string                     // with the image of its memory
	pause            time.Duration              // for which the cell stood still
	taken            string                     // how its memory was, by the backend
}

// Captures reports whether all that runs in a cell can be captured.
func (m *Manager) Captures(ctx context.Context, c *state.Cell) (bool, error) {
	b, err := m.cfg.Backend(c.Backend)
	if err != nil {
		return false, err
	}
	return m.capturesOn(ctx, b)
}

func (m *Manager) capturesOn(ctx context.Context, b backend.Backend) (bool, error) {
	caps, err := m.cfg.Caps(ctx, b)
	return err == nil && caps.Memory == "", err
}

// snapshotOf captures a living cell. Its home and /tmp become layers of their own,
// if they aren't; c is committed then. One that is brief is for copies that begin at once,
// and is kept nowhere. The caller holds the cell's lock, and drops the snapshot.
func (m *Manager) snapshotOf(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, brief bool) (_ *snapshot, err error) {
	src, ok := inst.(backend.Capturer)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "spawn.snapshot", cell.ForkSandbox, "cannot capture the memory of %s: its backend can't", c.Title())
	}
	if c.Volume > 0 {
		return nil, cell.Errorf(cell.Unsupported, "spawn.snapshot", m.forkFiles(c)+"; or work in a cell without --disk", "cannot capture the memory of %s: it has a disk of its own (--disk), and its files there cannot be copied in the same moment", c.Title())
	}
	if err := m.LayHome(ctx, c, p); err != nil {
		return nil, err
	}
	t := &snapshot{m: m, provider: p, above: map[string]workspace.State{}}
	failpoint.Step("make the folder of a memory image")
	if t.dir, err = os.MkdirTemp(m.cfg.Home.Memory(), "m-"); err != nil {
		return nil, durable.Full(err)
	}
	defer func() {
		if err != nil {
			t.drop()
		}
	}()
	if c.State == cell.Paused {
		return t, t.take(ctx, src, c)
	}
	failpoint.Step("prepare to capture a cell")
	if err := src.Prepare(ctx, t.dir, brief); err != nil {
		return nil, durable.Full(err)
	}
	err = src.Freeze(ctx)
	began := time.Now() // that it stands still is the last that Freeze does
	if err == nil {
		err = t.take(ctx, src, c)
	}
	terr := m.live.Unfreeze(ctx, src) // also what was frozen when the caller was gone already
	t.pause = time.Since(began)
	return t, errors.Join(err, terr)
}

// take captures what stands still.
func (t *snapshot) take(ctx context.Context, src backend.Capturer, c *state.Cell) error {
	var g errgroup.Group
	failpoint.Step("capture a cell")
	g.Go(func() (err error) {
		t.taken, err = src.Capture(ctx, t.dir)
		return durable.Full(err)
	})
	g.Go(func() error {
		// Before it stands still, what is looked at may go away.
		if err := t.m.cfg.Affordable(ctx, t.provider, c); err != nil {
			return err
		}
		for _, x := range []struct {
			of *workspace.Generation
			to *workspace.State
		}{{c.Gen, &t.state}, {c.Home, &t.home}, {c.Tmp, &t.tmp}} {
			s, made, err := workspace.SnapshotNow(ctx, t.provider, *x.of)
			if err != nil {
				return durable.Full(err)
			}
			if *x.to = s; made != "" {
				t.made = append(t.made, made)
			}
		}
		return t.takeAbove(ctx, t.m.cfg.Overlays(c))
	})
	return g.Wait()
}

// takeAbove copies layers over an image and over caches.
func (t *snapshot) takeAbove(ctx context.Context, uppers map[string]string) error {
	for target, upper := range uppers {
		list, err := os.ReadDir(upper)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if len(list) == 0 {
			continue // it was never written to
		}
		like, err := topOf(upper)
		if err != nil {
			return err
		}
		g, err := t.provider.Begin(ctx, workspace.State{}, like, "")
		if err != nil {
			return durable.Full(err)
		}
		t.made = append(t.made, g.Layer)
		to := t.provider.Mount(g, "/")
		if err := workspace.CopyLayer(ctx, upper, writable(&to)); err != nil {
			return durable.Full(err)
		}
		t.above[target] = frozen(t.provider, &g)
	}
	return nil
}

// forget takes away the image of the memory, which is in the store or was needed
// for a moment.
func (t *snapshot) forget() {
	if err := os.RemoveAll(t.dir); err != nil {
		t.m.log.Warn("cannot remove an image of memory", "path", t.dir, "error", err)
	}
}

// drop takes everything away: nothing names it.
func (t *snapshot) drop() {
	t.forget()
	for _, l := range t.made {
		t.m.space.DropLayer(t.provider.Name(), l)
	}
}

// dropAbove takes away what no cell begins on once the copies are made: each has its
// own of it.
func (t *snapshot) dropAbove() {
	for _, s := range t.above {
		for _, l := range s.Layers {
			t.m.space.DropLayer(t.provider.Name(), l)
		}
	}
}

// keep puts the image of the memory into the store. What of it is in an earlier
// checkpoint of the cell costs nothing.
func (t *snapshot) keep(ctx context.Context, k *state.Checkpoint) error {
	var bases []cell.Digest
	if at := t.m.lastMemory(k.Cell); !at.IsZero() {
		bases = append(bases, at)
	}
	failpoint.Step("keep a memory image")
	root, _, err := memory.SaveDir(ctx, t.m.cfg.Objects, t.dir, bases...)
	if err != nil {
		return durable.Full(err)
	}
	k.State, k.PauseMS, k.MemoryTaken = t.state, ms(t.pause), t.taken
	k.Memory = &state.MemorySnapshot{Root: root, Home: t.home, Tmp: t.tmp, Above: t.above}
	return nil
}

// Capture stores the memory of a living cell in a checkpoint. It is Unsupported, or a Conflict, when
// that can't be captured now. c is committed if its home and /tmp became layers.
func (m *Manager) Capture(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, k *state.Checkpoint) error {
	t, err := m.snapshotOf(ctx, p, inst, c, false)
	if err != nil {
		return err
	}
	defer t.forget()
	if err := t.keep(ctx, k); err != nil {
		t.drop()
		return err
	}
	k.Under = state.UnderMemory
	return nil
}

// lastMemory is the newest image of a cell's memory.
func (m *Manager) lastMemory(id cell.ID) (root cell.Digest) {
	number := 0
	for _, k := range m.reg.Checkpoints(id) {
		if !k.Gone && k.Memory != nil && k.Number > number {
			number, root = k.Number, k.Memory.Root
		}
	}
	return root
}

// snapshotAt is what a checkpoint was, with its memory loaded.
func (m *Manager) snapshotAt(ctx context.Context, p workspace.Provider, k *state.Checkpoint) (*snapshot, error) {
	dir, err := os.MkdirTemp(m.cfg.Home.Memory(), "m-")
	if err != nil {
		return nil, durable.Full(err)
	}
	t := &snapshot{m: m, provider: p, state: k.State, home: k.Memory.Home, tmp: k.Memory.Tmp, above: k.Memory.Above, dir: dir}
	if err := os.Remove(dir); err != nil { // it comes to be when it is complete
		return nil, err
	}
	if err := memory.LoadDir(ctx, m.cfg.Objects, k.Memory.Root, dir); err != nil {
		return nil, err
	}
	return t, nil
}

// begin makes layers of its own for a cell that begins there.
func (t *snapshot) begin(ctx context.Context, c *state.Cell, root workspace.Entry) error {
	now := time.Now().UnixNano()
	for _, x := range []struct {
		to   **workspace.Generation
		at   workspace.State
		like workspace.Entry
	}{{&c.Gen, t.state, root}, {&c.Home, t.home, workspace.Entry{Type: workspace.Folder, Mode: 0o700, MTime: now}}, {&c.Tmp, t.tmp, workspace.Entry{Type: workspace.Folder, Mode: 0o1777, MTime: now}}} {
		g, err := t.provider.Begin(ctx, x.at, x.like, "")
		if err != nil {
			return durable.Full(err)
		}
		*x.to = &g
	}
	return nil
}

// copy makes a cell that goes on there, over its own layers, and waits to be
// adopted.
func (t *snapshot) copy(ctx context.Context, c *state.Cell, spec cell.Spec) (backend.Warmer, error) {
	m := t.m
	if err := errors.Join(m.cfg.MayStart(c), c.KeepsMachine()); err != nil {
		return nil, err
	}
	b, err := m.cfg.Backend(c.Backend)
	if err != nil {
		return nil, err
	}
	overlays := m.cfg.Overlays(c)
	for target, s := range t.above {
		upper := overlays[target]
		if err := workspace.RemoveTree(upper); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(upper, 0o755); err != nil {
			return nil, durable.Full(err)
		}
		from := t.provider.Mount(workspace.Generation{Layer: s.Layers[len(s.Layers)-1]}, "/")
		if err := workspace.CopyLayer(ctx, writable(&from), upper); err != nil {
			return nil, durable.Full(err)
		}
	}
	spec.Memory = t.dir
	failpoint.Step("copy a cell")
	inst, err := b.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return nil, errors.Join(err, inst.Remove(ctx, "it is no copy"))
	}
	return w, nil
}

// copying begins cells at a snapshot, with their workspace's top like that of its files.
type copying struct {
	at   *snapshot
	like workspace.Entry
}

// layers implements strategy.
func (s *copying) layers(ctx context.Context, c *state.Cell) error { return s.at.begin(ctx, c, s.like) }

// start implements strategy.
func (s *copying) start(ctx context.Context, ch *child, spec cell.Spec) (backend.Warmer, error) {
	spec.Ahead = ch.ahead
	return s.at.copy(ctx, ch.c, spec)
}
