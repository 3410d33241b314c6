package workspace

import (
	"crypto/sha256"
	"hash"
	"io"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// gitIndex is the path of git's index in a source that is the top of a work tree. With masked
// secrets it is copied last, when all masked paths are known, and marks them as skipped for git
// in the cell: a commit there does not delete them. Their committed versions stay in git's
// objects.
const gitIndex = ".git/index"

// isIndex reports whether f is git's index and must be marked.
func (im *importer) isIndex(f *Found) bool {
	return im.req.Mask && im.repo != nil && f.Path == gitIndex && f.Type() == File
}

// setIndex defers the copy of git's index.
func (im *importer) setIndex(f *Found) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.index = f
}

// findIndex returns git's index, nil if it was not found.
func (im *importer) findIndex(found []Found) *Found {
	for i := range found {
		if im.isIndex(&found[i]) {
			return &found[i]
		}
	}
	return nil
}

// maskedIn returns the masked paths of a list, sorted.
func maskedIn(list []LeftOut) (paths []string) {
	for _, l := range list {
		if l.Masked {
			paths = append(paths, l.Path)
		}
	}
	sort.Strings(paths)
	return paths
}

// hasObjects reports whether the base gets git's objects: ".git" is a folder of the source, or a
// pointer to an imported repository.
func (im *importer) hasObjects() bool {
	if im.src.linked != nil {
		return true
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(im.src.root.Fd()), ".git", &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// copyIndex copies git's index, with a bit for each masked path. An unreadable one is copied
// unchanged.
func (im *importer) copyIndex(in, out int, f *Found, e *Entry) error {
	paths := maskedIn(im.leftOut)
	if len(paths) == 0 {
		return im.copyContent(in, out, f, e, nil)
	}
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	w := &fdWriter{fd: out, sum: sha256.New()}
	err := im.repo.SkipWorktree(fdReader(in), st.Size, w, paths)
	switch k := cell.KindOf(err); {
	case err == nil:
	case k == cell.Corrupt || k == cell.Unsupported || k == cell.TooLarge:
		im.mu.Lock()
		im.notes = append(im.notes, "git in the cell takes masked files for deleted: "+err.Error())
		im.mu.Unlock()
		if err := unix.Ftruncate(out, 0); err != nil {
			return err
		}
		if _, err := unix.Seek(in, 0, unix.SEEK_SET); err != nil {
			return err
		}
		return im.copyContent(in, out, f, e, nil)
	default:
		return err
	}
	if st.Size != f.Stat.Size {
		f.Stat.CTime = 0 // never equal: checked again next time
	}
	e.Size = w.n
	w.sum.Sum(e.Digest[:0])
	im.mu.Lock()
	im.copied++
	im.mu.Unlock()
	return nil
}

type fdReader int

func (fd fdReader) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// fdWriter writes from the beginning of a file, and hashes it.
type fdWriter struct {
	fd  int
	n   int64
	sum hash.Hash
}

func (w *fdWriter) Write(b []byte) (int, error) {
	if err := writeAll(w.fd, b, w.n); err != nil {
		return 0, err
	}
	w.n += int64(len(b))
	w.sum.Write(b)
	return len(b), nil
}
