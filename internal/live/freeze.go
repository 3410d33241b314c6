package live

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// thawGrace is how long a cell may take to go on after it was frozen. After that it is
// asked to again each second.
const (
	thawGrace = 10 * time.Second
	thawAgain = time.Second
)

// Unfreeze lets a cell go on that was frozen for an act, also when ctx has ended. It is no
// error when the keeper is gone: no process of the cell is left then. What fails is tried
// again, here until thawGrace is over, and then without end in the background.
func (m *Manager) Unfreeze(ctx context.Context, inst backend.Instance) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawGrace)
	defer cancel()
	err := m.keepThawing(ctx, inst, askAgain)
	if err == nil {
		return nil
	}
	m.cfg.Work(func(ctx context.Context) {
		if err := m.keepThawing(ctx, inst, thawAgain); err != nil && ctx.Err() == nil {
			m.cfg.Log.Error("cannot let a cell go on", "cell", inst.ID(), "error", err)
		}
	})
	return cell.Errorf(cell.Unavailable, "live.Unfreeze", "it is tried again each second; pando stop ends what runs in the cell", "cannot let the cell go on: %w", err)
}

// Hold has all that runs in a cell stand still until release is called, also where acts meanwhile freeze it
// and let it go on. The caller has the cell's lock.
func (m *Manager) Hold(ctx context.Context, id cell.ID) (release func(), err error) {
	inst, let := m.Ref(id)
	if inst == nil {
		return let, nil
	}
	m.hold(id, 1)
	release = func() {
		m.hold(id, -1)
		if err := m.Unfreeze(ctx, inst); err != nil {
			m.cfg.Log.Warn("cannot let a cell go on yet", "cell", id, "error", err)
		}
		let()
	}
	if err := inst.Freeze(ctx); err != nil && cell.KindOf(err) != cell.NotFound { // else its keeper is gone
		release()
		return nil, err
	}
	return release, nil
}

// keepThawing thaws until the cell goes on, is gone, was paused by its user or is held, or ctx ends.
func (m *Manager) keepThawing(ctx context.Context, inst backend.Instance, pause time.Duration) error {
	for {
		if c, err := m.cfg.Registry.Cell(inst.ID()); err == nil && c.State == cell.Paused || m.isHeld(inst.ID()) {
			return nil
		}
		err := inst.Thaw(ctx)
		if err == nil || cell.KindOf(err) == cell.NotFound || backend.Dead(ctx, inst) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// RemoveFrozen removes an instance with frozen processes, without letting them go on before
// they end.
func (m *Manager) RemoveFrozen(ctx context.Context, inst backend.Instance, cause string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawGrace)
	defer cancel()
	return inst.Remove(ctx, cause)
}
