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

// firstUser is the user ID of the first process of the cell's PID namespace. It is no user of
// the cell, so that the cell's root cannot signal it.
const firstUser = 1<<31 - 2

// place is the environment of commands: their PID namespace, and a cgroup for each.
type place struct {
	program *os.File // executed by the first process
	all     *group   // parent of all commands' cgroups
	lastCap int
	filter  *linux.SeccompProgram
	noSetID *linux.SeccompProgram // in addition to filter, for commands that write to directories of the host
	proc    *os.File              // shows the guest's own namespace

	procData string // mount options of every proc
	cover    bool   // hide the parts that belong to the machine
	kernel   bool   // gVisor, with the freezer of pando-runsc; Linux has cgroup freezers

	mu    sync.Mutex // guards the fields below
	first *linux.Child
	gone  chan struct{} // closed when first has ended
	left  []*group      // cgroups of released commands with remaining processes

	groups atomic.Int64 // number of groups made
}

// newPlace prepares what commands need. The guest becomes non-dumpable: its children share its
// memory until they exec.
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
	// All commands together have the CPU weight of the guest alone, so that it stays
	// responsive. This is optional: some kernels lack the controller, and gVisor's guests
	// depend on the host's scheduler.
	p.all.up.write("cgroup.subtree_control", "+cpu")
	f, err := linux.InitProgram()
	if err != nil {
		return p, err
	}
	if p.program, err = linux.Raise(f); err != nil {
		return p, err
	}
	// Another user executes it, and gVisor reads the file as that user.
	if err := p.program.Chmod(0o555); err != nil {
		return p, err
	}
	_, err = p.firstProcess()
	return p, err
}

// leanProc mounts a proc that caches no unused entries, if the kernel supports that, and
// returns its options. Otherwise gVisor caches a thousand. A process's entry has a hundred
// objects, and a capture saves each while the cell is paused.
func leanProc() (data string, err error) {
	const limit = "dentry_cache_limit="
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || !strings.Contains(string(mounts), " /proc proc ") || !strings.Contains(string(mounts), limit) {
		return "", nil // not gVisor
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

// firstProcess returns the first process of the cell's PID namespace. It starts one if there is
// none: the cell's root may have killed it, and with it all others.
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
	// Over the proc of the guest's namespace. A proc shows the namespace of its mounter.
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
	act := linux.AddressOf(s, &[4]uint64{1}) // SIG_IGN, which survives execve
	for sig := 1; sig <= 64; sig++ {         // gVisor does not protect a first process; SIGKILL and SIGSTOP cannot be ignored
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

// cgroups mounts cgroup v2, detached from the file tree, and returns its root.
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
	defer unix.Close(at) // gVisor cannot checkpoint an open mount, but can a directory
	dir, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open cgroup2", err)
	}
	return os.NewFile(uintptr(dir), "cgroup2"), nil
}

// group is a cgroup with all cgroups below it.
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

// bound limits all commands together, with the kernel's controllers.
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
	return p.all.write("cgroup.subtree_control", "+memory") // so that OOM kills are counted per command
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

// starved reports whether the kernel killed a process of g for lack of memory.
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

// pids returns the live processes in g, by the guest's PIDs.
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

// freeze freezes or thaws all processes of a group, without signals. It does not wait: each
// process stops on its way back to user mode, even in a machine that is copied meanwhile. A
// process that waits for a device or a file stops when it returns.
func (g *group) freeze(still bool) error {
	if still {
		return g.write("cgroup.freeze", "1")
	}
	return g.write("cgroup.freeze", "0")
}

// endLimit is the time limit for killed processes to end.
const endLimit = 5 * time.Second

// end kills all processes of a group, including those being forked. It returns their number
// after all have ended.
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
	freezer(freezeMop, 0) // frozen processes, too; fails on kernels other than gVisor's
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

// remove removes a group without processes, and the groups below it.
func (g *group) remove() error {
	g.below(func(_ string, sub *group) { sub.remove() })
	return unix.Unlinkat(int(g.up.dir.Fd()), g.name, unix.AT_REMOVEDIR)
}

// abandon removes a command's cgroup once it is empty.
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
