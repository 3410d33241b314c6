package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// fork is the additional state of a liveCell that was forked. Its interpreter is process 1 of
// its PID namespace, in its own user namespace.
type fork struct {
	up     *forkParent
	id     *forkIdentity // nil once adopted
	when   time.Time
	made   confine.Measured // results of the canaries at setup
	source bool             // the source of a branch, which continues
	// prepared: the fork has done, and passed the audit of, all work that needs no identity.
	prepared bool
	files    string // audit results for descriptors and memory
	maps     string
}

// forkGrace is the time limit for an interpreter to fork itself.
const forkGrace = 20 * time.Second

// forkChild is a process made by a fork parent, with the descriptors it was given.
type forkChild struct {
	proc  *linux.Child
	conn  *repl.Conn
	stdio [3]*os.File // the keeper's ends; stdin has none
	given [4]string   // link targets of its descriptors
	of    *forkParent
}

func (w *forkChild) drop() {
	if w.proc != nil {
		w.proc.Kill()
		w.proc.PIDFD.Close()
		if w.of != nil {
			w.of.d.mu.Lock()
			delete(w.of.children, w.proc.PID)
			w.of.d.mu.Unlock()
		}
	}
	if w.conn != nil {
		w.conn.Close()
	}
	for _, f := range present(w.stdio[:]) {
		f.Close()
	}
}

// fork makes the parent fork itself. The child has its own, empty namespaces and waits for its
// adoption. enter are the files with which it enters its cgroups.
func (t *forkParent) fork(ctx context.Context, enter []*os.File) (_ *forkChild, err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	defer t.killStrays() // after the limit is restored
	if err := t.d.limit.raise(); err != nil {
		return nil, fmt.Errorf("cannot raise the limit of namespaces: %w", err)
	}
	defer t.d.limit.lower()
	w, err := t.forkUnaudited(ctx, uintptr(linux.ForkFlags), repl.ModeFork, enter)
	if err == nil {
		if err = t.auditReleased(w.given); err != nil {
			w.drop()
		}
	}
	return w, err
}

// forkUnaudited is fork without the audit of the parent. The caller holds t.turn, has raised
// the limit, and does the audit.
func (t *forkParent) forkUnaudited(ctx context.Context, flags uintptr, mode string, enter []*os.File) (_ *forkChild, err error) {
	w := &forkChild{}
	defer func() {
		if err != nil {
			w.drop()
		}
	}()
	var theirs [3]*os.File
	defer func() { closeFiles(theirs[:]) }()
	var none *os.File
	if theirs[0], none, err = os.Pipe(); err != nil {
		return nil, err
	}
	none.Close() // its stdin is at EOF
	for i := 1; i < 3; i++ {
		if w.stdio[i], theirs[i], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	for i, f := range theirs {
		if w.given[i], err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err != nil {
			return nil, err
		}
	}
	f, err := t.conn.Fork(ctx, flags, mode, theirs, enter...)
	if err != nil {
		return nil, err
	}
	w.conn, w.given[3] = f.Conn, fmt.Sprintf("socket:[%d]", f.Inode)
	return w, w.take(t, f)
}

// take verifies that a process is the child that t just forked, and opens it.
func (w *forkChild) take(t *forkParent, f *repl.Forked) error {
	defer f.PIDFD.Close()
	// The PID is that of the peer that answered. It cannot be reused while its parent, which
	// never reaps, is its parent.
	b, err := os.ReadFile(procPath(f.PID, "status"))
	if err != nil || linux.StatusField(b, "PPid") != strconv.Itoa(t.prog.PID) {
		return cell.Errorf(cell.Denied, "namespace.Fork", "build the template again", "cannot fork the interpreter: the process that answered is not its fork")
	}
	own, err := linux.OpenProcess(f.PID)
	if err != nil {
		return err
	}
	w.proc, w.of = &linux.Child{PID: f.PID, PIDFD: own}, t
	t.d.mu.Lock()
	t.children[f.PID] = true
	t.d.mu.Unlock()
	return nil
}

// mapIDs maps the parent's IDs into the user namespace of a fork.
func (t *forkParent) mapIDs(pid int) error {
	own := []string{strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())}
	count := "1"
	if os.Getuid() == 0 {
		count = strconv.Itoa(IDRange)
	}
	text := [2]string{own[0] + " " + own[0] + " " + count, own[1] + " " + own[1] + " " + count}
	if t.up == nil {
		for i, name := range []string{"uid_map", "gid_map"} {
			if err := os.WriteFile(procPath(pid, name), []byte(text[i]), 0); err != nil {
				return fmt.Errorf("cannot map the fork's ids: %w", err)
			}
		}
		return nil
	}
	// Only the namespace above may write the map.
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, t.prog.PIDFD)
	s.Call("join the fork parent", unix.SYS_SETNS, int(t.prog.PIDFD.Fd()), unix.CLONE_NEWUSER)
	for i, name := range []string{"uid_map", "gid_map"} {
		s.WriteFile(procPath(pid, name), text[i])
	}
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// run executes a script and waits for its end.
func run(s *linux.Script, opt linux.SpawnOptions) error {
	child, err := linux.Spawn(s, opt)
	if err != nil {
		return err
	}
	defer child.PIDFD.Close()
	_, _, err = child.Wait()
	return err
}

// Fork implements server.Forker.
func (d *Driver) Fork(parentID, id cell.ID, spec json.RawMessage, i *server.Interpreter, files []*os.File) (_ json.RawMessage, err error) {
	defer closeFiles(files)
	parent, err := d.cell(parentID)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	t := parent.sealed
	if t != nil {
		t.ref()
	}
	_, there := d.cells[id]
	d.mu.Unlock()
	if t == nil {
		return nil, cell.Errorf(cell.Conflict, "namespace.Fork", "build a template, or branch the cell", "cannot fork cell %s: its interpreter is not sealed", parentID)
	}
	c := &liveCell{d: d, gone: make(chan struct{}), fork: &fork{up: t}}
	if there {
		err = cell.Errorf(cell.Exists, "namespace.Fork", "", "cell %s exists", id)
	} else {
		err = json.Unmarshal(spec, &c.w)
	}
	if err != nil {
		t.unref()
		return nil, err
	}
	made, err := c.createFork(t, files)
	if err != nil {
		c.destroy()
		return nil, err
	}
	*i = c.interpreter()
	return json.Marshal(made)
}

// interpreter returns the keeper's view of a fork's interpreter. The caller owns the streams.
func (c *liveCell) interpreter() server.Interpreter {
	return server.Interpreter{Process: &forkProcess{c}, Conn: c.prog.conn, Stdout: c.prog.stdio[1], Stderr: c.prog.stdio[2], Depth: c.depth(), Layer: c.w.Spec.Layer, IsCell: true}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// destroy tears down a fork.
func (c *liveCell) destroy() {
	if c.prog != nil {
		c.prog.drop()
	}
	c.release()
	c.fork.id.drop()
	c.fork.up.unref()
}

// createFork makes c a fork of t: a process with its IDs, cgroups, files and network that
// passed the canaries.
func (c *liveCell) createFork(t *forkParent, files []*os.File) (made madeCell, err error) {
	if c.w.Spec.WritesOutside() && !t.outside {
		return made, cell.Errorf(cell.Unsupported, "namespace.Fork", "leave out the writable mounts, or build the template with them",
			"cannot fork: what is forked may set set-user-id bits, which a cell with writable mounts may not")
	}
	mine := privateMounts(t.mounts, c.w.Spec.Mounts)
	mounts, err := c.openMounts(files, mine)
	defer func() { closeFiles(mounts) }()
	var entry cgroupEntry
	if err == nil {
		entry, err = c.takeCgroup(files)
	}
	defer func() { entry.close() }()
	if err != nil {
		return made, err
	}
	uncounted := c.watchDenied(mounts)
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	if err := entry.openProcs(); err != nil {
		return made, err
	}
	w, err := t.fork(ctx, entry.tasks)
	entry.close()
	entry.into, entry.tasks = nil, nil
	if err != nil {
		return made, explainFork(err)
	}
	c.prog, c.init = w, w.proc
	if err := t.mapIDs(w.proc.PID); err != nil {
		return made, err
	}
	ids, err := c.identityMounts()
	defer func() { closeFiles(ids) }()
	if err != nil {
		return made, err
	}
	s := c.setupScript(mine, mounts, ids, &c.fork.made)
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(w.proc.PIDFD.Fd()), Share: true})
	if err != nil {
		return made, explainSlot(err)
	}
	child.Wait()
	child.PIDFD.Close()
	c.fork.when = time.Now()
	c.fork.made.At, c.fork.made.Status = c.fork.when.UTC(), child.Captured["/proc/self/status"]
	if c.w.Talks && c.link == nil {
		if c.link, err = c.d.connect(c, files); err != nil {
			return made, err
		}
	}
	if made, err = c.auditNamespaces(t); err != nil {
		return made, err
	}
	if err := c.auditStopped(); err != nil {
		return made, err
	}
	if err := c.prepareAdoption(ctx); err != nil {
		return made, err
	}
	if uncounted != nil {
		made.Untold = uncounted.Error()
	}
	c.d.mu.Lock()
	c.d.cells[c.w.Spec.ID] = c
	c.d.mu.Unlock()
	go c.follow()
	return made, nil
}

// explainFork explains why an interpreter could not fork itself.
func explainFork(err error) error {
	if cell.KindOf(err) != cell.Internal {
		return err
	}
	return cell.Errorf(cell.Unavailable, "namespace.Fork", "see what limits processes and memory: pando stats", "cannot fork the interpreter: %w", err)
}

// explainSlot explains why a fork could not be set up.
func explainSlot(err error) error {
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	if len(se.Call) > len(confine.CanaryOp) && se.Call[:len(confine.CanaryOp)] == confine.CanaryOp {
		return cell.Errorf(cell.Denied, "namespace.Fork", "report this: the cell's isolation does not hold on this host",
			"cannot fork the interpreter: the canary %q was not stopped as it must be (%v)", se.Call[len(confine.CanaryOp):], se.Errno)
	}
	return cell.Errorf(cell.Unsupported, "namespace.Fork", "run `pando doctor`", "cannot set up the fork: %w", se)
}

// setupScript returns the script that builds a cell around a forked process. It joins the
// process's namespaces with the keeper's rights, then drops them like a command of the cell and
// runs the canaries.
func (c *liveCell) setupScript(mine []bool, mounts, ids []*os.File, made *confine.Measured) *linux.Script {
	s := &linux.Script{}
	x := int(c.init.PIDFD.Fd())
	s.Stdio([3]*os.File{}, append(append([]*os.File{c.init.PIDFD}, present(mounts)...), ids...)...)
	// The kernel demands a /proc that hides nothing when a new one is mounted: the keeper's
	// own.
	proc := s.FSMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if c.fork.source { // the network belongs to a user namespace above
		s.Call("join the source", unix.SYS_SETNS, x, unix.CLONE_NEWNET)
	}
	s.Call("join the fork", unix.SYS_SETNS, x, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	s.Attach(proc, "/proc")
	s.Call("close", unix.SYS_CLOSE, proc)
	s.WriteFile("/proc/sys/user/max_user_namespaces", "0")
	if !c.fork.source {
		s.Call("join the fork", unix.SYS_SETNS, x, unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS)
		network(s, c.w.Talks)
	}
	confine.CoverProc(s)
	terminals(s)
	full := c.fork.up.full
	if slices.Contains(full, "/dev/shm") {
		layered(s, "/dev/shm", "mode=1777")
	} else {
		s.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	}
	b := builder{s: s, full: full, made: map[string]bool{"/proc": true, "/dev": true, "/run": true}}
	for i, m := range c.w.Spec.Mounts {
		if mine[i] {
			b.place(m, c.w.Mounts[i], mounts[i])
		}
	}
	for i, m := range c.w.Spec.Mounts {
		if mine[i] && m.Kind == cell.Tmpfs && m.ReadOnly {
			remount(s, m.Target, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
		}
	}
	if !c.fork.source {
		name := []byte(c.w.Spec.Hostname)
		s.Call("sethostname", unix.SYS_SETHOSTNAME, name, len(name))
		s.Loopback()
	}
	s.Mkdir(confine.CanaryDir, 0o777)
	s.Try("chmod", unix.SYS_FCHMODAT, linux.AtCWD, confine.CanaryDir, 0o777)
	for i, f := range idFiles(c.w.Spec.ID, "") {
		// Without such a file in the image there is nothing to replace.
		at := s.Try("open "+f.path, unix.SYS_OPENAT, linux.AtCWD, f.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		s.Try("show "+f.path, unix.SYS_MOVE_MOUNT, int(ids[i].Fd()), "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		s.Try("close", unix.SYS_CLOSE, at)
	}
	s.CloseOthers(0)
	s.Call("setsid", unix.SYS_SETSID)
	s.Limit("core", unix.RLIMIT_CORE, 0, 0)
	confine.Shed(s, c.become(s))
	c.filter(s, true)
	c.canaries(s, made, false)
	s.Refused(made.Add("one more user namespace", "limits"), []unix.Errno{unix.ENOSPC, unix.EPERM}, unix.SYS_CLONE, int(linux.ForkFlags), nil, nil, nil, nil)
	s.Capture("/proc/self/status", 4096)
	s.Report()
	s.Exit()
	return s
}

// follow waits for the end of a fork's interpreter, which ends the cell.
func (c *liveCell) follow() {
	linux.WaitGone(c.init.PIDFD)
	close(c.gone)
}

// forkProcess is a fork's interpreter as a server.Process.
type forkProcess struct{ c *liveCell }

func (p *forkProcess) PID() int { return p.c.init.PID }

// InnerPID returns the PID in the cell.
func (p *forkProcess) InnerPID() int { return 1 }

// Signal sends a signal to the interpreter alone. Its end ends all other processes of the cell.
func (p *forkProcess) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "namespace.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	if err := p.c.init.Signal(sig); err != unix.ESRCH {
		return err
	}
	return nil
}

// Interrupt implements server.Interrupter.
func (p *forkProcess) Interrupt() error { return p.Signal("SIGINT") }

func (p *forkProcess) Wait(ended func()) (cell.Exit, cell.Usage) {
	<-p.c.gone
	ended()
	for range 20 { // the kernel reaps it soon
		if ws, ok := linux.ExitStatus(p.c.init.PIDFD); ok {
			return linux.ExitOf(ws), cell.Usage{}
		}
		time.Sleep(time.Millisecond)
	}
	return cell.Exit{Code: 255, Cause: "ended"}, cell.Usage{} // this kernel reports the status only to the parent
}

func (p *forkProcess) EndRest() (int, error) { return 0, nil } // the end of process 1 ended them all
