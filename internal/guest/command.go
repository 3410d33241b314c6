package guest

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// workdirOp is the prefix of the call that enters the working directory.
const workdirOp = "enter "

// selfLink has the command's PID in its cell as its target.
const selfLink = "/proc/self"

// spawn starts a command in its own cgroup with files as its streams. It calls pass at the
// gate, if not nil.
func (p *place) spawn(c *Command, pass func() error, stdio [3]*os.File, control *os.File) (_ *linux.Child, inner int, _ *group, made confine.Measured, err error) {
	g, err := p.all.sub(strconv.FormatInt(p.groups.Add(1), 10))
	if err != nil {
		return nil, 0, nil, made, err
	}
	defer func() {
		if err != nil {
			g.remove()
			g.dir.Close()
		}
	}()
	var high [4]*os.File
	for i, f := range append(stdio[:], control) {
		if f == nil {
			continue
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, 0, nil, made, err
		}
		if high[i], err = linux.Raise(os.NewFile(uintptr(fd), f.Name())); err != nil {
			return nil, 0, nil, made, err
		}
		defer high[i].Close()
	}
	first, err := p.firstProcess()
	if err != nil {
		return nil, 0, nil, made, err
	}
	s := p.script(c, [3]*os.File(high[:3]), high[3], &made)
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(first.PIDFD.Fd()), CgroupFD: g.dir, Share: true, Gate: func(int) error { return pass() }})
	if err != nil {
		return nil, 0, nil, made, explainStart(err, c.Process)
	}
	inner, _ = strconv.Atoi(child.Captured[selfLink])
	made.At, made.Status = time.Now().UTC(), child.Captured["/proc/self/status"]
	return child, inner, g, made, nil
}

// script returns the setup of a command up to its exec.
func (p *place) script(c *Command, stdio [3]*os.File, control *os.File, made *confine.Measured) *linux.Script {
	s := &linux.Script{Gated: c.Gated || len(c.Attempts) > 0}
	var later []*os.File
	if control != nil {
		later = append(later, control)
	}
	s.Stdio(stdio, later...)
	// The command and its descendants see its cgroup as the root.
	s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	s.CaptureLink(selfLink, 32)
	if n, err := strconv.ParseUint(c.ID, 10, 63); err == nil && p.kernel {
		s.Try("begin a command", unix.SYS_SCHED_GET_PRIORITY_MAX, freezeMagic, markOp, int(n))
	}
	if control != nil {
		s.Call("hand over the socket", unix.SYS_DUP3, int(control.Fd()), 3, 0)
		s.Call("close", unix.SYS_CLOSE, int(control.Fd()))
	}
	s.Call("setsid", unix.SYS_SETSID)
	if c.Process.TTY {
		s.Call("take the terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	s.Call("umask", unix.SYS_UMASK, 0o022)
	c.Limits.Apply(s)
	caps := confine.Identity{User: cell.User{UID: c.UID, GID: c.GID}, RootCaps: c.Caps, LastCap: p.lastCap, Switch: true}.Become(s)
	s.Call(workdirOp+c.Process.Workdir, unix.SYS_CHDIR, c.Process.Workdir)
	confine.Shed(s, caps)
	if c.NoSetID {
		confine.Filter(s, p.noSetID)
	}
	confine.Filter(s, p.filter)
	if c.Place != nil {
		c.Place.Canaries(s, made)
	}
	made.Skipped = c.Skipped
	confine.Attempts(s, made, c.Attempts)
	s.Capture("/proc/self/status", 4096)
	s.Report()
	if s.Gated {
		s.Gate()
	}
	s.Exec(c.Process.Path, c.Process.Args, c.Process.Env)
	return s
}

// explainStart explains why a command did not start.
func explainStart(err error, p cell.Process) error {
	name := "the command"
	if len(p.Args) > 0 {
		name = p.Args[0]
	}
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	switch {
	case strings.HasPrefix(se.Call, confine.CanaryOp):
		return cell.Errorf(cell.Denied, "guest.Start", "report this: the cell's isolation does not hold on this host",
			"cannot start %s: the canary %q was not stopped as it must be (%v)", name, strings.TrimPrefix(se.Call, confine.CanaryOp), se.Errno).About(cell.Canary)
	case se.IsExec() && (se.Errno == unix.ENOENT || se.Errno == unix.ENOTDIR || !hasAny(p.Path)):
		return cell.Errorf(cell.NoSuchBinary, "guest.Start", "", "cannot find %s: looked for %s", name, strings.Join(p.Path, ", "))
	case se.Call == workdirOp+p.Workdir:
		return cell.Errorf(cell.NotFound, "guest.Start", "name a directory that exists in the cell", "cannot start %s: cannot work in %s: %w", name, p.Workdir, se.Errno)
	case se.IsExec():
		return cell.CantExecute("guest.Start", strings.TrimPrefix(se.Call, linux.ExecOp), se.Errno)
	}
	return cell.Errorf(cell.Internal, "guest.Start", "", "cannot start %s: %w", name, se)
}

// hasAny reports whether one of paths exists. Below a directory without search permission
// execve says EACCES even for missing files.
func hasAny(paths []string) bool {
	for _, p := range paths {
		if fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
			return true
		}
	}
	return false
}
