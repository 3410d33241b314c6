package isolation

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// List reads the cell's own /proc, with the PIDs inside. It leaves out the first process,
// except in a fork, where that is the interpreter, and leaves out zombies.
func (d *Driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	var list []cell.ProcessInfo
	all, err := linux.Processes(procPath(c.Init.PID, "root/proc"))
	if err != nil && !linux.IsGone(err) { // all processes end with the first
		return nil, err
	}
	for _, p := range all {
		if (p.PID != 1 || c.forked) && p.State != "Z" && p.State != "X" {
			list = append(list, p)
		}
	}
	return list, nil
}

// Mapped implements server.Mapper.
func (d *Driver) Mapped(id cell.ID) ([]cell.MappedFile, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	return linux.Mapped(procPath(c.Init.PID, "root/proc"))
}

// Held implements server.Counter.
func (d *Driver) Held(id cell.ID) int64 {
	c, err := d.Cell(id)
	if err != nil {
		return 0
	}
	list, err := d.List(id)
	if err != nil {
		return 0
	}
	pids := make([]int, len(list))
	for i, p := range list {
		pids[i] = p.PID
	}
	return linux.HeldBytes(procPath(c.Init.PID, "root/proc"), pids)
}
