package isolation

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// joinFlags are the namespaces that a command enters through its cell's first process. It is
// created in the PID namespace.
const joinFlags = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// workdirOp is the prefix of the call that enters the working directory.
const workdirOp = "enter "

// command returns the script of a process in a cell. In a talking cell, or if gated, the
// process waits at a gate before it executes the program; proof reports there whether the
// canaries succeeded.
//
// control is descriptor 3 of an interpreter. An interpreter has no Landlock domain: its rules
// would restrict its forks to the files that the interpreter itself sees.
func (c *Cell) command(p cell.Process, stdio [3]*os.File, control *os.File, entry cgroupEntry, rules *linux.LandlockRuleset, listener *os.File, gated bool) (s *linux.Script, made confine.Measured, proof *proof, err error) {
	s = &linux.Script{Gated: gated || c.link != nil}
	keep := append([]*os.File{c.Init.PIDFD}, entry.tasks...)
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
	if listener != nil {
		later = append(later, listener)
	}
	s.Stdio(stdio, append(keep, later...)...)
	for _, f := range entry.tasks {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), c.joinFlags())
	// A command's own cgroup namespace shows the same as the cell's and cannot be left. It
	// identifies all processes that the command started.
	s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	s.CaptureLink(cgroupNSLink, 64)
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
	if listener != nil { // before the cell's own filter, which refuses listeners
		s.Listen(c.d.execs, listener)
	}
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

// joinFlags returns the namespaces that a command of this cell enters.
func (c *Cell) joinFlags() int {
	if c.forked {
		return joinFlags | unix.CLONE_NEWUSER
	}
	return joinFlags
}

// become adds the switch to the cell's user. It returns the capabilities that the user may
// have.
func (c *Cell) become(s *linux.Script) (caps uint64) {
	u := c.w.Spec.User
	return confine.Identity{User: u, RootCaps: c.capsOf(c.d.rootCaps), LastCap: c.d.lastCap, Switch: u.UID != os.Getuid() || u.GID != os.Getgid()}.Become(s)
}

// canaries adds the canaries that need no gateway. landlock adds the one that needs Landlock.
func (c *Cell) canaries(s *linux.Script, made *confine.Measured, landlock bool) {
	p := c.place(landlock)
	p.Canaries(s, made)
}

// place returns what the canaries must know about this cell.
func (c *Cell) place(landlock bool) confine.Place {
	return confine.Place{Landlock: landlock, Silent: c.link == nil, Writable: c.writable(), State: c.w.Scratch, Bait: c.d.bait.address}
}

// confine adds Landlock and seccomp. forks allows an interpreter to fork itself.
func (c *Cell) confine(s *linux.Script, rules *linux.LandlockRuleset, forks bool) {
	if rules != nil {
		fd := int(rules.File.Fd())
		s.Call("landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
	c.filter(s, forks)
}

// Outside reports whether the cell has the seccomp filter against set-user-ID bits. A fork
// inherits the filter of its parent.
func (c *Cell) Outside() bool { return c.w.Spec.WritesOutside() || c.outside }

// capsOf returns the subset of caps that this cell may have.
func (c *Cell) capsOf(caps uint64) uint64 { return confine.CapsIn(c.Outside(), caps) }

// Caps returns the capabilities that the cell's user may have in a user namespace of the cell's
// own.
func (c *Cell) Caps() uint64 {
	if c.w.Spec.User.UID == 0 {
		return c.capsOf(c.d.rootCaps)
	}
	return 0
}

// filter adds the seccomp filters.
func (c *Cell) filter(s *linux.Script, forks bool) {
	if c.Outside() {
		confine.Filter(s, c.d.noSetID)
	}
	filter := c.d.seccomp
	if forks {
		filter = c.d.forking
	}
	confine.Filter(s, filter)
}

// rules returns the Landlock ruleset of a command, or nil without Landlock. The caller passes
// it to closeRules after the start. An ordinary cell caches one ruleset; forks do not, because
// most of them run no command.
func (c *Cell) rules() (*linux.LandlockRuleset, error) {
	if c.forked {
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

func (c *Cell) closeRules(r *linux.LandlockRuleset) {
	if c.forked && r != nil {
		r.Close()
	}
}

// newRules opens the paths that Landlock allows, resolved in the cell's root, and creates a
// ruleset. No symlink of the cell leads out of the root.
func (c *Cell) newRules() (*linux.LandlockRuleset, error) {
	if !c.w.Landlock {
		return nil, nil
	}
	root, err := unix.Open(procPath(c.Init.PID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, unopened(&os.PathError{Op: "open", Path: "the cell's root", Err: err})
	}
	defer unix.Close(root)
	var files linux.LandlockFiles
	files.ShareAbstract = true // the network namespace isolates abstract sockets
	defer func() {
		for _, list := range [][]*os.File{files.ReadExec, files.Write, files.Devices} {
			CloseFiles(list)
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

// writable returns the paths where the cell's processes may write. Mounts enforce this already;
// Landlock enforces it with a second mechanism.
func (c *Cell) writable() []string {
	list := []string{"/proc", "/dev/shm"}
	for _, m := range c.w.Spec.Mounts {
		if !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect {
			list = append(list, m.Target)
		}
	}
	return list
}
