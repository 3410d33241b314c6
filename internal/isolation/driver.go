package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// Driver is the keeper's half. It runs in the family's user namespace, with all capabilities
// there and none on the host. It implements server.Driver, and what a cell can do without an
// interpreter. A backend with more wraps it.
type Driver struct {
	kin       func(*Cell) any
	program   *os.File // of first processes
	lastCap   int
	rootCaps  uint64 // of commands that are root in their cell
	openFiles uint64 // hard limit
	seccomp   *linux.SeccompProgram
	forker    *linux.Thread // first processes get its death signal
	connect   func(*Cell, []*os.File) (*link, error)
	bait      bait
	forking   *linux.SeccompProgram // of interpreters
	// Additional filters for cells that write to directories of the host: for commands, and for
	// the file server of a cell with its own kernel.
	noSetID, servesNoSetID *linux.SeccompProgram
	execs                  *linux.SeccompProgram // has execve wait for an observer; nil where the kernel can't

	storing sync.Mutex        // guards mounts
	mounts  *linux.MountStore // nil until the first fork

	mu    sync.Mutex // guards the fields below
	cells map[cell.ID]*Cell
	jails map[string]*linux.SeccompProgram // by the system calls they refuse
}

// NewDriver prepares what all cells of a keeper share. It sets the process non-dumpable: a
// child that was forked from here is in a cell before it executes the command, and processes of
// the cell must not trace it. kin makes Cell.Kin of each cell that Create makes; nil: they have
// none.
func NewDriver(kin func(*Cell) any) (*Driver, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	d := &Driver{kin: kin, lastCap: linux.LastCap(), rootCaps: confine.RootCaps, forker: linux.NewThread(), connect: (*Cell).connect, cells: map[cell.ID]*Cell{}}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return nil, os.NewSyscallError("getrlimit", err)
	}
	d.openFiles = lim.Max
	filter, err := linux.SeccompFilter(linux.SeccompOptions{})
	if err != nil {
		return nil, err
	}
	if d.seccomp, err = linux.NewSeccompProgram(filter); err != nil {
		return nil, err
	}
	if filter, err = linux.SeccompFilter(linux.SeccompOptions{AllowFork: true}); err != nil {
		return nil, err
	}
	if d.forking, err = linux.NewSeccompProgram(filter); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		server bool
		to     **linux.SeccompProgram
	}{{false, &d.noSetID}, {true, &d.servesNoSetID}} {
		if filter, err = linux.NoSetIDFilter(x.server); err != nil {
			return nil, err
		}
		if *x.to, err = linux.NewSeccompProgram(filter); err != nil {
			return nil, err
		}
	}
	if linux.ExecNotices() == nil {
		if d.execs, err = linux.NewSeccompProgram(linux.ExecNoticeFilter()); err != nil {
			return nil, err
		}
	}
	if d.bait, err = newBait(); err != nil {
		return nil, err
	}
	p, err := linux.InitProgram()
	if err != nil {
		return nil, err
	}
	d.program, err = linux.Raise(p)
	return d, err
}

// Cell returns a cell of this keeper.
func (d *Driver) Cell(id cell.ID) (*Cell, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.cells[id]; c != nil {
		return c, nil
	}
	return nil, cell.Errorf(cell.NotFound, "isolation", "", "no cell %s in this keeper", id)
}

// Add adds a cell that was Pending.
func (d *Driver) Add(c *Cell) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells[c.w.Spec.ID] = c
	go c.follow()
}

// Replace puts a cell that was Pending in the place of another of the same ID. It reports false
// if that one was removed.
func (d *Driver) Replace(old, next *Cell) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cells[next.w.Spec.ID] != old {
		return false
	}
	d.cells[next.w.Spec.ID] = next
	go next.follow()
	return true
}

// Forget takes a cell out of the keeper. It reports false if that was done before. The caller
// ends it.
func (d *Driver) Forget(c *Cell) bool {
	if c.cgroup != nil {
		c.cgroup.Thaw() // frozen processes don't die on cgroups v1
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cells[c.w.Spec.ID] != c {
		return false
	}
	delete(d.cells, c.w.Spec.ID)
	return true
}

// Create implements server.Driver: it makes the namespaces and the root file system.
func (d *Driver) Create(id cell.ID, spec json.RawMessage, files []*os.File) (_ json.RawMessage, err error) {
	defer CloseFiles(files)
	c := &Cell{d: d, gone: make(chan struct{})}
	if err := json.Unmarshal(spec, &c.w); err != nil {
		return nil, err
	}
	if _, err := d.Cell(id); err == nil {
		return nil, cell.Errorf(cell.Exists, "isolation.Create", "", "cell %s exists", id)
	}
	mounts, err := c.openMounts(files, nil)
	defer func() {
		CloseFiles(mounts)
		if err != nil {
			c.Release()
		}
	}()
	if err != nil {
		return nil, err
	}
	entry, err := c.takeCgroup(files)
	defer entry.close()
	if err != nil {
		return nil, err
	}
	uncounted := c.watchDenied(mounts)
	first := firstProcess(&c.w, mounts, entry.tasks, d.program, d.seccomp)
	d.forker.Do(func() {
		c.Init, err = linux.Spawn(first, linux.SpawnOptions{Flags: cloneFlags, CgroupFD: entry.into, Share: true})
	})
	if err != nil {
		return nil, explainSetup(err)
	}
	go func() {
		c.Init.Wait()
		close(c.gone)
	}()
	if d.kin != nil {
		c.Kin = d.kin(c)
	}
	d.mu.Lock()
	d.cells[id] = c
	d.mu.Unlock()
	if c.w.Talks {
		if c.link, err = d.connect(c, files); err != nil {
			d.Remove(id)
			return nil, err
		}
	}
	if _, err := c.rules(); err != nil {
		d.Remove(id)
		return nil, fmt.Errorf("cannot make the cell's Landlock rules: %w", err)
	}
	made := Made{Init: c.Init.PID, Namespaces: map[string]string{}}
	if c.link != nil {
		made.Link = c.link.Kind
	}
	if uncounted != nil {
		made.Untold = uncounted.Error()
	}
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if made.Namespaces[n], err = os.Readlink(procPath(c.Init.PID, "ns/"+n)); err != nil {
			d.Remove(id)
			return nil, err
		}
	}
	if made.UserNS, err = os.Readlink("/proc/self/ns/user"); err != nil {
		d.Remove(id)
		return nil, err
	}
	return json.Marshal(made)
}

// explainSetup explains a failed setup.
func explainSetup(err error) error {
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	if name, ok := strings.CutPrefix(se.Call, confine.CanaryOp); ok {
		return cell.Errorf(cell.Denied, "isolation.Create", "report this: the cell's isolation does not hold on this host",
			"cannot set up the cell: the canary %q was not stopped as it must be (%v)", name, se.Errno).About(cell.Canary)
	}
	hint := "run `pando doctor`"
	if se.Call == "mount /proc" {
		hint = "this looks like a container that hides parts of /proc: run it with an unmasked /proc, or choose --backend none"
	}
	return cell.Errorf(cell.Unsupported, "isolation.Create", hint, "cannot set up the cell: %w", se)
}

// Start implements server.Driver.
func (d *Driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (server.Started, error) {
	return d.StartWatched(id, p, stdio, begins, nil)
}

// StartWatched implements server.StartWatcher.
func (d *Driver) StartWatched(id cell.ID, p cell.Process, stdio [3]*os.File, begins func(), starts *server.Starts) (server.Started, error) {
	c, err := d.Cell(id)
	if err != nil {
		return server.Started{}, err
	}
	var term *os.File
	if p.TTY {
		var slave *os.File
		if term, slave, err = linux.OpenTerminal(procPath(c.Init.PID, "root/dev/pts/ptmx"), p.Rows, p.Cols); err != nil {
			return server.Started{}, err
		}
		defer slave.Close()
		stdio = [3]*os.File{slave, slave, slave}
	}
	started, err := c.start(p, stdio, nil, begins, starts)
	if err != nil {
		if term != nil {
			term.Close()
		}
		return started, err
	}
	started.Terminal = term
	return started, nil
}

// Root implements server.Driver.
func (d *Driver) Root(id cell.ID) (*os.File, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(procPath(c.Init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "the cell's root", Err: err}
	}
	return os.NewFile(uintptr(fd), "/"), nil
}

// KillAll kills all processes except the first, and returns their number.
func (d *Driver) KillAll(id cell.ID) (int, error) {
	c, err := d.Cell(id)
	if err != nil {
		return 0, err
	}
	list, err := d.List(id)
	if c.forked && (err != nil || len(list) > 0) { // all end with the first, even if they cannot be counted
		if err := c.Init.Kill(); err != nil && err != unix.ESRCH {
			return 0, err
		}
		<-c.gone
		return max(len(list), 1), nil
	}
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return len(list), c.signalAll(unix.SIGKILL)
}

// Freeze stops all processes of a cell: with the cgroup freezer, or with SIGSTOP.
func (d *Driver) Freeze(id cell.ID) error {
	c, err := d.Cell(id)
	if err != nil {
		return err
	}
	return c.freeze()
}

// Thaw resumes all processes of a cell.
func (d *Driver) Thaw(id cell.ID) error {
	c, err := d.Cell(id)
	if err != nil {
		return err
	}
	return c.thaw()
}

// Stats implements server.Driver.
func (d *Driver) Stats(id cell.ID) (cell.Stats, error) {
	c, err := d.Cell(id)
	if err != nil {
		return cell.Stats{}, err
	}
	list, err := d.List(id)
	if err != nil {
		return cell.Stats{}, err
	}
	dir := procPath(c.Init.PID, "root/proc")
	return c.Measure(list, func(p cell.ProcessInfo) int64 {
		if c.forked && p.PID == 1 {
			return linux.MemoryOf(dir, p, "Private_Clean", "Private_Dirty")
		}
		return linux.MemoryOf(dir, p, "Pss")
	}), nil
}

// Counted implements server.Counter.
func (d *Driver) Counted(id cell.ID) (cell.Stats, error) {
	c, err := d.Cell(id)
	if err != nil {
		return cell.Stats{}, err
	}
	return c.counted(), nil
}

// Killed implements server.Counter.
func (d *Driver) Killed(id cell.ID) int64 {
	c, err := d.Cell(id)
	if err != nil || c.cgroup == nil {
		return 0
	}
	return max(c.cgroup.OOMKills(), 0) // negative if not measured
}

// Remove kills the first process, and with it the PID namespace.
func (d *Driver) Remove(id cell.ID) error {
	c, err := d.Cell(id)
	if err != nil || !d.Forget(c) {
		return err
	}
	c.End()
	c.Release()
	return nil
}
