package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/failpoint"
)

// RemoveTree removes a directory and all in it, however deep, also what its
// owner may not enter. It is no error if there is none. The path is absolute, and not
// the root: an empty one would name the working directory, and nothing of it goes.
func RemoveTree(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return &os.PathError{Op: "remove", Path: dir, Err: unix.EINVAL}
	}
	dir = filepath.Clean(dir)
	failpoint.Step("remove a tree")
	parent, err := OpenBelow(unix.AT_FDCWD, filepath.Dir(dir), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC})
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: Abridged(filepath.Dir(dir)), Err: err}
	}
	defer unix.Close(parent)
	r := remover{top: -1}
	if r.remove(parent, "", filepath.Base(dir), 0); r.err != nil {
		return &os.PathError{Op: "remove", Path: Abridged(filepath.Join(filepath.Dir(dir), r.at)), Err: r.err}
	}
	return nil
}

// RemoveAt removes name in the directory parent as RemoveTree does. It follows no
// symlink, whatever changes the tree meanwhile. The name is one component of a path,
// and neither "." nor "..". The tree may be one of another mount namespace: what is
// mounted in it stays, with EBUSY. The path of an *os.PathError begins with name.
func RemoveAt(parent int, name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return unix.EINVAL
	}
	r := remover{top: -1, keepMounts: true}
	if r.remove(parent, "", name, 0); r.err != nil {
		return &os.PathError{Op: "remove", Path: r.at, Err: r.err}
	}
	return nil
}

// IsMount reports whether something is mounted at name in the directory dir, or at dir if name
// is empty, as far as the kernel tells. For a directory of another mount namespace, the kernel
// removes or renames the name nonetheless, and takes the mount away from that namespace.
func IsMount(dir int, name string) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &st)
	return err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// deepest is how many folders a remover has open at once, one in the other.
// What lies below is moved up, beside the tree's top, and removed there: so no
// depth needs more descriptors or a longer path.
const deepest = 64

type remover struct {
	keepMounts bool   // whatever the mount namespace
	top        int    // the folder that is removed
	moved      int    // how many folders were moved up
	err        error  // the first reason why something stays
	at         string // where that is, below the parent of what is removed
}

// remove takes name away from dir, which is at the path in, and reports whether it is gone.
func (r *remover) remove(dir int, in, name string, depth int) bool {
	if r.keepMounts && IsMount(dir, name) {
		return r.failed(in, name, unix.EBUSY)
	}
	err := unlinkAt(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return true
	}
	if unlinkAt(dir, name, unix.AT_REMOVEDIR) == nil { // an empty folder, most often
		return true
	}
	fd, openErr := openOwn(dir, name)
	switch openErr {
	case nil:
	case unix.ENOENT:
		return true
	case unix.ENOTDIR, unix.ELOOP: // a file: what unlink said counts
		return r.failed(in, name, err)
	default:
		return r.failed(in, name, openErr)
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.top = fd
	}
	if depth >= deepest && r.up(dir, name) {
		return true
	}
	r.empty(fd, filepath.Join(in, name), depth)
	if err := unlinkAt(dir, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return r.failed(in, name, err)
	}
	return true
}

// empty removes what is in the open folder fd, which is at the path in, until nothing more goes.
func (r *remover) empty(fd int, in string, depth int) {
	for {
		names, err := namesIn(fd)
		if err == unix.ENOENT { // the folder was removed meanwhile
			return
		}
		if err != nil {
			r.failed(in, "", err)
			return
		}
		gone := 0
		for _, n := range names {
			if r.remove(fd, in, n, depth+1) {
				gone++
			}
		}
		if gone == 0 { // nothing is left, or nothing that can be removed
			return
		}
	}
}

// up moves a folder to the top of what is removed. A folder that can't be moved
// (something is mounted there) is emptied where it is.
func (r *remover) up(dir int, name string) bool {
	for range 1000 {
		r.moved++
		err := unix.Renameat2(dir, name, r.top, fmt.Sprintf(".moved-up-%d", r.moved), unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return err == nil
		}
	}
	return false
}

func (r *remover) failed(in, name string, err error) bool {
	if r.err == nil {
		r.err, r.at = err, filepath.Join(in, name)
	}
	return false
}

func unlinkAt(dir int, name string, flags int) error {
	for {
		if err := unix.Unlinkat(dir, name, flags); err != unix.EINTR {
			return err
		}
	}
}

// openOwn opens a folder to remove its content. An owner without rights on it gets them.
func openOwn(dir int, name string) (int, error) {
	open := func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	fd, err := open()
	if err == unix.EACCES {
		at, perr := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if perr != nil {
			return -1, err
		}
		cerr := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(at), 0o700, 0)
		unix.Close(at)
		if cerr != nil {
			return -1, err
		}
		fd, err = open()
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&0o700 != 0o700 {
		unix.Fchmod(fd, 0o700) // else it shows in what can't be removed
	}
	return fd, nil
}

// namesIn lists some of what is in a folder, from its beginning; none is all of
// nothing.
func namesIn(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 || err != nil {
			return nil, err
		}
		var names []string
		for b := buf[:n]; len(b) > 19; b = b[binary.NativeEndian.Uint16(b[16:]):] {
			if name := DirentName(b); name != "" && name != "." && name != ".." {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			return names, nil
		}
	}
}

// DirentName is the name in what the kernel says of one entry of a folder.
func DirentName(b []byte) string {
	name := b[19:binary.NativeEndian.Uint16(b[16:])]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return string(name)
}
