package cache

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// prune takes out of a layer what hides names that nothing below has. In a folder that one layer alone has, the kernel
// lists such a name, and says then that it is not there.
func prune(ctx context.Context, dir string, below []string) error {
	root, err := workspace.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	all, err := workspace.Collect(ctx, root)
	if err != nil {
		return err
	}
	var under []*linux.Dir
	defer func() {
		for _, d := range under {
			d.Close()
		}
	}()
	for i := range all {
		f := &all[i]
		if f.Type() != workspace.CharDev || f.Rdev != 0 {
			continue
		}
		if under == nil {
			for _, at := range below {
				d, err := workspace.OpenRoot(at)
				if errors.Is(err, unix.ENOENT) {
					continue
				}
				if err != nil {
					return err
				}
				under = append(under, d)
			}
		}
		if slices.ContainsFunc(under, func(d *linux.Dir) bool { return has(d, f.Path) }) {
			continue
		}
		if err := root.At(f.Path, func(at string) error { return unix.Unlink(at) }); err != nil {
			return &os.PathError{Op: "remove", Path: linux.Abridged(f.Path), Err: err}
		}
	}
	return nil
}

// has reports whether there may be something at a path. Nothing on the way to it is followed.
func has(d *linux.Dir, path string) bool {
	fd, err := d.Open(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err == nil {
		unix.Close(fd)
	}
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP)
}
