package volume

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Move renames from to to, two paths below root, which lie in one file system:
// to is an empty directory, or nothing. The directory of all cells is a mount of
// its own in a process that opens volumes, and the kernel renames nothing from
// one mount to another: so it is done in a view of root without mounts.
func Move(root, from, to string) error {
	err := unix.Rename(filepath.Join(root, from), filepath.Join(root, to))
	if err == unix.EXDEV {
		err = moveBelow(root, from, to)
	}
	if err != nil {
		return &os.PathError{Op: "move", Path: filepath.Join(root, from), Err: err}
	}
	return nil
}

func moveBelow(root, from, to string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Renameat(fd, from, fd, to)
}
