package isolation

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Tried implements server.Observer.
func (d *Driver) Tried(id cell.ID) int64 {
	c, err := d.Cell(id)
	if err != nil {
		return 0
	}
	return linux.Tried(procPath(c.Init.PID, "net"))
}

// MissingCalls implements server.Observer: cells have the host's kernel.
func (d *Driver) MissingCalls(cell.ID) map[string]int64 { return nil }
