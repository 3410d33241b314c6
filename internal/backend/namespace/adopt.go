package namespace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// adoptGrace is the time limit for a fork to become a cell's interpreter, including the hooks
// of its code.
const adoptGrace = 60 * time.Second

// Seal implements server.Forker.
func (d *Driver) Seal(id cell.ID) error {
	c, err := d.cell(id)
	if err != nil {
		return err
	}
	d.mu.Lock()
	sealed := c.sealed != nil
	d.mu.Unlock()
	if sealed {
		return nil
	}
	if c.prog == nil {
		return cell.Errorf(cell.Conflict, "namespace.Seal", "warm the cell first", "cannot seal cell %s: it has no interpreter", id)
	}
	t, _, err := c.forkParent(cell.Unsupported)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	t.conn.Stand(ctx, uintptr(linux.ForkFlags)) // while the interpreter still sees /proc
	if err := c.hideProc(true); err != nil {
		return c.resumeSource(fmt.Errorf("cannot take /proc from the interpreter: %w", err))
	}
	if err := c.auditProcHidden(); err != nil {
		return c.resumeSource(errors.Join(err, c.hideProc(false)))
	}
	t.killStrays()
	d.mu.Lock()
	defer d.mu.Unlock()
	c.sealed = t
	t.ref()
	return nil
}

// Mounts returns the mounts of a cell. The daemon compares a fork's mounts with them.
func (d *Driver) Mounts(id cell.ID) ([]cell.Mount, error) {
	c, err := d.cell(id)
	if err != nil {
		return nil, err
	}
	return c.Spec().Mounts, nil
}

// obstructed returns an error of the given kind that names what prevents a fork, or nil.
func obstructed(kind cell.Kind, o repl.Obstacles) error {
	for _, x := range []struct {
		what string
		list []string
	}{{"threads are alive in it", o.Threads}, {"processes of it are alive", o.Processes}, {"it shares writable memory", o.Shared}, {"it has deleted files open", o.Deleted},
		{"a fork would lose kernel state of it", o.Unkept}} {
		if len(x.list) > 0 {
			return cell.Errorf(kind, "namespace.Fork", "end them before, or "+cell.ForkSandbox,
				"cannot fork the interpreter: %s: %s", x.what, strings.Join(x.list, ", "))
		}
	}
	return nil
}

// makeForkParent turns the cell's interpreter into a fork parent: the interpreter closes the
// files it writes to, and the cell's mounts become immutable. On failure everything is
// restored.
func (c *liveCell) forkParent(kind cell.Kind) (_ *forkParent, sockets []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), forkGrace)
	defer cancel()
	o, err := c.prog.conn.Check(ctx)
	if err == nil {
		err = obstructed(kind, o)
	}
	if err == nil { // independent of the interpreter's own report
		err = c.auditAlone(kind)
	}
	if err == nil {
		_, _, err = c.unkept(kind)
	}
	if err == nil {
		err = c.unkeptMemory(kind)
	}
	full := c.filled()
	if err == nil {
		err = c.covered(kind, full)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := c.d.openLimit(); err != nil {
		return nil, nil, err
	}
	if _, err := c.prog.conn.Hold(ctx, kind == cell.Unsupported); err != nil {
		return nil, nil, err
	}
	if err := c.seal(true); err != nil {
		err = c.explainSeal(kind, err) // before the interpreter reopens its files
		c.seal(false)
		c.prog.conn.Resume(ctx)
		return nil, nil, err
	}
	return c.newForkParent(full), o.Sockets, nil
}

// newForkParent describes the cell's interpreter as a fork parent.
func (c *liveCell) newForkParent(full []string) *forkParent {
	t := &forkParent{d: c.d, of: c.Spec().ID, first: c.Init, prog: c.prog.proc, conn: c.prog.conn, outside: c.Outside(), full: full, children: map[int]bool{}}
	if c.fork != nil {
		t.up, t.depth = c.fork.up, c.depth()
	}
	t.generators = sync.OnceValue(func() []hazard.Process { // the parent runs no code any more, so its mappings are final
		p, ok := c.d.scan.Process("/proc", t.prog.PID)
		if !ok {
			p.Generators = []hazard.Generator{{Family: hazard.Unknown}}
		}
		p.PID, p.Interpreter = 1, true // in each fork
		return []hazard.Process{p}
	})
	t.drop = func() {
		<-c.Gone()
		t.reap()
		c.Release()
		c.prog.drop()
	}
	return t
}

// explainSeal explains why the cell's files cannot be made immutable. It names the files that
// are open for writing.
func (c *liveCell) explainSeal(kind cell.Kind, err error) error {
	s, ok := errors.AsType[*linux.ScriptError](err)
	if !ok || s.Errno != unix.EBUSY || !strings.HasPrefix(s.Call, sealOp) {
		return cell.Errorf(kind, "namespace.Seal", "", "cannot make the cell's files immutable: %w", err)
	}
	place := strings.TrimPrefix(s.Call, sealOp)
	const hint = "close them first, or release them when asked to hold (docs/reference/eval-protocol.md)"
	if files := linux.OpenForWriting(c.prog.proc.PID, place); len(files) > 0 {
		return cell.Errorf(kind, "namespace.Seal", hint, "cannot fork the interpreter: it has files open for writing: %s", strings.Join(files, ", "))
	}
	return cell.Errorf(kind, "namespace.Seal", hint, "cannot fork the interpreter: something in %s is open for writing", place)
}

// Adopt implements server.Forker.
func (d *Driver) Adopt(id cell.ID, a cell.Adoption, first func() error) (cert cell.Certificate, err error) {
	c, err := d.cell(id)
	if err != nil {
		return cert, err
	}
	d.mu.Lock()
	f := c.fork
	var own *isolation.Identity
	if f != nil {
		own, f.id = f.id, nil
	}
	d.mu.Unlock()
	if own == nil {
		return cert, cell.Errorf(cell.Conflict, "namespace.Adopt", "", "cannot adopt cell %s: it is no fork that waits for adoption", id)
	}
	defer func() { go own.Drop() }()
	if a.Hostname != "" && a.Hostname != c.Spec().Hostname {
		if err := d.rename(c, a.Hostname); err != nil {
			return cert, err
		}
		if err := own.Write(id, c.Spec().Hostname, a.Hostname); err != nil {
			return cert, err
		}
		c.Spec().Hostname = a.Hostname
	}
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	if !f.prepared {
		if err := c.prepareAdoption(ctx); err != nil {
			return cert, err
		}
	}
	if first != nil {
		if err := c.ProveNetwork(&f.made); err != nil {
			return cert, err
		}
		if err := first(); err != nil {
			return cert, err
		}
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), adoptGrace)
		defer cancel()
	}
	if !f.prepared {
		c.Init.Signal(unix.SIGCONT)
	}
	got, err := c.prog.conn.Adopt(ctx, repl.Adoption{Env: a.Env, Caps: c.Caps(), UID: -1, GID: -1, Name: a.Hostname})
	if err == nil && !f.prepared {
		err = c.auditAdoptable()
	}
	if err == nil && first == nil {
		err = c.ProveNetwork(&f.made)
	}
	if err != nil {
		return cert, err
	}
	m := f.made
	hazards := append(c.observed(), got.Hazards...)
	hazards = append(hazards, hazard.Report(f.up.generators(), a.Kind, got.Hazards, "outside")...)
	return cell.Certificate{Cell: id, At: time.Now().UTC(), Dropped: got.Dropped, Hazards: hazards,
		Battery: cell.Canaries{Passed: m.Canaries, Total: m.Canaries, Bites: m.Bites, Skipped: m.Skipped, At: m.At, Fresh: time.Since(m.At) < time.Second}}, nil
}

// prepareAdoption resumes a stopped fork for the work that needs no identity, then audits it.
// From then on the fork has no more rights than after its adoption.
func (c *liveCell) prepareAdoption(ctx context.Context) (err error) {
	c.Init.Signal(unix.SIGCONT) // see auditStopped
	c.fork.prepared, err = c.prog.conn.Settle(ctx, repl.Adoption{Caps: c.Caps()})
	switch {
	case err != nil:
		return err
	case !c.fork.prepared: // the interpreter's protocol has no such step
		return c.Init.Signal(unix.SIGSTOP)
	}
	return c.auditAdoptable()
}

// rename sets a fork's hostname. One dedicated thread joins the namespace of each fork in turn,
// because it may not return to the host's namespace.
func (d *Driver) rename(c *liveCell, hostname string) (err error) {
	d.namer.Do(func() {
		if err = unix.Setns(int(c.Init.PIDFD.Fd()), unix.CLONE_NEWUTS); err == nil {
			err = unix.Sethostname([]byte(hostname))
		}
		runtime.KeepAlive(c)
	})
	if err != nil {
		return fmt.Errorf("cannot name the fork: %w", err)
	}
	return nil
}
