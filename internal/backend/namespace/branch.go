package namespace

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// Preconditions of a branch, and the recovery after a failed one. The branch itself is in
// branching.go.

// maxDepth is the maximum number of forks between an interpreter and the first of its family.
// Linux nests 32 namespaces; a host that is itself nested needs some of them.
const maxDepth = 24

// branchable returns an error if the cell cannot be branched now. The caller holds Driver.mu.
func (c *liveCell) branchable() error {
	id := c.Spec().ID
	switch {
	case c.sealed != nil:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "fork it", "cannot branch cell %s: it is only forked", id)
	case c.prog == nil:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "evaluate something in it first", "cannot branch cell %s: it has no interpreter", id)
	case c.beingBranched:
		return cell.Errorf(cell.Conflict, "namespace.Branch", "wait until it is over", "cannot branch cell %s: it is being branched", id)
	case c.depth() >= maxDepth:
		return cell.Errorf(cell.Unsupported, "namespace.Branch", "start again from its files", "cannot branch cell %s: it is %d forks below the first of its family, and Linux nests no deeper", id, c.depth())
	}
	return nil
}

// depth returns the number of forks between the cell's interpreter and the first of its family.
func (c *liveCell) depth() int {
	if c.fork == nil {
		return 0
	}
	return c.fork.up.depth + 1
}

// auditNoProcesses fails if the cell has processes besides its interpreter.
func (c *liveCell) auditNoProcesses(kind cell.Kind) error {
	list, err := c.d.List(c.Spec().ID)
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
	return obstructed(kind, repl.Obstacles{Processes: others})
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s[:min(len(s), 60)]
}

// auditSingleThread fails if the interpreter has more than one thread. It asks the kernel.
func (c *liveCell) auditSingleThread(kind cell.Kind) error {
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
		names = o.Threads // the interpreter knows better names
	}
	return obstructed(kind, repl.Obstacles{Threads: names})
}

// innerPID returns the interpreter's PID in its cell.
func (c *liveCell) innerPID() int { return linux.InnerPID(c.prog.proc.PID) }

// sealAndRaiseLimit makes the cell's mounts immutable. For a fork it also raises the limit of
// its user namespace, for good: only the fork parent will run there.
func (c *liveCell) sealAndRaiseLimit() error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.Init.PIDFD)
	if c.fork != nil {
		s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), unix.CLONE_NEWUSER)
		s.WriteFile("/proc/sys/user/max_user_namespaces", manyNamespaces)
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), unix.CLONE_NEWNS)
	c.sealing(s, true)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

func (c *liveCell) setLimit(text string) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.Init.PIDFD)
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), unix.CLONE_NEWUSER)
	s.WriteFile("/proc/sys/user/max_user_namespaces", text)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// resumeSource restores a fork parent to an ordinary cell after a failure. why is the failure;
// errors of the restoration are added to it.
func (c *liveCell) resumeSource(why error) error {
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
		rerr = fmt.Errorf("it could not restore: %s", strings.Join(lost, ", "))
	}
	if err == nil {
		err = rerr
	}
	switch {
	case err == nil:
		return why
	case why == nil:
		return fmt.Errorf("cannot restore the source: %w", err)
	}
	return fmt.Errorf("%w; cannot restore the source: %w", why, err)
}

// takeOver adopts a fork as the source of the branch. It fails if the fork lacks state of the
// original source.
func (c *liveCell) takeOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	id := c.fork.id
	c.fork.id = nil
	go id.Drop()
	caps := c.Caps()
	c.Init.Signal(unix.SIGCONT) // see auditStopped
	got, err := c.prog.conn.Adopt(ctx, repl.Adoption{Caps: caps, UID: -1, GID: -1})
	if err != nil {
		return err
	}
	if len(got.Dropped) > 0 {
		return obstructed(cell.Conflict, repl.Obstacles{Unkept: got.Dropped})
	}
	return c.auditConfined(caps)
}
