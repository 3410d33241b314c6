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

// keepThawing thaws until the cell goes on, is gone, was paused by its user, or ctx ends.
func (m *Manager) keepThawing(ctx context.Context, inst backend.Instance, pause time.Duration) error {
	for {
		if c, err := m.cfg.Registry.Cell(inst.ID()); err == nil && c.State == cell.Paused {
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
