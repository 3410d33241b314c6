package upload

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// maxEntries bounds the files, folders and symlinks of an archive.
const maxEntries = 4 << 20

// Unpack extracts an archive into an empty directory: files, folders, symlinks and hard links,
// with their modes and times. An archive of anything else, or that leads out of the directory,
// is Invalid; the caller then removes the contents of the directory.
func Unpack(ctx context.Context, dir string, r io.Reader) (files int, bytes int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	u := &unpacker{root: root, known: map[string]bool{".": true}}
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		if err := context.Cause(ctx); err != nil {
			return 0, 0, err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, bad("cannot be read: %w", err)
		}
		if n == maxEntries {
			return 0, 0, cell.Errorf(cell.TooLarge, "upload.Unpack", "leave out generated files", "the archive of the source has more than %d entries", maxEntries)
		}
		if err := u.one(h, t); err != nil {
			return 0, 0, err
		}
	}
	return u.files, u.bytes, u.setAttributes()
}

func bad(format string, args ...any) error {
	return cell.Errorf(cell.Invalid, "upload.Unpack", "send what pando packs: files, folders, symlinks and hard links, with relative names", "the archive of the source "+format, args...)
}

type unpacker struct {
	root  *os.Root
	known map[string]bool // folders
	dirs  []*tar.Header   // get their modes and times last
	files int
	bytes int64
}

func (u *unpacker) one(h *tar.Header, r io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	if !local(name) {
		return bad("has the name %.200q", h.Name)
	}
	if name == "." {
		return nil
	}
	if err := u.plain(path.Dir(name)); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		u.dirs = append(u.dirs, h)
		if err = u.root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
			err = u.plain(name)
		}
	case tar.TypeReg:
		if bound.Sparse(h) {
			return bad("has %q with holes", name)
		}
		err = u.file(name, h, r)
	case tar.TypeSymlink:
		err = u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		if !local(h.Linkname) {
			return bad("links %q to %.200q", name, h.Linkname)
		}
		if err := u.plain(path.Dir(h.Linkname)); err != nil {
			return err
		}
		if st, err := u.root.Lstat(h.Linkname); err != nil || !st.Mode().IsRegular() {
			return bad("links %q to %q, which is no file before it", name, h.Linkname)
		}
		u.files++
		err = u.root.Link(h.Linkname, name)
	default:
		return bad("has %q, which is no file, folder, symlink or hard link", name)
	}
	if errors.Is(err, fs.ErrExist) {
		return bad("has %q twice", name)
	}
	return err
}

// maxName bounds a path, in bytes: PATH_MAX.
const maxName = 4096

// local reports whether a name, by itself, stays in the directory.
func local(name string) bool {
	return len(name) < maxName && filepath.IsLocal(name) && path.Clean(name) == name
}

// plain makes sure that a path consists of folders alone, so that no symlink redirects the
// archive's files. It creates missing folders.
func (u *unpacker) plain(dir string) error {
	if u.known[dir] {
		return nil
	}
	st, err := u.root.Lstat(dir)
	if err == nil && st.IsDir() {
		if err := u.plain(path.Dir(dir)); err != nil {
			return err
		}
		u.known[dir] = true
		return nil
	}
	if err == nil {
		return bad("has something below %q, which is no folder", dir)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := u.plain(path.Dir(dir)); err != nil {
		return err
	}
	return u.root.Mkdir(dir, 0o755)
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & fs.ModePerm)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	u.files++
	u.bytes += n
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// setAttributes sets the modes and times of folders, children first.
func (u *unpacker) setAttributes() error {
	for _, h := range slices.Backward(u.dirs) {
		name := strings.TrimSuffix(h.Name, "/")
		if err := u.root.Chmod(name, fs.FileMode(h.Mode)&fs.ModePerm|0o700); err != nil { // readable and removable
			return err
		}
		if err := u.root.Chtimes(name, h.ModTime, h.ModTime); err != nil {
			return err
		}
	}
	return nil
}
