package namespace

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/linux"
)

// What a cell needs to be branched, and to be as it was when that fails. How it is
// branched is in branching.go.

// maxDepth is how many forks may lie between an interpreter and the first of its
// family. Linux nests 32 deep, and a host that is itself nested needs some.
const maxDepth = 24

// branchable says whether a cell can be branched now. The caller has Driver.mu.
func (c *liveCell) branchable() error {
	id := c.w.Spec.ID
	switch {
	case c.sealed != nil:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "fork it", "cannot branch cell %s: it is only forked", id)
	case c.prog == nil:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "evaluate something in it first", "cannot branch cell %s: it has no interpreter", id)
	case c.still:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "wait until it is over", "cannot branch cell %s: it is being branched", id)
	case c.depth() >= maxDepth:
		return cell.Errorf(cell.Unsupported, "namespace.Branch", "start again from its files", "cannot branch cell %s: it is %d forks below the first of its family, and Linux nests no deeper", id, c.depth())
	}
	return nil
}

// depth is how many forks lie between the cell's interpreter and the first of its
// family.
func (c *liveCell) depth() int {
	if c.fork == nil {
		return 0
	}
	return c.fork.up.depth + 1
}

// alone makes sure that nobody lives in the cell but its interpreter.
func (c *liveCell) alone(kind cell.Kind) error {
	list, err := c.d.List(c.w.Spec.ID)
	if err != nil {
		return err
	}
	own := c.innerPID()
	var others []string
	for _, p := range list {
		if p.PID != own {
			others = append(others, strconv.Itoa(p.PID)+" "+strings.TrimSpace(firstLine(p.Command)))
		}
	}
	return obstructed(kind, interp.Obstacles{Processes: others})
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s[:min(len(s), 60)]
}

// single makes sure that the interpreter has one thread, whatever it says.
func (c *liveCell) single(kind cell.Kind) error {
	tasks, err := os.ReadDir(procPath(c.prog.proc.PID, "task"))
	if err != nil || len(tasks) == 1 {
		return err
	}
	var names []string
	for _, t := range tasks {
		if t.Name() != strconv.Itoa(c.prog.proc.PID) {
			b, _ := os.ReadFile(procPath(c.prog.proc.PID, "task/"+t.Name()+"/comm"))
			names = append(names, strings.TrimSpace(string(b)))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	if o, err := c.prog.conn.Check(ctx); err == nil && len(o.Threads) >= len(names) {
		names = o.Threads // it knows them by better names
	}
	return obstructed(kind, interp.Obstacles{Threads: names})
}

// innerPID is the interpreter's number in its cell.
func (c *liveCell) innerPID() int { return innerPID(c.prog.proc.PID) }

// innerPID is the number of a process in the namespace that it is in; 0 if it is
// gone.
func innerPID(pid int) int {
	b, _ := os.ReadFile(procPath(pid, "status"))
	f := strings.Fields(linux.StatusField(b, "NSpid"))
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(f[len(f)-1])
	return n
}

// sealAndLet makes what the cell sees immutable. If it is a fork it also raises
// the limit of its own user namespace, for good: nobody will run in it but the
// trunk that its interpreter becomes.
func (c *liveCell) sealAndLet() error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.init.PIDFD)
	if c.fork != nil {
		s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), unix.CLONE_NEWUSER)
		s.WriteFile("/proc/sys/user/max_user_namespaces", manyNamespaces)
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), unix.CLONE_NEWNS)
	c.sealing(s, true)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

func (c *liveCell) setLimit(text string) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.init.PIDFD)
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), unix.CLONE_NEWUSER)
	s.WriteFile("/proc/sys/user/max_user_namespaces", text)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// unhold undoes what made a cell one that can be branched, after a failure.
func (c *liveCell) unhold(why error) error {
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	var err error
	if c.fork != nil {
		err = c.setLimit("0")
	}
	if serr := c.seal(false); err == nil {
		err = serr
	}
	lost, rerr := c.prog.conn.Resume(ctx)
	if rerr == nil && len(lost) > 0 {
		rerr = fmt.Errorf("it could not have again: %s", strings.Join(lost, ", "))
	}
	if err == nil {
		err = rerr
	}
	switch {
	case err == nil:
		return why
	case why == nil:
		return fmt.Errorf("cannot let the source go on as it was: %w", err)
	}
	return fmt.Errorf("%w; cannot let the source go on as it was: %w", why, err)
}

// takeOver makes a fork the source that goes on. It fails when the fork could not have
// something of the source.
func (c *liveCell) takeOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	id := c.fork.id
	c.fork.id = nil
	go id.drop()
	caps := c.caps()
	c.init.Signal(unix.SIGCONT) // see bare
	got, err := c.prog.conn.Adopt(ctx, interp.Adoption{Caps: caps, UID: -1, GID: -1})
	if err != nil {
		return err
	}
	if len(got.Dropped) > 0 {
		return obstructed(cell.Conflict, interp.Obstacles{Unkept: got.Dropped})
	}
	return c.confined(caps)
}
