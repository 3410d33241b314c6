package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// An instant is all that a living cell was at one moment: its files, and what ran
// in it. Cells can begin there.
type instant struct {
	e                *Engine
	provider         workspace.Provider
	state, home, tmp workspace.State
	above            map[string]workspace.State // what it wrote over its image and caches, by where that is seen
	made             []string                   // layers that are nobody's yet
	dir              string                     // with the image of its memory
	pause            time.Duration              // for which the cell stood still
	taken            string                     // how its memory was, by the backend
}

// captures reports whether all that runs in a cell can be captured.
func (e *Engine) captures(ctx context.Context, c *state.Cell) (bool, error) {
	b, err := e.backend(c.Backend)
	if err != nil {
		return false, err
	}
	return e.capturesOn(ctx, b)
}

func (e *Engine) capturesOn(ctx context.Context, b backend.Backend) (bool, error) {
	caps, err := e.caps(ctx, b)
	return err == nil && caps.Memory == "", err
}

// instantOf captures a living cell. Its home and /tmp become layers of their own,
// if they aren't; c is committed then. One that is brief is for copies that begin at once,
// and is kept nowhere. The caller holds the cell's lock, and drops the instant.
func (e *Engine) instantOf(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, brief bool) (_ *instant, err error) {
	src, ok := inst.(backend.Capturer)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "engine.instant", cell.ForkSandbox, "cannot capture the memory of %s: its backend can't", c.Title())
	}
	if c.Volume > 0 {
		return nil, cell.Errorf(cell.Unsupported, "engine.instant", e.forkFiles(c)+"; or work in a cell without --disk", "cannot capture the memory of %s: it has a disk of its own, which can't be in two states", c.Title())
	}
	if err := e.layOwn(ctx, c, p); err != nil {
		return nil, err
	}
	if err := affordable(ctx, p, c); err != nil {
		return nil, err
	}
	t := &instant{e: e, provider: p, above: map[string]workspace.State{}}
	failpoint.Step("make the folder of a memory image")
	if t.dir, err = os.MkdirTemp(e.cfg.Home.Memory(), "m-"); err != nil {
		return nil, full(err)
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
		return nil, full(err)
	}
	err = src.Freeze(ctx)
	began := time.Now() // that it stands still is the last that Freeze does
	if err == nil {
		err = t.take(ctx, src, c)
	}
	terr := e.alive.Unfreeze(ctx, src) // also what was frozen when nobody waited for it any more
	t.pause = time.Since(began)
	return t, errors.Join(err, terr)
}

// take captures what stands still.
func (t *instant) take(ctx context.Context, src backend.Capturer, c *state.Cell) error {
	var g errgroup.Group
	failpoint.Step("capture a cell")
	g.Go(func() (err error) {
		t.taken, err = src.Capture(ctx, t.dir)
		return full(err)
	})
	g.Go(func() error {
		for _, x := range []struct {
			of *workspace.Generation
			to *workspace.State
		}{{c.Gen, &t.state}, {c.Home, &t.home}, {c.Tmp, &t.tmp}} {
			s, err := t.provider.Snapshot(ctx, *x.of)
			if err != nil {
				return full(err)
			}
			if *x.to = s; !s.Same(x.of.Base) {
				t.made = append(t.made, s.Layers[len(s.Layers)-1])
			}
		}
		return t.takeAbove(ctx, t.e.uppers(c))
	})
	return g.Wait()
}

// takeAbove copies layers over an image and over caches.
func (t *instant) takeAbove(ctx context.Context, uppers map[string]string) error {
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
			return full(err)
		}
		t.made = append(t.made, g.Layer)
		m := t.provider.Mount(g, "/")
		if err := copyUpper(ctx, upper, writable(&m)); err != nil {
			return full(err)
		}
		t.above[target] = frozen(t.provider, &g)
	}
	return nil
}

// uppers are the writable layers over a cell's image and caches, by where they are
// seen.
func (e *Engine) uppers(c *state.Cell) map[string]string {
	list, caches := map[string]string{}, 0
	for i := range c.Setup.Mounts {
		switch m := &c.Setup.Mounts[i]; {
		case m.Kind == cell.Cache:
			list[m.Target] = filepath.Join(cachePath(e.private(c.ID), c.Roots, caches), "fs")
			caches++
		case m.Role == cell.RoleImage && m.Kind == cell.Overlay:
			list[m.Target], _ = e.rootLayer(c, m.Target)
		}
	}
	return list
}

// copyUpper copies a layer of the kernel's overlay file system, with its marks.
func copyUpper(ctx context.Context, from, to string) error {
	return workspace.CopyTree(ctx, from, to, workspace.CopyOptions{Devices: true, XAttr: func(name string) bool {
		return strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") || workspace.KeptXAttr(name)
	}})
}

// forget takes away the image of the memory, which is in the store or was needed
// for a moment.
func (t *instant) forget() {
	if err := os.RemoveAll(t.dir); err != nil {
		t.e.log.Warn("cannot remove an image of memory", "path", t.dir, "error", err)
	}
}

// drop takes everything away: nothing names it.
func (t *instant) drop() {
	t.forget()
	for _, l := range t.made {
		t.e.gc.DropLayer(t.provider.Name(), l)
	}
}

// dropAbove takes away what nobody begins on once the copies are made: each has its
// own of it.
func (t *instant) dropAbove() {
	for _, s := range t.above {
		for _, l := range s.Layers {
			t.e.gc.DropLayer(t.provider.Name(), l)
		}
	}
}

// keep puts the image of the memory into the store. What of it is in an earlier
// checkpoint of the cell costs nothing.
func (t *instant) keep(ctx context.Context, k *state.Checkpoint) error {
	var bases []cell.Digest
	if at := t.e.lastMemory(k.Cell); !at.IsZero() {
		bases = append(bases, at)
	}
	failpoint.Step("keep a memory image")
	root, _, err := memory.SaveDir(ctx, t.e.cfg.Objects, t.dir, bases...)
	if err != nil {
		return full(err)
	}
	k.State, k.PauseMS, k.MemoryTaken = t.state, ms(t.pause), t.taken
	k.Memory = &state.MemorySnapshot{Root: root, Home: t.home, Tmp: t.tmp, Above: t.above}
	return nil
}

// lastMemory is the newest image of a cell's memory.
func (e *Engine) lastMemory(id cell.ID) (root cell.Digest) {
	number := 0
	for _, k := range e.reg.Checkpoints(id) {
		if !k.Gone && k.Memory != nil && k.Number > number {
			number, root = k.Number, k.Memory.Root
		}
	}
	return root
}

// instantAt is what a checkpoint was, with its memory loaded.
func (e *Engine) instantAt(ctx context.Context, p workspace.Provider, k *state.Checkpoint) (*instant, error) {
	dir, err := os.MkdirTemp(e.cfg.Home.Memory(), "m-")
	if err != nil {
		return nil, full(err)
	}
	t := &instant{e: e, provider: p, state: k.State, home: k.Memory.Home, tmp: k.Memory.Tmp, above: k.Memory.Above, dir: dir}
	if err := os.Remove(dir); err != nil { // it comes to be when it is complete
		return nil, err
	}
	if err := memory.LoadDir(ctx, e.cfg.Objects, k.Memory.Root, dir); err != nil {
		return nil, err
	}
	return t, nil
}

// begin makes layers of its own for a cell that begins there.
func (t *instant) begin(ctx context.Context, c *state.Cell, root workspace.Entry) error {
	now := time.Now().UnixNano()
	for _, x := range []struct {
		to   **workspace.Generation
		at   workspace.State
		like workspace.Entry
	}{{&c.Gen, t.state, root}, {&c.Home, t.home, workspace.Entry{Type: workspace.Folder, Mode: 0o700, MTime: now}}, {&c.Tmp, t.tmp, workspace.Entry{Type: workspace.Folder, Mode: 0o1777, MTime: now}}} {
		g, err := t.provider.Begin(ctx, x.at, x.like, "")
		if err != nil {
			return full(err)
		}
		*x.to = &g
	}
	return nil
}

// copy makes a cell that goes on there, over its own layers, and waits to be
// adopted.
func (t *instant) copy(ctx context.Context, c *state.Cell, mounts []cell.Mount, n *cell.Governance, ahead bool) (backend.Warmer, error) {
	e := t.e
	if err := errors.Join(e.govern.MayStart(c), c.KeepsMachine()); err != nil {
		return nil, err
	}
	b, err := e.backend(c.Backend)
	if err != nil {
		return nil, err
	}
	uppers := e.uppers(c)
	for target, s := range t.above {
		upper := uppers[target]
		if err := workspace.RemoveTree(upper); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(upper, 0o755); err != nil {
			return nil, full(err)
		}
		m := t.provider.Mount(workspace.Generation{Layer: s.Layers[len(s.Layers)-1]}, "/")
		if err := copyUpper(ctx, writable(&m), upper); err != nil {
			return nil, full(err)
		}
	}
	spec := e.spec(c, mounts)
	spec.Memory, spec.Network, spec.Ahead = t.dir, n, ahead
	failpoint.Step("copy a cell")
	inst, err := b.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	w, err := live.Warmer(inst)
	if err != nil {
		return nil, errors.Join(err, inst.Remove(ctx, "it is no copy"))
	}
	return w, nil
}
