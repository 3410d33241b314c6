package workspace

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// CopyOptions configure CopyTree.
type CopyOptions struct {
	XAttr   func(name string) bool // attributes to keep; nil: KeptXAttr
	Devices bool                   // copy device nodes (whiteouts of a layer)
}

// CopyTree copies the directory from to the existing directory to, with types,
// modes, mtimes, attributes, symlinks, hard links and holes. File data is
// shared with the original where the file system can (reflink).
func CopyTree(ctx context.Context, from, to string, opt CopyOptions) error {
	if opt.XAttr == nil {
		opt.XAttr = KeptXAttr
	}
	root, err := OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	out, err := OpenRoot(to)
	if err != nil {
		return err
	}
	defer out.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return err
	}
	all, err := Collect(ctx, root)
	if err != nil {
		return err
	}
	type dirMeta struct {
		f  *Found
		xs []XAttr
	}
	var dirs []dirMeta
	var files []*Found
	first := map[string]string{} // link key → path of the first name
	var links [][2]string
	for i := range all {
		f := &all[i]
		switch f.Type() {
		case Folder:
			if err := out.At(f.Path, func(at string) error { return os.Mkdir(at, 0o700) }); err != nil {
				return err
			}
			xs, err := ownXAttrs(root, f.Path, opt.XAttr)
			if err != nil {
				return err
			}
			dirs = append(dirs, dirMeta{f, xs})
		case File:
			if f.Stat.Nlink > 1 {
				if old, ok := first[LinkKey(&f.Stat)]; ok {
					links = append(links, [2]string{old, f.Path})
					continue
				}
				first[LinkKey(&f.Stat)] = f.Path
			}
			files = append(files, f)
		case CharDev, Block:
			if !opt.Devices {
				continue
			}
			fallthrough
		case Symlink, Fifo, Socket:
			if err := out.At(f.Path, func(at string) error { return CopySpecial(root, f, at, WithRights) }); err != nil {
				return err
			}
		}
	}
	err = Parallel(ctx, len(files), func(i int) error {
		f := files[i]
		return WithRights(root, f.Path, func() error {
			src, err := openToRead(root, f.Path, false)
			if err != nil {
				return err
			}
			in := os.NewFile(uintptr(src), f.Path)
			defer in.Close()
			return out.At(f.Path, func(at string) error {
				err := copyFile(in, at, f, opt.XAttr)
				if err != nil {
					os.Remove(at)
				}
				return err
			})
		})
	})
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := LinkInto(out, l[0], out, l[1]); err != nil {
			return err
		}
	}
	top := Found{Stat: StatOf(&st), UID: st.Uid, GID: st.Gid}
	xs, err := ownXAttrs(root, "", opt.XAttr)
	if err != nil {
		return err
	}
	dirs = append([]dirMeta{{&top, xs}}, dirs...)
	for i := len(dirs) - 1; i >= 0; i-- { // children first: creating them changed the times
		d := dirs[i]
		err := out.At(d.f.Path, func(at string) error {
			if err := Own(at, d.f.UID, d.f.GID); err != nil {
				return err
			}
			return dressPath(at, d.f.Stat.Mode, d.f.Stat.MTime, d.xs)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CopyLayer copies the files of a layer of the kernel's overlay file system into an empty directory,
// with its marks.
func CopyLayer(ctx context.Context, from, to string) error {
	return CopyTree(ctx, from, to, CopyOptions{Devices: true, XAttr: func(name string) bool {
		return strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") || KeptXAttr(name)
	}})
}

// CopyLink makes at a copy of the symlink f, which leads to target.
func CopyLink(target string, f *Found, at string) error {
	if err := os.Symlink(target, at); err != nil {
		return err
	}
	if err := Own(at, f.UID, f.GID); err != nil {
		return err
	}
	return setTimes(at, f.Stat.MTime)
}

// CopySpecial makes at a copy of the symlink, fifo, socket or device f. with is WithRights, or calls
// its function and nothing else.
func CopySpecial(root *linux.Dir, f *Found, at string, with func(root *linux.Dir, path string, f func() error) error) error {
	switch f.Type() {
	case Symlink:
		var target string
		err := with(root, f.Path, func() (err error) {
			target, err = ReadLinkAt(root, f.Path)
			return err
		})
		if err != nil {
			return err
		}
		return CopyLink(target, f, at)
	case Fifo, Socket:
		if err := unix.Mknod(at, f.Stat.Mode&(unix.S_IFMT|0o7777), 0); err != nil {
			return &os.PathError{Op: "mknod", Path: at, Err: err}
		}
		if err := Own(at, f.UID, f.GID); err != nil {
			return err
		}
		if err := unix.Chmod(at, f.Stat.Mode&0o7777); err != nil { // the umask removed bits
			return &os.PathError{Op: "chmod", Path: at, Err: err}
		}
		return setTimes(at, f.Stat.MTime)
	}
	if err := unix.Mknod(at, f.Stat.Mode&(unix.S_IFMT|0o7777), int(f.Rdev)); err != nil {
		return &os.PathError{Op: "mknod", Path: at, Err: err}
	}
	return nil
}

// LinkInto gives a file below one directory of ours another name below another.
func LinkInto(from *linux.Dir, old string, to *linux.Dir, name string) error {
	return from.At(old, func(a string) error {
		return to.At(name, func(b string) error { return os.Link(a, b) })
	})
}

// ownXAttrs reads the attributes of a folder below a root of ours.
func ownXAttrs(root *linux.Dir, path string, accept func(string) bool) (xs []XAttr, err error) {
	err = WithRights(root, path, func() (err error) {
		xs, err = dirXAttrs(root, path, accept)
		return err
	})
	return xs, err
}

func dirXAttrs(root *linux.Dir, path string, accept func(string) bool) ([]XAttr, error) {
	fd, err := openToRead(root, path, true)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return ReadXAttrs(fd, accept)
}

// copyFile makes at a copy of the open file in.
func copyFile(in *os.File, at string, f *Found, accept func(string) bool) error {
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := copyData(in, out, f.Stat.Size); err != nil {
		return err
	}
	xs, err := ReadXAttrs(int(in.Fd()), accept)
	if err != nil {
		return err
	}
	return dressFile(out, f, xs)
}

// dressFile gives a new file the attributes, owner, mode and time of another.
func dressFile(out *os.File, f *Found, xs []XAttr) error {
	for _, x := range xs {
		if err := unix.Fsetxattr(int(out.Fd()), x.Name, []byte(x.Value), 0); err != nil && err != unix.EOPNOTSUPP {
			return &os.PathError{Op: "setxattr", Path: out.Name(), Err: err}
		}
	}
	if f.UID|f.GID != 0 && os.Geteuid() == 0 {
		if err := out.Chown(int(f.UID), int(f.GID)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(out.Fd()), f.Stat.Mode&0o7777); err != nil {
		return err
	}
	return setTimesFD(int(out.Fd()), f.Stat.MTime)
}

// Own sets the owner of the file at a path, where possible: without root, the user owns all of a
// workspace. It removes setuid and setgid.
func Own(at string, uid, gid uint32) error {
	if uid|gid == 0 || os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(at, int(uid), int(gid))
}

// copyData shares or copies size bytes, and keeps holes.
func copyData(in, out *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	for off := int64(0); off < size; {
		data, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // the rest is a hole
		}
		end := size
		if err != nil {
			data = off
		} else if end, err = unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := in.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, end-data); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		off = end
	}
	return nil
}

func dressPath(at string, mode uint32, mtime int64, xs []XAttr) error {
	for _, x := range xs {
		if err := unix.Lsetxattr(at, x.Name, []byte(x.Value), 0); err != nil && err != unix.EOPNOTSUPP {
			return &os.PathError{Op: "setxattr", Path: at, Err: err}
		}
	}
	if err := unix.Chmod(at, mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: at, Err: err}
	}
	return setTimes(at, mtime)
}

func setTimes(at string, mtime int64) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, at, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: at, Err: err}
	}
	return nil
}

// setTimesFD is setTimes for an open file.
func setTimesFD(fd int, mtime int64) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
	err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH)
	if err == unix.ENOENT || err == unix.EINVAL { // before Linux 5.8
		err = unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), ts, 0)
	}
	if err != nil {
		return os.NewSyscallError("utimes", err)
	}
	return nil
}

// ListLayers names the layers in root that begin with prefix.
func ListLayers(root, prefix string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if (e.IsDir() || e.Type() == os.ModeSymlink) && strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// DiskUse adds up the space below dir, in bytes; a file with several names counts once. Mounts
// below dir do not count, since they are stored elsewhere.
func DiskUse(dir string) (int64, error) { return DiskUseBeside(dir, map[string]bool{}) }

// DiskUseBeside is DiskUse without files that are in seen, to which it adds those with several names.
func DiskUseBeside(dir string, seen map[string]bool) (int64, error) {
	var sum int64
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	sum = top.Blocks * 512
	root, err := linux.OpenDir(dir, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return sum, nil // a file, or unreadable
	}
	defer root.Close()
	err = WalkAll(context.Background(), root, func(_ string, found []Found, err error) (map[string]bool, error) {
		skip := map[string]bool{} // err: unreadable, or removed; the rest is counted
		for i := range found {
			s := &found[i].Stat
			if s.Dev != uint64(top.Dev) {
				skip[found[i].Path] = true
				continue
			}
			if s.Nlink > 1 && found[i].Type() != Folder {
				if seen[LinkKey(s)] {
					continue
				}
				seen[LinkKey(s)] = true
			}
			sum += found[i].Blocks * 512
		}
		return skip, nil
	})
	return sum, err
}
