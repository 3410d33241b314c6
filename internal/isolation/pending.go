package isolation

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// Pending is a cell without a process. A process of another cell forks itself, and the fork
// becomes Cell.Init: it enters the cgroups, and then Inhabit builds the cell around it.
type Pending struct {
	Cell     *Cell
	Identity *Identity

	below     map[string]int // layers of the other cell
	source    bool           // it continues another cell, in the namespaces and the cgroup of that
	mine      []bool         // its mounts that the other cell does not have
	mounts    []*os.File
	ids       []*os.File
	files     []*os.File
	entry     cgroupEntry
	uncounted error
}

// Pending prepares all of a cell that needs no process. of is the cell that it is forked from.
// With source it continues that one. Pending takes ownership of files.
func (d *Driver) Pending(of *Cell, spec json.RawMessage, files []*os.File, source bool) (_ *Pending, err error) {
	c := &Cell{d: d, gone: make(chan struct{}), forked: true, outside: of.Outside()}
	p := &Pending{Cell: c, below: of.layers, files: files, source: source}
	defer func() {
		if err != nil {
			p.Close()
			c.Release()
		}
	}()
	if err := json.Unmarshal(spec, &c.w); err != nil {
		return nil, err
	}
	p.mine = privateMounts(of.w.Spec.Mounts, c.w.Spec.Mounts)
	if p.mounts, err = c.openMounts(files, p.mine); err != nil {
		return nil, err
	}
	if source {
		c.w.Cgroup, c.w.MaxProcs, c.w.Talks, c.w.Tun = nil, of.w.MaxProcs, of.w.Talks, nil
	} else if p.entry, err = c.takeCgroup(files); err != nil {
		return nil, err
	}
	p.uncounted = c.watchDenied(p.mounts)
	if !c.w.Talks {
		CloseFiles(files)
		p.files = nil
	}
	p.Identity, p.ids, err = c.identityMounts()
	return p, err
}

// Enter returns the files with which the process enters the cell's cgroups. They stay p's.
func (p *Pending) Enter() ([]*os.File, error) {
	err := p.entry.openProcs()
	return p.entry.tasks, err
}

// Inhabit builds the cell around Cell.Init, which stands still, and returns the measurements of
// the canaries that ran there. full lists the mounts in memory that contain files.
func (p *Pending) Inhabit(full []string) (made confine.Measured, err error) {
	s := p.script(full, &made)
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(p.Cell.Init.PIDFD.Fd()), Share: true})
	if err != nil {
		return made, explainSlot(err)
	}
	child.Wait()
	child.PIDFD.Close()
	made.At, made.Status = time.Now().UTC(), child.Captured["/proc/self/status"]
	return made, nil
}

// Connect makes the link of a cell that may talk.
func (p *Pending) Connect() (err error) {
	if c := p.Cell; c.w.Talks {
		c.link, err = c.d.connect(c, p.files)
	}
	return err
}

// Untold is the reason why executions of denied programs are not counted, or "".
func (p *Pending) Untold() string {
	if p.uncounted == nil {
		return ""
	}
	return p.uncounted.Error()
}

// Close releases the files from which the cell is made. The cell stays.
func (p *Pending) Close() {
	CloseFiles(p.mounts)
	CloseFiles(p.ids)
	CloseFiles(p.files)
	p.entry.close()
	p.mounts, p.ids, p.files, p.entry = nil, nil, nil, cgroupEntry{}
}

// explainSlot explains why a fork could not be set up.
func explainSlot(err error) error {
	se, ok := errors.AsType[*linux.ScriptError](err)
	if !ok {
		return err
	}
	if len(se.Call) > len(confine.CanaryOp) && se.Call[:len(confine.CanaryOp)] == confine.CanaryOp {
		return cell.Errorf(cell.Denied, "isolation.Inhabit", "report this: the cell's isolation does not hold on this host",
			"cannot fork the interpreter: the canary %q was not stopped as it must be (%v)", se.Call[len(confine.CanaryOp):], se.Errno).About(cell.Canary)
	}
	return cell.Errorf(cell.Unsupported, "isolation.Inhabit", "run `pando doctor`", "cannot set up the fork: %w", se)
}

// script returns the script that builds a cell around a forked process. It joins the
// process's namespaces with the keeper's rights, then drops them like a command of the cell and
// runs the canaries.
func (p *Pending) script(full []string, made *confine.Measured) *linux.Script {
	c, s := p.Cell, &linux.Script{}
	x := int(c.Init.PIDFD.Fd())
	s.Stdio([3]*os.File{}, append(append([]*os.File{c.Init.PIDFD}, present(p.mounts)...), p.ids...)...)
	// The kernel demands a /proc that hides nothing when a new one is mounted: the keeper's
	// own.
	proc := s.FSMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if p.source { // the network belongs to a user namespace above
		s.Call("join the source", unix.SYS_SETNS, x, unix.CLONE_NEWNET)
	}
	s.Call("join the fork", unix.SYS_SETNS, x, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	s.Attach(proc, "/proc")
	s.Call("close", unix.SYS_CLOSE, proc)
	s.WriteFile("/proc/sys/user/max_user_namespaces", "0")
	if !p.source {
		s.Call("join the fork", unix.SYS_SETNS, x, unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS)
		network(s, c.w.Talks)
	}
	confine.CoverProc(s)
	terminals(s)
	l := beginLayers(s, full, p.below)
	ownDir(s)
	if !l.place("/dev/shm", 0o1777, "") {
		s.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	}
	b := builder{s: s, layers: l, made: map[string]bool{"/proc": true, "/dev": true, runDir: true, confine.CanaryDir: true}}
	for i, m := range c.w.Spec.Mounts {
		if p.mine[i] {
			b.place(m, c.w.Mounts[i], p.mounts[i])
		}
	}
	for i, m := range c.w.Spec.Mounts {
		if p.mine[i] && closes(m) {
			remount(s, m.Target, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
		}
	}
	l.end()
	c.layers = l.made
	if !p.source {
		name := []byte(c.w.Spec.Hostname)
		s.Call("sethostname", unix.SYS_SETHOSTNAME, name, len(name))
		s.Loopback()
	}
	for i, f := range idFiles(c.w.Spec.ID, "") {
		// Without such a file in the image there is nothing to replace.
		at := s.Try("open "+f.path, unix.SYS_OPENAT, linux.AtCWD, f.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		s.Try("show "+f.path, unix.SYS_MOVE_MOUNT, int(p.ids[i].Fd()), "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
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

// privateMounts reports for each mount of a fork whether it is made anew: writable mounts,
// those that the parent lacks or has otherwise, those with denied programs, and all below one
// of these or in pando's own directory.
func privateMounts(forkParent, fork []cell.Mount) []bool {
	list := make([]bool, len(fork))
	for i, m := range fork {
		writable := !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect
		list[i] = writable || m.Denies != nil || Below(m.Target, confine.CanaryDir) || !slices.ContainsFunc(forkParent, func(t cell.Mount) bool { return same(t, m) })
		for j := range i {
			list[i] = list[i] || list[j] && Below(m.Target, fork[j].Target)
		}
	}
	return list
}

// same reports whether two mounts are equal.
func same(a, b cell.Mount) bool {
	return a.Kind == b.Kind && a.Target == b.Target && a.Source == b.Source && a.ReadOnly == b.ReadOnly && a.Owned == b.Owned &&
		slices.Equal(a.Lower, b.Lower) && a.Upper == b.Upper && a.Work == b.Work
}

// Below reports whether path is dir or is inside it.
func Below(path, dir string) bool {
	return path == dir || len(path) > len(dir) && path[:len(dir)] == dir && (path[len(dir)] == '/' || dir == "/")
}
