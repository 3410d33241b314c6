package live

import (
	"context"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// leaving is how long the keeper of a cell that is at rest may still be on its way out, when
// the daemon that sent it away died meanwhile. After leavingSelf it is ended: it came to be
// after this daemon had looked for such keepers.
const (
	leaving     = 30 * time.Second
	leavingSelf = time.Second
)

// Activate makes an instance of a cell that is at rest. The caller holds the cell's lock.
func (m *Manager) Activate(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	inst, err := m.beside(ctx, c)
	if err != nil {
		m.cfg.Services.Follow(c)
		return nil, err
	}
	m.Add(c, inst, nil)
	return inst, nil
}

// beside makes an instance that has its services.
func (m *Manager) beside(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	if err := m.cfg.Services.Start(ctx, c); err != nil {
		return nil, err
	}
	inst, err := m.make(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := m.cfg.Services.Connect(ctx, c, inst); err != nil {
		return nil, errors.Join(err, m.Remove(ctx, inst, "its services could not be connected"))
	}
	return inst, nil
}

// make is Activate, of an instance that nothing finds.
func (m *Manager) make(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	b, err := m.cfg.Backend(c.Backend)
	if err != nil {
		return nil, err
	}
	if err := m.cfg.Policies.MayStart(c); err != nil {
		return nil, err
	}
	if err := m.AwaitGone(ctx, c.ID); err != nil {
		return nil, err
	}
	spec, err := m.cfg.Specify(c)
	if err != nil {
		return nil, err
	}
	if err := m.cfg.ClearCaches(c.ID); err != nil { // of an attempt
		return nil, err
	}
	inst, err := b.Create(ctx, spec)
	ended := false
	for began := time.Now(); cell.KindOf(err) == cell.Exists && time.Since(began) < leaving && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
		if !ended && time.Since(began) > leavingSelf {
			ended = true
			m.EndOrphan(ctx, b, cell.Held{ID: c.ID, Family: c.Family})
		}
		inst, err = b.Create(ctx, spec)
	}
	return inst, err
}

// ensureLive returns the instance of a cell, making one if it is at rest. The
// cell stays live until release is called.
func (m *Manager) ensureLive(ctx context.Context, id cell.ID) (inst backend.Instance, c state.Cell, release func(), err error) {
	if c, err = m.made(ctx, id); err == nil {
		err = m.cfg.Policies.MayStart(&c)
	}
	if err != nil {
		return nil, c, nil, err
	}
	inst, release = m.Ref(id)
	if inst != nil && backend.Dead(ctx, inst) {
		release()
		if err := m.takeAway(ctx, id); err != nil {
			return nil, c, nil, err
		}
		inst, release = m.Ref(id)
	}
	if inst == nil {
		if inst, release, err = m.wake(ctx, id); err != nil {
			return nil, c, nil, err
		}
	}
	if err = m.Rouse(ctx, id); err == nil {
		c, err = m.Usable(id)
	}
	if err == nil {
		err = m.notParked(&c)
	}
	if err != nil {
		release()
		return nil, c, nil, err
	}
	return inst, c, release, nil
}

// wake makes an instance of a cell at rest.
func (m *Manager) wake(ctx context.Context, id cell.ID) (backend.Instance, func(), error) {
	inst, release, unlock, err := m.liveOrLock(ctx, id)
	if inst != nil || err != nil {
		return inst, release, err
	}
	defer unlock()
	c, err := m.Usable(id)
	if err != nil {
		return nil, nil, err
	}
	if m.Unreached(id) {
		if inst, err = m.reach(ctx, &c); err != nil {
			return nil, nil, err
		}
		if inst != nil {
			inst, release = m.Ref(id)
			return inst, release, nil
		}
	}
	if err := m.notParked(&c); err != nil { // before anything is started for it
		return nil, nil, err
	}
	err = m.begin(ctx, &c)
	if err != nil {
		return nil, nil, err
	}
	inst, err = m.Activate(ctx, &c)
	if err != nil {
		m.notBegun(&c)
		return nil, nil, err
	}
	m.cfg.Woken(ctx, &c, inst)
	inst, release = m.Ref(id)
	return inst, release, nil
}

// begin prepares a cell at rest for an instance, and commits that. The caller holds the cell's lock.
func (m *Manager) begin(ctx context.Context, c *state.Cell) error {
	changed, done, err := m.cfg.Prepare(ctx, c)
	defer done()
	if err != nil {
		return err
	}
	if err := c.To(cell.Running); err != nil { // it is already, or paused, when its rest could not be recorded
		return err
	}
	c.Cause = ""
	m.RecordEnd(c.ID, state.PutToRest)
	return m.cfg.Registry.Commit(append([]any{c}, changed...)...)
}

// notBegun records that a cell has no instance after all.
func (m *Manager) notBegun(c *state.Cell) {
	if c.To(cell.Idle) == nil { // it is Running
		m.cfg.Registry.Commit(c)
	}
}

// Alone has do work in an instance of a cell at rest that nothing else reaches, and takes it down. The caller
// holds the cell's lock. c is changed, and committed before do.
func (m *Manager) Alone(ctx context.Context, c *state.Cell, do func(backend.Instance) error) error {
	if err := m.begin(ctx, c); err != nil {
		return err
	}
	inst, err := m.make(ctx, c)
	if err != nil {
		m.notBegun(c)
		return err
	}
	err = do(inst)
	if rerr := m.Remove(ctx, inst, cell.CauseStopped); err == nil {
		err = rerr
	}
	if terr := c.To(cell.Idle); err == nil {
		err = terr
	}
	return err
}

// made is Usable, once a cell that is being made is there.
func (m *Manager) made(ctx context.Context, id cell.ID) (state.Cell, error) {
	if c, err := m.cfg.Registry.Cell(id); err == nil && c.State == cell.Creating {
		inst, release, unlock, err := m.liveOrLock(ctx, id)
		if err != nil {
			return c, err
		}
		if inst != nil {
			release()
		} else {
			unlock()
		}
	}
	return m.Usable(id)
}

// liveOrLock waits until the cell has an instance, which it returns with a reference, or
// until its lock is free, which it takes. A run that is just starting keeps
// the lock to its end, but makes an instance soon. It fails when an unreached cell
// keeps its lock: a run that an earlier daemon began waits for the keeper.
func (m *Manager) liveOrLock(ctx context.Context, id cell.ID) (inst backend.Instance, release, unlock func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	taken := make(chan error, 1)
	go func() {
		var err error
		unlock, err = m.cfg.Locks.Acquire(ctx, id, "start", nil)
		taken <- err
	}()
	giveUp := func() {
		cancel()
		if <-taken == nil {
			unlock()
		}
	}
	tick := time.NewTicker(unreachedTick)
	defer tick.Stop()
	for {
		arrived := m.arrival()
		if inst, release = m.Ref(id); inst != nil {
			giveUp()
			return inst, release, nil, nil
		}
		if err := m.MayWait(id); err != nil {
			giveUp()
			return nil, nil, nil, err
		}
		select {
		case err := <-taken:
			if err != nil {
				return nil, nil, nil, err
			}
			if inst, release = m.Ref(id); inst != nil {
				unlock()
			}
			return inst, release, unlock, nil
		case <-arrived:
		case <-tick.C:
		}
	}
}

// unreachedTick is how often a request that waits for a cell's lock looks whether a run in an
// unreached cell has it.
const unreachedTick = 50 * time.Millisecond

// EndUnknown ends the cells that have no business to live: those that an earlier
// daemon had made ahead or for itself, those it was making or had not recorded yet,
// those with a recorded end, and keepers without a cell.
func (m *Manager) EndUnknown(ctx context.Context, backends []backend.Backend) {
	for _, b := range backends {
		living, err := b.Living(ctx)
		if err != nil {
			m.cfg.Log.Warn("cannot tell which cells live", "backend", b.Name(), "error", err)
		}
		for _, h := range living {
			if c, err := m.cfg.Registry.Cell(h.ID); err != nil || c.State != cell.Running && c.State != cell.Paused {
				m.EndOrphan(ctx, b, h)
			}
		}
	}
}

// EndOrphan ends a cell that the daemon which was to end it did not: that has died.
func (m *Manager) EndOrphan(ctx context.Context, b backend.Backend, h cell.Held) {
	inst, err := b.Attach(ctx, h.ID, h.Family)
	if cell.KindOf(err) == cell.NotFound {
		return // as it should be
	}
	if err != nil {
		m.cfg.Log.Warn("cannot tell whether an orphaned cell lives", "cell", h.ID, "family", h.Family, "error", err)
		return
	}
	if err := m.Remove(ctx, inst, "its end was interrupted"); err != nil {
		m.cfg.Log.Warn("cannot end an orphaned cell", "cell", h.ID, "error", err)
	}
}
