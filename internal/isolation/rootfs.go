package isolation

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// stage is where the new root is mounted while it is built. It exists on every host, and files
// below it were opened before.
const stage = "/usr"

// devices are the host's devices that a cell sees.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// cloneFlags are the namespaces of a cell. Its user namespace is the keeper's.
const cloneFlags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET

// firstProcess returns the script of a cell's first process. It builds the root file system and
// executes the program that waits.
func firstProcess(w *wire, mounts []*os.File, enter []*os.File, program *os.File, filter *linux.SeccompProgram) *linux.Script {
	s := &linux.Script{}
	keep := append(append([]*os.File{program}, enter...), present(mounts)...)
	s.Stdio([3]*os.File{}, keep...)
	s.Call("follow the keeper's death", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	for _, f := range enter {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)

	if i := topOf(w.Spec.Mounts); i >= 0 {
		s.Attach(int(mounts[i].Fd()), stage)
	} else {
		s.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m,nr_inodes=65536")
	}
	s.Call("chdir", unix.SYS_CHDIR, stage)
	s.Mkdir("oldroot", 0o700)
	s.Call("pivot_root", unix.SYS_PIVOT_ROOT, ".", "oldroot")
	s.Call("chdir", unix.SYS_CHDIR, "/")

	s.Mkdir("/proc", 0o555)
	s.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	settings(s, w.Talks, w.UserNS)
	s.Mkdir("/dev", 0o755)
	s.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755,size=64k")
	node(s, "null")
	s.Mkdir("/dev/.empty", 0o555)
	confine.CoverProc(s)
	dev(s)
	s.Mkdir(runDir, 0o755)
	s.Mkdir(confine.CanaryDir, 0o755)
	ownDir(s)
	b := builder{s: s, made: map[string]bool{"/proc": true, "/dev": true, runDir: true, confine.CanaryDir: true}}
	for i, m := range w.Spec.Mounts {
		if m.Target != "/" {
			b.place(m, w.Mounts[i], mounts[i])
		}
	}
	for _, m := range w.Spec.Mounts { // after the mount points below them were made
		if closes(m) {
			remount(s, m.Target, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
		}
	}
	confine.HostSockets(s)
	identity(s, w.Spec)
	s.Loopback()
	s.Call("umount the old root", unix.SYS_UMOUNT2, "/oldroot", unix.MNT_DETACH)
	s.Call("rmdir", unix.SYS_UNLINKAT, linux.AtCWD, "/oldroot", unix.AT_REMOVEDIR)
	if w.Spec.Top() == nil {
		remount(s, "/", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
	}

	s.Call("setsid", unix.SYS_SETSID)
	s.NoNewPrivs()
	s.SetCaps(0)
	s.IgnoreSIGCHLD()
	// It only waits, but the cell's processes see it, and must not get round the filter through
	// it.
	address, _ := filter.Prog()
	s.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address)
	s.ExecFD(int(program.Fd()), []string{"pando-init"}, nil)
	return s
}

// topOf returns the number of the mount of the root directory itself, or -1.
func topOf(mounts []cell.Mount) int {
	return slices.IndexFunc(mounts, func(m cell.Mount) bool { return m.Target == "/" })
}

// The directories in /run that a cell is made with. Told holds links to what the cell was
// refused; Debian's programs expect Locks.
const (
	runDir = "/run"
	Told   = runDir + "/pando"
	Locks  = runDir + "/lock"
)

// runSize bounds what a cell writes to /run, which is memory.
const runSize = ",size=64m,nr_inodes=16k"

// ownDir mounts pando's own directory in a cell.
func ownDir(s *linux.Script) {
	s.Mount("tmpfs", confine.CanaryDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0777,size=64k")
}

func present(files []*os.File) (out []*os.File) {
	for _, f := range files {
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}

// settings writes the sysctls of the cell. /proc is mounted while the host's is still visible:
// the kernel demands one that hides nothing.
func settings(s *linux.Script, talks bool, users int) {
	s.WriteFile("/proc/sys/user/max_user_namespaces", strconv.Itoa(users))
	network(s, talks)
}

// network writes the sysctls of the cell's network namespace.
func network(s *linux.Script, talks bool) {
	tryWrite(s, "/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
	tryWrite(s, "/proc/sys/net/ipv4/ping_group_range", "0 0")
	if talks {
		for _, x := range linux.LinkSettings {
			tryWrite(s, "/proc/sys/net/ipv6/conf/default/"+x[0], x[1])
		}
	}
}

func dev(s *linux.Script) {
	for _, d := range devices {
		if d != "null" {
			node(s, d)
		}
	}
	s.Mkdir("/dev/pts", 0o755)
	s.Mkdir("/dev/shm", 0o1777)
	terminals(s)
	s.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	s.Symlink("pts/ptmx", "/dev/ptmx")
	s.Symlink("/proc/self/fd", "/dev/fd")
	s.Symlink("/proc/self/fd/0", "/dev/stdin")
	s.Symlink("/proc/self/fd/1", "/dev/stdout")
	s.Symlink("/proc/self/fd/2", "/dev/stderr")
	remount(s, "/dev", unix.MS_RDONLY|unix.MS_NOSUID)
}

// terminals mounts the cell's own devpts.
func terminals(s *linux.Script) {
	s.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
}

// node binds a device of the host. A user namespace cannot create device nodes.
func node(s *linux.Script, name string) {
	touch(s, "/dev/"+name)
	s.Mount("/oldroot/dev/"+name, "/dev/"+name, "", unix.MS_BIND, "")
}

func touch(s *linux.Script, p string) {
	s.Try("create "+p, unix.SYS_MKNODAT, linux.AtCWD, p, unix.S_IFREG|0o644, 0)
}

func remount(s *linux.Script, p string, flags uintptr) {
	s.Call("remount "+p, unix.SYS_MOUNT, nil, p, nil, unix.MS_BIND|unix.MS_REMOUNT|flags, nil)
}

func tryWrite(s *linux.Script, p, text string) {
	fd := s.Try("open "+p, unix.SYS_OPENAT, linux.AtCWD, p, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	b := []byte(text)
	s.Try("write "+p, unix.SYS_WRITE, fd, b, len(b))
	s.Try("close", unix.SYS_CLOSE, fd)
}

// A builder places the mounts of a spec. Below some of them (home, /tmp, workspace) are files
// that the cell wrote in an earlier run. Every name is created in an opened directory that was
// reached without symlinks, because a symlink to /oldroot would reach the host.
type builder struct {
	s      *linux.Script
	made   map[string]bool // directories that exist
	layers *layers         // in a fork: what it keeps of mounts in memory
}

// dirs creates the parent directories of target.
func (b *builder) dirs(target string) {
	for i, c := range target {
		if c == '/' && i > 0 {
			b.dir(target[:i])
		}
	}
}

func (b *builder) dir(at string) {
	if b.made[at] {
		return
	}
	b.made[at] = true
	b.s.In(at, func(dir linux.Slot, name string) {
		b.s.Try("mkdir "+at, unix.SYS_MKDIRAT, dir, name, 0o755)
	})
}

// closes reports whether a mount becomes read-only when all others are made: those below it need
// mount points.
func closes(m cell.Mount) bool {
	return m.ReadOnly && (m.Kind == cell.Tmpfs || m.Kind == cell.Overlay)
}

// place mounts m at its target.
func (b *builder) place(m cell.Mount, how mount, f *os.File) {
	b.dirs(m.Target)
	switch {
	case m.Kind == cell.Link:
		b.s.In(m.Target, func(dir linux.Slot, name string) {
			b.s.Try("symlink "+m.Target, unix.SYS_SYMLINKAT, m.Source, dir, name) // it may exist already
			at := b.s.Call("make the link "+m.Target, unix.SYS_OPENAT, dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			b.s.Call("close", unix.SYS_CLOSE, at)
		})
	case m.Kind == cell.Tmpfs:
		mode, size := uint32(0o1777), ""
		if m.ReadOnly {
			mode = 0o755
		}
		if m.Target == runDir {
			mode, size = 0o755, runSize
		}
		b.dir(m.Target)
		if b.layers.place(m.Target, mode, size) {
			break
		}
		at := b.s.OpenPlain(m.Target)
		b.s.Call("enter "+m.Target, unix.SYS_FCHDIR, at)
		b.s.Mount("tmpfs", ".", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, modeOption(mode)+size)
		b.s.Call("leave "+m.Target, unix.SYS_CHDIR, "/")
		b.s.Call("close", unix.SYS_CLOSE, at)
		if m.Target == runDir {
			b.s.Call("mkdir "+Locks, unix.SYS_MKDIRAT, linux.AtCWD, Locks, 0o777)
			b.s.Call("chmod "+Locks, unix.SYS_FCHMODAT, linux.AtCWD, Locks, 0o1777)
		}
	case m.Kind == cell.Protect:
		b.protect(m.Target)
	case how.Dir:
		b.dir(m.Target)
		b.s.Attach(int(f.Fd()), m.Target)
	default:
		b.s.In(m.Target, func(dir linux.Slot, name string) {
			b.s.Try("create "+m.Target, unix.SYS_MKNODAT, dir, name, unix.S_IFREG|0o644, 0)
		})
		b.s.Attach(int(f.Fd()), m.Target)
	}
}

// protect makes a path and all mounts below it read-only, by a mount over itself. The path must
// exist and contain no symlinks.
func (b *builder) protect(target string) {
	at := b.s.OpenPlain(target)
	tree := b.s.Call("take "+target, unix.SYS_OPEN_TREE, at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	attr := make([]byte, 32) // struct mount_attr {attr_set, attr_clr, propagation, userns_fd uint64}
	attr[0] = unix.MOUNT_ATTR_RDONLY
	b.s.Call("protect "+target, unix.SYS_MOUNT_SETATTR, tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr, len(attr))
	b.s.Call("attach "+target, unix.SYS_MOVE_MOUNT, tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	b.s.Call("close", unix.SYS_CLOSE, tree)
	b.s.Call("close", unix.SYS_CLOSE, at)
}

// madeInside reports whether a mount is created inside the cell, from no opened file.
func madeInside(m cell.Mount) bool {
	return m.Kind == cell.Link || m.Kind == cell.Tmpfs || m.Kind == cell.Protect
}

// An idFile is a file that identifies a machine.
type idFile struct{ path, text string }

// MachineID returns the machine ID of a cell.
func MachineID(id cell.ID) string {
	sum := sha256.Sum256([]byte("pando machine " + id))
	return hex.EncodeToString(sum[:16])
}

// idFiles returns the identity files of a cell.
func idFiles(id cell.ID, hostname string) []idFile {
	return []idFile{
		{"/etc/hostname", hostname + "\n"},
		{"/etc/hosts", "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost\n"},
		{"/etc/machine-id", MachineID(id) + "\n"},
	}
}

// identity sets the cell's hostname and machine ID.
func identity(s *linux.Script, spec cell.Spec) {
	name := []byte(spec.Hostname)
	s.Call("sethostname", unix.SYS_SETHOSTNAME, name, len(name))
	for _, f := range idFiles(spec.ID, spec.Hostname) {
		at := confine.CanaryDir + "/" + strings.TrimPrefix(f.path, "/etc/")
		fd := s.Call("create "+at, unix.SYS_OPENAT, linux.AtCWD, at, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o444)
		b := []byte(f.text)
		s.Call("write "+at, unix.SYS_WRITE, fd, b, len(b))
		s.Call("close", unix.SYS_CLOSE, fd)
		// Without such a file in the image there is nothing to replace.
		s.Try("show "+f.path, unix.SYS_MOUNT, at, f.path, nil, unix.MS_BIND, nil)
		s.Try("protect "+f.path, unix.SYS_MOUNT, nil, f.path, nil, unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, nil)
	}
}

// isDir reports whether the source of a mount is a directory.
func isDir(m cell.Mount) bool {
	if m.Kind != cell.Bind {
		return true
	}
	st, err := os.Stat(m.Source)
	return err == nil && st.IsDir()
}
