package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// branching is one branch of a cell that is under way. What the source waits for
// is kept short:
//
//	before      mounts, identities, cgroups of the source and of each branch
//	Hold        the source's interpreter becomes a trunk, its files immutable;
//	            it forks the source's next interpreter, then each branch
//	GoOn        the source's fork is furnished, all are looked at, it goes on
//	Settle      the trunk stands still for good
//	Complete    a branch is furnished and looked at
//
// Nothing of a branch runs between its fork and its adoption: it is held with
// ptrace, so that no signal wakes it. What it was forked with is seen before the
// source goes on, because afterwards somebody would be there to take it.
type branching struct {
	d    *Driver
	old  *liveCell // the source, as it was
	self *bud
	buds map[cell.ID]*bud
	list []*bud // the branches, in their order

	socks   []string         // that branches will find dead
	files   map[int]string   // that the source had open when it was held
	locks   map[int][]string // that it had on them
	t       *trunk           // since it is held
	gone    bool             // the source has gone on
	forked  chan struct{}    // closed when the source is forked
	full    []string         // places in memory that have something in them
	all     chan struct{}    // closed when all are forked
	failed  error            // of the others, once all are forked
	selfErr error            // of the source's fork, once that is forked
}

// bud is a cell that has no process yet.
type bud struct {
	c      *liveCell
	mine   []bool
	mounts []*os.File
	ids    []*os.File
	files  []*os.File
	way    way
	untold error
	made   madeCell // what was seen of its namespaces
	held   bool     // by ptrace
	done   bool     // it is a cell
}

// Branch implements keeper.Brancher.
func (d *Driver) Branch(id cell.ID) (keeper.Branch, error) {
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
	b := &branching{d: d, old: c, buds: map[cell.ID]*bud{}, forked: make(chan struct{}), all: make(chan struct{})}
	// What stands in the way is looked for again when the cell is held. Here it
	// costs nobody any time.
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
		err = c.lonely(cell.Conflict)
	}
	if err != nil {
		return nil, err
	}
	b.socks = o.Sockets
	return b, nil
}

// Source implements keeper.Branch.
func (b *branching) Source(spec json.RawMessage, files []*os.File) (err error) {
	b.self, err = b.bud(spec, files, true)
	return err
}

// Add implements keeper.Branch.
func (b *branching) Add(id cell.ID, spec json.RawMessage, files []*os.File) error {
	b.d.mu.Lock()
	_, there := b.d.cells[id]
	b.d.mu.Unlock()
	if there || b.buds[id] != nil {
		closeFiles(files)
		return cell.Errorf(cell.Exists, "namespace.Branch", "", "cell %s exists", id)
	}
	n, err := b.bud(spec, files, false)
	if n != nil {
		b.buds[id] = n
		b.list = append(b.list, n)
	}
	return err
}

// bud makes all of a cell that needs no process of it. The files are its own.
func (b *branching) bud(spec json.RawMessage, files []*os.File, source bool) (*bud, error) {
	n := &bud{c: &liveCell{d: b.d, gone: make(chan struct{}), fork: &fork{source: source}}, files: files}
	c := n.c
	if err := json.Unmarshal(spec, &c.w); err != nil {
		return n, err
	}
	n.mine = own(b.old.w.Spec.Mounts, c.w.Spec.Mounts)
	var err error
	if n.mounts, err = c.openMounts(files, n.mine); err != nil {
		return n, err
	}
	if source {
		c.w.Cgroup, c.w.MaxProcs, c.w.Talks, c.w.Tun = nil, b.old.w.MaxProcs, b.old.w.Talks, nil
	} else if n.way, err = c.takeCgroup(files); err != nil {
		return n, err
	}
	n.untold = c.watchDenied(n.mounts)
	if !c.w.Talks {
		closeFiles(files)
		n.files = nil
	}
	n.ids, err = c.identityMounts()
	return n, err
}

// close lets go of what a bud needs to become a cell.
func (n *bud) close() {
	closeFiles(n.mounts)
	closeFiles(n.ids)
	closeFiles(n.files)
	n.way.close()
	n.mounts, n.ids, n.files, n.way = nil, nil, nil, way{}
}

// Hold implements keeper.Branch.
func (b *branching) Hold() (dropped []string, err error) {
	c, d := b.old, b.d
	d.mu.Lock()
	if err = c.branchable(); err == nil && d.cells[c.w.Spec.ID] != c {
		err = cell.Errorf(cell.Conflict, "namespace.Branch", "try again", "cannot branch cell %s: it was changed meanwhile", c.w.Spec.ID)
	}
	if err == nil {
		c.still = true
	}
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := b.stop(); err != nil {
		d.mu.Lock()
		c.still = false
		d.mu.Unlock()
		return nil, err
	}
	d.mu.Lock()
	b.t = c.newTrunk(b.full)
	b.t.users = 2 + len(b.list) // the cell that it was, and what is forked from it
	for _, n := range append([]*bud{b.self}, b.list...) {
		n.c.fork.up = b.t
	}
	d.mu.Unlock()
	go b.fork()
	return b.socks, nil
}

// stop makes the source's interpreter a trunk. When it fails, it is as it was.
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
	// From here on no code of the cell runs, and what is seen stays so.
	seen := make(chan error, 1)
	go func() { seen <- c.unobstructed() }()
	err = c.sealAndLet()
	if err != nil {
		err = c.explainSeal(cell.Conflict, err)
	}
	if serr := <-seen; serr != nil {
		err = serr
	}
	if err == nil { // not before: who reads a directory writes when it was read, which holds its mount
		b.full = c.filled()
		err = c.covered(cell.Conflict, b.full)
	}
	if err != nil {
		return c.unhold(err)
	}
	return nil
}

// unobstructed makes sure, from outside, that nothing stands in the way of a
// branch. What does the interpreter knows by better names.
func (c *liveCell) unobstructed() error {
	err := c.lonely(cell.Conflict)
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
		err = obstructed(cell.Conflict, interp.Obstacles{Deleted: deleted})
	}
	return err
}

// fork has the trunk fork the source and its branches, which stand still then.
// The source comes first: what its branches are given it never sees.
func (b *branching) fork() {
	defer close(b.all)
	b.forkAll()
	if b.selfErr == nil && b.failed == nil {
		b.failed = b.nothingGiven()
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
	defer t.cull() // when the limit is what it was
	defer t.d.limit.lower()
	b.selfErr = b.one(ctx, b.self, uintptr(linux.GoOnFlags), interp.ModeGoOn, nil)
	close(b.forked)
	for _, n := range b.list {
		if b.selfErr != nil || b.failed != nil {
			return
		}
		if b.failed = n.way.walk(); b.failed == nil {
			b.failed = b.one(ctx, n, uintptr(linux.ForkFlags), interp.ModeOnce, n.way.tasks)
		}
	}
}

// one forks one of them, and holds it.
func (b *branching) one(ctx context.Context, n *bud, flags uintptr, mode string, enter []*os.File) error {
	w, err := b.t.copy(ctx, flags, mode, enter)
	if err != nil {
		return explainFork(err)
	}
	n.c.prog, n.c.init = w, w.proc
	w.proc.Signal(unix.SIGSTOP) // for when it is held no more
	if err := b.d.seize(w.proc.PID); err != nil {
		return fmt.Errorf("cannot hold the fork: %w", err)
	}
	n.held = true
	n.made, err = n.c.apart(b.t)
	return err
}

// seize has a thread of this process hold another process, which no signal wakes
// then, and which nobody sees end before that thread has.
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

// loose lets go of a process that was held. It was sent SIGSTOP, and so stays
// stopped.
func (b *branching) loose(n *bud) (err error) {
	if !n.held {
		return nil
	}
	n.held = false
	b.d.tracer.Do(func() { err = unix.PtraceDetach(n.c.init.PID) })
	if err != nil {
		return fmt.Errorf("cannot let go of the fork: %w", err)
	}
	return nil
}

// GoOn implements keeper.Branch.
func (b *branching) GoOn(i *keeper.Interpreter) (err error) {
	c, old, d := b.self.c, b.old, b.d
	<-b.forked
	if b.selfErr != nil {
		return b.selfErr
	}
	memory := make(chan error, 1)
	go func() { memory <- b.memoryForked() }()
	// What is the cell's, whoever its interpreter is.
	c.cgroup, c.link = old.cgroup, old.link
	defer func() {
		if err != nil {
			c.cgroup, c.link = nil, nil
		}
	}()
	if err = b.furnished(b.self); err != nil {
		return err
	}
	<-b.all
	if b.failed != nil {
		return b.failed
	}
	if err := <-memory; err != nil {
		return err
	}
	if err := c.bare(); err != nil {
		return err
	}
	if err := b.loose(b.self); err != nil {
		return err
	}
	if err = c.takeOver(); err != nil {
		return err
	}
	if err = locksAgain(c.init.PID, b.locks, b.files); err != nil {
		return err
	}
	d.mu.Lock()
	if d.cells[c.w.Spec.ID] != old {
		err = cell.Errorf(cell.NotFound, "namespace.Branch", "", "cell %s was removed", c.w.Spec.ID)
	} else {
		d.cells[c.w.Spec.ID] = c
		b.gone, b.self.done = true, true
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	old.cgroup, old.link = nil, nil
	go c.follow()
	*i = c.interpreter()
	return nil
}

// nothingGiven makes sure that nobody but a branch has what it was given, before
// somebody runs who could keep it: not the trunk, not the source, nobody that a
// branch has started before it was held, and nothing is under way.
func (b *branching) nothingGiven() error {
	var given []string
	for _, n := range b.list {
		given = append(given, n.c.prog.given[:]...)
		status, err := os.ReadFile(procPath(n.c.init.PID, "status"))
		if err != nil || linux.StatusField(status, "Threads") != "1" {
			return not("it has %s threads", linux.StatusField(status, "Threads"))
		}
		if list, err := n.c.below(); err != nil || len(list) > 0 {
			return not("it has started another process (%v %v)", list, err)
		}
	}
	if err := hasNot(b.self.c.init.PID, "its source", given); err != nil {
		return err
	}
	given = append(given, b.self.c.prog.given[:]...)
	err := still(b.t.prog, func(status []byte) error {
		if n := linux.StatusField(status, "Threads"); n != "1" {
			return not("its trunk has %s threads", n)
		}
		return hasNot(b.t.prog.PID, "its trunk", given)
	})
	b.t.prog.Signal(unix.SIGCONT)
	return err
}

// furnished makes a cell around a fork that stands still.
func (b *branching) furnished(n *bud) error {
	c, t := n.c, b.t
	if err := t.mapIDs(c.init.PID); err != nil {
		return err
	}
	s := c.furnish(n.mine, n.mounts, n.ids, &c.fork.made)
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.init.PIDFD.Fd()), Share: true})
	if err != nil {
		return explainSlot(err)
	}
	child.Wait()
	child.PIDFD.Close()
	c.fork.when = time.Now()
	c.fork.made.At, c.fork.made.Status = c.fork.when.UTC(), child.Captured["/proc/self/status"]
	return nil
}

// Settle implements keeper.Branch. The trunk lets go of what the source goes on
// with, and never runs again.
func (b *branching) Settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	err := b.t.conn.Release(ctx)
	if err != nil {
		err = fmt.Errorf("what the source has open stays open until its branches end: %w", err)
	}
	err = errors.Join(err, b.t.freeze())
	b.t.conn.Close()
	return err
}

// Complete implements keeper.Branch.
func (b *branching) Complete(id cell.ID, i *keeper.Interpreter) (_ json.RawMessage, err error) {
	n := b.buds[id]
	if n == nil || n.done || n.c.prog == nil {
		return nil, cell.Errorf(cell.NotFound, "namespace.Branch", "", "cell %s is no branch that waits", id)
	}
	c := n.c
	if err := b.furnished(n); err != nil {
		return nil, err
	}
	if c.w.Talks {
		if c.link, err = b.d.connect(c, n.files); err != nil {
			return nil, err
		}
	}
	if err := c.bare(); err != nil {
		return nil, err
	}
	if err := b.loose(n); err != nil {
		return nil, err
	}
	made := n.made
	if c.link != nil {
		made.Link = c.link.Kind
	}
	if n.untold != nil {
		made.Untold = n.untold.Error()
	}
	b.d.mu.Lock()
	b.d.cells[id], n.done = c, true
	b.d.mu.Unlock()
	go c.follow()
	*i = c.interpreter()
	return json.Marshal(made)
}

// End implements keeper.Branch.
func (b *branching) End() (err error) {
	if b.t != nil {
		<-b.all
	}
	var each sync.WaitGroup
	for _, n := range append([]*bud{b.self}, b.list...) {
		if n == nil {
			continue
		}
		n.close()
		if !n.done {
			each.Go(func() { b.fell(n) })
		}
	}
	each.Wait()
	if b.t == nil {
		return nil
	}
	b.d.mu.Lock()
	over := b.gone
	if !over {
		b.t.users-- // its own; it is no trunk
	}
	b.d.mu.Unlock()
	if over {
		b.t.let() // its own cell is another's now
		return nil
	}
	err = b.old.unhold(nil) // what it could not have again is named, and it goes on
	b.d.mu.Lock()
	b.old.still = false
	b.d.mu.Unlock()
	return err
}

// fell takes down what did not become a cell.
func (b *branching) fell(n *bud) {
	c := n.c
	switch {
	case n.held:
		c.init.Kill()
		b.d.tracer.Do(func() { unix.Wait4(c.init.PID, nil, unix.WALL, nil) })
	case c.init != nil:
		// The kernel reaps it as long as the source ignores SIGCHLD. When it ends after the
		// source has gone on, it stays as a zombie, for which there is no wait(2), and that refuses
		// the next branch.
		c.init.Kill()
		linux.WaitGone(c.init.PIDFD)
	}
	if c.fork.up != nil {
		c.fall()
		return
	}
	c.release()
	c.fork.id.drop()
}
