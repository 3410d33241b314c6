package apply

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// beneath is a directory with access only below itself: no path is ever resolved through a
// symlink or out of it, whatever is swapped meanwhile. The kernel enforces that (openat2); there
// is no weaker fallback.
type beneath struct {
	fd     int
	path   string
	locked bool
}

func openBeneath(path string) (*beneath, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, hostError("", "open "+path, err)
	}
	return &beneath{fd: fd, path: path}, nil
}

// close releases the lock explicitly: a child that was just forked may hold a copy of the
// descriptor for a moment.
func (b *beneath) close() {
	if b.locked {
		unix.Flock(b.fd, unix.LOCK_UN)
	}
	unix.Close(b.fd)
}

// lock excludes other Applies until the directory is closed.
func (b *beneath) lock() error {
	err := unix.Flock(b.fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return cell.Errorf(cell.Conflict, "apply.Do", "wait until it has ended and try again", "cannot apply to %s: another pando is writing there", b.path)
	}
	if err != nil {
		return hostError("", "lock "+b.path, err)
	}
	b.locked = true
	return nil
}

// open opens path, which is relative; "" is the directory itself.
func (b *beneath) open(path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	return linux.OpenBelow(b.fd, path, &how)
}

// folder opens the folder at path for other calls.
func (b *beneath) folder(path string) (int, error) {
	return b.open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// in calls f with the folder that contains path, and path's last name.
func (b *beneath) in(path string, f func(dir int, name string) error) error {
	fd, err := b.folder(workspace.Parent(path))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd, path[strings.LastIndexByte(path, '/')+1:])
}

// lstat describes the file at path, which may be a symlink.
func (b *beneath) lstat(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := b.open(path, unix.O_PATH, 0)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	return st, unix.Fstat(fd, &st)
}

// seen describes a path of the source.
type seen struct {
	typ    workspace.Type // 0: missing
	stat   unix.Stat_t
	target string      // symlinks
	digest cell.Digest // of files with one of the requested sizes
	wall   string      // the part of the path that is no folder
}

// look describes path. It reads a file only if it has one of sizes.
func (b *beneath) look(ctx context.Context, path string, sizes ...int64) (s seen, err error) {
	fd, err := b.open(path, unix.O_PATH, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return seen{}, nil
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		s.wall, err = b.wall(path)
		return s, err
	case err != nil:
		return seen{}, err
	}
	defer unix.Close(fd)
	return b.lookAt(ctx, fd, func(flags int) (int, error) { return b.open(path, flags, 0) }, sizes)
}

// lookAt describes the file of fd, opened with O_PATH. reopen opens it for reading.
func (b *beneath) lookAt(ctx context.Context, fd int, reopen func(flags int) (int, error), sizes []int64) (s seen, err error) {
	if err := unix.Fstat(fd, &s.stat); err != nil {
		return s, err
	}
	switch s.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.typ = workspace.File
	case unix.S_IFDIR:
		s.typ = workspace.Folder
	case unix.S_IFLNK:
		s.typ = workspace.Symlink
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return s, err
		}
		s.target = string(buf[:n])
	case unix.S_IFIFO:
		s.typ = workspace.Fifo
	case unix.S_IFSOCK:
		s.typ = workspace.Socket
	case unix.S_IFCHR:
		s.typ = workspace.CharDev
	default:
		s.typ = workspace.Block
	}
	wanted := false
	for _, n := range sizes {
		wanted = wanted || n == s.stat.Size
	}
	if s.typ != workspace.File || !wanted {
		return s, nil
	}
	rfd, err := reopen(unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY)
	if err != nil {
		return s, err
	}
	f := os.NewFile(uintptr(rfd), "")
	defer f.Close()
	if err := unix.Fstat(rfd, &s.stat); err != nil {
		return s, err
	}
	if s.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return seen{stat: s.stat}, nil // just swapped: matches nothing
	}
	_, s.digest, err = workspace.DigestFile(ctx, f)
	return s, err
}

// wall returns the first part of path that exists and is no folder.
func (b *beneath) wall(path string) (string, error) {
	for i := 0; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		st, err := b.lstat(path[:i])
		if err != nil {
			return "", err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return path[:i], nil
		}
	}
	return "", unix.ENOTDIR
}

// is reports whether it equals e for git; nil is a missing file.
func (s *seen) is(e *workspace.Entry) bool {
	if e == nil || s.typ == 0 {
		return e == nil && s.typ == 0
	}
	switch {
	case s.typ != e.Type:
		return false
	case e.Type == workspace.File:
		return s.digest == e.Digest && (s.stat.Mode^e.Mode)&0o100 == 0
	case e.Type == workspace.Symlink:
		return s.target == e.Target
	}
	return true
}

// hostError describes the failed step and file, with the kind of its cause.
func hostError(path, what string, err error) error {
	if path != "" {
		what += " " + diff.Quote(path)
	}
	kind, hint := cell.Internal, ""
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind, hint = cell.Unavailable, "make room on the disk that holds the source and try again"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		kind, hint = cell.Denied, "check the permissions of the file and its folder"
	case errors.Is(err, unix.ENOSYS):
		kind, hint = cell.Unsupported, "apply the patch yourself: pando diff --patch"
	case errors.Is(err, unix.ENOENT):
		kind = cell.NotFound
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		kind = cell.Interrupted
	}
	if k, ok := errors.AsType[*cell.Error](err); ok {
		kind, hint = k.Kind, k.Hint
	}
	return cell.Errorf(kind, "apply.Do", hint, "cannot %s: %w", what, err)
}

// renameat2 is a variable, for tests of file systems without its flags.
var renameat2 = unix.Renameat2

// renameNew renames to a name that must not exist.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Some file systems can't guarantee that; there it links, if they have links.
	if err = unix.Linkat(fromDir, from, toDir, to, 0); err == nil {
		return unix.Unlinkat(fromDir, from, 0)
	}
	if errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if unix.Fstatat(toDir, to, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return unix.EEXIST
	}
	return unix.Renameat(fromDir, from, toDir, to)
}

// statAt describes a name in a folder; ok is false if it does not exist.
func statAt(dir int, name string) (st unix.Stat_t, ok bool, err error) {
	err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return st, false, nil
	}
	return st, err == nil, err
}
