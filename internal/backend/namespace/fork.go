package namespace

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// liveCell is a cell with what forks need.
type liveCell struct {
	*isolation.Cell
	d    *Driver
	fork *fork      // nil: the cell is no fork
	prog *forkChild // its interpreter

	// guarded by Driver.mu:
	sealed        *forkParent // set once the interpreter is only forked
	beingBranched bool        // a branch of it is in progress
}

// fork is the additional state of a liveCell that was forked. Its interpreter is process 1 of
// its PID namespace, in its own user namespace.
type fork struct {
	up     *forkParent
	id     *isolation.Identity // nil once adopted
	made   confine.Measured    // results of the canaries at setup
	source bool                // the source of a branch, which continues
	// prepared: the fork has done, and passed the audit of, all work that needs no identity.
	prepared bool
	files    string // audit results for descriptors and memory
	maps     string
}

// forkOf returns the cell that a fork will become.
func (d *Driver) forkOf(p *isolation.Pending) *liveCell {
	c := &liveCell{Cell: p.Cell, d: d, fork: &fork{id: p.Identity}}
	p.Cell.Kin = c
	return c
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
	isolation.CloseFiles(w.stdio[:])
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
	defer func() { isolation.CloseFiles(theirs[:]) }()
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
		count = strconv.Itoa(isolation.IDRange)
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
func (d *Driver) Fork(parentID, id cell.ID, spec json.RawMessage, i *server.Interpreter, files []*os.File) (json.RawMessage, error) {
	parent, err := d.cell(parentID)
	if err != nil {
		isolation.CloseFiles(files)
		return nil, err
	}
	d.mu.Lock()
	t := parent.sealed
	if t != nil {
		t.ref()
	}
	d.mu.Unlock()
	if t == nil {
		isolation.CloseFiles(files)
		return nil, cell.Errorf(cell.Conflict, "namespace.Fork", "build a template, or branch the cell", "cannot fork cell %s: its interpreter is not sealed", parentID)
	}
	if _, err := d.cell(id); err == nil {
		isolation.CloseFiles(files)
		t.unref()
		return nil, cell.Errorf(cell.Exists, "namespace.Fork", "", "cell %s exists", id)
	}
	p, err := d.Pending(parent.Cell, spec, files, false)
	if err != nil {
		t.unref()
		return nil, err
	}
	defer p.Close()
	c := d.forkOf(p)
	c.fork.up = t
	made, err := c.create(p)
	if err != nil {
		c.destroy()
		return nil, err
	}
	*i = c.interpreter()
	return json.Marshal(made)
}

// interpreter returns the keeper's view of a fork's interpreter. The caller owns the streams.
func (c *liveCell) interpreter() server.Interpreter {
	return server.Interpreter{Process: &forkProcess{c}, Conn: c.prog.conn, Stdout: c.prog.stdio[1], Stderr: c.prog.stdio[2], Depth: c.depth(), Layer: c.Spec().Layer, IsCell: true}
}

// destroy tears down a fork.
func (c *liveCell) destroy() {
	if c.prog != nil {
		c.prog.drop()
	}
	c.Release()
	c.fork.id.Drop()
	c.fork.up.unref()
}

// create makes the cell of a fork: a process with its IDs, cgroups, files and network that
// passed the canaries.
func (c *liveCell) create(p *isolation.Pending) (made isolation.Made, err error) {
	t := c.fork.up
	if c.Spec().WritesOutside() && !t.outside {
		return made, cell.Errorf(cell.Unsupported, "namespace.Fork", "leave out the writable mounts, or build the template with them",
			"cannot fork: what is forked may set set-user-id bits, which a cell with writable mounts may not")
	}
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	enter, err := p.Enter()
	if err != nil {
		return made, err
	}
	w, err := t.fork(ctx, enter)
	if err != nil {
		return made, explainFork(err)
	}
	c.prog, c.Init = w, w.proc
	if err := c.setUp(p); err != nil {
		return made, err
	}
	if err := p.Connect(); err != nil {
		return made, err
	}
	if made, err = c.auditNamespaces(t); err != nil {
		return made, err
	}
	made.Untold = p.Untold()
	if err := c.auditStopped(); err != nil {
		return made, err
	}
	if err := c.prepareAdoption(ctx); err != nil {
		return made, err
	}
	c.d.Add(c.Cell)
	return made, nil
}

// setUp builds the cell around a stopped fork.
func (c *liveCell) setUp(p *isolation.Pending) error {
	err := c.fork.up.mapIDs(c.Init.PID)
	if err == nil {
		c.fork.made, err = p.Inhabit(c.fork.up.full)
	}
	return err
}

// explainFork explains why an interpreter could not fork itself.
func explainFork(err error) error {
	if cell.KindOf(err) != cell.Internal {
		return err
	}
	return cell.Errorf(cell.Unavailable, "namespace.Fork", "see what limits processes and memory: pando stats", "cannot fork the interpreter: %w", err)
}

// forkProcess is a fork's interpreter as a server.Process.
type forkProcess struct{ c *liveCell }

func (p *forkProcess) PID() int { return p.c.Init.PID }

// InnerPID returns the PID in the cell.
func (p *forkProcess) InnerPID() int { return 1 }

// Signal sends a signal to the interpreter alone. Its end ends all other processes of the cell.
func (p *forkProcess) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "namespace.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	if err := p.c.Init.Signal(sig); err != unix.ESRCH {
		return err
	}
	return nil
}

// Interrupt implements server.Interrupter.
func (p *forkProcess) Interrupt() error { return p.Signal("SIGINT") }

func (p *forkProcess) Wait(ended func()) (cell.Exit, cell.Usage) {
	<-p.c.Gone()
	ended()
	for range 20 { // the kernel reaps it soon
		if ws, ok := linux.ExitStatus(p.c.Init.PIDFD); ok {
			return linux.ExitOf(ws), cell.Usage{}
		}
		time.Sleep(time.Millisecond)
	}
	return cell.Exit{Code: 255, Cause: "ended"}, cell.Usage{} // this kernel reports the status only to the parent
}

func (p *forkProcess) EndRest() (int, error) { return 0, nil } // the end of process 1 ended them all
