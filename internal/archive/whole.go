package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// inMemory bounds the part of a file that is kept in memory until all of it has arrived, in
// bytes. A larger file is spooled to a file without a name.
const inMemory = 1 << 20

// put writes in into the regular file at p, in an existing directory. It changes nothing before
// all of in has arrived: when in breaks off, no partial file is left. An existing file keeps its
// inode, its mode and its owner, unless there are attributes to set.
func put(root *os.File, p string, who owner, set *attrs, in io.Reader) error {
	old, err := openIn(root, p, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		defer old.Close()
		if err := regular(old, "write", p); err != nil {
			return err
		}
	case errors.Is(err, unix.EISDIR):
		return cell.Errorf(cell.Invalid, "archive.write", "", "cannot write %s: it is a directory", p)
	case !errors.Is(err, os.ErrNotExist):
		return notInCell(err)
	}
	var first bytes.Buffer
	n, err := io.CopyN(&first, in, inMemory)
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
		if c, ok := rest.(io.Closer); ok {
			defer c.Close()
		}
		in = io.MultiReader(&first, rest)
	}
	return putInPlace(root, p, old, who, set, in)
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
	dir, err := openIn(root, "/tmp", unix.O_PATH|unix.O_DIRECTORY, 0)
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

// putInPlace writes into the file at p, which it creates if old is nil.
func putInPlace(root *os.File, p string, old *os.File, who owner, set *attrs, in io.Reader) error {
	f, made, mode := old, false, os.FileMode(newMode)
	if set != nil {
		mode = set.mode
	}
	if f == nil {
		var err error
		if f, err = openIn(root, p, unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK, uint32(mode)); err != nil {
			return notInCell(err)
		}
		defer f.Close()
		if err := regular(f, "write", p); err != nil {
			return err
		}
		made = true
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
	if err := f.Truncate(0); err != nil {
		return notInCell(err)
	}
	if _, err := io.Copy(f, in); err != nil {
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
