package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// Start starts a process with files as its standard streams. control is an interpreter's
// socket. begins, unless nil, is called before the first instruction of the program.
func (c *Cell) Start(p cell.Process, stdio [3]*os.File, control *os.File, begins func()) (server.Started, error) {
	return c.start(p, stdio, control, begins, nil)
}

// start is Start of a command, and tells its processes to starts, unless that is nil.
func (c *Cell) start(p cell.Process, stdio [3]*os.File, control *os.File, begins func(), starts *server.Starts) (server.Started, error) {
	if starts == nil {
		return c.startOnce(p, stdio, control, begins, nil, nil)
	}
	const what = "starts and ends of processes"
	if err := linux.ExecNotices(); err != nil {
		starts.Unseen(what, err.Error())
		return c.startOnce(p, stdio, control, begins, nil, nil)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		starts.Unseen(what, os.NewSyscallError("socketpair", err).Error())
		return c.startOnce(p, stdio, control, begins, nil, nil)
	}
	ours := os.NewFile(uintptr(pair[0]), "listener")
	theirs, err := linux.Raise(os.NewFile(uintptr(pair[1]), "listener"))
	if err == nil {
		defer theirs.Close()
		var o *observer
		if o, err = observe(ours, p, starts); err == nil {
			started, err := c.startOnce(p, stdio, control, begins, theirs, o)
			if se, ok := errors.AsType[*linux.ScriptError](err); !ok || se.Call != linux.ListenOp {
				return started, err
			}
			starts.Unseen(what, err.Error())
			return c.startOnce(p, stdio, control, begins, nil, nil)
		}
	}
	ours.Close()
	starts.Unseen(what, err.Error())
	return c.startOnce(p, stdio, control, begins, nil, nil)
}

// startOnce starts a process, and its execve is told to the other end of listener, unless that is nil.
func (c *Cell) startOnce(p cell.Process, stdio [3]*os.File, control *os.File, begins func(), listener *os.File, o *observer) (server.Started, error) {
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
	script, made, proof, err := c.command(p, [3]*os.File(high[:3]), high[3], entry, rules, listener, begins != nil)
	var child *linux.Child
	if err == nil {
		pass := func(pid int) error {
			err := proof.complete(pid)
			if err == nil && begins != nil {
				begins()
			}
			return err
		}
		child, err = linux.Spawn(script, linux.SpawnOptions{PIDNS: int(c.Init.PIDFD.Fd()), CgroupFD: entry.into, Share: true, Gate: pass})
		proof.end()
	}
	if err != nil {
		return server.Started{}, c.explainStart(err, p)
	}
	made.At = time.Now().UTC()
	made.Status = child.Captured["/proc/self/status"]
	measured, _ := json.Marshal(made)
	return server.Started{Process: &Process{Child: child, cell: c, descendants: openDescendants(child), group: linux.Group{PID: child.PID}, observer: o}, Measured: measured}, nil
}

// explainStart explains why a command did not start.
func (c *Cell) explainStart(err error, p cell.Process) error {
	name := "the command"
	if len(p.Args) > 0 {
		name = p.Args[0]
	}
	if u, ok := errors.AsType[*unseen](err); ok {
		return cell.Errorf(cell.Denied, "isolation.Start", "report this: the cell's isolation does not hold on this host",
			"cannot start %s: the canary %q was stopped, but nothing of it came to the gateway", name, u.name).About(cell.Canary)
	}
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	switch {
	case strings.HasPrefix(se.Call, confine.CanaryOp):
		return cell.Errorf(cell.Denied, "isolation.Start", "report this: the cell's isolation does not hold on this host",
			"cannot start %s: the canary %q was not stopped as it must be (%v)", name, strings.TrimPrefix(se.Call, confine.CanaryOp), se.Errno).About(cell.Canary)
	case se.IsExec() && (se.Errno == unix.ENOENT || se.Errno == unix.ENOTDIR || !c.hasAny(p.Path)):
		return cell.Errorf(cell.NoSuchBinary, "isolation.Start", "", "cannot find %s: looked for %s", name, strings.Join(p.Path, ", "))
	case se.Call == workdirOp+p.Workdir:
		return cell.Errorf(cell.NotFound, "isolation.Start", "name a directory that exists in the cell", "cannot start %s: cannot work in %s: %w", name, p.Workdir, se.Errno)
	case se.IsExec():
		return cell.CantExecute("isolation.Start", strings.TrimPrefix(se.Call, linux.ExecOp), se.Errno)
	}
	return cell.Errorf(cell.Internal, "isolation.Start", "", "cannot start %s: %w", name, se)
}

// hasAny reports whether one of paths exists in the cell. Below a directory without search
// permission execve says EACCES even for missing files.
func (c *Cell) hasAny(paths []string) bool {
	root, err := unix.Open(procPath(c.Init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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

// Process is a command in a cell.
type Process struct {
	Child       *linux.Child
	group       linux.Group
	cell        *Cell
	descendants *descendants // nil: not known
	observer    *observer    // nil: none
}

// Settle implements server.Settler.
func (p *Process) Settle() {
	if p.observer != nil {
		p.observer.Settle()
	}
}

func (p *Process) PID() int { return p.Child.PID }

// InnerPID returns the PID in the cell.
func (p *Process) InnerPID() int { return linux.InnerPID(p.Child.PID) }

// Signal sends a signal to the command and its process group.
func (p *Process) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "isolation.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	return p.group.Signal(sig)
}

func (p *Process) Wait(ended func()) (cell.Exit, cell.Usage) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	var rerr error
	err := p.group.Wait(ended, func() { ws, ru, rerr = p.Child.Wait() })
	p.Child.PIDFD.Close()
	err = errors.Join(err, rerr)
	if err != nil {
		return cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}, cell.Usage{}
	}
	return linux.ExitOf(ws), cell.Usage{
		UserMS: ru.Utime.Sec*1000 + ru.Utime.Usec/1000, SystemMS: ru.Stime.Sec*1000 + ru.Stime.Usec/1000,
		MaxRSS: ru.Maxrss * 1024,
	}
}

// Interrupt implements server.Interrupter.
func (p *Process) Interrupt() error {
	raw, err := p.Child.PIDFD.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), unix.SIGINT, nil, 0) })
	if err != nil {
		return err
	}
	return serr
}
