package live

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/state"
)

// Add has an instance be that of a cell, with the interpreter that is recorded of it, nil for
// none, and puts the cell to rest when what goes on in it by itself has ended.
func (m *Manager) Add(c *state.Cell, inst backend.Instance, i *state.Interp) {
	if i == nil {
		m.put(c.ID, inst, nil)
		m.watch(c.ID, inst)
	} else {
		m.put(c.ID, inst, &Interp{Template: i.Template, Keeper: c.Keeper(), Used: time.Now()})
		m.FollowDeaths(c.Keeper())
	}
	if c.Talks() {
		m.cfg.Gateways.FollowAsks(inst)
	}
}

// watchTick is how often a living cell is looked at.
const watchTick = 2 * time.Second

// watch puts a cell to rest when what goes on in it by itself has ended: what
// a run or a command left behind, or what an earlier daemon started.
func (m *Manager) watch(id cell.ID, inst backend.Instance) {
	m.cfg.Work(func(ctx context.Context) {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		for m.Instance(id) == inst {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !m.cfg.Working(id) {
				m.Rest(ctx, id)
			}
		}
	})
}

// restGrace is how long a cell that is unused is left alone: it is often used again at once.
const restGrace = 5 * time.Millisecond

// restSoon puts a cell to rest after a while, if nothing happens in it then.
func (m *Manager) restSoon(ctx context.Context, id cell.ID) {
	select {
	case <-time.After(restGrace):
	case <-ctx.Done():
		return
	}
	if m.claimIdle(id) {
		m.Rest(ctx, id)
	}
}

// Rest takes a cell's instance down when nothing happens in it.
func (m *Manager) Rest(ctx context.Context, id cell.ID) {
	release, err := m.cfg.Locks.Acquire(ctx, id, "rest", nil)
	if err != nil {
		return
	}
	defer release()
	inst := m.unreferenced(id)
	if inst == nil || m.HasInterp(id) || !backend.NothingRuns(ctx, inst) { // the end of an interpreter is told
		return
	}
	c, err := m.cfg.Registry.Cell(id)
	if err != nil || (c.State != cell.Running && c.State != cell.Paused) {
		return
	}
	if !m.takeUnused(id) { // it came to be used meanwhile
		return
	}
	if err := m.takeDown(ctx, inst, "nothing runs in it"); err != nil {
		m.cfg.Log.Warn("cannot put a cell to rest", "cell", id, "error", err)
		return
	}
	err = c.To(cell.Idle)
	if err == nil {
		err = m.cfg.Registry.Commit(&c)
	}
	if err != nil {
		m.cfg.Log.Error("cannot record a cell", "cell", id, "error", err)
	}
}

// Deactivate ends a cell's processes for cause and takes its instance away.
// When it returns nothing runs in the cell and nothing can be started in it;
// the rest of the taking down goes on behind. The caller holds the cell's lock.
func (m *Manager) Deactivate(ctx context.Context, id cell.ID, cause string) error {
	inst, lived := m.Take(id)
	if lived {
		m.RecordEnd(id, cause)
	}
	if inst == nil && m.Unreached(id) {
		c, err := m.cfg.Registry.Cell(id)
		if err != nil {
			return err
		}
		b, err := m.cfg.Backend(c.Backend)
		if err != nil {
			return err
		}
		if inst, err = b.Attach(ctx, id, c.Family); err != nil && cell.KindOf(err) != cell.NotFound {
			return unreachable(&c, err)
		}
		m.setUnreached(id, nil)
		m.RecordEnd(id, cause)
	}
	if inst == nil {
		return nil
	}
	return m.takeDown(ctx, inst, cause)
}

// quiet is how long processes that were killed may take to be gone, before
// their namespaces are taken away under them.
const quiet = 2 * time.Second

// takeDown ends what runs in an instance that is out of the table, and removes it.
func (m *Manager) takeDown(ctx context.Context, inst backend.Instance, cause string) error {
	if cause != cell.CauseKeeperLost {
		m.noteTaken(inst, cause)
	}
	m.cfg.Leaving(ctx, inst)
	empty := func() bool {
		list, err := inst.List(ctx)
		return err == nil && len(list) == 0 || cell.KindOf(err) == cell.NotFound // its keeper has it no more
	}
	if !empty() {
		if n, err := inst.KillAll(ctx, cause); err == nil && n > 0 { // a sealed interpreter stays until its cell goes
			for began := time.Now(); time.Since(began) < quiet && !empty(); {
				time.Sleep(time.Millisecond)
			}
		}
		if !empty() {
			return m.Remove(ctx, inst, cause)
		}
	}
	gone := m.end(inst.ID())
	m.cfg.Work(func(ctx context.Context) {
		defer gone()
		if err := m.Remove(ctx, inst, cause); err != nil {
			m.cfg.Log.Warn("cannot take down a cell", "cell", inst.ID(), "error", err)
		}
	})
	return nil
}

// Remove removes an instance, and the writable layers over caches with
// it. It goes on to its end when the daemon is ending.
func (m *Manager) Remove(ctx context.Context, inst backend.Instance, cause string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
	defer cancel()
	if err := inst.Remove(ctx, cause); err != nil {
		return err
	}
	return m.cfg.Unmounted(ctx, inst.ID())
}
