package namespace

import (
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// watchDenied begins to count executions of what stands in the place of denied
// programs. That they don't run is the mounts' doing: a kernel that can't count
// them takes nothing away from that; the error is why it can't, for the receipt.
// Those of a cell with a stage count for whoever works there.
func (c *liveCell) watchDenied(mounts []*os.File) error {
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

// DeniedPrograms implements keeper.Denier.
func (d *Driver) DeniedPrograms(id cell.ID) map[keeper.Denied]int64 {
	c, err := d.cell(id)
	if err != nil || c.denied == nil {
		return nil
	}
	counts := c.denied.Counts()
	out := map[keeper.Denied]int64{}
	for _, m := range c.w.Spec.Mounts {
		if n := counts[m.Target]; n > 0 && m.Denies != nil {
			out[keeper.Denied{Program: m.Target, Denial: *m.Denies}] = n
		}
	}
	return out
}
