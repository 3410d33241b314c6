package guest

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// firstUser is who the first process of the cell's pid namespace is: nobody of the
// cell, whose root could signal what is its own.
const firstUser = 1<<31 - 2

// place is where commands live: their pid namespace, and a cgroup for each.
type place struct {
	program *os.File // of the first process
	all     *group   // of all commands
	lastCap int
	filter  *linux.SeccompProgram
	noSetID *linux.SeccompProgram // beside filter, of commands that write to directories of the host
	proc    *os.File              // the one that shows the guest's own namespace

	procData string // options of every proc
	cover    bool   // hide of it what is the machine's
	kernel   bool   // gVisor's, whose freezer is pando-runsc's; another has one of cgroups

	mu    sync.Mutex // guards what follows
	first *linux.Child
	gone  chan struct{} // closed when first has ended
	left  []*group      // of commands that were released, with what they left behind

	groups atomic.Int64 // how many were made
}

// newPlace prepares what commands need. The guest must not be looked into by what
// it forks: for a moment that shares its memory.
func newPlace(cover bool) (*place, error) {
	p := &place{lastCap: linux.LastCap(), cover: cover}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return p, os.NewSyscallError("prctl", err)
	}
	filter, err := linux.SeccompFilter(linux.SeccompOptions{})
	if err != nil {
		return p, err
	}
	if p.filter, err = linux.NewSeccompProgram(filter); err != nil {
		return p, err
	}
	if filter, err = linux.NoSetIDFilter(false); err != nil {
		return p, err
	}
	if p.noSetID, err = linux.NewSeccompProgram(filter); err != nil {
		return p, err
	}
	if _, err := freezer(freezeProbe, 0); err == nil {
		p.kernel = true
	}
	if p.procData, err = leanProc(); err != nil {
		return p, err
	}
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	p.proc = os.NewFile(uintptr(proc), "/proc")
	root, err := cgroups()
	if err != nil {
		return p, cell.Errorf(cell.Unsupported, "guest.Serve", "start the sandbox with cgroups of version 2 inside", "cannot tell the processes of commands apart: %w", err)
	}
	if p.all, err = (&group{dir: root}).sub("pando-guest-" + strconv.FormatInt(time.Now().UnixNano(), 36)); err != nil {
		return p, err
	}
	if !p.kernel {
		f, err := p.all.file("cgroup.freeze", unix.O_WRONLY)
		if err != nil {
			return p, cell.Errorf(cell.Unsupported, "guest.Serve", "use the pando-runsc of this pando", "the cell's kernel has no freezer for its processes: %w", err)
		}
		f.Close()
	}
	// The commands together weigh as much as the guest alone, so that it answers however
	// many of them want a processor. Kernels without this controller, and gVisor, whose
	// guests wait for the host's scheduler, do without.
	p.all.up.write("cgroup.subtree_control", "+cpu")
	f, err := linux.InitProgram()
	if err != nil {
		return p, err
	}
	if p.program, err = linux.Raise(f); err != nil {
		return p, err
	}
	// It is executed by another user, and gVisor reads what it executes as that.
	if err := p.program.Chmod(0o555); err != nil {
		return p, err
	}
	_, err = p.firstProcess()
	return p, err
}

// leanProc mounts a proc that keeps no entries which nobody has open, where the
// kernel has such, and returns its options. gVisor keeps a thousand otherwise, and
// the entry of a process has a hundred objects with it, each of which a capture saves
// while the cell stands still.
func leanProc() (data string, err error) {
	const limit = "dentry_cache_limit="
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || !strings.Contains(string(mounts), " /proc proc ") || !strings.Contains(string(mounts), limit) {
		return "", nil // another kernel's
	}
	data = limit + "0"
	if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
		return "", os.NewSyscallError("umount", err)
	}
	return data, os.NewSyscallError("mount", unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data))
}

func (p *place) remove() {
	if p.all != nil {
		p.all.end()
		p.all.remove()
	}
}

// firstProcess returns the process whose pid namespace is the cell's, and starts
// it if there is none: root of the cell may have ended it, and with it all others.
func (p *place) firstProcess() (*linux.Child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first != nil {
		select {
		case <-p.gone:
			p.first.PIDFD.Close()
			p.first = nil
		default:
			return p.first, nil
		}
	}
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, p.program)
	// Over the one that shows the guest; a proc shows the namespace of who mounts it.
	s.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, p.procData)
	if p.cover {
		confine.CoverProc(s)
	}
	s.Call("setsid", unix.SYS_SETSID)
	s.Call("setgroups", unix.SYS_SETGROUPS, 0, nil)
	s.Call("setresgid", unix.SYS_SETRESGID, firstUser, firstUser, firstUser)
	s.Call("setresuid", unix.SYS_SETRESUID, firstUser, firstUser, firstUser)
	s.SetCaps(0)
	s.NoNewPrivs()
	s.IgnoreSIGCHLD()
	act := linux.AddressOf(s, &[4]uint64{1}) // SIG_IGN, which survives an exec
	for sig := 1; sig <= 64; sig++ {         // gVisor protects a first process from nothing; SIGKILL and SIGSTOP stay
		s.Try("ignore a signal", unix.SYS_RT_SIGACTION, sig, act, 0, 8)
	}
	s.ExecFD(int(p.program.Fd()), []string{"pando-init"}, nil)
	c, err := linux.Spawn(s, linux.SpawnOptions{Flags: unix.CLONE_NEWPID})
	if err != nil {
		return nil, cell.Errorf(cell.Unsupported, "guest.Serve", "", "cannot start the cell's first process: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		c.Wait()
		close(gone)
	}()
	p.first, p.gone = c, gone
	return c, nil
}

// cgroups mounts the hierarchy of version 2 where nobody else sees it.
func cgroups() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen cgroup2", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig cgroup2", err)
	}
	at, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount cgroup2", err)
	}
	defer unix.Close(at) // gVisor can't keep one in a checkpoint; a directory it can
	dir, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open cgroup2", err)
	}
	return os.NewFile(uintptr(dir), "cgroup2"), nil
}

// group is a cgroup, and all below it.
type group struct {
	dir  *os.File
	up   *group
	name string
}

func (g *group) sub(name string) (*group, error) {
	at := int(g.dir.Fd())
	if err := unix.Mkdirat(at, name, 0o755); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: "cgroup " + name, Err: err}
	}
	return g.open(name)
}

func (g *group) open(name string) (*group, error) {
	fd, err := unix.Openat(int(g.dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "cgroup " + name, Err: err}
	}
	f, err := linux.Raise(os.NewFile(uintptr(fd), name))
	return &group{f, g, name}, err
}

func (g *group) file(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(g.dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// bound limits all commands together, by the kernel's own controllers.
func (p *place) bound(l Limits) error {
	if err := p.all.up.write("cgroup.subtree_control", "+memory +pids"); err != nil {
		return err
	}
	for name, n := range map[string]int64{"memory.max": l.Memory, "pids.max": l.PIDs} {
		if n > 0 {
			if err := p.all.write(name, strconv.FormatInt(n, 10)); err != nil {
				return err
			}
		}
	}
	return p.all.write("cgroup.subtree_control", "+memory") // so that each command's deaths are told apart
}

func (g *group) write(name, text string) error {
	f, err := g.file(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// starved reports whether the kernel killed a process of g for its memory.
func (g *group) starved() bool {
	f, err := g.file("memory.events", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	for l := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(l), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// below calls f for every cgroup below g.
func (g *group) below(f func(name string, sub *group)) {
	d, err := g.file(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	entries, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if sub, err := g.open(e.Name()); err == nil {
			f(e.Name(), sub)
			sub.dir.Close()
		}
	}
}

// pids are the processes in g that have not ended, by the guest's numbers.
func (g *group) pids() (list []int) {
	if f, err := g.file("cgroup.procs", unix.O_RDONLY); err == nil {
		b, _ := io.ReadAll(f)
		f.Close()
		for l := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(l); err == nil && pid > 1 {
				list = append(list, pid)
			}
		}
	}
	g.below(func(_ string, sub *group) { list = append(list, sub.pids()...) })
	return list
}

func (g *group) count() int { return len(g.pids()) }

// freeze lets all processes of a group stand still, or go on, without a signal. It
// doesn't wait for them: each is stopped on its way back to its own code, also in a
// machine that is copied meanwhile. One that waits for a device or a file is, too, when
// it comes back.
func (g *group) freeze(still bool) error {
	if still {
		return g.write("cgroup.freeze", "1")
	}
	return g.write("cgroup.freeze", "0")
}

// endLimit bounds how long it is waited for processes that were killed.
const endLimit = 5 * time.Second

// end kills all processes of a group, also those that are just being forked, and
// returns how many there were when all are gone.
func (g *group) end() (int, error) {
	n := g.count()
	if n == 0 {
		return 0, nil
	}
	f, err := g.file("cgroup.kill", unix.O_WRONLY)
	if err == nil {
		_, err = f.WriteString("1")
		f.Close()
	}
	freezer(freezeMop, 0) // those that are frozen, too; it is gVisor's alone, whose error is of another kernel
	if err != nil {
		return 0, cell.Errorf(cell.Internal, "guest.end", "", "cannot end the processes of a command: %w", err)
	}
	for wait, began := 100*time.Microsecond, time.Now(); g.count() > 0; wait = min(2*wait, 5*time.Millisecond) {
		if time.Since(began) > endLimit {
			return n, cell.Errorf(cell.Unavailable, "guest.end", "", "cannot end the processes of a command: %d are left", g.count())
		}
		time.Sleep(wait)
	}
	return n, nil
}

// remove takes a group without processes away, and those below it.
func (g *group) remove() error {
	g.below(func(_ string, sub *group) { sub.remove() })
	return unix.Unlinkat(int(g.up.dir.Fd()), g.name, unix.AT_REMOVEDIR)
}

// abandon takes a command's cgroup away when it is empty, now or later.
func (p *place) abandon(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = slices.DeleteFunc(append(p.left, g), func(g *group) bool {
		if g.remove() != nil {
			return false
		}
		g.dir.Close()
		return true
	})
}
