package linux

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A MountStore keeps mounts without a descriptor for each. They are attached in a
// mount namespace that has nothing else in it and that two threads live in: no
// process sees them, and they vanish with this process. What they show is reached
// by path below one descriptor. It is safe for concurrent use.
//
//	/slots/0, /slots/1, …   directories, made once
//	/7                      a mount of /slots, for each StoredMounts
//	/7/0, /7/1, …           the mounts that it keeps
//
//	/bin/0, /bin/1, …       directories, as many as were ever taken away at once
//
// The mount of /slots is there so that all are taken away by one call: for each
// such call the kernel waits until no processor looks at what it takes away. A
// thread that does nothing else makes it, for all that was dropped meanwhile, which
// it moves to a mount of /bin.
type MountStore struct {
	keeps, drops *Thread  // both work in "/" of the namespace
	root         *os.File // "/" of the namespace, as a path (O_PATH)

	// used by keeps alone:
	next  int // name of the next StoredMounts
	slots int // directories in slots

	bins int // directories in bin; used by drops alone

	mu      sync.Mutex // guards what follows
	dropped []string   // names that are to be taken away
	taking  bool       // drops is at it
	timer   *time.Timer
	closed  bool

	late sync.WaitGroup // the timer's work, until it is done or stopped
}

// StoredMounts are mounts that a MountStore keeps together.
type StoredMounts struct {
	store *MountStore
	name  string
	drop  sync.Once
}

// NewMountStore makes an empty one. It needs CAP_SYS_ADMIN over the caller's mount
// namespace. The store takes one descriptor, and two threads, until it is closed.
func NewMountStore() (*MountStore, error) {
	s := &MountStore{keeps: NewThread(), drops: NewThread()}
	var ns *os.File
	var err error
	s.keeps.Do(func() { ns, err = s.begin() })
	if err == nil {
		s.drops.Do(func() { err = s.join(ns) })
		ns.Close()
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("cannot make a mount namespace: %w", err)
	}
	return s, nil
}

// begin makes the namespace, and returns it.
func (s *MountStore) begin() (_ *os.File, err error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	ns, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			ns.Close()
		}
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, os.NewSyscallError("mount slave", err)
	}
	f, err := TmpFS([2]string{"size", "64k"}, [2]string{"mode", "0700"})
	if err != nil {
		return nil, err
	}
	if s.root, err = Raise(f); err != nil {
		return nil, err
	}
	if err := unix.MoveMount(int(s.root.Fd()), "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, os.NewSyscallError("move_mount", err)
	}
	if err := s.forsake(); err != nil {
		return nil, err
	}
	if err := unix.Fchdir(int(s.root.Fd())); err != nil {
		return nil, os.NewSyscallError("fchdir", err)
	}
	for _, dir := range []string{"slots", "bin"} {
		if err := unix.Mkdir(dir, 0o700); err != nil {
			return nil, os.NewSyscallError("mkdir", err)
		}
	}
	return ns, nil
}

// join brings another thread there.
func (s *MountStore) join(ns *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	return os.NewSyscallError("fchdir", unix.Fchdir(int(s.root.Fd())))
}

// forsake takes the host's mounts out of the namespace, so that it keeps none of them busy.
// Where the root is the kernel's first file system (initramfs), which cannot be replaced,
// they stay, and follow what the host unmounts.
func (s *MountStore) forsake() error {
	old, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(old)
	if err := unix.Fchdir(int(s.root.Fd())); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	if err := unix.PivotRoot(".", "."); err == unix.EINVAL {
		return nil
	} else if err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Fchdir(old); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	return os.NewSyscallError("umount", unix.Unmount(".", unix.MNT_DETACH))
}

// Close ends the namespace, and with it all that is kept.
func (s *MountStore) Close() {
	s.mu.Lock()
	s.closed = true
	timer := s.timer
	s.mu.Unlock()
	if timer != nil && timer.Stop() {
		s.late.Done()
	}
	s.late.Wait()
	s.keeps.Close()
	s.drops.Close()
	if s.root != nil {
		s.root.Close()
	}
}

// Keep takes detached mounts. Their files stay the caller's, to be closed; the mounts
// are there until they are dropped. When it fails nothing is kept, and the mounts are
// what they were or gone.
func (s *MountStore) Keep(mounts ...*os.File) (_ *StoredMounts, err error) {
	m := &StoredMounts{store: s}
	s.keeps.Do(func() {
		m.name = strconv.Itoa(s.next)
		if err = s.keep(m.name, mounts); err == nil {
			s.next++
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot keep mounts: %w", err)
	}
	return m, nil
}

func (s *MountStore) keep(name string, mounts []*os.File) (err error) {
	for ; s.slots < len(mounts); s.slots++ {
		if err := unix.Mkdir("slots/"+strconv.Itoa(s.slots), 0o700); err != nil {
			return os.NewSyscallError("mkdir", err)
		}
	}
	dir, err := unix.OpenTree(unix.AT_FDCWD, "slots", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(dir)
	if err := unix.Mkdir(name, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	defer func() {
		if err != nil {
			s.take(name)
		}
	}()
	if err := unix.MoveMount(dir, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	for i, f := range mounts {
		if err := unix.MoveMount(int(f.Fd()), "", unix.AT_FDCWD, name+"/"+strconv.Itoa(i), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// takeDropped takes away what was dropped, until there is nothing more.
func (s *MountStore) takeDropped() {
	for {
		s.mu.Lock()
		names := s.dropped
		s.dropped, s.taking = nil, len(names) > 0
		s.mu.Unlock()
		if len(names) == 0 {
			return
		}
		s.collect(names)
		for _, name := range names { // what could not be moved
			s.take(name)
		}
	}
}

// collect moves what has one of several names to one place, and takes that away.
func (s *MountStore) collect(names []string) {
	if len(names) == 1 {
		return
	}
	bin, err := unix.OpenTree(unix.AT_FDCWD, "bin", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(bin)
	for ; s.bins < len(names); s.bins++ {
		if unix.Mkdir("bin/"+strconv.Itoa(s.bins), 0o700) != nil {
			return
		}
	}
	if unix.MoveMount(bin, "", unix.AT_FDCWD, "bin", unix.MOVE_MOUNT_F_EMPTY_PATH) != nil {
		return
	}
	for i, name := range names {
		unix.MoveMount(unix.AT_FDCWD, name, unix.AT_FDCWD, "bin/"+strconv.Itoa(i), 0)
	}
	unix.Unmount("bin", unix.MNT_DETACH)
}

// take takes away what has a name.
func (s *MountStore) take(name string) {
	unix.Unmount(name, unix.MNT_DETACH)
	unix.Rmdir(name)
}

// Path is the root directory of the mount with an index. Whatever it shows, no name in
// the path is one that it holds.
func (m *StoredMounts) Path(i int) string {
	return "/proc/self/fd/" + strconv.Itoa(int(m.store.root.Fd())) + "/" + m.name + "/" + strconv.Itoa(i)
}

// Write makes a file in the root directory of the mount with an index, or replaces what it
// holds. See WriteAt.
func (m *StoredMounts) Write(i int, name, text string, perm uint32) error {
	return WriteAt(m.store.root, m.name+"/"+strconv.Itoa(i)+"/"+name, text, perm)
}

// WriteAt makes a file below dir, or replaces what it holds. A symbolic link with its
// name is refused.
func WriteAt(dir *os.File, name, text string, perm uint32) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, perm)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	_, err = unix.Write(fd, []byte(text))
	unix.Close(fd)
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// dropAfter is the maximum delay before dropped mounts are unmounted. Those dropped
// meanwhile go with them, after the pending requests were answered.
const dropAfter = 50 * time.Millisecond

// Drop has the mounts taken away, soon. It may be called again.
func (m *StoredMounts) Drop() {
	m.drop.Do(func() {
		s := m.store
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dropped = append(s.dropped, m.name)
		if !s.taking && !s.closed {
			s.taking = true
			s.late.Add(1)
			s.timer = time.AfterFunc(dropAfter, func() {
				defer s.late.Done()
				s.drops.Do(s.takeDropped)
			})
		}
	})
}
