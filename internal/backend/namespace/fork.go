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
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// fork is what a liveCell has beside others when it was forked: its interpreter
// is process 1 of its pid namespace, in a user namespace of its own.
type fork struct {
	up     *trunk
	id     *forkIdentity // until it is adopted
	when   time.Time
	made   confine.Measured // what the battery in its slot showed
	source bool             // it is a source that goes on after it was branched
	// settled: it has done, and was seen to have done, all that need not wait for
	// its identity.
	settled bool
	files   string // what was seen of its descriptors, and of its memory
	maps    string
}

// forkGrace is how long an interpreter may take to fork itself.
const forkGrace = 20 * time.Second

// twig is a process that a trunk has forked, and what it was given.
type twig struct {
	proc  *linux.Child
	conn  *interp.Conn
	stdio [3]*os.File // the keeper's ends; of stdin there is none
	given [4]string   // what its descriptors are
	of    *trunk
}

func (w *twig) drop() {
	if w.proc != nil {
		w.proc.Kill()
		w.proc.PIDFD.Close()
		if w.of != nil {
			w.of.d.mu.Lock()
			delete(w.of.twigs, w.proc.PID)
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

// clone has the trunk clone itself. What comes of it waits to be adopted: it has
// namespaces of its own and nothing in them. enter are the files by which it
// enters its cgroups.
func (t *trunk) clone(ctx context.Context, enter []*os.File) (_ *twig, err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	defer t.cull() // when the limit is what it was
	if err := t.d.limit.raise(); err != nil {
		return nil, fmt.Errorf("cannot raise the limit of namespaces: %w", err)
	}
	defer t.d.limit.lower()
	w, err := t.copy(ctx, uintptr(linux.ForkFlags), interp.ModeFork, enter)
	if err == nil {
		if err = t.letGo(w.given); err != nil {
			w.drop()
		}
	}
	return w, err
}

// copy is clone without its looks. The caller has the turn, has raised the limit,
// and makes sure of what the trunk has kept.
func (t *trunk) copy(ctx context.Context, flags uintptr, mode string, enter []*os.File) (_ *twig, err error) {
	w := &twig{}
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
	none.Close() // its input is at its end
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

// take makes sure that a process is what its trunk has just forked.
func (w *twig) take(t *trunk, f *interp.Forked) error {
	defer f.PIDFD.Close()
	// The number is that of who has just spoken, and its own as long as its
	// trunk, which reaps nobody, is its parent.
	b, err := os.ReadFile(procPath(f.PID, "status"))
	if err != nil || linux.StatusField(b, "PPid") != strconv.Itoa(t.prog.PID) {
		return cell.Errorf(cell.Denied, "namespace.Fork", "build the template again", "cannot fork the interpreter: who answered is not its fork")
	}
	own, err := linux.OpenProcess(f.PID)
	if err != nil {
		return err
	}
	w.proc, w.of = &linux.Child{PID: f.PID, PIDFD: own}, t
	t.d.mu.Lock()
	t.twigs[f.PID] = true
	t.d.mu.Unlock()
	return nil
}

// mapIDs gives the user namespace of a fork the ids of its trunk's.
func (t *trunk) mapIDs(pid int) error {
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
	// Only from the namespace above it.
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, t.prog.PIDFD)
	s.Call("join the trunk", unix.SYS_SETNS, int(t.prog.PIDFD.Fd()), unix.CLONE_NEWUSER)
	for i, name := range []string{"uid_map", "gid_map"} {
		s.WriteFile(procPath(pid, name), text[i])
	}
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// run lets a script come to its end.
func run(s *linux.Script, opt linux.SpawnOptions) error {
	child, err := linux.Spawn(s, opt)
	if err != nil {
		return err
	}
	defer child.PIDFD.Close()
	_, _, err = child.Wait()
	return err
}

// Fork implements keeper.Forker.
func (d *Driver) Fork(trunkID, id cell.ID, spec json.RawMessage, i *keeper.Interpreter, files []*os.File) (_ json.RawMessage, err error) {
	defer closeFiles(files)
	parent, err := d.cell(trunkID)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	t := parent.sealed
	if t != nil {
		t.hold()
	}
	_, there := d.cells[id]
	d.mu.Unlock()
	if t == nil {
		return nil, cell.Errorf(cell.Conflict, "namespace.Fork", "build a template, or branch the cell", "cannot fork cell %s: its interpreter is not sealed", trunkID)
	}
	c := &liveCell{d: d, gone: make(chan struct{}), fork: &fork{up: t}}
	if there {
		err = cell.Errorf(cell.Exists, "namespace.Fork", "", "cell %s exists", id)
	} else {
		err = json.Unmarshal(spec, &c.w)
	}
	if err != nil {
		t.let()
		return nil, err
	}
	made, err := c.grow(t, files)
	if err != nil {
		c.fall()
		return nil, err
	}
	*i = c.interpreter()
	return json.Marshal(made)
}

// interpreter is what a keeper knows of a fork's. The streams are its own.
func (c *liveCell) interpreter() keeper.Interpreter {
	return keeper.Interpreter{Process: &sprout{c}, Conn: c.prog.conn, Stdout: c.prog.stdio[1], Stderr: c.prog.stdio[2], Depth: c.depth(), Layer: c.w.Spec.Layer, IsCell: true}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// fall takes down a fork that did not become a cell, or is none any more.
func (c *liveCell) fall() {
	if c.prog != nil {
		c.prog.drop()
	}
	c.release()
	c.fork.id.drop()
	c.fork.up.let()
}

// grow makes c out of a fork of t: a process with its ids, cgroups, files and
// network, in which the battery was run.
func (c *liveCell) grow(t *trunk, files []*os.File) (made madeCell, err error) {
	if c.w.Spec.WritesOutside() && !t.outside {
		return made, cell.Errorf(cell.Unsupported, "namespace.Fork", "leave out the writable mounts, or build the template with them",
			"cannot fork: what is forked may set set-user-id bits, which a cell with writable mounts may not")
	}
	mine := own(t.mounts, c.w.Spec.Mounts)
	mounts, err := c.openMounts(files, mine)
	defer func() { closeFiles(mounts) }()
	var way way
	if err == nil {
		way, err = c.takeCgroup(files)
	}
	defer func() { way.close() }()
	if err != nil {
		return made, err
	}
	untold := c.watchDenied(mounts)
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	if err := way.walk(); err != nil {
		return made, err
	}
	w, err := t.clone(ctx, way.tasks)
	way.close()
	way.into, way.tasks = nil, nil
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
	s := c.furnish(mine, mounts, ids, &c.fork.made)
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
	if made, err = c.apart(t); err != nil {
		return made, err
	}
	if err := c.bare(); err != nil {
		return made, err
	}
	if err := c.settle(ctx); err != nil {
		return made, err
	}
	if untold != nil {
		made.Untold = untold.Error()
	}
	c.d.mu.Lock()
	c.d.cells[c.w.Spec.ID] = c
	c.d.mu.Unlock()
	go c.follow()
	return made, nil
}

// explainFork says why an interpreter could not fork itself.
func explainFork(err error) error {
	if cell.KindOf(err) != cell.Internal {
		return err
	}
	return cell.Errorf(cell.Unavailable, "namespace.Fork", "see what limits processes and memory: pando stats", "cannot fork the interpreter: %w", err)
}

// explainSlot says what it means that a fork could not be furnished.
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

// furnish is the script that makes a cell around a process that was forked: in
// its namespaces, with the keeper's rights there. Then it becomes what a command
// of the cell is, and tries what must be refused.
func (c *liveCell) furnish(mine []bool, mounts, ids []*os.File, made *confine.Measured) *linux.Script {
	s := &linux.Script{}
	x := int(c.init.PIDFD.Fd())
	s.Stdio([3]*os.File{}, append(append([]*os.File{c.init.PIDFD}, present(mounts)...), ids...)...)
	// The kernel wants to see a /proc that hides nothing when a new one is made:
	// the keeper's own.
	proc := s.FSMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if c.fork.source { // it keeps the network, which is of a user namespace above
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
		// Where the image has no such file, there is nothing to replace.
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

// follow waits for the end of a fork's interpreter, with which its cell ends.
func (c *liveCell) follow() {
	linux.WaitGone(c.init.PIDFD)
	close(c.gone)
}

// sprout is a fork's interpreter, as its keeper sees it.
type sprout struct{ c *liveCell }

func (p *sprout) PID() int { return p.c.init.PID }

// InnerPID is its number in its cell.
func (p *sprout) InnerPID() int { return 1 }

// Signal reaches it alone; its end is that of the others.
func (p *sprout) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "namespace.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	if err := p.c.init.Signal(sig); err != unix.ESRCH {
		return err
	}
	return nil
}

// Interrupt implements keeper.Interrupter.
func (p *sprout) Interrupt() error { return p.Signal("SIGINT") }

func (p *sprout) Wait(ended func()) (cell.Exit, cell.Usage) {
	<-p.c.gone
	ended()
	for range 20 { // the kernel reaps it, soon
		if ws, ok := linux.ExitStatus(p.c.init.PIDFD); ok {
			return linux.ExitOf(ws), cell.Usage{}
		}
		time.Sleep(time.Millisecond)
	}
	return cell.Exit{Code: 255, Cause: "ended"}, cell.Usage{} // this kernel tells its parent alone
}

func (p *sprout) EndRest() (int, error) { return 0, nil } // it is the first of its namespace
