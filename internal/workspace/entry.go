package workspace

import (
	"bytes"
	"context"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// EntryOf fills an Entry from a stat; content digest and xattrs come later.
func EntryOf(f *Found) Entry {
	e := Entry{Type: f.Type(), Mode: f.Stat.Mode & 0o7777, MTime: f.Stat.MTime}
	_, e.Name = split(f.Path)
	switch e.Type {
	case File:
		e.Size = f.Stat.Size
	case CharDev, Block:
		e.Rdev = f.Rdev
	}
	return e
}

// fdPath names an open descriptor for calls that want a path.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// overlayXAttr reports whether name belongs to overlayfs: such marks would take effect when a
// tree becomes a layer.
func overlayXAttr(name string) bool {
	return strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.")
}

// KeptXAttr reports whether an attribute is part of a workspace: user attributes are, file
// capabilities are not.
func KeptXAttr(name string) bool {
	return strings.HasPrefix(name, "user.") && !overlayXAttr(name)
}

// ReadXAttrs lists the attributes of an open file that f accepts, sorted.
func ReadXAttrs(fd int, accept func(string) bool) ([]XAttr, error) {
	n, err := unix.Flistxattr(fd, nil)
	if err != nil || n == 0 {
		if err == unix.EOPNOTSUPP || err == unix.EBADF {
			err = nil
		}
		return nil, err
	}
	names := make([]byte, n+256)
	if n, err = unix.Flistxattr(fd, names); err != nil {
		return nil, err
	}
	var out []XAttr
	for _, raw := range bytes.Split(names[:n], []byte{0}) {
		name := string(raw)
		if name == "" || !accept(name) {
			continue
		}
		val := make([]byte, 64<<10)
		m, err := unix.Fgetxattr(fd, name, val)
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, XAttr{name, string(val[:m])})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// ReadLinkAt reads a symlink below root.
func ReadLinkAt(root *linux.Dir, path string) (string, error) {
	fd, err := OpenBeneath(root, path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return ReadLinkOf(fd, path)
}

// ReadLinkOf is ReadLinkAt for a symlink that is open (O_PATH).
func ReadLinkOf(fd int, path string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: path, Err: err}
	}
	return string(buf[:n]), nil
}

// ReadEntry completes e for path below a root of ours: digest and xattrs of a
// file, target of a symlink, xattrs of a folder.
func ReadEntry(root *linux.Dir, path string, e *Entry) error {
	return WithRights(root, path, func() error { return readEntry(root, path, e) })
}

func readEntry(root *linux.Dir, path string, e *Entry) error {
	switch e.Type {
	case Symlink:
		var err error
		e.Target, err = ReadLinkAt(root, path)
		return err
	case File, Folder:
		fd, err := openToRead(root, path, e.Type == Folder)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		if e.XAttrs, err = ReadXAttrs(fd, KeptXAttr); err != nil {
			return &os.PathError{Op: "listxattr", Path: path, Err: err}
		}
		if e.Type == File {
			e.Size, e.Digest, err = DigestFile(context.Background(), f)
			return err
		}
	}
	return nil
}

// Walk computes the tree of a plain directory, reading everything in it. A
// directory is not a layer: whiteouts and overlay's marks are just files.
func Walk(ctx context.Context, dir string, objs Objects) (*Tree, error) {
	return WalkKnown(ctx, dir, objs, func(string, Stat) (Entry, bool) { return Entry{}, false })
}

// WalkKnown is Walk, with known returning the entries of files and folders that need not be read
// because a read version has them.
func WalkKnown(ctx context.Context, dir string, objs Objects, known func(path string, st Stat) (Entry, bool)) (*Tree, error) {
	root, err := OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	t, err := EmptyTree(objs)
	if err != nil {
		return nil, err
	}
	all, err := Collect(ctx, root)
	if err != nil {
		return nil, err
	}
	top := Found{Stat: StatOf(&st)}
	entries := make([]Entry, len(all))
	err = Parallel(ctx, len(all), func(i int) error {
		if e, ok := known(all[i].Path, all[i].Stat); ok {
			entries[i] = e
			return nil
		}
		entries[i] = EntryOf(&all[i])
		return ReadEntry(root, all[i].Path, &entries[i])
	})
	if err != nil {
		return nil, err
	}
	ed := t.Edit()
	e := EntryOf(&top)
	if err := ReadEntry(root, "", &e); err != nil {
		return nil, err
	}
	if err := ed.Put("", e); err != nil {
		return nil, err
	}
	for i := range all {
		if entries[i].Type == 0 {
			continue
		}
		if err := ed.Put(all[i].Path, entries[i]); err != nil {
			return nil, err
		}
		if f := &all[i]; entries[i].Type == File && f.Stat.Nlink > 1 {
			ed.Link(f.Path, LinkKey(&f.Stat))
		}
	}
	return ed.Commit()
}
