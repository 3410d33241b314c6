package workspacetest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An Op is something that a cell may do to its workspace.
type Op struct {
	Do   string // see Act
	Path string
	To   string // of renames, links and symlinks
	Data string
	Mode uint32
	Time int64 // of "times", nanoseconds
}

// Act does an Op in the present directory. It follows symlinks as a cell's
// programs do, so the caller must have made that directory its root.
func Act(o Op) error {
	switch o.Do {
	case "write": // in place, as most programs do
		return put(o.Path, o.Data, os.O_TRUNC|os.O_CREATE, 0)
	case "replace": // as careful editors do
		tmp := o.Path + ".new~"
		if err := os.WriteFile(tmp, []byte(o.Data), 0o644); err != nil {
			return err
		}
		if err := os.Rename(tmp, o.Path); err != nil {
			os.Remove(tmp)
			return err
		}
		return nil
	case "append":
		return put(o.Path, o.Data, os.O_APPEND, -1)
	case "map": // through a mapping, and the time set back
		return writeMapped(o.Path, o.Data)
	case "hold": // a mapping that stays
		return hold(o.Path)
	case "poke": // through that mapping
		return poke(o.Path, o.Data)
	case "sparse":
		return put(o.Path, o.Data, os.O_TRUNC|os.O_CREATE, 1<<20)
	case "folder": // that may be there
		return os.MkdirAll(o.Path, 0o755)
	case "mkdir":
		return os.Mkdir(o.Path, 0o755)
	case "remove":
		if _, err := os.Lstat(o.Path); err != nil {
			return err
		}
		return os.RemoveAll(o.Path)
	case "rename":
		return os.Rename(o.Path, o.To)
	case "symlink":
		return os.Symlink(o.To, o.Path)
	case "link":
		if fi, err := os.Lstat(o.Path); err != nil || !fi.Mode().IsRegular() {
			return fmt.Errorf("%s is no file", o.Path)
		}
		return os.Link(o.Path, o.To)
	case "chmod":
		if fi, err := os.Lstat(o.Path); err != nil || fi.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("%s has no mode", o.Path)
		}
		return unix.Chmod(o.Path, o.Mode)
	case "times":
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(o.Time)}
		return unix.UtimesNanoAt(unix.AT_FDCWD, o.Path, ts, unix.AT_SYMLINK_NOFOLLOW)
	case "xattr":
		return unix.Lsetxattr(o.Path, "user.test", []byte(o.Data), 0)
	case "unxattr":
		return unix.Lremovexattr(o.Path, "user.test")
	case "fifo":
		return unix.Mkfifo(o.Path, 0o640)
	case "socket":
		return unix.Mknod(o.Path, unix.S_IFSOCK|0o750, 0)
	case "chown":
		return os.Lchown(o.Path, int(o.Mode), int(o.Mode)+1)
	}
	return fmt.Errorf("no operation %q", o.Do)
}

// put writes into a file at an offset, or at its end. It does not wait for a reader of a
// fifo.
func put(path, data string, flags int, off int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if off < 0 {
		_, err = f.WriteString(data)
	} else {
		_, err = f.WriteAt([]byte(data), off)
	}
	return err
}

func writeMapped(path, data string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	n := min(int(st.Size()), len(data))
	if n == 0 || !st.Mode().IsRegular() {
		return fmt.Errorf("%s can't be mapped", path)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(b, data)
	if err := unix.Munmap(b); err != nil {
		return err
	}
	return os.Chtimes(path, time.Time{}, st.ModTime())
}

// W writes a file, making the folders on the way.
func W(path, data string) []Op {
	var ops []Op
	for d := filepath.Dir(path); d != "."; d = filepath.Dir(d) {
		ops = append([]Op{{Do: "folder", Path: d}}, ops...)
	}
	return append(ops, Op{Do: "write", Path: path, Data: data})
}

// held are the mappings of the process inside, by path.
type mappings map[string][]byte

var held = sync.OnceValue(func() mappings { return mappings{} })

// hold maps a file and dirties its page, so that what is written later changes no time.
func hold(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() == 0 || !st.Mode().IsRegular() {
		return fmt.Errorf("%s can't be mapped", path)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	b[0] = b[0] + 1 - 1
	held()[path] = b
	return nil
}

func poke(path, data string) error {
	b := held()[path]
	if b == nil {
		return fmt.Errorf("%s is not held", path)
	}
	copy(b, data)
	return nil
}
