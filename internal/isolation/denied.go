package isolation

import (
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// watchDenied starts counting executions of the files that replace denied programs. The mounts
// alone deny the programs; the returned error is the reason for the receipt why this kernel
// cannot count. In a cell with a stage the driver above counts.
func (c *Cell) watchDenied(mounts []*os.File) error {
	if c.w.Staged {
		return nil
	}
	for i, m := range c.w.Spec.Mounts {
		if m.Denies == nil || mounts[i] == nil {
			continue
		}
		if c.denied == nil {
			w, err := linux.NewExecWatch()
			if err != nil {
				return err
			}
			c.denied = w
		}
		if err := c.denied.Add(mounts[i], m.Target); err != nil {
			return err
		}
	}
	return nil
}

// DeniedPrograms implements server.Observer.
func (d *Driver) DeniedPrograms(id cell.ID) map[server.Denied]int64 {
	c, err := d.Cell(id)
	if err != nil || c.denied == nil {
		return nil
	}
	counts := c.denied.Counts()
	out := map[server.Denied]int64{}
	for _, m := range c.w.Spec.Mounts {
		if n := counts[m.Target]; n > 0 && m.Denies != nil {
			out[server.Denied{Program: m.Target, Denial: *m.Denies}] = n
		}
	}
	return out
}
