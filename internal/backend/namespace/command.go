package namespace

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// joinFlags are the namespaces a command enters through its cell's first
// process; the pid namespace it is born in.
const joinFlags = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// workdirOp begins the name of the call that enters the working directory.
const workdirOp = "enter "

// command is the script of a process in a cell. In a talking cell, or if gated, it
// waits at a gate before it becomes the program. There proof says whether its canaries
// have proven what they are to prove.
// An interpreter gets control as its descriptor 3. It has no Landlock domain: its
// rules would bind its forks to the files that it sees itself.
func (c *liveCell) command(p cell.Process, stdio [3]*os.File, control *os.File, way way, rules *linux.LandlockRuleset, gated bool) (s *linux.Script, made confine.Measured, proof *proof, err error) {
	s = &linux.Script{Gated: gated || c.link != nil}
	keep := append([]*os.File{c.init.PIDFD}, way.tasks...)
	var later []*os.File
	if control != nil {
		rules = nil
	}
	landlock := rules != nil
	if landlock {
		later = append(later, rules.File)
	}
	if control != nil {
		later = append(later, control)
	}
	s.Stdio(stdio, append(keep, later...)...)
	for _, f := range way.tasks {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), c.joinFlags())
	// A cgroup namespace of its own shows nothing else than the cell's does, and
	// nobody can leave it: it tells what this command has started.
	s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	s.CaptureLink(familyLink, 64)
	s.CloseOthers(3, later...)
	if control != nil {
		s.Call("hand over the socket", unix.SYS_DUP3, int(control.Fd()), 3, 0)
		s.Call("close", unix.SYS_CLOSE, int(control.Fd()))
	}
	s.Call("setsid", unix.SYS_SETSID)
	if p.TTY {
		s.Call("take the terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	s.Call("umask", unix.SYS_UMASK, 0o022)
	confine.Limits{OpenFiles: c.d.openFiles, FileSize: c.w.Spec.MaxFile(control != nil), Processes: c.w.MaxProcs}.Apply(s)

	caps := c.become(s)
	s.Call(workdirOp+p.Workdir, unix.SYS_CHDIR, p.Workdir)
	confine.Shed(s, caps)
	c.confine(s, rules, control != nil)
	c.canaries(s, &made, landlock)
	if proof, err = c.talkingCanaries(s, &made); err != nil {
		return nil, made, nil, err
	}
	s.Capture("/proc/self/status", 4096)
	s.Report()
	if s.Gated {
		s.Gate()
	}
	s.Exec(p.Path, p.Args, p.Env)
	return s, made, proof, nil
}

// joinFlags are the namespaces that a command of this cell enters.
func (c *liveCell) joinFlags() int {
	if c.fork != nil {
		return joinFlags | unix.CLONE_NEWUSER
	}
	return joinFlags
}

// become makes a script the cell's user, who may never have more capabilities
// than those that are returned.
func (c *liveCell) become(s *linux.Script) (caps uint64) {
	u := c.w.Spec.User
	return confine.Identity{User: u, RootCaps: c.capsOf(c.d.rootCaps), LastCap: c.d.lastCap, Switch: u.UID != os.Getuid() || u.GID != os.Getgid()}.Become(s)
}

// canaries adds those that need no gateway; with landlock the one that needs it.
func (c *liveCell) canaries(s *linux.Script, made *confine.Measured, landlock bool) {
	p := c.place(landlock)
	p.Canaries(s, made)
}

// place is what a battery in this cell must know.
func (c *liveCell) place(landlock bool) confine.Place {
	return confine.Place{Landlock: landlock, Silent: c.link == nil, Writable: c.writable(), State: c.w.Scratch, Bait: c.d.bait.address}
}

// confine adds Landlock and seccomp. An interpreter may make forks of itself.
func (c *liveCell) confine(s *linux.Script, rules *linux.LandlockRuleset, forks bool) {
	if rules != nil {
		fd := int(rules.File.Fd())
		s.Call("landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
	c.filter(s, forks)
}

// outside reports whether the cell has the filter against set-user-id bits: what is
// forked keeps that of what it was forked from.
func (c *liveCell) outside() bool {
	return c.w.Spec.WritesOutside() || c.fork != nil && c.fork.up != nil && c.fork.up.outside
}

// capsOf are those of some capabilities that this cell may have.
func (c *liveCell) capsOf(caps uint64) uint64 { return confine.CapsIn(c.outside(), caps) }

// filter adds seccomp.
func (c *liveCell) filter(s *linux.Script, forks bool) {
	if c.outside() {
		confine.Filter(s, c.d.noSetID)
	}
	filter := c.d.seccomp
	if forks {
		filter = c.d.forking
	}
	confine.Filter(s, filter)
}

// rules are those that Landlock has for a command; nil where there are none. The
// caller gives them to unruled when the command has them. A cell that is no fork keeps
// them for all its commands: forks are many, and most of them run none.
func (c *liveCell) rules() (*linux.LandlockRuleset, error) {
	if c.fork != nil {
		return c.newRules()
	}
	c.ruling.Lock()
	defer c.ruling.Unlock()
	var err error
	if c.landlock == nil {
		c.landlock, err = c.newRules()
	}
	return c.landlock, err
}

func (c *liveCell) unruled(r *linux.LandlockRuleset) {
	if c.fork != nil && r != nil {
		r.Close()
	}
}

// newRules opens the places that Landlock lets a command use, as the cell sees them,
// and makes a ruleset. No symlink of the cell's leads out of its root.
func (c *liveCell) newRules() (*linux.LandlockRuleset, error) {
	if !c.w.Landlock {
		return nil, nil
	}
	root, err := unix.Open(procPath(c.init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, unopened(&os.PathError{Op: "open", Path: "the cell's root", Err: err})
	}
	defer unix.Close(root)
	var files linux.LandlockFiles
	files.ShareAbstract = true // the network namespace bounds abstract sockets
	defer func() {
		for _, list := range [][]*os.File{files.ReadExec, files.Write, files.Devices} {
			for _, f := range list {
				f.Close()
			}
		}
	}()
	open := func(list *[]*os.File, paths ...string) error {
		for _, p := range paths {
			fd, err := unix.Openat2(root, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
				Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
			if err != nil {
				return &os.PathError{Op: "open", Path: p, Err: err}
			}
			*list = append(*list, os.NewFile(uintptr(fd), p))
		}
		return nil
	}
	err = open(&files.ReadExec, "/")
	if err == nil {
		err = open(&files.Write, c.writable()...)
	}
	if err == nil {
		err = open(&files.Devices, "/dev")
	}
	if err != nil {
		return nil, unopened(err)
	}
	r, err := linux.NewLandlockFiles(files)
	if err != nil {
		return nil, unopened(err)
	}
	high, err := linux.Raise(r.File)
	if err != nil {
		return nil, unopened(errors.Join(err, r.Close()))
	}
	r.File = high
	return r, nil
}

// writable are the places where a cell's processes may write at all. Mounts
// decide already; Landlock says it a second time, in the kernel's other
// mechanism.
func (c *liveCell) writable() []string {
	list := []string{"/proc", "/dev/shm"}
	for _, m := range c.w.Spec.Mounts {
		if !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect && m.Target != "/run" {
			list = append(list, m.Target)
		}
	}
	return list
}
