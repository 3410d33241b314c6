package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// cgroupGrace bounds waits without a deadline of the caller.
const cgroupGrace = 20 * time.Second

func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, cgroupGrace, fmt.Errorf("gave up after %s", cgroupGrace))
}

// until calls done, with pauses that grow from 20 µs to 2 ms, until it returns
// true or an error, or ctx ends. The kernel's own notifications come up to
// 10 ms late (it limits their rate), which is longer than what we wait for.
func until(ctx context.Context, done func() (bool, error)) error {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// Freezes reports whether the cgroup is in a hierarchy that can stop processes.
func (c *Cgroup) Freezes() bool {
	if _, ok := c.v2(); ok {
		return true
	}
	_, ok := c.with("freezer")
	return ok
}

// Freeze stops all processes of the cgroup and returns when the last one has
// stopped. When it fails, they run on. It is idempotent.
func (c *Cgroup) Freeze(ctx context.Context) error {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	err := c.freeze(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("cannot freeze cgroup %s: %w", c.Name, err), c.Thaw())
	}
	return err
}

func (c *Cgroup) freeze(ctx context.Context) error {
	if d, ok := c.v2(); ok {
		if err := writeCgroup(d.path, "cgroup.freeze", "1"); err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			n := keyed(d.path, "cgroup.events", "frozen")
			if n == NotMeasured {
				return false, errors.New("cannot read cgroup.events")
			}
			return n == 1, nil
		})
	}
	d, ok := c.with("freezer")
	if !ok {
		return cell.Errorf(cell.Unsupported, "linux.Freeze", "", "the cgroup is in no hierarchy that can freeze")
	}
	return until(ctx, func() (bool, error) {
		// Written again each time: a process forked meanwhile keeps the state
		// at FREEZING, and only a write makes the kernel look again.
		if err := writeCgroup(d.path, "freezer.state", "FROZEN"); err != nil {
			return false, err
		}
		state, err := readCgroup(d.path, "freezer.state")
		return state == "FROZEN", err
	})
}

// Thaw lets all processes run again. It is idempotent.
func (c *Cgroup) Thaw() error {
	file, text := "cgroup.freeze", "0"
	d, ok := c.v2()
	if !ok {
		file, text = "freezer.state", "THAWED"
		if d, ok = c.with("freezer"); !ok {
			return nil // never frozen
		}
	}
	if err := writeCgroup(d.path, file, text); err != nil {
		return fmt.Errorf("cannot thaw cgroup %s: %w", c.Name, err)
	}
	return nil
}

// Kill ends all processes with SIGKILL, frozen ones too, and returns when none is left.
// Then it thaws the cgroup, which can be used again.
//
// It freezes first, so that nothing forks meanwhile, and signals one by one. cgroup.kill
// would be one write, but it spoils the cgroup for processes that are created in it later:
// the kernel (seen on 6.18) compares the count of kills of the child's cgroup with that of
// its parent's, and kills the child where they differ.
func (c *Cgroup) Kill(ctx context.Context) error {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	for {
		populated, err := c.Populated()
		if err == nil && !populated {
			err = c.Thaw()
			if err == nil {
				return nil
			}
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			pids, _ := c.PIDs()
			return fmt.Errorf("cannot kill cgroup %s, %d processes are left: %w", c.Name, len(pids), err)
		}
		c.killOnce(ctx)
	}
}

// killOnce signals every process that is there now and waits a moment.
func (c *Cgroup) killOnce(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	_ = c.freeze(short) // best effort: what can't be frozen can be killed all the same
	cancel()
	for _, d := range c.dirs {
		killListed(d.path)
	}
	_ = c.Thaw() // v1 delivers no signal before
	short, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_ = until(short, func() (bool, error) {
		populated, err := c.Populated()
		return !populated, err
	})
}

// killListed kills what is listed below dir. A process is signalled through a
// descriptor that was opened while its number stood in the list, and that is
// still the living holder of the number when the list is read again, so that a
// number that was reused meanwhile is never hit.
func killListed(dir string) {
	handles := map[int]int{}
	for _, pid := range listPIDs(dir) {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			handles[pid] = fd
			defer unix.Close(fd)
		}
	}
	for _, pid := range listPIDs(dir) {
		fd, ok := handles[pid]
		if !ok {
			continue // came later: next time
		}
		ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(ended, 0); n == 0 && err == nil {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // ESRCH: it has just ended
		}
	}
}

// PIDs returns the processes of the cgroup and of those below it, sorted, in
// the numbering of this process.
func (c *Cgroup) PIDs() ([]int, error) {
	var all []int
	for _, d := range c.dirs {
		if _, err := os.Stat(d.path); err != nil {
			return nil, fmt.Errorf("cannot list cgroup %s: %w", c.Name, err)
		}
		all = append(all, listPIDs(d.path)...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// listPIDs reads the cgroup.procs of dir and of all directories below.
func listPIDs(dir string) []int {
	var pids []int
	for _, d := range cgroupsBelow(dir) {
		text, _ := readCgroup(d, "cgroup.procs") // gone meanwhile: nothing there
		for _, word := range strings.Fields(text) {
			if n, err := strconv.Atoi(word); err == nil && n > 0 {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// cgroupsBelow returns dir and all directories below it, each before those
// below it.
func cgroupsBelow(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// Populated reports whether any process is in the cgroup or below it, zombies
// not counted.
func (c *Cgroup) Populated() (bool, error) {
	for _, d := range c.dirs {
		if d.tree.v2 {
			switch keyed(d.path, "cgroup.events", "populated") {
			case 1:
				return true, nil
			case NotMeasured:
				return false, cell.Errorf(cell.NotFound, "linux.Populated", "", "cannot read cgroup %s: it is gone", d.path)
			}
			continue
		}
		for _, dir := range cgroupsBelow(d.path) {
			if text, _ := readCgroup(dir, "cgroup.procs"); text != "" {
				return true, nil
			}
		}
	}
	return false, nil
}

// Remove removes the cgroup with all below it. Processes that are dying are
// waited for, living ones are a Conflict. What is gone already is no error.
func (c *Cgroup) Remove(ctx context.Context) error {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	var failed []error
	for _, d := range c.dirs {
		tries := 0
		err := until(ctx, func() (bool, error) {
			err := d.remove()
			if !errors.Is(err, unix.EBUSY) {
				return true, err
			}
			if tries++; tries > 50 { // about 80 ms
				if pids := slices.DeleteFunc(listPIDs(d.path), dying); len(pids) > 0 {
					return false, cell.Errorf(cell.Conflict, "linux.Remove", "", "%d processes live in it", len(pids))
				}
			}
			return false, nil
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot remove cgroup %s: %w", d.path, err))
		}
	}
	return errors.Join(failed...)
}

// remove takes away the directories of one hierarchy, the deepest first.
func (d cgroupDir) remove() error {
	err := d.tree.rmdir(d.path) // the usual case: nothing below
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		for _, dir := range slices.Backward(cgroupsBelow(d.path)) {
			if err = d.tree.rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
