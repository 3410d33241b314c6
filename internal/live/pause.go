package live

import (
	"context"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Pause freezes all processes of a cell where they are.
func (m *Manager) Pause(ctx context.Context, id cell.ID) error {
	release, err := m.pauses.Acquire(ctx, id, "pause", nil)
	if err != nil {
		return err
	}
	defer release()
	return m.freeze(ctx, id)
}

// Resume lets them go on.
func (m *Manager) Resume(ctx context.Context, id cell.ID) error {
	release, err := m.pauses.Acquire(ctx, id, "resume", nil)
	if err != nil {
		return err
	}
	defer release()
	return m.thaw(ctx, id)
}

// Sleep pauses a cell until something is done in it: see Rouse. It is a Conflict, and the cell goes
// on, when a command or a connection uses it, or when it is not free any more.
func (m *Manager) Sleep(ctx context.Context, id cell.ID, free func() bool) error {
	release, err := m.pauses.Acquire(ctx, id, "pause", nil)
	if err != nil {
		return err
	}
	defer release()
	if c, err := m.Usable(id); err != nil || c.State != cell.Running {
		return cell.Errorf(cell.Conflict, "live.Sleep", "", "cell %s does not run", id)
	}
	if err := m.freeze(ctx, id); err != nil {
		return err
	}
	if err := m.ChangeLease(id, func(l *state.Lease) error { l.Idle = true; return nil }); err != nil {
		return errors.Join(err, m.thaw(ctx, id)) // without the mark nothing would rouse it
	}
	// What came to use it meanwhile may have looked before it was asleep.
	if m.used(id) || !free() {
		return errors.Join(cell.Errorf(cell.Conflict, "live.Sleep", "", "cell %s is in use", id), m.thaw(ctx, id))
	}
	return nil
}

// Rouse continues a cell that Sleep has paused. Of others it does nothing.
func (m *Manager) Rouse(ctx context.Context, id cell.ID) error {
	if !m.asleep(id) {
		return nil
	}
	release, err := m.pauses.Acquire(ctx, id, "resume", nil)
	if err != nil {
		return err
	}
	defer release()
	if !m.asleep(id) {
		return nil
	}
	return m.thaw(ctx, id)
}

// asleep reports whether Sleep has paused a cell.
func (m *Manager) asleep(id cell.ID) bool {
	c, err := m.cfg.Registry.Cell(id)
	l := m.cfg.Registry.Lease(id)
	return err == nil && c.State == cell.Paused && l != nil && l.Idle
}

// freeze and thaw are Pause and Resume for callers that hold the cell's lock of pauses.
func (m *Manager) freeze(ctx context.Context, id cell.ID) error {
	return m.bring(ctx, id, cell.Paused, backend.Instance.Freeze)
}

func (m *Manager) thaw(ctx context.Context, id cell.ID) error {
	return m.bring(ctx, id, cell.Running, backend.Instance.Thaw)
}

func (m *Manager) bring(ctx context.Context, id cell.ID, to cell.State, do func(backend.Instance, context.Context) error) error {
	c, err := m.Usable(id)
	if err != nil {
		return err
	}
	inst, err := m.InstanceOf(&c)
	if err != nil {
		return err
	}
	if to == cell.Running {
		if err := m.cfg.Policies.MayStart(&c); err != nil {
			return err
		}
		if l := m.cfg.Registry.Lease(id); l != nil && l.Parked {
			if err := m.unpark(id); err != nil || inst == nil {
				return err
			}
		}
	}
	atRest := func() error {
		return cell.Errorf(cell.Conflict, "live.Pause", "", "cell %s has no processes", c.Title())
	}
	if inst == nil {
		return atRest()
	}
	if c.State == to {
		return m.unmarkIdle(id) // it was asleep: from now on it stays paused until its user resumes it
	}
	next, err := c.State.To(to)
	if err != nil {
		return err
	}
	if err := do(inst, ctx); cell.KindOf(err) == cell.NotFound && m.Instance(id) != inst { // it came to rest meanwhile
		return atRest()
	} else if err != nil {
		return err
	}
	if err := m.unmarkIdle(id); err != nil {
		return err
	}
	if l := m.cfg.Registry.Lease(id); l != nil && l.Door != "" { // paused cells of doors may be kept for a time
		at := time.Time{}
		if to == cell.Paused {
			at = time.Now().UTC()
		}
		if err := m.ChangeLease(id, func(l *state.Lease) error {
			if to != cell.Paused || l.ParkedAt.IsZero() {
				l.ParkedAt = at
			}
			return nil
		}); err != nil {
			return err
		}
	}
	// The lock may be a run's, which goes on: the state alone is changed.
	if err := m.cfg.Registry.Commit(state.StateChange{Cell: c.ID, From: c.State, To: next}); err != nil {
		return err
	}
	if to == cell.Running { // a checkpoint may have frozen it, and left it so, since the record said that it is paused
		if err := do(inst, ctx); err != nil && m.Instance(id) == inst {
			return err
		}
	}
	m.cfg.Services.Follow(&c)
	over := func() bool { return to == cell.Running && c.State == cell.Idle } // it went on, and what ran in it has ended
	if c, err = m.Usable(id); err == nil && c.State != next && !over() {
		err = cell.Errorf(cell.Conflict, "live.Pause", "look at it again: pando ls", "cannot do this to cell %s: it has become %s meanwhile", c.Title(), c.State)
	}
	return err
}

// unmarkIdle takes the mark of Sleep from a cell.
func (m *Manager) unmarkIdle(id cell.ID) error {
	if l := m.cfg.Registry.Lease(id); l == nil || !l.Idle {
		return nil
	}
	return m.ChangeLease(id, func(l *state.Lease) error { l.Idle = false; return nil })
}

// Park pauses a cell until Unpark: its processes stand still, and nothing can be
// started in it, also when it has none. It reports whether it ran.
func (m *Manager) Park(ctx context.Context, id cell.ID) (bool, error) {
	if _, err := m.Usable(id); err != nil {
		return false, err
	}
	release, err := m.pauses.Acquire(ctx, id, "pause", nil)
	if err != nil {
		return false, err
	}
	defer release()
	return m.park(ctx, id)
}

// park is Park for callers that hold the cell's lock of pauses.
func (m *Manager) park(ctx context.Context, id cell.ID) (bool, error) {
	did := false
	err := m.ChangeLease(id, func(l *state.Lease) error {
		if did = !l.Parked; did {
			l.Parked, l.ParkedAt = true, time.Now().UTC()
		}
		return nil
	})
	if err != nil || !did {
		return did, err
	}
	if m.AtRest(id) {
		return did, nil
	}
	if err = m.freeze(ctx, id); err != nil && m.AtRest(id) {
		err = nil // it came to rest meanwhile, maybe while it was asked
	}
	if err != nil {
		m.ChangeLease(id, goOn)
	}
	return did, err
}

// goOn has a lease say that the cell is not paused.
func goOn(l *state.Lease) error {
	l.Parked, l.ParkedAt = false, time.Time{}
	return nil
}

// Unpark lets a cell go on. It reports whether it was paused.
func (m *Manager) Unpark(ctx context.Context, id cell.ID) (bool, error) {
	release, err := m.pauses.Acquire(ctx, id, "resume", nil)
	if err != nil {
		return false, err
	}
	defer release()
	c, err := m.Usable(id)
	if err != nil {
		return false, err
	}
	was := c.State == cell.Paused
	if l := m.cfg.Registry.Lease(id); l != nil && l.Parked {
		was = true
	}
	if c.State == cell.Paused {
		if err := m.thaw(ctx, id); err != nil && !m.AtRest(id) { // else it came to rest meanwhile, maybe while it was asked
			return was, err
		}
	}
	return was, m.unpark(id)
}

// unpark notes that a cell may be worked in again.
func (m *Manager) unpark(id cell.ID) error {
	if l := m.cfg.Registry.Lease(id); l == nil || !l.Parked {
		return nil
	}
	return m.ChangeLease(id, goOn)
}

// notParked refuses work in a cell that is paused while nothing runs in it.
func (m *Manager) notParked(c *state.Cell) error {
	if l := m.cfg.Registry.Lease(c.ID); l != nil && l.Parked {
		return errPaused("live", c)
	}
	return nil
}

// NotPaused refuses work in a cell with paused processes: what is started or asked there
// would not answer before the cell is resumed.
func NotPaused(op string, c *state.Cell) error {
	if c.State != cell.Paused {
		return nil
	}
	return errPaused(op, c)
}

func errPaused(op string, c *state.Cell) error {
	return cell.Errorf(cell.Conflict, op, "run `pando resume "+c.Title()+"` first", "cell %s is paused", c.Title())
}
