package namespace

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// List reads the cell's own /proc, with the PIDs inside. It leaves out the first process,
// except in a fork, where that is the interpreter, and leaves out zombies. A sealed cell has
// only its interpreter; forks of that are not listed.
func (d *Driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	c, err := d.cell(id)
	if err != nil {
		return nil, err
	}
	var list []cell.ProcessInfo
	if c.isSealed() { // its /proc is covered
		p, err := linux.ReadProcess(c.prog.proc.PID)
		switch {
		case linux.IsGone(err):
		case err != nil:
			return nil, err
		case p.State != "Z" && p.State != "X":
			p.PID = c.innerPID()
			list = append(list, p)
		}
		return list, nil
	}
	all, err := linux.Processes(procPath(c.init.PID, "root/proc"))
	if err != nil && !linux.IsGone(err) { // all processes end with the first
		return nil, err
	}
	for _, p := range all {
		if (p.PID != 1 || c.fork != nil) && p.State != "Z" && p.State != "X" {
			list = append(list, p)
		}
	}
	return list, nil
}

// Held implements server.Counter.
func (d *Driver) Held(id cell.ID) int64 {
	c, err := d.cell(id)
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
	return linux.HeldBytes(procPath(c.init.PID, "root/proc"), pids)
}
