package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// inMemory bounds the part of a file that is kept in memory until all of it has arrived, in
// bytes. A larger file is spooled to a file without a name.
const inMemory = 1 << 20

// put writes in into the regular file at p, in an existing directory. It changes nothing before
// all of in has arrived: when in breaks off, no partial file is left. An existing file keeps its
// inode, its mode and its owner, unless there are attributes to set.
func put(root *os.File, p string, who owner, set *attrs, in io.Reader) error {
	old, err := Open(root, p, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		defer old.Close()
		if err := regular(old, "write", p); err != nil {
			return err
		}
	case errors.Is(err, unix.EISDIR):
		return cell.Errorf(cell.Invalid, "archive.write", "", "cannot write %s: it is a directory", p)
	case !errors.Is(err, os.ErrNotExist):
		return cannotWrite(err)
	}
	var first bytes.Buffer
	n, err := io.CopyN(&first, in, inMemory)
	size := n
	switch {
	case err == io.EOF: // all bytes are in memory
		in = &first
	case err != nil:
		return notInCell(fmt.Errorf("cannot write %s: %w", p, err))
	default:
		rest, err := spool(root, in)
		if err != nil {
			return notInCell(fmt.Errorf("cannot write %s: after %d bytes: %w", p, n, err))
		}
		size = -1
		if f, ok := rest.(*os.File); ok {
			defer f.Close()
			if st, err := f.Stat(); err == nil {
				size = n + st.Size()
			}
		}
		in = io.MultiReader(&first, rest)
	}
	return putInPlace(root, p, old, who, set, in, size)
}

// attrs are attributes of a file that come with its content.
type attrs struct {
	mode os.FileMode
	time time.Time
}

// newMode is the mode of a new file that comes without attributes.
const newMode = 0o644

// spool reads in to its end and returns its bytes again: from a file without a name in the
// cell's /tmp, visible only to watchers there. If such a file is impossible, it returns in
// unchanged.
func spool(root *os.File, in io.Reader) (io.Reader, error) {
	dir, err := Open(root, "/tmp", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return in, nil
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return in, nil
	}
	f := os.NewFile(uintptr(fd), "spool")
	if _, err = io.Copy(f, in); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// putInPlace writes n bytes into the file at p, which it creates if old is nil. It changes nothing
// where there is no room for them. n is -1 if it is not known.
func putInPlace(root *os.File, p string, old *os.File, who owner, set *attrs, in io.Reader, n int64) (err error) {
	f, made, mode := old, false, os.FileMode(newMode)
	if set != nil {
		mode = set.mode
	}
	if f == nil {
		if f, made, err = create(root, p, uint32(mode)); err != nil {
			return cannotWrite(err)
		}
		defer f.Close()
		if err := regular(f, "write", p); err != nil {
			return err
		}
		defer func() {
			if err != nil && made {
				unmake(root, p, f)
			}
		}()
	}
	if err := reserve(f, n); err != nil {
		return notInCell(&os.PathError{Op: "write", Path: p, Err: err})
	}
	// The content may be another program, so set-id bits of the former one are removed. The
	// kernel would remove them, if this process had no privilege to keep them.
	if st, err := f.Stat(); err != nil {
		return notInCell(err)
	} else if st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		if err := f.Chmod(st.Mode().Perm()); err != nil {
			return notInCell(err)
		}
	}
	// Not truncated before: that would free what was reserved.
	wrote, err := io.Copy(f, in)
	if terr := f.Truncate(wrote); err == nil { // also after an error: no tail of the former content stays
		err = terr
	}
	if err != nil {
		return notInCell(&os.PathError{Op: "write", Path: p, Err: err})
	}
	if !made && set == nil {
		return nil
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := own(f, who); err != nil || set == nil {
		return err
	}
	return setTime(int(f.Fd()), "", set.time)
}

// create opens the file at p, which was not there before, for writing. made reports that it did
// not exist: a file that the cell created meanwhile is the cell's.
func create(root *os.File, p string, mode uint32) (f *os.File, made bool, err error) {
	const flags, tries = unix.O_WRONLY | unix.O_NONBLOCK, 10
	for range tries {
		if f, err = Open(root, p, flags|unix.O_CREAT|unix.O_EXCL, mode); !errors.Is(err, unix.EEXIST) {
			return f, err == nil, err
		}
		if f, err = Open(root, p, flags, 0); !errors.Is(err, unix.ENOENT) {
			return f, false, err
		}
		if isLink(root, p) { // to nothing; unmake doesn't remove through it
			f, err = Open(root, p, flags|unix.O_CREAT, mode)
			return f, err == nil, err
		}
	}
	return nil, false, err
}

// isLink reports whether p is a symlink.
func isLink(root *os.File, p string) bool {
	f, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeSymlink != 0
}

// reserve makes room for n bytes in an open file without changing what it holds. Where the file
// system can't, as ext2 of a cell's own disk, it looks whether there is room.
func reserve(f *os.File, n int64) error {
	if n <= 0 {
		return nil
	}
	// Looked at first: what a failed call reserved can be freed by truncation alone, which would
	// cut what the cell appends meanwhile.
	room, known := roomFor(f)
	if known && n > room {
		return unix.ENOSPC
	}
	switch err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n); {
	case err == nil:
		return nil
	case isOneOf(err, unix.ENOSPC, unix.EDQUOT):
		return err
	}
	const perBlock = 128 // of the blocks of a file, one at most says where they are
	if known && n+n/perBlock > room {
		return unix.ENOSPC
	}
	return nil
}

// roomFor is how large an open file can become, in bytes, if its file system says it.
func roomFor(f *os.File) (n int64, known bool) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Fstat(int(f.Fd()), &st) != nil || unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Blocks == 0 {
		return 0, false
	}
	return int64(fs.Bavail)*fs.Bsize + st.Blocks*512, true
}

// unmake removes the file that was created at p, if it is still there.
func unmake(root *os.File, p string, f *os.File) {
	dir, err := Open(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	var made, there unix.Stat_t
	if unix.Fstat(int(f.Fd()), &made) != nil || unix.Fstatat(int(dir.Fd()), path.Base(p), &there, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if made.Ino == there.Ino && made.Dev == there.Dev && !linux.IsMount(int(dir.Fd()), path.Base(p)) {
		unix.Unlinkat(int(dir.Fd()), path.Base(p), 0)
	}
}
