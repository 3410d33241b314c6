// Package archive copies files out of a cell and into it, as tar. It trusts neither side: every
// path is resolved inside the cell's root, and from an archive only files, folders and symlinks
// are taken.
//
// Manage describes, reads, writes, moves, removes and watches single files of a cell, with the
// same caution.
package archive

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Every path is resolved as a process of the cell would, inside its root: symlinks lead to
// places of the cell, never out of it. A terminal there does not become the controlling one of
// this process (linux.OpenBelow).

// Open opens a path below root, with flags of open(2). Where the last part of the path is a symlink, O_NOFOLLOW opens it itself
// or fails.
func Open(root *os.File, p string, flags int, mode uint32) (*os.File, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return nil, cell.Errorf(cell.Invalid, "archive", "", "%q is no path", cell.Clip(p))
	}
	rel := strings.TrimPrefix(path.Clean("/"+p), "/")
	if rel == "" {
		rel = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if len(rel) > linux.LongestPath {
		// A path longer than the kernel takes is resolved in pieces. A symlink in one of them
		// would be resolved from the wrong root, so none is allowed.
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	}
	fd, err := linux.OpenBelow(int(root.Fd()), rel, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/" + linux.Abridged(rel), Err: err}
	}
	// The keeper opens the file: /proc would describe the keeper and allow it more than a
	// process of the cell, and a symlink may have led there.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type == unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		return nil, &os.PathError{Op: "open", Path: "/" + linux.Abridged(rel), Err: unix.EACCES}
	}
	return os.NewFile(uintptr(fd), "/"+rel), nil
}

// owner is the owner of written files.
type owner struct{ uid, gid int }

// Send writes the file or directory at p below root into a tar archive. The names begin with p's
// last component. Sockets, named pipes and devices below p are left out; p itself must be none.
func Send(root *os.File, p string, w io.Writer) error {
	return send(root, p, w, func(string, *os.File) error { return nil })
}

func send(root *os.File, p string, w io.Writer, check func(p string, at *os.File) error) error {
	f, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return notInCell(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if typeOf(&st) == cell.TypeOther {
		return cell.Errorf(cell.Invalid, "archive", "", "cannot copy %s: only files, folders and symlinks can be copied", path.Clean("/"+p))
	}
	s := &sender{t: tar.NewWriter(w), root: root, check: check}
	if err := s.one(path.Clean("/"+p), path.Base(path.Clean("/"+p)), f); err != nil {
		return err
	}
	return s.t.Close()
}

// A sender writes files below root into an archive, unless check fails for one.
type sender struct {
	t     *tar.Writer
	root  *os.File
	check func(p string, at *os.File) error
}

// one sends the open file at. It closes a directory before sending its contents: a tree may
// be deeper than the number of descriptors.
func (s *sender) one(p, name string, at *os.File) error {
	if err := s.check(p, at); err != nil {
		return err
	}
	t, root := s.t, s.root
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return err
	}
	mtime := time.Unix(st.Mtim.Unix())
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o777), ModTime: mtime, Format: tar.FormatPAX}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		at.Close()
		return s.dir(p, name)
	case unix.S_IFLNK:
		buf := make([]byte, 4097)
		n, err := unix.Readlinkat(int(at.Fd()), "", buf)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
		return t.WriteHeader(h)
	case unix.S_IFREG:
		f, err := Open(root, p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		// A file that changes meanwhile is cut or padded to the announced size.
		n, err := io.CopyN(t, f, st.Size)
		if errors.Is(err, io.EOF) {
			_, err = io.CopyN(t, zeros{}, st.Size-n)
		}
		return err
	}
	return nil // sockets, fifos and devices stay
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func (s *sender) dir(p, name string) error {
	d, err := Open(s.root, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		at, err := Open(s.root, path.Join(p, n), unix.O_PATH|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		err = s.one(path.Join(p, n), path.Join(name, n), at)
		at.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Take extracts an archive below p, which it creates if missing. The new files belong to uid and
// gid, and have the modes and modification times that the archive says; folders that were there
// keep theirs.
func Take(root *os.File, p string, uid, gid int, r io.Reader) error {
	who := owner{uid, gid}
	var made []folder
	base := path.Clean("/" + p)
	if err := mkdirs(root, base, who); err != nil {
		return err
	}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return finish(root, made)
		}
		if err != nil {
			return cell.Errorf(cell.Invalid, "archive", "", "cannot read the archive: %w", err)
		}
		name := path.Clean("/" + h.Name)
		if name == "/" {
			continue
		}
		if h.Typeflag == tar.TypeDir && !exists(root, base+name) {
			made = append(made, folder{base + name, os.FileMode(h.Mode & 0o777), h.ModTime})
		}
		if err := takeOne(root, base+name, h, t, who); err != nil {
			return err
		}
	}
}

// A folder is one that an archive brought.
type folder struct {
	path string
	mode os.FileMode // 0 if the archive does not say it
	time time.Time
}

// finish sets modes and times of folders, which writing in them needs and changes.
func finish(root *os.File, made []folder) error {
	for _, d := range slices.Backward(made) {
		f, err := Open(root, d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // the cell has put something else there
		}
		if err != nil {
			return notInCell(err)
		}
		err = setTime(int(f.Fd()), "", d.time)
		if err == nil && d.mode != 0 {
			err = f.Chmod(d.mode)
		}
		f.Close()
		if err != nil {
			return notInCell(err)
		}
	}
	return nil
}

// setTime sets the modification time of the file of that name in a directory, or of an open file
// if name is empty. A symlink is not followed. An archive that does not say a time has that of
// 1970.
func setTime(fd int, name string, at time.Time) error {
	if at.IsZero() || at.Unix() == 0 {
		return nil
	}
	m, err := unix.TimeToTimespec(at)
	if err != nil {
		return nil // beyond what the kernel keeps
	}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, m}
	if name != "" {
		return os.NewSyscallError("utimensat", unix.UtimesNanoAt(fd, name, ts, unix.AT_SYMLINK_NOFOLLOW))
	}
	if unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH) == nil {
		return nil
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), ts, 0)) // older kernels
}

func exists(root *os.File, p string) bool {
	f, err := Open(root, p, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

func takeOne(root *os.File, p string, h *tar.Header, r io.Reader, who owner) error {
	if err := mkdirs(root, path.Dir(p), who); err != nil {
		return err
	}
	mode := uint32(h.Mode & 0o777)
	switch h.Typeflag {
	case tar.TypeDir:
		return mkdirs(root, p, who)
	case tar.TypeReg:
		if bound.Sparse(h) {
			return cell.Errorf(cell.Invalid, "archive", "send an archive without sparse files", "cannot copy %s: it is sparse in the archive, so its size has no bound", p)
		}
		return put(root, p, who, &attrs{os.FileMode(mode), h.ModTime}, r)
	case tar.TypeSymlink:
		dir, err := Open(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return notInCell(err)
		}
		defer dir.Close()
		if linux.IsMount(int(dir.Fd()), path.Base(p)) {
			return cell.Errorf(cell.Denied, "archive", "choose another path", "cannot write the symlink %s: the cell has it mounted", p)
		}
		unix.Unlinkat(int(dir.Fd()), path.Base(p), 0)
		if err := unix.Symlinkat(h.Linkname, int(dir.Fd()), path.Base(p)); err != nil {
			return cannotWrite(&os.PathError{Op: "symlink", Path: p, Err: err})
		}
		if err := unix.Fchownat(int(dir.Fd()), path.Base(p), who.uid, who.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("chown", err)
		}
		return setTime(int(dir.Fd()), path.Base(p), h.ModTime)
	}
	return cell.Errorf(cell.Unsupported, "archive", "", "cannot copy %s: only files, folders and symlinks can be copied", p)
}

// mkdirs makes a directory and those above it.
func mkdirs(root *os.File, p string, who owner) error {
	d, err := Open(root, p, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return d.Close()
	}
	if !errors.Is(err, os.ErrNotExist) || p == "/" {
		return cannotWrite(err)
	}
	if err := mkdirs(root, path.Dir(p), who); err != nil {
		return err
	}
	up, err := Open(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return notInCell(err)
	}
	defer up.Close()
	if err := unix.Mkdirat(int(up.Fd()), path.Base(p), 0o755); err != nil && err != unix.EEXIST {
		return cannotWrite(&os.PathError{Op: "mkdir", Path: p, Err: err})
	}
	return os.NewSyscallError("chown", unix.Fchownat(int(up.Fd()), path.Base(p), who.uid, who.gid, unix.AT_SYMLINK_NOFOLLOW))
}

func own(f *os.File, who owner) error { return f.Chown(who.uid, who.gid) }

// notInCell gives an error of the kernel about a path of the cell its kind. A path through a
// file, a loop of symlinks or a name that is too long leads to nothing that there is.
func notInCell(err error) error {
	switch {
	case isOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG):
		return cell.Errorf(cell.NotFound, "archive", "", "no such path in the cell: %w", err)
	case isOneOf(err, unix.EACCES, unix.EPERM, unix.EROFS, unix.EBUSY): // busy: the cell's own mounts
		return cell.Errorf(cell.Denied, "archive", "write below the workspace, the home directory or /tmp", "the cell may not be written there: %w", err)
	case isOneOf(err, unix.ENOSPC, unix.EDQUOT):
		return cell.Errorf(cell.Unavailable, "archive", "remove files in the cell, or make one with a larger disk (--disk)", "the cell's disk is full: %w", err)
	}
	return err
}

// cannotWrite is notInCell for what is to be made: the path there is not usable for it.
func cannotWrite(err error) error {
	switch {
	case isOneOf(err, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL):
		return cell.Errorf(cell.Invalid, "archive", "choose another path", "nothing can be written there: %w", err)
	case isOneOf(err, unix.ENXIO): // a socket, or a named pipe that nothing reads
		return cell.Errorf(cell.Invalid, "archive", "choose another path", "it is no regular file: %w", err)
	case isOneOf(err, unix.ETXTBSY):
		return cell.Errorf(cell.Conflict, "archive", "end the program, or write another file and rename it", "the program there is running: %w", err)
	}
	return notInCell(err)
}

func isOneOf(err error, list ...unix.Errno) bool {
	return slices.ContainsFunc(list, func(e unix.Errno) bool { return errors.Is(err, e) })
}
