package isolation

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// cgroupEntry is the files with which a process enters a cell's cgroups. A keeper has them open
// while it starts a process.
type cgroupEntry struct {
	into  *os.File   // version 2: directory in which children are created
	tasks []*os.File // version 1: files to write "0" to
}

func (w cgroupEntry) close() { CloseFiles(append(present([]*os.File{w.into}), w.tasks...)) }

// takeCgroup records the cell's cgroups and duplicates the files for entering them from files.
// The daemon opened those, because the keeper lacks the rights.
func (c *Cell) takeCgroup(files []*os.File) (w cgroupEntry, err error) {
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

// openProcs prepares w for a process that is no child of the keeper. Such a process writes to
// cgroup.procs in version 2.
func (w *cgroupEntry) openProcs() error {
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

// entry opens the files with which a process of the keeper's user enters the cell's cgroups.
func (c *Cell) entry() (w cgroupEntry, err error) {
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
		e.Close() // closes raised files twice, and the others once
		return cgroupEntry{}, unopened(err)
	}
	return w, nil
}

// unopened turns an error for lack of file descriptors into Unavailable with a hint.
func unopened(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return cell.Errorf(cell.Unavailable, "isolation", cell.RoomHint, "cannot use the cell now: %w", err)
	}
	return err
}
