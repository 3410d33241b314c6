package isolation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Cell is a cell with a first process.
type Cell struct {
	Init *linux.Child // its first process
	Kin  any          // what the driver above has of it; set before it is added

	d        *Driver
	w        wire
	cgroup   *linux.Cgroup
	landlock *linux.LandlockRuleset
	gone     chan struct{}    // closed when the first process has ended
	link     *link            // nil: loopback alone
	denied   *linux.ExecWatch // nil: no program is denied, or the kernel cannot count executions
	// forked: its first process was forked from another cell's and is in a user namespace of its
	// own. It counts as a process of the cell. Otherwise it is ours, and only waits.
	forked  bool
	outside bool           // a fork: it inherited the filter against set-user-ID bits
	layers  map[string]int // a fork: layers of its overlays in memory, by mount point

	ruling sync.Mutex // guards landlock while it is made
}

// Spec returns what the cell was made from. Only its hostname changes.
func (c *Cell) Spec() *cell.Spec { return &c.w.Spec }

// Gone is closed when the cell's first process has ended, and all others with it.
func (c *Cell) Gone() <-chan struct{} { return c.gone }

// follow waits for the end of a first process that is no child.
func (c *Cell) follow() {
	linux.WaitGone(c.Init.PIDFD)
	close(c.gone)
}

// LinkKind returns the kind of the cell's link as in cell.NetworkLink, or "" if it has none.
func (c *Cell) LinkKind() string {
	if c.link == nil {
		return ""
	}
	return c.link.Kind
}

// Cgroups returns the cgroups with the cell's limits.
func (c *Cell) Cgroups() []linux.CgroupDir {
	if c.cgroup == nil || c.w.Cgroup == nil {
		return nil
	}
	return c.w.Cgroup.Dirs
}

// Inherit gives c the cgroup and the link of the cell that it continues.
func (c *Cell) Inherit(old *Cell) { c.cgroup, c.link = old.cgroup, old.link }

// Disinherit takes the cgroup and the link from c. They are another cell's.
func (c *Cell) Disinherit() { c.cgroup, c.link = nil, nil }

// openMounts returns a raised file for each mount that needs one. The daemon opened some; the
// keeper opens the others here. mine selects the private mounts of a fork; nil selects all.
func (c *Cell) openMounts(files []*os.File, mine []bool) ([]*os.File, error) {
	mounts := make([]*os.File, len(c.w.Spec.Mounts))
	if len(c.w.Mounts) != len(mounts) {
		return nil, fmt.Errorf("cannot read the cell's mounts")
	}
	o := opener{mounts: c.w.Spec.Mounts}
	defer o.close()
	for i, m := range c.w.Spec.Mounts {
		if madeInside(m) || mine != nil && !mine[i] {
			continue
		}
		var f *os.File
		var err error
		if n := c.w.Mounts[i].File; n >= 0 {
			if n >= len(files) {
				return mounts, fmt.Errorf("cannot find the file of mount %s", m.Target)
			}
			if f, err = dup(files[n]); err != nil {
				return mounts, err
			}
		} else {
			if o.ns == nil {
				if o.ns, err = linux.NewMountNS(c.w.Scratch, 0); err != nil {
					return mounts, err
				}
				defer o.ns.Close()
			}
			if f, err = o.open(i); err != nil {
				return mounts, err
			}
		}
		if mounts[i], err = linux.Raise(f); err != nil {
			return mounts, err
		}
	}
	return mounts, nil
}

func dup(f *os.File) (*os.File, error) {
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

// Release closes the files of a cell.
func (c *Cell) Release() {
	if c.landlock != nil {
		c.landlock.Close()
	}
	if c.Init != nil {
		c.Init.PIDFD.Close()
	}
	if c.denied != nil {
		c.denied.Close()
	}
	if c.link != nil {
		c.link.drop()
	}
}

// signalAll sends sig to every process of the cell except its first, with kill(-1) from inside
// the PID namespace. A fork cannot escape it.
func (c *Cell) signalAll(sig unix.Signal) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{})
	// ESRCH: there are no other processes.
	s.Try("signal all", unix.SYS_KILL, -1, int(sig))
	s.Exit()
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.Init.PIDFD.Fd())})
	if err != nil {
		return err
	}
	defer child.PIDFD.Close()
	_, _, err = child.Wait()
	return err
}

func (c *Cell) freeze() error {
	if c.cgroup != nil && c.cgroup.Freezes() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), freezeGrace, fmt.Errorf("its processes did not stop within %s", freezeGrace))
		defer cancel()
		return c.cgroup.Freeze(ctx)
	}
	return c.stop()
}

// freezeGrace is how long a cgroup may take to freeze: a process that waits for a disk stops only after that.
const freezeGrace = 15 * time.Second

// stopGrace is how long processes may take to stop, stopWait how long one that waits for the kernel is
// waited for: what it waits for may be a process that has stopped.
const (
	stopGrace = 5 * time.Second
	stopWait  = 200 * time.Millisecond
)

// stop stops all processes with SIGSTOP, and returns when they have stopped: each finishes the system
// call that it is in first.
func (c *Cell) stop() error {
	const again = 20 // a process that was started meanwhile has got no signal
	began := time.Now()
	for i := 0; ; i++ {
		if i%again == 0 {
			if err := c.signalToStop(); err != nil {
				return err
			}
		}
		runs, waits, err := linux.Unstopped(procPath(c.Init.PID, "root/proc"))
		if err != nil {
			return err
		}
		if !c.forked { // the first is the keeper's own, and changes nothing
			runs = slices.DeleteFunc(runs, func(pid int) bool { return pid == 1 })
		}
		took := time.Since(began)
		switch {
		case len(runs) == 0 && (len(waits) == 0 || took > stopWait):
			return nil
		case took > stopGrace:
			return errors.Join(cell.Errorf(cell.Unavailable, "isolation.Freeze", "try again", "cannot stop process %d of the cell: it still runs after %s", runs[0], stopGrace), c.thaw())
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func (c *Cell) signalToStop() error {
	if c.forked { // kill(-1) does not reach process 1
		if err := c.Init.Signal(unix.SIGSTOP); err != nil {
			return err
		}
	}
	return c.signalAll(unix.SIGSTOP)
}

func (c *Cell) thaw() error {
	if c.cgroup != nil && c.cgroup.Freezes() {
		return c.cgroup.Thaw()
	}
	if c.forked {
		if err := c.Init.Signal(unix.SIGCONT); err != nil {
			return err
		}
	}
	return c.signalAll(unix.SIGCONT)
}

// Measure measures the cell by its cgroup, or else by its processes. memory returns the memory
// of one, in bytes.
func (c *Cell) Measure(list []cell.ProcessInfo, memory func(cell.ProcessInfo) int64) cell.Stats {
	st := c.counted()
	st.Processes, st.Measured = len(list), append([]string{"processes"}, st.Measured...)
	if c.cgroup == nil {
		for _, p := range list {
			st.Memory += memory(p)
			st.CPU += p.CPU * 1000
		}
		st.Measured = append(st.Measured, "memory")
	}
	return st
}

// counted returns the measurements of the cell's cgroup.
func (c *Cell) counted() (st cell.Stats) {
	if c.cgroup == nil {
		return st
	}
	g := c.cgroup.Used()
	for _, x := range []struct {
		name string
		from int64
		to   *int64
	}{{"memory", g.Memory, &st.Memory}, {"peak_memory", g.MemoryPeak, &st.PeakMemory}, {"cpu_us", g.CPUUsec, &st.CPU},
		{"written", g.WrittenBytes, &st.Written}, {"oom_kills", g.OOMKills, &st.OOMKills}, {"peak_pids", g.PIDsPeak, &st.PeakPIDs}} {
		if x.from != linux.NotMeasured {
			*x.to = x.from
			st.Measured = append(st.Measured, x.name)
		}
	}
	return st
}

// thawRetry is the interval after which a killed cell is thawed again. The first attempt fails
// if the keeper has no free descriptor.
const thawRetry = 100 * time.Millisecond

// End kills the cell's first process and waits for its end.
func (c *Cell) End() {
	c.Init.Kill()
	for {
		select {
		case <-c.gone:
			return
		case <-time.After(thawRetry):
		}
		if c.cgroup != nil {
			c.cgroup.Thaw()
		}
	}
}

// CloseFiles closes files; nil ones are left out.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

func procPath(pid int, rest string) string { return "/proc/" + strconv.Itoa(pid) + "/" + rest }
