package namespace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// way is the files by which a process enters a cell's cgroups. A keeper has them open
// while it starts one.
type way struct {
	into  *os.File   // version 2: children are born in it
	tasks []*os.File // version 1: written "0" to
}

func (w way) close() { closeFiles(append(present([]*os.File{w.into}), w.tasks...)) }

// takeCgroup says where the cell's cgroups are, and takes the files by which its first
// process enters them from those that the daemon has opened: it has rights that the
// keeper lacks.
func (c *liveCell) takeCgroup(files []*os.File) (w way, err error) {
	if c.w.Cgroup == nil {
		return w, nil
	}
	n := c.w.Tasks
	if c.w.Into {
		n++
	}
	if n > len(files) {
		return w, fmt.Errorf("cannot find the files of the cell's cgroups")
	}
	c.cgroup = c.w.Cgroup.Cgroup()
	for i, f := range files[len(files)-n:] {
		g, err := dup(f)
		if err != nil {
			return w, err
		}
		if g, err = linux.Raise(g); err != nil {
			return w, err
		}
		if i == 0 && c.w.Into {
			w.into = g
		} else {
			w.tasks = append(w.tasks, g)
		}
	}
	return w, nil
}

// walk makes w one for a process that is no child of the keeper: it writes to a file
// of version 2, too.
func (w *way) walk() error {
	if w.into == nil {
		return nil
	}
	fd, err := unix.Openat(int(w.into.Fd()), "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unopened(fmt.Errorf("cannot open the fork's cgroup: %w", err))
	}
	f, err := linux.Raise(os.NewFile(uintptr(fd), "cgroup.procs"))
	if err != nil {
		return unopened(err)
	}
	w.tasks = append(w.tasks, f)
	return nil
}

// entry opens the files by which a process that is the keeper's still enters the cell's
// cgroups: their owner is the keeper's user.
func (c *liveCell) entry() (w way, err error) {
	if c.cgroup == nil {
		return w, nil
	}
	e, err := c.cgroup.Entry()
	if err != nil {
		return w, unopened(err)
	}
	if e.Procs != nil {
		e.Procs.Close()
	}
	if w.into = e.Into; w.into != nil {
		w.into, err = linux.Raise(w.into)
	}
	w.tasks = e.Tasks
	for i, f := range w.tasks {
		if err == nil {
			w.tasks[i], err = linux.Raise(f)
		}
	}
	if err != nil {
		e.Close() // what was raised is closed already, and what was not is not
		return way{}, unopened(err)
	}
	return w, nil
}

// unopened says of a file that could not be opened for want of descriptors that this
// is all there is to it.
func unopened(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return cell.Errorf(cell.Unavailable, "namespace", cell.RoomHint, "cannot use the cell now: %w", err)
	}
	return err
}
