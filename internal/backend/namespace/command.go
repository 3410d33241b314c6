package namespace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// rootCaps are what root of a cell may do inside it: own and give away files,
// change to another of the cell's users, end its processes, listen on low
// ports. Nothing here reaches the host: the capabilities are the user
// namespace's.
const rootCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SETFCAP

// joinFlags are the namespaces a command enters through its cell's first
// process; the pid namespace it is born in.
const joinFlags = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// workdirOp begins the name of the call that enters the working directory.
const workdirOp = "enter "

// command is the script of a process in a cell. In a talking cell it waits at a
// gate before it becomes the program, where proof says whether its canaries have
// proven what they are to prove.
// An interpreter gets control as its descriptor 3. It has no Landlock domain: its
// rules would bind its forks to the files that it sees itself.
func (c *liveCell) command(p cell.Process, stdio [3]*os.File, control *os.File) (s *linux.Script, made madeProcess, proof *proof, err error) {
	if err := c.rules(); err != nil { // a fork's are made when they are needed
		return nil, made, nil, fmt.Errorf("cannot make the cell's Landlock rules: %w", err)
	}
	s = &linux.Script{Gated: c.link != nil}
	keep := append([]*os.File{c.init.PIDFD}, c.enter...)
	var later []*os.File
	landlock := c.landlock != nil && control == nil
	if landlock {
		later = append(later, c.landlock.File)
	}
	if control != nil {
		later = append(later, control)
	}
	s.Stdio(stdio, append(keep, later...)...)
	for _, f := range c.enter {
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
	s.Limit("core", unix.RLIMIT_CORE, 0, 0)
	s.Limit("open files", unix.RLIMIT_NOFILE, min(c.d.openFiles, 65536), c.d.openFiles)
	if n := c.w.Spec.Limits.Disk; n > 0 { // holes are free on a disk, but not to whoever reads them
		s.Limit("file size", unix.RLIMIT_FSIZE, uint64(n), uint64(n))
	}
	if n := c.w.MaxProcs; n > 0 {
		s.Limit("processes", unix.RLIMIT_NPROC, uint64(n), uint64(n))
	}

	caps := c.become(s)
	s.Call(workdirOp+p.Workdir, unix.SYS_CHDIR, p.Workdir)
	shed(s, caps)
	c.confine(s, landlock, control != nil)
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
	if c.w.Spec.User.UID == 0 {
		caps = c.d.rootCaps
	}
	for b := 0; b <= c.d.lastCap; b++ {
		if caps&(1<<b) == 0 {
			s.Call("drop capability", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, b, 0, 0, 0)
		}
	}
	if u := c.w.Spec.User; u.UID != os.Getuid() || u.GID != os.Getgid() {
		s.Call("setgroups", unix.SYS_SETGROUPS, 0, nil)
		s.Call("setresgid", unix.SYS_SETRESGID, u.GID, u.GID, u.GID)
		s.Call("setresuid", unix.SYS_SETRESUID, u.UID, u.UID, u.UID)
	}
	return caps
}

// shed drops all capabilities but caps, for good.
func shed(s *linux.Script, caps uint64) {
	s.Call("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	s.SetCaps(caps)
	s.NoNewPrivs()
}

// confine adds Landlock and seccomp. An interpreter may make forks of itself.
func (c *liveCell) confine(s *linux.Script, landlock, forks bool) {
	if landlock {
		fd := int(c.landlock.File.Fd())
		s.Call("landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
	filter := c.d.seccomp
	if forks {
		filter = c.d.forking
	}
	address, _ := filter.Prog() // open as long as the keeper lives
	s.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address)
}

// rules opens the places that Landlock lets a command use, as the cell sees
// them, and makes the ruleset that all its commands share.
func (c *liveCell) rules() error {
	if !c.w.Landlock {
		return nil
	}
	c.ruling.Lock()
	defer c.ruling.Unlock()
	if c.landlock != nil {
		return nil
	}
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
			fd, err := unix.Open(procPath(c.init.PID, "root")+p, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
			if err != nil {
				return &os.PathError{Op: "open", Path: p, Err: err}
			}
			*list = append(*list, os.NewFile(uintptr(fd), p))
		}
		return nil
	}
	err := open(&files.ReadExec, "/")
	if err == nil {
		err = open(&files.Write, c.writable()...)
	}
	if err == nil {
		err = open(&files.Devices, "/dev")
	}
	if err != nil {
		return err
	}
	r, err := linux.NewLandlockFiles(files)
	if err != nil {
		return err
	}
	if r.File, err = linux.Raise(r.File); err != nil {
		return err
	}
	c.landlock = r
	return nil
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
