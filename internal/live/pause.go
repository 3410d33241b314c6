package live

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// NotParked refuses work in a cell that is paused while nothing runs in it.
func (m *Manager) NotParked(c *state.Cell) error {
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
