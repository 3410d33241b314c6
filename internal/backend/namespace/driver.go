package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// Driver is the keeper's side of the backend. It runs in the family's user namespace, with all
// capabilities there and none on the host.
type Driver struct {
	program   *os.File // of first processes
	lastCap   int
	rootCaps  uint64 // of commands that are root in their cell
	openFiles uint64 // hard limit
	seccomp   *linux.SeccompProgram
	forker    *linux.Thread // first processes get its death signal
	namer     *linux.Thread // in the UTS namespace of some fork
	tracer    *linux.Thread // ptraces stopped processes
	connect   func(*liveCell, []*os.File) (*link, error)
	bait      bait
	forking   *linux.SeccompProgram // of interpreters
	// Additional filters for cells that write to directories of the host: for commands, and for
	// the file server of a cell with its own kernel.
	noSetID, servesNoSetID *linux.SeccompProgram

	scan hazard.Scanner

	storing sync.Mutex        // guards mounts
	mounts  *linux.MountStore // nil until the first fork

	mu    sync.Mutex // guards the fields below
	cells map[cell.ID]*liveCell
	limit *limit                           // nil until a cell is sealed
	jails map[string]*linux.SeccompProgram // by the system calls they refuse
}

// liveCell is a cell with a first process.
type liveCell struct {
	d        *Driver
	w        wire
	init     *linux.Child
	cgroup   *linux.Cgroup
	landlock *linux.LandlockRuleset
	gone     chan struct{}    // closed when the first process has ended
	link     *link            // nil: loopback alone
	denied   *linux.ExecWatch // nil: no program is denied, or the kernel cannot count executions
	fork     *fork            // nil: the cell is no fork
	prog     *forkChild       // its interpreter

	// guarded by Driver.mu:
	sealed        *forkParent // set once the interpreter is only forked
	beingBranched bool        // a branch of it is in progress

	ruling sync.Mutex // guards landlock while it is made
}

// NewDriver prepares what all cells of a keeper share. It sets the process non-dumpable: a
// child that was forked from here is in a cell before it executes the command, and processes of
// the cell must not trace it.
func NewDriver() (server.Driver, error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	d := &Driver{lastCap: linux.LastCap(), rootCaps: confine.RootCaps, forker: linux.NewThread(), namer: linux.NewThread(), tracer: linux.NewThread(), connect: (*liveCell).connect, cells: map[cell.ID]*liveCell{}}
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

func (d *Driver) cell(id cell.ID) (*liveCell, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.cells[id]; c != nil {
		return c, nil
	}
	return nil, cell.Errorf(cell.NotFound, "namespace", "", "no cell %s in this keeper", id)
}

// Create implements server.Driver: it makes the namespaces and the root file system.
func (d *Driver) Create(id cell.ID, spec json.RawMessage, files []*os.File) (_ json.RawMessage, err error) {
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	c := &liveCell{d: d, gone: make(chan struct{})}
	if err := json.Unmarshal(spec, &c.w); err != nil {
		return nil, err
	}
	d.mu.Lock()
	_, there := d.cells[id]
	d.mu.Unlock()
	if there {
		return nil, cell.Errorf(cell.Exists, "namespace.Create", "", "cell %s exists", id)
	}
	mounts, err := c.openMounts(files, nil)
	defer func() {
		for _, f := range present(mounts) {
			f.Close()
		}
		if err != nil {
			c.release()
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
		c.init, err = linux.Spawn(first, linux.SpawnOptions{Flags: cloneFlags, CgroupFD: entry.into, Share: true})
	})
	if err != nil {
		return nil, explainSetup(err)
	}
	go func() {
		c.init.Wait()
		close(c.gone)
	}()
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
	made := madeCell{Init: c.init.PID, Namespaces: map[string]string{}}
	if c.link != nil {
		made.Link = c.link.Kind
	}
	if uncounted != nil {
		made.Untold = uncounted.Error()
	}
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if made.Namespaces[n], err = os.Readlink(procPath(c.init.PID, "ns/"+n)); err != nil {
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

// openMounts returns a raised file for each mount that needs one. The daemon opened some; the
// keeper opens the others here. mine selects the private mounts of a fork; nil selects all.
func (c *liveCell) openMounts(files []*os.File, mine []bool) ([]*os.File, error) {
	mounts := make([]*os.File, len(c.w.Spec.Mounts))
	if len(c.w.Mounts) != len(mounts) {
		return nil, fmt.Errorf("cannot read the cell's mounts")
	}
	var ns *linux.MountNS
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
			if ns == nil {
				if ns, err = linux.NewMountNS(c.w.Scratch, 0); err != nil {
					return mounts, err
				}
				defer ns.Close()
			}
			if f, err = openMount(ns, m, nil); err != nil {
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

func (c *liveCell) release() {
	if c.landlock != nil {
		c.landlock.Close()
	}
	if c.init != nil {
		c.init.PIDFD.Close()
	}
	if c.denied != nil {
		c.denied.Close()
	}
	if c.link != nil {
		c.link.drop()
	}
}

// explainSetup explains a failed setup.
func explainSetup(err error) error {
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	hint := "run `pando doctor`"
	if se.Call == "mount /proc" {
		hint = "this looks like a container that hides parts of /proc: run it with an unmasked /proc, or choose --backend none"
	}
	return cell.Errorf(cell.Unsupported, "namespace.Create", hint, "cannot set up the cell: %w", se)
}

// Start implements server.Driver.
func (d *Driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (server.Started, error) {
	c, err := d.cell(id)
	if err != nil {
		return server.Started{}, err
	}
	if err := c.startable(); err != nil {
		return server.Started{}, err
	}
	var term *os.File
	if p.TTY {
		var slave *os.File
		if term, slave, err = linux.OpenTerminal(procPath(c.init.PID, "root/dev/pts/ptmx"), p.Rows, p.Cols); err != nil {
			return server.Started{}, err
		}
		defer slave.Close()
		stdio = [3]*os.File{slave, slave, slave}
	}
	started, err := c.start(p, stdio, nil, begins)
	if err != nil {
		if term != nil {
			term.Close()
		}
		return started, err
	}
	started.Terminal = term
	return started, nil
}

// start starts a process with files as its standard streams. control is an interpreter's
// socket. begins, unless nil, is called before the first instruction of the program.
func (c *liveCell) start(p cell.Process, stdio [3]*os.File, control *os.File, begins func()) (server.Started, error) {
	var high [4]*os.File
	for i, f := range append(stdio[:], control) {
		if f == nil {
			continue
		}
		g, err := dup(f)
		if err != nil {
			return server.Started{}, err
		}
		if high[i], err = linux.Raise(g); err != nil {
			return server.Started{}, err
		}
		defer high[i].Close()
	}
	entry, err := c.entry()
	defer entry.close()
	if err != nil {
		return server.Started{}, err
	}
	rules, err := c.rules()
	defer c.closeRules(rules)
	if err != nil {
		return server.Started{}, fmt.Errorf("cannot make the cell's Landlock rules: %w", err)
	}
	script, made, proof, err := c.command(p, [3]*os.File(high[:3]), high[3], entry, rules, begins != nil)
	var child *linux.Child
	if err == nil {
		pass := func(pid int) error {
			err := proof.complete(pid)
			if err == nil && begins != nil {
				begins()
			}
			return err
		}
		child, err = linux.Spawn(script, linux.SpawnOptions{PIDNS: int(c.init.PIDFD.Fd()), CgroupFD: entry.into, Share: true, Gate: pass})
		proof.end()
	}
	if err != nil {
		return server.Started{}, c.explainStart(err, p)
	}
	made.At = time.Now().UTC()
	made.Status = child.Captured["/proc/self/status"]
	measured, _ := json.Marshal(made)
	return server.Started{Process: &process{child: child, cell: c, descendants: openDescendants(child), group: linux.Group{PID: child.PID}}, Measured: measured}, nil
}

// explainStart explains why a command did not start.
func (c *liveCell) explainStart(err error, p cell.Process) error {
	name := "the command"
	if len(p.Args) > 0 {
		name = p.Args[0]
	}
	if u, ok := errors.AsType[*unseen](err); ok {
		return cell.Errorf(cell.Denied, "namespace.Start", "report this: the cell's isolation does not hold on this host",
			"cannot start %s: the canary %q was stopped, but nothing of it came to the gateway", name, u.name)
	}
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	switch {
	case strings.HasPrefix(se.Call, confine.CanaryOp):
		return cell.Errorf(cell.Denied, "namespace.Start", "report this: the cell's isolation does not hold on this host",
			"cannot start %s: the canary %q was not stopped as it must be (%v)", name, strings.TrimPrefix(se.Call, confine.CanaryOp), se.Errno)
	case se.IsExec() && (se.Errno == unix.ENOENT || se.Errno == unix.ENOTDIR || !c.hasAny(p.Path)):
		return cell.Errorf(cell.NoSuchBinary, "namespace.Start", "", "cannot find %s: looked for %s", name, strings.Join(p.Path, ", "))
	case se.Call == workdirOp+p.Workdir:
		return cell.Errorf(cell.NotFound, "namespace.Start", "name a directory that exists in the cell", "cannot start %s: cannot work in %s: %w", name, p.Workdir, se.Errno)
	case se.IsExec():
		return cell.CantExecute("namespace.Start", strings.TrimPrefix(se.Call, linux.ExecOp), se.Errno)
	}
	return cell.Errorf(cell.Internal, "namespace.Start", "", "cannot start %s: %w", name, se)
}

// hasAny reports whether one of paths exists in the cell. Below a directory without search
// permission execve says EACCES even for missing files.
func (c *liveCell) hasAny(paths []string) bool {
	root, err := unix.Open(procPath(c.init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	for _, p := range paths {
		fd, err := unix.Openat2(root, strings.TrimPrefix(p, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err == nil {
			unix.Close(fd)
			return true
		}
	}
	return false
}

// Root implements server.Driver.
func (d *Driver) Root(id cell.ID) (*os.File, error) {
	c, err := d.cell(id)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(procPath(c.init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "the cell's root", Err: err}
	}
	return os.NewFile(uintptr(fd), "/"), nil
}

// KillAll kills all processes except the first, and returns their number.
func (d *Driver) KillAll(id cell.ID) (int, error) {
	c, err := d.cell(id)
	if err != nil {
		return 0, err
	}
	if c.isSealed() { // its processes belong to its forks, too
		return 0, nil
	}
	list, err := d.List(id)
	if c.fork != nil && (err != nil || len(list) > 0) { // all end with the first, even if they cannot be counted
		if err := c.init.Kill(); err != nil && err != unix.ESRCH {
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

// startable returns an error if nothing can be started in the cell now.
func (c *liveCell) startable() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.sealed != nil:
		return cell.Errorf(cell.Conflict, "namespace.Start", "fork it, and run the command in the fork", "cannot start anything in cell %s: it is only forked", c.w.Spec.ID)
	case c.beingBranched:
		return cell.Errorf(cell.Conflict, "namespace.Start", "try again when it was branched", "cannot start anything in cell %s: it is being branched", c.w.Spec.ID)
	}
	return nil
}

// isSealed reports whether the cell's interpreter is only forked.
func (c *liveCell) isSealed() bool {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.sealed != nil
}

// signalAll sends sig to every process of the cell except its first, with kill(-1) from inside
// the PID namespace. A fork cannot escape it.
func (c *liveCell) signalAll(sig unix.Signal) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{})
	// ESRCH: there are no other processes.
	s.Try("signal all", unix.SYS_KILL, -1, int(sig))
	s.Exit()
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.init.PIDFD.Fd())})
	if err != nil {
		return err
	}
	defer child.PIDFD.Close()
	_, _, err = child.Wait()
	return err
}

// Freeze stops all processes of a cell: with the cgroup freezer, or with SIGSTOP.
func (d *Driver) Freeze(id cell.ID) error {
	c, err := d.cell(id)
	if err != nil {
		return err
	}
	return c.freeze()
}

func (c *liveCell) freeze() error {
	if c.isSealed() {
		return nil // it is stopped already
	}
	if c.cgroup != nil && c.cgroup.Freezes() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.cgroup.Freeze(ctx)
	}
	if c.fork != nil { // kill(-1) does not reach process 1
		if err := c.init.Signal(unix.SIGSTOP); err != nil {
			return err
		}
	}
	return c.signalAll(unix.SIGSTOP)
}

// Thaw resumes all processes of a cell.
func (d *Driver) Thaw(id cell.ID) error {
	c, err := d.cell(id)
	if err != nil {
		return err
	}
	return c.thaw()
}

func (c *liveCell) thaw() error {
	if c.isSealed() {
		return nil
	}
	if c.cgroup != nil && c.cgroup.Freezes() {
		return c.cgroup.Thaw()
	}
	if c.fork != nil {
		if err := c.init.Signal(unix.SIGCONT); err != nil {
			return err
		}
	}
	return c.signalAll(unix.SIGCONT)
}

// Stats measures a cell by its cgroup, or else by its processes.
func (d *Driver) Stats(id cell.ID) (cell.Stats, error) {
	c, err := d.cell(id)
	if err != nil {
		return cell.Stats{}, err
	}
	list, err := d.List(id)
	if err != nil {
		return cell.Stats{}, err
	}
	st := c.counted()
	st.Processes, st.Measured = len(list), append([]string{"processes"}, st.Measured...)
	if c.cgroup == nil {
		dir, sealed := procPath(c.init.PID, "root/proc"), c.isSealed()
		for _, p := range list {
			switch {
			case sealed: // memory shared with its forks counts as its own, too
				st.Memory += p.RSS
			case c.fork != nil && p.PID == 1:
				st.Memory += linux.MemoryOf(dir, p, "Private_Clean", "Private_Dirty")
			default:
				st.Memory += linux.MemoryOf(dir, p, "Pss")
			}
			st.CPU += p.CPU * 1000
		}
		st.Measured = append(st.Measured, "memory")
	}
	return st, nil
}

// Counted implements server.Counter.
func (d *Driver) Counted(id cell.ID) (cell.Stats, error) {
	c, err := d.cell(id)
	if err != nil {
		return cell.Stats{}, err
	}
	return c.counted(), nil
}

// Killed implements server.Counter.
func (d *Driver) Killed(id cell.ID) int64 {
	c, err := d.cell(id)
	if err != nil || c.cgroup == nil {
		return 0
	}
	return max(c.cgroup.OOMKills(), 0) // negative if not measured
}

// counted returns the measurements of the cell's cgroup.
func (c *liveCell) counted() (st cell.Stats) {
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

// Remove kills the first process, and with it the PID namespace. The fork parent of a sealed
// cell lives until its last fork ends.
func (d *Driver) Remove(id cell.ID) error {
	c, err := d.cell(id)
	if err != nil {
		return err
	}
	if c.cgroup != nil {
		c.cgroup.Thaw() // frozen processes don't die on cgroups v1
	}
	d.mu.Lock()
	if d.cells[id] != c {
		d.mu.Unlock()
		return nil // removed concurrently
	}
	delete(d.cells, id)
	t := c.sealed
	d.mu.Unlock()
	if t != nil {
		t.unref()
		return nil
	}
	c.end()
	if c.fork != nil {
		c.destroy()
		return nil
	}
	c.release()
	return nil
}

// thawRetry is the interval after which a killed cell is thawed again. The first attempt fails
// if the keeper has no free descriptor.
const thawRetry = 100 * time.Millisecond

// end kills the cell's first process and waits for its end.
func (c *liveCell) end() {
	c.init.Kill()
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

// process is a command in a cell.
type process struct {
	child       *linux.Child
	group       linux.Group
	cell        *liveCell
	descendants *descendants // nil: not known
}

func (p *process) PID() int { return p.child.PID }

// InnerPID returns the PID in the cell.
func (p *process) InnerPID() int { return innerPID(p.child.PID) }

// Signal sends a signal to the command and its process group.
func (p *process) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "namespace.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	return p.group.Signal(sig)
}

func (p *process) Wait(ended func()) (cell.Exit, cell.Usage) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	var rerr error
	err := p.group.Wait(ended, func() { ws, ru, rerr = p.child.Wait() })
	p.child.PIDFD.Close()
	err = errors.Join(err, rerr)
	if err != nil {
		return cell.Exit{Code: 255, Cause: "keeper lost"}, cell.Usage{}
	}
	return linux.ExitOf(ws), cell.Usage{
		UserMS: ru.Utime.Sec*1000 + ru.Utime.Usec/1000, SystemMS: ru.Stime.Sec*1000 + ru.Stime.Usec/1000,
		MaxRSS: ru.Maxrss * 1024,
	}
}
