//go:build linux

package gitdir

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A Linked is the repository of a work tree with a ".git" file: a linked worktree or a
// submodule. Both folders are outside the work tree.
type Linked struct {
	Dir    string // has HEAD and index; without symlinks
	Common string // has objects and config; equal to Dir in a submodule
}

// FindLinked returns the repository that the file top/.git points to. It is nil without such a
// file, or when the repository is inside top, where it is like any other folder.
//
// The file is part of the source, which is untrusted, and proves nothing alone. The repository
// must point back to top by a file outside top: the folder of a linked worktree is in
// COMMON/worktrees, and its file "gitdir" names top/.
func FindLinked(top string) (*Linked, error) {
	top, err := filepath.EvalSymlinks(top)
	if err != nil {
		return nil, err
	}
	dot := filepath.Join(top, ".git")
	if st, err := os.Lstat(dot); err != nil || !st.Mode().IsRegular() {
		return nil, nil
	}
	b, err := readRegularFlags(dot, maxFile, unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("cannot read .git: %w", err)
	}
	to, ok := strings.CutPrefix(string(b), "gitdir: ")
	if !ok {
		return nil, nil // git does not recognise it, either
	}
	dir, err := filepath.EvalSymlinks(absFrom(top, strings.TrimRight(to, "\r\n")))
	if err != nil {
		return nil, errors.New("the repository that .git points to can't be found")
	}
	if isBelow(top, dir) {
		return nil, nil
	}
	if !isRepository(dir) {
		return nil, fmt.Errorf("%s is not a git repository", dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, "commondir")); err == nil {
		return linkedWorktree(dir, dot)
	}
	return submodule(dir, top)
}

func linkedWorktree(dir, dot string) (*Linked, error) {
	common, err := filepath.EvalSymlinks(commonDir(dir))
	if err != nil || filepath.Dir(dir) != filepath.Join(common, "worktrees") {
		return nil, fmt.Errorf("%s is not in the worktrees of its repository", dir)
	}
	b, err := readRegular(filepath.Join(dir, "gitdir"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("%s does not say which worktree it belongs to", dir)
	}
	back := absFrom(dir, strings.TrimRight(string(b), "\r\n"))
	if at, err := filepath.EvalSymlinks(filepath.Dir(back)); err != nil || filepath.Join(at, filepath.Base(back)) != dot {
		return nil, fmt.Errorf("%s belongs to another worktree (git worktree repair)", dir)
	}
	return &Linked{Dir: dir, Common: common}, nil
}

func submodule(dir, top string) (*Linked, error) {
	super := ""
	for at := filepath.Dir(dir); at != filepath.Dir(at); at = filepath.Dir(at) {
		if filepath.Base(at) == "modules" && isRepository(filepath.Dir(at)) {
			super = filepath.Dir(at)
			break
		}
	}
	if super == "" {
		return nil, fmt.Errorf("%s is neither a linked worktree nor a submodule", dir)
	}
	conf, err := readRegular(filepath.Join(dir, "config"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the config of %s: %w", dir, errors.Unwrap(err))
	}
	w := configValue(conf, "core.worktree")
	if at, err := filepath.EvalSymlinks(absFrom(dir, w)); w == "" || err != nil || at != top {
		return nil, fmt.Errorf("%s belongs to another folder (git submodule update)", dir)
	}
	return &Linked{Dir: dir, Common: dir}, nil
}

func isBelow(dir, path string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// In returns the place in the repository of a linked worktree for a file of an ordinary ".git".
// path is relative to ".git". For folders in both, such as logs, common is true: the worktree's
// own part is in Dir.
func (l *Linked) In(path string) (common bool) {
	if l.Dir == l.Common {
		return true
	}
	path = strings.TrimSuffix(path, ".lock") // in the same place as its file
	// From git's path.c (common_list); lfs is git-lfs's.
	for _, own := range []string{"info/sparse-checkout", "logs/HEAD", "logs/refs/bisect", "logs/refs/rewritten", "logs/refs/worktree",
		"refs/bisect", "refs/rewritten", "refs/worktree"} {
		if isBelow(own, path) {
			return false
		}
	}
	first, _, _ := strings.Cut(path, "/")
	switch first {
	case "branches", "common", "hooks", "info", "logs", "lost-found", "objects", "refs", "remotes", "rr-cache", "svn", "lfs":
		return true
	case "config", "packed-refs", "shallow", "gc.pid":
		return path == first
	}
	return false
}

// Mixed reports whether a folder of ".git" has parts in both Dir and Common.
func (l *Linked) Mixed(path string) bool {
	return l.Dir != l.Common && slices.Contains([]string{"", "info", "logs", "logs/refs", "refs"}, path)
}

// Skips reports whether a path of Dir or Common has no place in an ordinary ".git", because it
// links worktrees with each other.
func (l *Linked) Skips(path string) bool {
	switch path {
	case "commondir", "gitdir", "locked", "worktrees":
		return true
	}
	return false
}

// Standalone returns the config of a linked repository as that of an ordinary one, with the
// folder above as the work tree. own is true for the file that sets it, false for
// config.worktree, from which a setting of it is only removed.
func Standalone(conf []byte, own bool) []byte {
	c := configReader{rest: conf}
	if rest, ok := strings.CutPrefix(string(conf), "\xef\xbb\xbf"); ok {
		c.rest = []byte(rest)
	}
	var out []byte
	at := len(conf) - len(c.rest) // the text before is in out, or dropped
	out = append(out, conf[:at]...)
	for c.seek() {
		from := len(conf) - len(c.rest)
		if !c.variable() {
			break // git refuses the whole file
		}
		to := len(conf) - len(c.rest)
		if name := c.section + "." + c.key; name == "core.worktree" || name == "core.bare" {
			out = append(out, conf[at:from]...)
			out = append(out, '\n')
			at = to
		}
	}
	out = append(out, conf[at:]...)
	if own {
		out = append(out, "\n[core]\n\tbare = false\n"...)
	}
	return out
}

// Own is the repository that is in top itself, or to which the file top/.git belongs by the repository's own word; nil when
// top is not the work tree of one. What the source says alone proves nothing: a ".git" that is a symlink, or that has its refs
// elsewhere, is an error.
func Own(top string) (*Linked, error) {
	linked, err := FindLinked(top)
	if err != nil || linked != nil {
		return linked, err
	}
	dot := filepath.Join(top, ".git")
	st, err := os.Lstat(dot)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, cell.Errorf(cell.Unsupported, "gitdir.Own", "", "%s is no folder, and no link of a worktree or submodule", dot)
	}
	if _, err := os.Lstat(filepath.Join(dot, "commondir")); err == nil {
		return nil, cell.Errorf(cell.Unsupported, "gitdir.Own", "", "%s says that its objects are elsewhere", dot)
	}
	if !isRepository(dot) {
		return nil, nil
	}
	return &Linked{Dir: dot, Common: dot}, nil
}

// Head is what it has checked out.
func (l *Linked) Head() (Head, error) { return (&Repo{dir: l.Dir, common: l.Common}).Head() }

// Committer is the name and mail address that git writes into commits of the user with a home directory, as the configuration
// of the system, the user and the repository says; "" where none does. Includes are not followed.
func (l *Linked) Committer(home string) (name, email string) {
	var user, committer [2]string
	read := func(conf []byte, err error) {
		for i, key := range []string{".name", ".email"} {
			if err == nil {
				user[i] = cmp.Or(configValue(conf, "user"+key), user[i])
				committer[i] = cmp.Or(configValue(conf, "committer"+key), committer[i])
			}
		}
	}
	for _, file := range []string{"/etc/gitconfig", filepath.Join(home, ".config/git/config"), filepath.Join(home, ".gitconfig")} {
		read(readRegular(file, maxFile))
	}
	read(readRegularFlags(filepath.Join(l.Common, "config"), maxFile, unix.O_NOFOLLOW))
	return cmp.Or(committer[0], user[0]), cmp.Or(committer[1], user[1])
}
