package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A copy that took longer than aheadLong is brought up to date once more before the cell stands still,
// since much can have been written meanwhile; at most aheadMost passes are made.
const (
	aheadLong = 100 * time.Millisecond
	aheadMost = 3
)

// takeMost bounds how often a copy is begun again because its cell was resumed meanwhile.
const takeMost = 5

// taking is a checkpoint in the making, of a cell in which something runs. A nil one does nothing.
type taking struct {
	e     *Engine
	p     workspace.Provider
	files workspace.Snapshot
	home  workspace.Snapshot // nil: it is not kept
	used  []workspace.State  // by the checkpoint, once it is recorded
}

// underLiving fills a checkpoint of a cell in which something runs: with what it has
// in memory, when it was asked for and can be had; with its files else.
func (e *Engine) underLiving(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, k *state.Checkpoint, memory, withHome bool) (*taking, error) {
	k.Under = state.UnderFiles
	if k.Kind == state.KindStep { // a command waits for it
		return e.take(ctx, p, inst, c, k, withHome)
	}
	empty := backend.NothingRuns(ctx, inst)
	if memory && !empty {
		ok, err := e.spawn.Captures(ctx, c)
		if err != nil {
			return nil, err
		}
		if ok {
			err := e.spawn.Capture(ctx, p, inst, c, k)
			if kind := cell.KindOf(err); kind != cell.Unsupported && kind != cell.Conflict {
				return nil, err
			}
			k.Under += "; not their memory: " + withNames(err, e.reg.Cell).Error()
		}
	}
	t, err := e.take(ctx, p, inst, c, k, withHome)
	if empty && backend.NothingRuns(ctx, inst) { // the cell had not been put to rest yet
		k.Under = ""
	}
	return t, err
}

// take fills a checkpoint with a copy of a cell's files, and of its home with withHome, with the processes
// frozen for what was written while it was made.
func (e *Engine) take(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, k *state.Checkpoint, withHome bool) (t *taking, err error) {
	for range takeMost {
		resumed := false
		if t, resumed, err = e.takeNow(ctx, p, inst, c, k, withHome); !resumed {
			return t, err
		}
		t.close()
	}
	return nil, cell.Errorf(cell.Conflict, "engine.checkpoint", "try again", "cannot copy the files of cell %s: it is paused and resumed meanwhile", c.Title())
}

// takeNow is take, unless the cell was paused and is resumed meanwhile. c may be older than the pause.
func (e *Engine) takeNow(ctx context.Context, p workspace.Provider, inst backend.Instance, c *state.Cell, k *state.Checkpoint, withHome bool) (t *taking, resumed bool, err error) {
	paused := func() bool {
		now, err := e.reg.Cell(c.ID)
		return err == nil && now.State == cell.Paused
	}
	stands := paused()
	t = &taking{e: e, p: p}
	opt := workspace.SnapshotOptions{Mapped: inst.Mapped}
	switch k.Kind {
	case state.KindTurn:
		opt.Most = maxTurn
	case state.KindStep:
		opt.Most = maxStep
	}
	if k.Kind != state.KindStep { // else it was asked just now: see unmoved
		_, err = inst.Mapped(ctx)
	}
	ahead := err == nil && !stands // what is paused needs no time of its own
	if err != nil {                // what is written through memory is not known: all is copied while nothing is written
		e.log.Info("a checkpoint copies all of a cell while it stands still", "cell", c.ID, "error", err)
		opt.Mapped = nil
	} else {
		opt.Stands = func(s workspace.State) bool { return e.reg.HasState(c.ID, s) }
	}
	if t.files, err = p.Snapshot(ctx, *c.Gen, opt); err != nil {
		return t, false, err
	}
	parts := []workspace.Snapshot{t.files}
	if withHome {
		if t.home, err = p.Snapshot(ctx, *c.Home, opt); err != nil {
			return t, false, err
		}
		parts = append(parts, t.home)
	}
	copyParts := func() error {
		again := ahead
		for n := 0; again && n < aheadMost; n++ {
			began := time.Now()
			for _, s := range parts {
				if err := s.Ahead(ctx); err != nil {
					return err
				}
			}
			again = time.Since(began) > aheadLong
		}
		// What is paused is frozen already, unless it is being resumed.
		if err := inst.Freeze(ctx); err != nil {
			return err
		}
		began := time.Now() // that it stands still is the last that Freeze does
		var err error
		for _, s := range parts {
			if err == nil {
				err = s.Take(ctx)
			}
		}
		if err = errors.Join(err, e.alive.Unfreeze(ctx, inst)); !stands {
			k.PauseMS += ms(time.Since(began))
		}
		return err
	}
	complete := func() (err error) {
		for _, s := range parts {
			err = errors.Join(err, s.After(ctx))
		}
		return err
	}
	for range len(parts) + 1 { // each time another of them may have to be looked at in whole
		if err = copyParts(); err == nil {
			err = complete()
		}
		if !errors.Is(err, workspace.ErrMoved) {
			break
		}
	}
	if stands && err == nil && !paused() {
		return t, true, nil
	}
	if err == nil {
		err = claimed(c, t.files.Claims())
	}
	if err != nil {
		return t, false, err
	}
	if k.State, err = t.files.Done(ctx); err != nil || t.home == nil {
		return t, false, err
	}
	home, err := t.home.Done(ctx)
	k.Home = &home
	return t, false, err
}

// keep records, after the checkpoint was, what the next one can be made upon.
func (t *taking) keep(k *state.Checkpoint) {
	if t == nil || t.files == nil {
		return
	}
	t.used = k.States()
	keep := func(s workspace.Snapshot, at workspace.State) {
		if err := s.Keep(at); err != nil {
			t.e.log.Warn("the next checkpoint copies all", "cell", k.Cell, "error", err)
		}
	}
	keep(t.files, k.State)
	if t.home != nil {
		keep(t.home, *k.Home)
	}
}

// close ends the work, and takes away the layers that the checkpoint does not have.
func (t *taking) close() {
	if t == nil {
		return
	}
	for _, s := range []workspace.Snapshot{t.files, t.home} {
		if s == nil {
			continue
		}
		if err := s.Drop(); err != nil {
			t.e.log.Warn("cannot remove the copy of a cell's files", "error", err)
		}
		made := s.Made()
		if made != "" && !slices.ContainsFunc(t.used, func(u workspace.State) bool { return slices.Contains(u.Layers, made) }) {
			t.e.dropLayer(t.p.Name(), made)
		}
	}
}
