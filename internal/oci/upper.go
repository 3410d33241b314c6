package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// WriteUpper writes what an overlay's upper directory adds, changes and hides as names of a layer, below
// at ("" is the root of the image). Nothing may use the directory meanwhile. skip says which names of the image
// are left out, with all below them. Files that can't be read by this process are made readable first.
func WriteUpper(ctx context.Context, w *tar.Writer, at, dir string, skip func(name string) bool) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if os.IsPermission(err) {
		if err = os.Chmod(dir, st.Mode().Perm()|0o700); err == nil {
			root, err = os.OpenRoot(dir)
		}
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if at != "" {
		sys := st.Sys().(*syscall.Stat_t)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: int64(sys.Mode & 0o7777), Uid: int(sys.Uid), Gid: int(sys.Gid), ModTime: time.Unix(sys.Mtim.Unix()), Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	u := &upper{ctx: ctx, w: w, root: root, at: at, skip: skip, links: map[[2]uint64]string{}}
	return u.folder(".")
}

type upper struct {
	ctx   context.Context
	w     *tar.Writer
	root  *os.Root
	at    string
	skip  func(string) bool
	links map[[2]uint64]string // names of files with several, by device and inode
}

// folder writes what is in a folder, in the order of names.
func (u *upper) folder(rel string) error {
	if u.ctx.Err() != nil {
		return context.Cause(u.ctx)
	}
	f, err := u.open(rel, 0o500)
	if err != nil {
		return err
	}
	opaque, err := opaqueAt(int(f.Fd()), rel)
	if err != nil {
		f.Close()
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	if opaque {
		if err := u.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: u.name(path.Join(rel, whiteout+whiteout+".opq")), Mode: 0o600}); err != nil {
			return err
		}
	}
	for _, e := range entries {
		at := path.Join(rel, e.Name())
		if u.skip(u.name(at)) {
			continue
		}
		if err := u.entry(at); err != nil {
			return err
		}
	}
	return nil
}

// WriteTop is WriteUpper for the root directory of an image. The cell had copies of its files and symlinks: see CopyTop. What else the
// image has there is written by others.
func WriteTop(ctx context.Context, w *tar.Writer, base, dir string, skip func(name string) bool) error {
	was, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer was.Close()
	is, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer is.Close()
	entries, err := fs.ReadDir(was.FS(), ".")
	if err != nil {
		return err
	}
	same := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() || skip(e.Name()) {
			same[e.Name()] = true
			continue
		}
		a, err := was.Lstat(e.Name())
		if err != nil {
			return err
		}
		b, err := is.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: whiteout + e.Name(), Mode: 0o600}); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
		if a.Mode() != b.Mode() || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) || x.Uid != y.Uid || x.Gid != y.Gid {
			continue
		}
		if a.Mode().Type() == fs.ModeSymlink {
			one, err1 := was.Readlink(e.Name())
			two, err2 := is.Readlink(e.Name())
			same[e.Name()] = one == two && err1 == nil && err2 == nil
		} else if same[e.Name()], err = sameContent(was, is, e.Name()); err != nil {
			return err
		}
	}
	return WriteUpper(ctx, w, "", dir, func(name string) bool { return same[name] || skip(name) })
}

// sameContent reports whether a file has the same content in two directories.
func sameContent(a, b *os.Root, name string) (bool, error) {
	x, err := a.Open(name)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := b.Open(name)
	if err != nil {
		return false, err
	}
	defer y.Close()
	one, two := bufio.NewReader(x), bufio.NewReader(y)
	for {
		p, err1 := one.ReadByte()
		q, err2 := two.ReadByte()
		switch {
		case err1 == io.EOF && err2 == io.EOF:
			return true, nil
		case err1 == io.EOF || err2 == io.EOF:
			return false, nil
		case err1 != nil || err2 != nil:
			return false, errors.Join(err1, err2)
		case p != q:
			return false, nil
		}
	}
}

// CopyTop copies the files and symlinks in the root directory of an image, and no folders, into a directory. skip says
// which are left out.
func CopyTop(base, dir string, skip func(name string) bool) error {
	from, err := os.Open(base)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	entries, err := from.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case skip(e.Name()):
		case e.Type() == fs.ModeSymlink:
			if err := copyLink(from, to, e.Name(), os.Geteuid() == 0); err != nil {
				return &os.PathError{Op: "copy", Path: e.Name(), Err: err}
			}
		case e.Type().IsRegular():
			if err := copyFile(from, to, e.Name(), os.Geteuid() == 0, func(n int64) error { return room(dir, n) }); err != nil {
				return &os.PathError{Op: "copy", Path: e.Name(), Err: err}
			}
		}
	}
	return nil
}

// copyLink copies a symlink with its time, and with its owner if own.
func copyLink(from, to *os.File, name string, own bool) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	b := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(int(from.Fd()), name, b)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(b[:n]), int(to.Fd()), name); err != nil {
		return err
	}
	if own {
		if err := unix.Fchownat(int(to.Fd()), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(int(to.Fd()), name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// opaqueAt reports whether a folder hides all that lower layers have of it.
func opaqueAt(fd int, rel string) (bool, error) {
	for _, prefix := range []string{"trusted.overlay.", "user.overlay."} {
		var b [8]byte
		if n, err := unix.Fgetxattr(fd, prefix+"opaque", b[:]); err == nil && n == 1 && b[0] == 'y' {
			return true, nil
		}
		if _, err := unix.Fgetxattr(fd, prefix+"redirect", nil); err == nil {
			return false, cell.Errorf(cell.Internal, "oci.WriteUpper", "", "cannot take %s for a layer: it was renamed where it can't be", rel)
		}
	}
	return false, nil
}

func (u *upper) name(rel string) string { return strings.TrimPrefix(path.Join(u.at, rel), "/") }

// open opens a file or folder of this process's own, which may not have the right to read it.
func (u *upper) open(rel string, need os.FileMode) (*os.File, error) {
	f, err := u.root.Open(rel)
	if !os.IsPermission(err) {
		return f, err
	}
	st, serr := u.root.Lstat(rel)
	if serr != nil {
		return nil, err
	}
	if cerr := u.root.Chmod(rel, st.Mode().Perm()|need); cerr != nil {
		return nil, err
	}
	return u.root.Open(rel)
}

func (u *upper) entry(rel string) error {
	info, err := u.root.Lstat(rel)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	name := u.name(rel)
	if strings.HasPrefix(path.Base(name), whiteout) {
		return cell.Errorf(cell.Unsupported, "oci.WriteUpper", "give it another name", "cannot take %s for a layer: a name that begins with %s hides another", cell.Clip(name), whiteout)
	}
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDevice | fs.ModeCharDevice:
		if st.Rdev != 0 {
			return nil
		}
		dir, base := path.Split(name) // a whiteout
		h = &tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + base, Mode: 0o600}
		return u.w.WriteHeader(h)
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := u.w.WriteHeader(h); err != nil {
			return err
		}
		return u.folder(rel)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = u.root.Readlink(rel); err != nil {
			return err
		}
		return u.w.WriteHeader(h)
	case 0:
		return u.file(rel, h, st, info.Size())
	}
	return nil // a socket or a pipe
}

// userAttributes are the extended attributes that images keep, as records of a tar.
func userAttributes(fd int) (map[string]string, error) {
	names := make([]byte, 64<<10) // the kernel has no longer list
	n, err := unix.Flistxattr(fd, names)
	if err == unix.ENOTSUP || n <= 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range strings.Split(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") || strings.Contains(name, "=") { // "=" ends the name of a record
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			return nil, err
		}
		out["SCHILY.xattr."+name] = string(value[:n])
	}
	return out, nil
}

func (u *upper) file(rel string, h *tar.Header, st *syscall.Stat_t, size int64) error {
	h.Typeflag = tar.TypeReg
	if st.Nlink > 1 {
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := u.links[key]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return u.w.WriteHeader(h)
		}
		u.links[key] = h.Name
	}
	f, err := u.open(rel, 0o400)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Size = size
	if h.PAXRecords, err = userAttributes(int(f.Fd())); err != nil {
		return &os.PathError{Op: "getxattr", Path: rel, Err: err}
	}
	if err := u.w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(u.w, f, size)
	return err
}
