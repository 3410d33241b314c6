package workspace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/secret"
)

// maxScrub is the largest file that is searched for credential fields; such
// files are a few lines long. In bytes.
const maxScrub = 4 << 20

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// copyOne copies a file, symlink or fifo of the source into dir. ok is false
// when it stays outside; that has been recorded then.
func (im *importer) copyOne(f *Found, d secret.Decision, dir string) (e Entry, ok bool, err error) {
	at := filepath.Join(dir, f.Path)
	e = EntryOf(f)
	switch f.Type() {
	case Symlink:
		if e.Target, err = ReadLinkAt(im.root, f.Path); err != nil {
			return e, false, gone(err)
		}
		if err := os.Symlink(e.Target, at); err != nil {
			return e, false, err
		}
		return e, true, setTimes(at, f.Stat.MTime)
	case Fifo:
		if err := unix.Mkfifo(at, f.Stat.Mode&0o7777); err != nil {
			return e, false, &os.PathError{Op: "mkfifo", Path: at, Err: err}
		}
		if err := unix.Chmod(at, f.Stat.Mode&0o7777); err != nil { // the umask took bits
			return e, false, &os.PathError{Op: "chmod", Path: at, Err: err}
		}
		return e, true, setTimes(at, f.Stat.MTime)
	}
	fd, err := OpenBeneath(im.root, f.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		if os.IsPermission(err) {
			im.leave(f.Path, Unreadable, "not readable")
			return e, false, nil
		}
		return e, false, gone(err)
	}
	in := os.NewFile(uintptr(fd), f.Path)
	defer in.Close()
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return e, false, err
	}
	defer out.Close()
	drop := func(err error) (Entry, bool, error) {
		os.Remove(at)
		return e, false, err
	}
	if d.Action == secret.Scrub {
		keep, err := im.scrub(in, out, f, &e)
		if err != nil || !keep {
			return drop(err)
		}
	} else {
		var scan *secret.Scanner
		if d.Action == secret.ScanContent {
			scan = secret.NewScanner(1)
			scan.Reset(f.Path)
		}
		if err := im.copyContent(in, out, f, &e, scan); err != nil {
			return drop(err)
		}
		if scan != nil {
			if found := scan.Findings(); len(found) > 0 {
				im.leave(f.Path, Secret, found[0].Why())
				return drop(nil)
			}
		}
	}
	if e.XAttrs, err = ReadXAttrs(fd, KeptXAttr); err != nil {
		return drop(err)
	}
	for _, x := range e.XAttrs {
		if err := unix.Fsetxattr(int(out.Fd()), x.Name, []byte(x.Value), 0); err != nil && err != unix.EOPNOTSUPP {
			return drop(err)
		}
	}
	e.Mode &^= unix.S_ISUID | unix.S_ISGID // nothing in a workspace runs as somebody else
	if err := unix.Fchmod(int(out.Fd()), e.Mode); err != nil {
		return drop(err)
	}
	return e, true, setTimesFD(int(out.Fd()), e.MTime)
}

// CopyContent copies in to out, and completes e with what was really copied:
// a file that grows meanwhile is taken as it was read, and read again at the
// next import.
func (im *importer) copyContent(in, out *os.File, f *Found, e *Entry, scan *secret.Scanner) error {
	shared := f.Stat.Size > 0 && unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil
	from := in
	if shared { // what was shared is what counts, even if the source changes now
		fd, err := unix.Open(fdPath(int(out.Fd())), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		from = os.NewFile(uintptr(fd), f.Path)
		defer from.Close()
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	h := sha256.New()
	var n int64
	for {
		m, err := unix.Read(int(from.Fd()), *buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: f.Path, Err: err}
		}
		if m == 0 {
			break
		}
		b := (*buf)[:m]
		h.Write(b)
		if scan != nil {
			scan.Write(b)
		}
		if !shared {
			if err := writeSparse(out, b, n); err != nil {
				return err
			}
		}
		n += int64(m)
		if n == f.Stat.Size && n < int64(len(*buf)) {
			break // read whole at once, as nearly all files are
		}
	}
	if !shared && n > 0 {
		if err := out.Truncate(n); err != nil && n != f.Stat.Size {
			return err
		}
	}
	e.Size = n
	h.Sum(e.Digest[:0])
	im.mu.Lock()
	im.copied++
	im.mu.Unlock()
	if n != f.Stat.Size {
		f.Stat.CTime = 0 // never equal: looked at again next time
	}
	return nil
}

// writeSparse writes b at off, leaving a hole for a large block of zeros.
func writeSparse(out *os.File, b []byte, off int64) error {
	if len(b) >= 64<<10 && allZero(b) {
		return nil
	}
	_, err := out.WriteAt(b, off)
	return err
}

func allZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[:len(b)-1], b[1:])
}

// scrub copies a small configuration file without its credential fields.
func (im *importer) scrub(in, out *os.File, f *Found, e *Entry) (keep bool, err error) {
	b, err := io.ReadAll(io.LimitReader(in, maxScrub+1))
	if err != nil {
		return false, err
	}
	if len(b) > maxScrub {
		im.leave(f.Path, Secret, "too large to be searched for credentials")
		return false, nil
	}
	clean, fields, ok := secret.ScrubFields(f.Path, b)
	if !ok {
		im.leave(f.Path, Secret, "may hold credentials and could not be read")
		return false, nil
	}
	if len(fields) > 0 {
		im.leave(f.Path, Fields, "credential fields", fields...)
	}
	if _, err := out.Write(clean); err != nil {
		return false, err
	}
	e.Size, e.Digest = int64(len(clean)), cell.Sum(clean)
	im.mu.Lock()
	im.copied++
	im.mu.Unlock()
	return true, nil
}

// gone turns the disappearance of a file during the import into nothing: it
// is as if it had gone before.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

// folder looks whether a folder of the source can be read, and reads its
// attributes.
func (im *importer) folder(f *Found) ([]XAttr, error) {
	fd, err := openToRead(im.root, f.Path, true)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if f.Stat.Mode&0o111 != 0o111 && os.Geteuid() != 0 { // names alone can be read
		if err := unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
			return nil, &os.PathError{Op: "enter", Path: f.Path, Err: err}
		}
	}
	return ReadXAttrs(fd, KeptXAttr)
}
