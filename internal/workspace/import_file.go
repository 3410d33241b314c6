package workspace

import (
	"bytes"
	"crypto/sha256"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/secret"
)

// maxScrub bounds files that are searched for credential fields, in bytes; such files are a few
// lines long.
const maxScrub = 4 << 20

const tooLarge = "too large to be searched for credentials"

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// copyOne copies a file, symlink or fifo of the source into dir. ok is false when it is left
// out, which is then recorded.
func (im *importer) copyOne(f *Found, d secret.Decision, dir *linux.Dir) (e Entry, ok bool, err error) {
	err = dir.At(f.Path, func(at string) (err error) {
		e, ok, err = im.copyTo(f, d, at)
		return err
	})
	return e, ok, err
}

func (im *importer) copyTo(f *Found, d secret.Decision, at string) (e Entry, ok bool, err error) {
	e = EntryOf(f)
	switch f.Type() {
	case Symlink:
		root, rel := im.src.at(f.Path)
		if e.Target, err = ReadLinkAt(root, rel); err != nil {
			return e, false, im.src.gone(f.Path, err)
		}
		if err := os.Symlink(e.Target, at); err != nil {
			return e, false, err
		}
		return e, true, setTimes(at, f.Stat.MTime)
	case Fifo:
		if err := unix.Mkfifo(at, f.Stat.Mode&0o7777); err != nil {
			return e, false, &os.PathError{Op: "mkfifo", Path: at, Err: err}
		}
		if err := unix.Chmod(at, f.Stat.Mode&0o7777); err != nil { // the umask removed bits
			return e, false, &os.PathError{Op: "chmod", Path: at, Err: err}
		}
		return e, true, setTimes(at, f.Stat.MTime)
	}
	in, err := im.src.open(f.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		if os.IsPermission(err) {
			im.leave(f.Path, Unreadable, "not readable")
			return e, false, nil
		}
		return e, false, im.src.gone(f.Path, err)
	}
	defer unix.Close(in)
	if is, err := isRegular(in); !is {
		im.src.missed.add(f.Path)
		return e, false, err
	}
	out, err := unix.Open(at, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return e, false, &os.PathError{Op: "create", Path: at, Err: err}
	}
	defer unix.Close(out)
	drop := func(err error) (Entry, bool, error) {
		os.Remove(at)
		return e, false, err
	}
	if d.Tracked && d.Action == secret.Scrub && f.Stat.Size > maxScrub {
		im.listSecret(f, d, tooLarge)
		d.Action = secret.Keep
	}
	if im.isIndex(f) {
		if err := im.copyIndex(in, out, f, &e); err != nil {
			return drop(err)
		}
	} else if d.Action == secret.Scrub || im.src.alters(f.Path) {
		keep, err := im.scrub(in, out, f, &e, d)
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
			if found := scan.Findings(); len(found) > 0 && !im.listSecret(f, d, found[0].Why()) {
				return drop(nil)
			}
		}
	}
	if e.XAttrs, err = ReadXAttrs(in, KeptXAttr); err != nil {
		return drop(err)
	}
	for _, x := range e.XAttrs {
		if err := unix.Fsetxattr(out, x.Name, []byte(x.Value), 0); err != nil && err != unix.EOPNOTSUPP {
			return drop(err)
		}
	}
	e.Mode &^= unix.S_ISUID | unix.S_ISGID // no program of a workspace runs with another user's rights
	if err := unix.Fchmod(out, e.Mode); err != nil {
		return drop(err)
	}
	return e, true, setTimesFD(out, e.MTime)
}

// share makes out share the content of in, where the file system can. After a failure it does
// not try again.
func (im *importer) share(in, out int) bool {
	if im.noClone.Load() {
		return false
	}
	err := unix.IoctlFileClone(out, in)
	if err == unix.EOPNOTSUPP || err == unix.EXDEV || err == unix.ENOTTY {
		im.noClone.Store(true)
	}
	return err == nil
}

// copyContent copies in to out, and completes e with what was copied: a file that grows
// meanwhile is taken as read, and read again at the next import.
func (im *importer) copyContent(in, out int, f *Found, e *Entry, scan *secret.Scanner) error {
	shared := f.Stat.Size > 0 && im.share(in, out)
	from := in
	if shared { // the shared content counts, even if the source changes now
		fd, err := unix.Open(fdPath(out), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		from = fd
	}
	sum := NewSum(sha256.New())
	var end int64 // end of the last write
	n, err := readParts(from, f.Path, func(off int64, b []byte) error {
		sum.Write(b)
		if scan != nil {
			scan.Write(b)
		}
		if shared || hole(b) {
			return nil
		}
		end = off + int64(len(b))
		if err := writeAll(out, b, off); err != nil {
			return &os.PathError{Op: "write", Path: f.Path, Err: err}
		}
		return nil
	}, func(_, n int64) error {
		if scan != nil { // text around a hole is not contiguous
			scan.Write(zeros[:min(n, 64<<10)])
		}
		return sum.Zeros(im.ctx, n)
	})
	if err != nil {
		return err
	}
	if !shared && end < n { // it ends in a hole
		if err := unix.Ftruncate(out, n); err != nil {
			return &os.PathError{Op: "truncate", Path: f.Path, Err: err}
		}
	}
	e.Size, e.Digest = n, cell.Digest(sum.Bytes())
	im.mu.Lock()
	im.copied++
	im.mu.Unlock()
	if n != f.Stat.Size {
		f.Stat.CTime = 0 // never equal: checked again next time
	}
	return nil
}

// hole reports whether a block should become a hole: large and all zeros.
func hole(b []byte) bool { return len(b) >= 64<<10 && allZero(b) }

func writeAll(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func allZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[:len(b)-1], b[1:])
}

// scrub copies a small configuration file, without its credential fields if so decided.
func (im *importer) scrub(in, out int, f *Found, e *Entry, d secret.Decision) (keep bool, err error) {
	b := make([]byte, 0, min(f.Stat.Size, maxScrub)+512)
	for len(b) <= maxScrub {
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
		n, err := unix.Read(in, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, &os.PathError{Op: "read", Path: f.Path, Err: err}
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	if len(b) > maxScrub {
		im.leaveSecret(f, d, tooLarge)
		return false, nil
	}
	b = im.src.standalone(f.Path, b)
	if d.Action == secret.Scrub {
		without, fields, ok := secret.ScrubFields(f.Path, b)
		switch {
		case !ok:
			if !im.listSecret(f, d, "may hold credentials and could not be read") {
				return false, nil
			}
		case len(fields) > 0 && d.Tracked:
			im.listSecret(f, d, "credential fields", fields...)
		case len(fields) > 0:
			im.leaveSecret(f, d, "credential fields", fields...)
			b = without
		}
	}
	if err := writeAll(out, b, 0); err != nil {
		return false, &os.PathError{Op: "write", Path: f.Path, Err: err}
	}
	e.Size, e.Digest = int64(len(b)), cell.Sum(b)
	im.mu.Lock()
	im.copied++
	im.mu.Unlock()
	return true, nil
}

// folder checks that a folder of the source can be read, and reads its attributes.
func (im *importer) folder(f *Found) ([]XAttr, error) {
	root, rel := im.src.at(f.Path)
	fd, err := openToRead(root, rel, true)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if f.Stat.Mode&0o111 != 0o111 && os.Geteuid() != 0 { // only names can be read
		if err := unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
			return nil, &os.PathError{Op: "enter", Path: f.Path, Err: err}
		}
	}
	return ReadXAttrs(fd, KeptXAttr)
}

// isRegular reports whether an open file is still the regular file that was found.
func isRegular(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}
