package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RunDir covers /run of the cell at root with memory of this kernel, so that captures and copies
// have what the cell writes there. What the host placed in /run stays: links as links, all else
// by bind mounts.
func RunDir(root string) error {
	at := root + "/run"
	below, err := os.Open(at)
	if err != nil {
		return err
	}
	defer below.Close()
	placed, err := below.ReadDir(-1)
	if err != nil {
		return err
	}
	if err := (mount{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=64m"}).mount(root); err != nil {
		return err
	}
	for _, e := range placed {
		if err := carry(fmt.Sprintf("/proc/self/fd/%d/%s", below.Fd(), e.Name()), filepath.Join(at, e.Name()), e); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(at, locks), 0o777); errors.Is(err, os.ErrExist) {
		return nil // the host has something mounted there
	} else if err != nil {
		return err
	}
	return os.Chmod(filepath.Join(at, locks), 0o777|os.ModeSticky)
}

// Names in /run: told holds links alone; locks is placed by the host only as a mount, or for one.
const (
	told  = "pando"
	locks = "lock"
)

// carry makes to what from is.
func carry(from, to string, e os.DirEntry) error {
	switch {
	case e.Type()&os.ModeSymlink != 0:
		text, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(text, to)
	case e.Name() == told:
		links, err := os.ReadDir(from)
		if err == nil {
			err = os.Mkdir(to, 0o755)
		}
		for _, l := range links {
			if err == nil {
				err = carry(filepath.Join(from, l.Name()), filepath.Join(to, l.Name()), l)
			}
		}
		return err
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: to, Err: err}
	}
	return nil
}
