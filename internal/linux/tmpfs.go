package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// TmpFS makes an unattached file system in memory and returns its root directory. It
// vanishes with the file.
func TmpFS(options ...[2]string) (*os.File, error) {
	return tmpFS(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, options...)
}

func tmpFS(attr int, options ...[2]string) (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return nil, &os.PathError{Op: "tmpfs option", Path: o[0], Err: err}
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "tmpfs"), nil
}

// DetachIn returns a detached copy of the mount of what has a name in dir.
func DetachIn(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
