package workspace

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// raising lets one goroutine at a time raise permissions, so that none takes a raised mode for a
// folder's own.
var raising sync.Mutex

// WithRights runs f, which reads path below root. If files or folders of a workspace lack the
// owner's permissions (a test fixture with mode 000, for example), it adds them for the time in
// which f runs again. root must be private to us: modes and change times in it change for that
// time. f must not call WithRights.
func WithRights(root *linux.Dir, path string, f func() error) error {
	err := f()
	if err == nil || os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	raising.Lock()
	defer raising.Unlock()
	var r raised
	defer r.lower()
	if !r.raise(root, path) {
		return err
	}
	return f()
}

// raised are the files and folders with raised modes.
type raised struct {
	fds   []int
	modes []uint32 // their former modes
}

// raise gives the owner all permissions on the folders of path, and on its file. It reports
// whether it succeeded.
func (r *raised) raise(root *linux.Dir, path string) bool {
	at, err := unix.FcntlInt(root.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false
	}
	for {
		if !r.raiseMode(at) {
			return false
		}
		if path == "" {
			return true
		}
		var name string
		name, path, _ = strings.Cut(path, "/")
		at, err = unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH})
		r.forget()
		if err != nil {
			return false
		}
	}
}

// forget closes the last folder if its mode is unchanged: a deep path has more folders than
// there are descriptors.
func (r *raised) forget() {
	if last := len(r.fds) - 1; r.modes[last] == 0 {
		unix.Close(r.fds[last])
		r.fds, r.modes = r.fds[:last], r.modes[:last]
	}
}

// raiseMode raises the permissions of fd, and takes ownership of fd.
func (r *raised) raiseMode(fd int) bool {
	r.fds, r.modes = append(r.fds, fd), append(r.modes, 0)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	want := st.Mode & 0o7777
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK: // has no mode of its own
		return true
	case unix.S_IFDIR:
		want |= 0o500
	default:
		want |= 0o400
	}
	if want == st.Mode&0o7777 {
		return true
	}
	r.modes[len(r.modes)-1] = st.Mode
	return unix.Fchmodat(unix.AT_FDCWD, fdPath(fd), want, 0) == nil
}

// lower restores the modes, deepest first.
func (r *raised) lower() {
	for i := len(r.fds) - 1; i >= 0; i-- {
		if r.modes[i] != 0 {
			unix.Fchmodat(unix.AT_FDCWD, fdPath(r.fds[i]), r.modes[i]&0o7777, 0)
		}
		unix.Close(r.fds[i])
	}
}

// OpenRoot opens a directory of ours to read below it, whatever its mode.
func OpenRoot(dir string) (*linux.Dir, error) {
	return linux.OpenDir(dir, unix.O_PATH)
}

// OpenReadable opens a file or folder below a root of ours for reading.
func OpenReadable(root *linux.Dir, path string, dir bool) (fd int, err error) {
	err = WithRights(root, path, func() (err error) {
		fd, err = openToRead(root, path, dir)
		return err
	})
	return fd, err
}

func openToRead(root *linux.Dir, path string, dir bool) (int, error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if dir {
		flags |= unix.O_DIRECTORY
	}
	return OpenBeneath(root, path, flags)
}
