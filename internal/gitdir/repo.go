//go:build linux

package gitdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/parse"
)

// Tracked returns the paths that git tracks below root, which may be the top
// of a work tree, a folder inside one, a linked worktree or a submodule. It is
// nil if root is in no work tree. Each nested repository has an index of its
// own: the caller asks again for every folder with a ".git".
//
// Only regular files are opened, and a large index is parsed by outside. An
// index that tells only part of the truth (split, sparse) is an Unsupported
// error, and one that is beyond a limit a TooLarge one.
func Tracked(ctx context.Context, root string, outside *parse.Parser) (*Set, error) {
	r, err := Find(root)
	if r == nil || err != nil {
		return nil, err
	}
	return r.Tracked(ctx, outside)
}

// Limits on the files of a repository. Git's own index of two million files has 250 MB.
const (
	maxIndex = 1 << 30
	maxFile  = 1 << 20
	inPlace  = 8 << 20 // a larger index is parsed by a process of its own
)

// Index returns the path of the index, which need not exist. Tracked depends on no other file
// that changes.
func (r *Repo) Index() string { return filepath.Join(r.dir, "index") }

// Tracked returns the tracked paths below the folder that r was found for.
func (r *Repo) Tracked(ctx context.Context, outside *parse.Parser) (*Set, error) {
	f, st, err := openRegular(r.Index(), maxIndex, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return NewSet(), nil // an empty index
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read git's index: %w", err)
	}
	defer f.Close()
	key := cell.Sum(fmt.Appendf(nil, "%s %d %d %d %d.%d", r.Index(), st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec))
	all, err := ParseIndex(ctx, outside, Index{What: r.Index(), Key: key, Size: st.Size, HashLen: r.hashLen}, f)
	if err != nil {
		return nil, err
	}
	return all.below(r.prefix), nil
}

// Find looks for a ".git" in root and the folders above it, as git does: it skips a ".git" that
// is no repository, and stops at the border of the file system. It returns nil if there is none.
func Find(root string) (*Repo, error) {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look for a git repository: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return nil, fmt.Errorf("cannot look for a git repository in %s: %w", root, err)
	}
	dev := st.Dev
	for top := root; ; top = filepath.Dir(top) {
		if unix.Stat(top, &st) != nil || st.Dev != dev {
			return nil, nil
		}
		if filepath.Base(top) == ".git" && isRepository(top) {
			return nil, nil // inside a repository's own folder there is no work tree
		}
		if dir := dirAt(top); dir != "" {
			return openRepository(dir, top, root)
		}
		if top == filepath.Dir(top) {
			return nil, nil
		}
	}
}

// dirAt returns the folder that top/.git is or points to, "" if none.
func dirAt(top string) string {
	dot := filepath.Join(top, ".git")
	st, err := os.Stat(dot)
	if err != nil {
		return ""
	}
	if st.Mode().IsRegular() {
		b, err := readRegular(dot, maxFile)
		to, ok := strings.CutPrefix(string(b), "gitdir: ")
		if err != nil || !ok {
			return ""
		}
		dot = absFrom(top, strings.TrimRight(to, "\r\n"))
	}
	if !isRepository(dot) {
		return ""
	}
	return dot
}

// isRepository distinguishes a repository from another folder with its name.
func isRepository(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, "HEAD")); err != nil {
		return false
	}
	common := commonDir(dir)
	for _, name := range []string{"objects", "refs"} {
		if st, err := os.Stat(filepath.Join(common, name)); err != nil || !st.IsDir() {
			return false
		}
	}
	return true
}

// commonDir returns the folder that the worktrees of a repository share.
func commonDir(dir string) string {
	b, err := readRegular(filepath.Join(dir, "commondir"), maxFile)
	if err != nil {
		return dir
	}
	return absFrom(dir, strings.TrimRight(string(b), "\r\n"))
}

func openRepository(dir, top, root string) (*Repo, error) {
	r := &Repo{dir: dir, common: commonDir(dir), top: top}
	conf, err := readRegular(filepath.Join(r.common, "config"), maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read git's config: %w", err)
	}
	if r.hashLen, err = HashLen(conf); err != nil {
		return nil, err
	}
	// core.worktree belongs to the main work tree. That of a submodule names the folder it was
	// found in; a stale one is ignored.
	if w := configValue(conf, "core.worktree"); w != "" && r.common == r.dir {
		if w, err := filepath.EvalSymlinks(absFrom(dir, w)); err == nil {
			r.top = w
		}
	}
	rel, err := filepath.Rel(r.top, root)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return nil, nil // the work tree is elsewhere
	}
	if rel != "." {
		r.prefix = rel
	}
	return r, nil
}

func absFrom(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// readRegular reads a regular file of at most limit bytes.
func readRegular(path string, limit int64) ([]byte, error) {
	return readRegularFlags(path, limit, 0)
}

// readRegularFlags is readRegular with flags for the first open: O_NOFOLLOW.
func readRegularFlags(path string, limit int64, flags int) ([]byte, error) {
	f, _, err := openRegular(path, limit, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bound.ReadAll(f, path, limit)
}

// openRegular opens a regular file of at most limit bytes. It checks the type before opening:
// opening a fifo blocks, and opening a device may have effects.
func openRegular(path string, limit int64, flags int) (f *os.File, st unix.Stat_t, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, cell.Errorf(cell.Invalid, "gitdir.openRegular", "", "%s is not a regular file", path)
	}
	if st.Size > limit {
		return nil, st, bound.Exceed(path, limit, "bytes")
	}
	f, err = os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
	}
	return f, st, nil
}
