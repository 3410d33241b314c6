package linux

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenNode opens a device for reading and writing through a node of our own, in an
// unattached file system. A process that receives the file may open it again by its
// descriptor (/proc/self/fd), whatever the permissions of path are. It needs root.
func OpenNode(path string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, fmt.Errorf("cannot open %s: it is no device", path)
	}
	dir, err := tmpFS(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, [2]string{"size", "4k"})
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	if err := unix.Mknodat(int(dir.Fd()), name, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	if err := unix.Fchmodat(int(dir.Fd()), name, 0o666, 0); err != nil { // whatever the mask is
		return nil, &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
