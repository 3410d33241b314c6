package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// branching is one branch of a cell in progress. The steps during which the source is stopped
// are kept short:
//
//	before      mounts, identities, cgroups of the source and of each branch
//	Hold        the source's interpreter becomes a fork parent with immutable
//	            files; it forks the source's next interpreter, then each branch
//	GoOn        the source's fork is set up, all forks are audited, it resumes
//	Settle      the fork parent stops for good
//	Complete    a branch is set up and audited
//
// No code of a branch runs between its fork and its adoption: ptrace stops it, so that no
// signal wakes it. Its descriptors are audited before the source resumes, because afterwards
// code runs that could take them.
type branching struct {
	d       *Driver
	old     *liveCell // the source before the branch
	self    *pendingCell
	pending map[cell.ID]*pendingCell
	list    []*pendingCell // the branches in order

	socks   []string         // socket descriptors that are dead in the branches
	files   map[int]string   // files that the source had open when it was stopped
	locks   map[int][]string // file locks on them
	t       *forkParent      // set once the source is stopped
	resumed bool             // the source runs again
	forked  chan struct{}    // closed when the source is forked
	full    []string         // mounts in memory that contain files
	all     chan struct{}    // closed when all are forked
	failed  error            // error of the branches, valid once all is closed
	selfErr error            // error of the source's fork, valid once forked is closed
}

// pendingCell is a cell without a process.
type pendingCell struct {
	*isolation.Pending
	c    *liveCell
	made isolation.Made // measured namespaces
	held bool           // stopped by ptrace
	done bool           // registered as a cell
}

// Branch implements server.Forker.
func (d *Driver) Branch(id cell.ID) (server.Branch, error) {
	c, err := d.cell(id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	err = c.branchable()
	d.mu.Unlock()
	if err == nil {
		err = d.openLimit()
	}
	if err != nil {
		return nil, err
	}
	b := &branching{d: d, old: c, pending: map[cell.ID]*pendingCell{}, forked: make(chan struct{}), all: make(chan struct{})}
	// The same obstacles are checked again once the source is stopped. A failure here delays
	// nothing.
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	if _, _, err = c.unkept(cell.Conflict); err != nil {
		return nil, err
	}
	o, err := c.prog.conn.Check(ctx)
	if err == nil {
		err = obstructed(cell.Conflict, o)
	}
	if err == nil {
		err = c.auditAlone(cell.Conflict)
	}
	if err != nil {
		return nil, err
	}
	b.socks = o.Sockets
	return b, nil
}

// Source implements server.Branch.
func (b *branching) Source(spec json.RawMessage, files []*os.File) (err error) {
	b.self, err = b.pendingCell(spec, files, true)
	return err
}

// Add implements server.Branch.
func (b *branching) Add(id cell.ID, spec json.RawMessage, files []*os.File) error {
	if _, err := b.d.cell(id); err == nil || b.pending[id] != nil {
		isolation.CloseFiles(files)
		return cell.Errorf(cell.Exists, "namespace.Branch", "", "cell %s exists", id)
	}
	n, err := b.pendingCell(spec, files, false)
	if err != nil {
		return err
	}
	b.pending[id] = n
	b.list = append(b.list, n)
	return nil
}

// pendingCell prepares all of a cell that needs no process. It takes ownership of files.
func (b *branching) pendingCell(spec json.RawMessage, files []*os.File, source bool) (*pendingCell, error) {
	p, err := b.d.Pending(b.old.Cell, spec, files, source)
	if err != nil {
		return nil, err
	}
	n := &pendingCell{Pending: p, c: b.d.forkOf(p)}
	n.c.fork.source = source
	return n, nil
}

// Hold implements server.Branch.
func (b *branching) Hold() (dropped []string, err error) {
	c, d := b.old, b.d
	now, err := d.cell(c.Spec().ID)
	there := err == nil && now == c
	d.mu.Lock()
	if err = c.branchable(); err == nil && !there {
		err = cell.Errorf(cell.Conflict, "namespace.Branch", "try again", "cannot branch cell %s: it was changed meanwhile", c.Spec().ID)
	}
	if err == nil {
		c.beingBranched = true
	}
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := b.stop(); err != nil {
		d.mu.Lock()
		c.beingBranched = false
		d.mu.Unlock()
		return nil, err
	}
	d.mu.Lock()
	b.t = c.newForkParent(b.full)
	b.t.users = 2 + len(b.list) // the old cell, and each fork of it
	for _, n := range append([]*pendingCell{b.self}, b.list...) {
		n.c.fork.up = b.t
	}
	d.mu.Unlock()
	go b.fork()
	return b.socks, nil
}

// stop makes the source's interpreter a fork parent. On failure the source is restored.
func (b *branching) stop() error {
	c := b.old
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	var err error
	if b.files, b.locks, err = c.unkept(cell.Conflict); err != nil {
		return err
	}
	if _, err := c.prog.conn.Hold(ctx, false); err != nil {
		return err
	}
	// From here on no code of the cell runs, so the audits stay valid.
	observed := make(chan error, 1)
	go func() { observed <- c.unobstructed() }()
	err = c.sealAndRaiseLimit()
	if err != nil {
		err = c.explainSeal(cell.Conflict, err)
	}
	if serr := <-observed; serr != nil {
		err = serr
	}
	if err == nil { // not earlier: reading a directory updates its access time, which makes its mount busy
		b.full = c.filled()
		err = c.covered(cell.Conflict, b.full)
	}
	if err != nil {
		return c.resumeSource(err)
	}
	return nil
}

// unobstructed checks from outside that nothing prevents a branch. The interpreter has already
// reported obstacles by better names.
func (c *liveCell) unobstructed() error {
	err := c.auditAlone(cell.Conflict)
	if err == nil {
		var files map[int]string
		if files, err = openFiles(c.prog.proc.PID); err != nil {
			return err
		}
		var deleted []string
		for fd, what := range files {
			name, is := strings.CutSuffix(what, " (deleted)")
			var st unix.Stat_t
			if is && unix.Stat(procPath(c.prog.proc.PID, fmt.Sprint("fd/", fd)), &st) == nil && st.Nlink == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
				deleted = append(deleted, name)
			}
		}
		err = obstructed(cell.Conflict, repl.Obstacles{Deleted: deleted})
	}
	return err
}

// fork makes the fork parent fork the source and its branches; all of them stay stopped. The
// source comes first, so that it never has the descriptors of the branches.
func (b *branching) fork() {
	defer close(b.all)
	b.forkAll()
	if b.selfErr == nil && b.failed == nil {
		b.failed = b.auditGiven()
	}
}

func (b *branching) forkAll() {
	t := b.t
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	t.turn.Lock()
	defer t.turn.Unlock()
	if b.selfErr = t.d.limit.raise(); b.selfErr != nil {
		close(b.forked)
		return
	}
	defer t.killStrays() // when the limit is what it was
	defer t.d.limit.lower()
	b.selfErr = b.forkOne(ctx, b.self, uintptr(linux.GoOnFlags), repl.ModeGoOn, nil)
	close(b.forked)
	for _, n := range b.list {
		if b.selfErr != nil || b.failed != nil {
			return
		}
		var enter []*os.File
		if enter, b.failed = n.Enter(); b.failed == nil {
			b.failed = b.forkOne(ctx, n, uintptr(linux.ForkFlags), repl.ModeOnce, enter)
		}
	}
}

// forkOne forks one cell and stops it with ptrace.
func (b *branching) forkOne(ctx context.Context, n *pendingCell, flags uintptr, mode string, enter []*os.File) error {
	w, err := b.t.forkUnaudited(ctx, flags, mode, enter)
	if err != nil {
		return explainFork(err)
	}
	n.c.prog, n.c.Init = w, w.proc
	w.proc.Signal(unix.SIGSTOP) // for when it is held no more
	if err := b.d.seize(w.proc.PID); err != nil {
		return fmt.Errorf("cannot stop the fork: %w", err)
	}
	n.held = true
	n.made, err = n.c.auditNamespaces(b.t)
	return err
}

// seize stops a process with ptrace, by a thread of this process. No signal wakes it.
func (d *Driver) seize(pid int) (err error) {
	d.tracer.Do(func() {
		if err = unix.PtraceSeize(pid); err != nil {
			return
		}
		if err = unix.PtraceInterrupt(pid); err == nil {
			_, err = unix.Wait4(pid, nil, unix.WALL, nil)
		}
	})
	return err
}

// detach ends the ptrace stop. The process stays stopped by the SIGSTOP sent before.
func (b *branching) detach(n *pendingCell) (err error) {
	if !n.held {
		return nil
	}
	n.held = false
	b.d.tracer.Do(func() { err = unix.PtraceDetach(n.c.Init.PID) })
	if err != nil {
		return fmt.Errorf("cannot detach from the fork: %w", err)
	}
	return nil
}

// GoOn implements server.Branch.
func (b *branching) GoOn(i *server.Interpreter) (err error) {
	c, old, d := b.self.c, b.old, b.d
	<-b.forked
	if b.selfErr != nil {
		return b.selfErr
	}
	memory := make(chan error, 1)
	go func() { memory <- b.memoryForked() }()
	// These belong to the cell and survive a change of its interpreter.
	c.Inherit(old.Cell)
	defer func() {
		if err != nil {
			c.Disinherit()
		}
	}()
	if err = c.setUp(b.self.Pending); err != nil {
		return err
	}
	<-b.all
	if b.failed != nil {
		return b.failed
	}
	if err := <-memory; err != nil {
		return err
	}
	if err := c.auditStopped(); err != nil {
		return err
	}
	if err := b.detach(b.self); err != nil {
		return err
	}
	if err = c.takeOver(); err != nil {
		return err
	}
	if err = auditLocks(c.Init.PID, b.locks, b.files); err != nil {
		return err
	}
	if !d.Replace(old.Cell, c.Cell) {
		return cell.Errorf(cell.NotFound, "namespace.Branch", "", "cell %s was removed", c.Spec().ID)
	}
	b.resumed, b.self.done = true, true
	old.Disinherit()
	*i = c.interpreter()
	return nil
}

// auditGiven checks, before any code resumes that could keep them, that only each branch itself
// has the descriptors it was given: not the fork parent, not the source, no other process of a
// branch, and no message in a socket.
func (b *branching) auditGiven() error {
	var given []string
	for _, n := range b.list {
		given = append(given, n.c.prog.given[:]...)
		status, err := os.ReadFile(procPath(n.c.Init.PID, "status"))
		if err != nil || linux.StatusField(status, "Threads") != "1" {
			return not("it has %s threads", linux.StatusField(status, "Threads"))
		}
		if list, err := n.c.below(); err != nil || len(list) > 0 {
			return not("it has started another process (%v %v)", list, err)
		}
	}
	if err := hasNot(b.self.c.Init.PID, "its source", given); err != nil {
		return err
	}
	given = append(given, b.self.c.prog.given[:]...)
	err := whileStopped(b.t.prog, func(status []byte) error {
		if n := linux.StatusField(status, "Threads"); n != "1" {
			return not("its fork parent has %s threads", n)
		}
		return hasNot(b.t.prog.PID, "its fork parent", given)
	})
	b.t.prog.Signal(unix.SIGCONT)
	return err
}

// Settle implements server.Branch. The fork parent closes the descriptors that the source keeps
// using, and never runs again.
func (b *branching) Settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	err := b.t.conn.Release(ctx)
	if err != nil {
		err = fmt.Errorf("files of the source stay open until its branches end: %w", err)
	}
	err = errors.Join(err, b.t.freeze())
	b.t.conn.Close()
	return err
}

// Complete implements server.Branch.
func (b *branching) Complete(id cell.ID, i *server.Interpreter) (_ json.RawMessage, err error) {
	n := b.pending[id]
	if n == nil || n.done || n.c.prog == nil {
		return nil, cell.Errorf(cell.NotFound, "namespace.Branch", "", "cell %s is not a branch that waits for completion", id)
	}
	c := n.c
	if err := c.setUp(n.Pending); err != nil {
		return nil, err
	}
	if err := n.Connect(); err != nil {
		return nil, err
	}
	if err := c.auditStopped(); err != nil {
		return nil, err
	}
	if err := b.detach(n); err != nil {
		return nil, err
	}
	made := n.made
	made.Link, made.Untold = c.LinkKind(), n.Untold()
	b.d.Add(c.Cell)
	n.done = true
	*i = c.interpreter()
	return json.Marshal(made)
}

// End implements server.Branch.
func (b *branching) End() (err error) {
	if b.t != nil {
		<-b.all
	}
	var each sync.WaitGroup
	for _, n := range append([]*pendingCell{b.self}, b.list...) {
		if n == nil {
			continue
		}
		n.Close()
		if !n.done {
			each.Go(func() { b.destroyPending(n) })
		}
	}
	each.Wait()
	if b.t == nil {
		return nil
	}
	b.d.mu.Lock()
	over := b.resumed
	if !over {
		b.t.users-- // the cell itself; it is no fork parent
	}
	b.d.mu.Unlock()
	if over {
		b.t.unref() // the cell was replaced
		return nil
	}
	err = b.old.resumeSource(nil) // the error names state that could not be restored; the source resumes
	b.d.mu.Lock()
	b.old.beingBranched = false
	b.d.mu.Unlock()
	return err
}

// destroyPending tears down a pending cell that was not completed.
func (b *branching) destroyPending(n *pendingCell) {
	c := n.c
	switch {
	case n.held:
		c.Init.Kill()
		b.d.tracer.Do(func() { unix.Wait4(c.Init.PID, nil, unix.WALL, nil) })
	case c.Init != nil:
		// The kernel reaps the child while the source ignores SIGCHLD. If the child ends after
		// the source resumed, it stays a zombie that wait(2) cannot reap, which prevents the
		// next branch.
		c.Init.Kill()
		linux.WaitGone(c.Init.PIDFD)
	}
	if c.fork.up != nil {
		c.destroy()
		return
	}
	c.Release()
	c.fork.id.Drop()
}
