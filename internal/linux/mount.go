package linux

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/failpoint"
)

// Detach returns a detached copy of the mount tree at path: a mount that is
// nowhere visible and vanishes with its descriptor. It needs CAP_SYS_ADMIN
// over the caller's mount namespace.
func Detach(path string, recursive bool) (*os.File, error) {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, uint(flags))
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// MountAttr is what SetMount changes.
type MountAttr struct {
	ReadOnly, NoSUID, NoDev, NoExec bool
	IDMap                           *os.File // a user namespace: its inner ids are the ids on disk
}

// SetMount changes the attributes of the detached mount f, and makes it
// private: what the host mounts below its source later, with attributes of its
// own, does not appear in it.
func SetMount(f *os.File, a MountAttr, recursive bool) error {
	var set uint64
	for _, x := range []struct {
		on   bool
		flag uint64
	}{{a.ReadOnly, unix.MOUNT_ATTR_RDONLY}, {a.NoSUID, unix.MOUNT_ATTR_NOSUID}, {a.NoDev, unix.MOUNT_ATTR_NODEV}, {a.NoExec, unix.MOUNT_ATTR_NOEXEC}} {
		if x.on {
			set |= x.flag
		}
	}
	attr := unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE}
	if a.IDMap != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(a.IDMap.Fd())
	}
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(int(f.Fd()), "", flags, &attr); err != nil {
		return &os.PathError{Op: "mount_setattr", Path: f.Name(), Err: err}
	}
	return nil
}

// KeepMounts makes this process's mount namespace, which it was cloned with,
// its own: what the host mounts appears in it, what it mounts the host never
// sees. Mounts below dir appear in every MountNS, too.
func KeepMounts(dir string) error {
	for _, m := range []struct {
		what, source, target string
		flags                uintptr
	}{
		{"slave", "", "/", unix.MS_REC | unix.MS_SLAVE},
		{"bind", dir, dir, unix.MS_BIND},
		{"shared", "", dir, unix.MS_SHARED},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return os.NewSyscallError("mount "+m.what, err)
		}
	}
	return nil
}

// MountNS is a private mount namespace with one thread in it. Its mounts are invisible
// elsewhere and vanish with the process, so that nothing stays behind, not even after
// SIGKILL. Later mounts of the host appear in it.
type MountNS struct {
	work    chan func()
	scratch string
	id      int
	done    chan struct{}
	behind  sync.WaitGroup // closings

	attachLayers bool // this kernel wants overlay's layers in a mount namespace; used by the thread alone
}

// NewMountNS makes the namespace. scratch is an existing directory that it covers by a
// small file system for mount points. With id above zero the thread acts on files as that
// user, keeping its capabilities: overlayfs uses the ids of the mounting thread, and over
// id-mapped layers root's own id is unmapped.
func NewMountNS(scratch string, id int) (*MountNS, error) {
	m := &MountNS{work: make(chan func()), scratch: scratch, id: id, done: make(chan struct{})}
	ready := make(chan error)
	go m.live(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return m, nil
}

func (m *MountNS) live(ready chan<- error) {
	defer close(m.done)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	if err == nil {
		err = os.NewSyscallError("mount slave", unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
	}
	if err == nil {
		err = os.NewSyscallError("mount scratch", unix.Mount("tmpfs", m.scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=1m"))
	}
	if err == nil && m.id > 0 {
		err = actAs(m.id)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range m.work {
		f()
	}
}

// actAs makes this thread's file accesses those of another user and group.
// That takes the capabilities over files away; they are taken back.
func actAs(id int) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if err := unix.Setfsgid(id); err != nil {
		return os.NewSyscallError("setfsgid", err)
	}
	if err := unix.Setfsuid(id); err != nil {
		return os.NewSyscallError("setfsuid", err)
	}
	for i := range caps {
		caps[i].Effective = caps[i].Permitted
	}
	return os.NewSyscallError("capset", unix.Capset(&head, &caps[0]))
}

// Do runs f on the namespace's thread.
func (m *MountNS) Do(f func() error) error {
	failpoint.Step("mount")
	errc := make(chan error, 1)
	m.work <- func() { errc <- f() }
	return <-errc
}

// Close ends the namespace; detached mounts made in it live on.
func (m *MountNS) Close() {
	close(m.work)
	<-m.done
	m.behind.Wait()
}

// Parts makes a detached mount of each of some folders of the detached mount f, which it takes. Each is a relative path
// without symlinks.
func (m *MountNS) Parts(f *os.File, folders []string) (parts []*os.File, err error) {
	err = m.Do(func() error {
		at := filepath.Join(m.scratch, "parts")
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		if err := unix.MoveMount(int(f.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: at, Err: err}
		}
		defer unix.Unmount(at, unix.MNT_DETACH)
		for _, name := range folders {
			part, err := Detach(filepath.Join(at, name), false)
			if err != nil {
				return err
			}
			parts = append(parts, part)
		}
		return nil
	})
	f.Close()
	if err != nil {
		for _, p := range parts {
			p.Close()
		}
		return nil, err
	}
	return parts, nil
}

// Bind makes a detached copy of the mount at path with attributes a, from m's
// view of the host.
func (m *MountNS) Bind(path string, a MountAttr) (*os.File, error) {
	var out *os.File
	err := m.Do(func() error {
		f, err := Detach(path, true)
		if err != nil {
			return err
		}
		if err := SetMount(f, a, true); err != nil {
			f.Close()
			return err
		}
		out = f
		return nil
	})
	return out, err
}
