package workspace

import (
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/linux"
)

// A sourceTree is the source of an import: a directory, with the repository that a ".git" file
// points to in place of the file, as an ordinary ".git". For a linked worktree it merges the two
// folders of its repository: its own files, and the shared ones. Nothing else of a repository
// outside the source is read.
type sourceTree struct {
	root        *linux.Dir
	linked      *gitdir.Linked // nil for an ordinary ".git"
	own, common *linux.Dir     // of linked
	gitWhy      error          // why a ".git" file that points outside the source stays a file
	missed      missed
}

// openSource opens a source directory and looks at it.
func openSource(path string) (*sourceTree, Found, error) {
	root, err := linux.OpenDir(path, unix.O_RDONLY)
	if err != nil {
		return nil, Found{}, cell.Errorf(cell.NotFound, "workspace.Import", "give the path of a directory with --from", "cannot read the source: %w", err)
	}
	s := &sourceTree{root: root}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		s.Close()
		return nil, Found{}, err
	}
	if s.linked, s.gitWhy = gitdir.FindLinked(path); s.linked != nil {
		s.own, s.gitWhy = openFolder(s.linked.Dir)
		if s.gitWhy == nil {
			s.common, s.gitWhy = openFolder(s.linked.Common)
		}
		if s.gitWhy != nil {
			s.linked = nil
		}
	}
	return s, Found{Stat: StatOf(&st)}, nil
}

func openFolder(path string) (*linux.Dir, error) {
	return linux.OpenDir(path, unix.O_RDONLY|unix.O_NOFOLLOW)
}

func (s *sourceTree) Close() {
	for _, f := range []*linux.Dir{s.root, s.own, s.common} {
		if f != nil {
			f.Close()
		}
	}
}

// inRepo returns the path in the linked repository that a path of the source stands for.
func (s *sourceTree) inRepo(path string) (rel string, ok bool) {
	if s.linked == nil {
		return "", false
	}
	if path == ".git" {
		return "", true
	}
	return strings.CutPrefix(path, ".git/")
}

// at returns the folder and path of a source path on disk.
func (s *sourceTree) at(path string) (*linux.Dir, string) {
	rel, ok := s.inRepo(path)
	switch {
	case !ok:
		return s.root, path
	case rel == "" || !s.linked.In(rel):
		return s.own, rel
	case s.linked.Mixed(rel): // it may be in only one of the two
		if fd, err := OpenBeneath(s.common, rel, unix.O_PATH); err == nil {
			unix.Close(fd)
			return s.common, rel
		}
		return s.own, rel
	}
	return s.common, rel
}

func (s *sourceTree) open(path string, flags int) (int, error) {
	root, rel := s.at(path)
	return OpenBeneath(root, rel, flags)
}

func (s *sourceTree) xattrs(dir string) ([]XAttr, error) {
	root, rel := s.at(dir)
	return dirXAttrs(root, rel, KeptXAttr)
}

// list is readDirAt for a sourceTree.
func (s *sourceTree) list(_ *linux.Dir, dir string, buf []byte) ([]Found, error) {
	rel, ok := s.inRepo(dir)
	if ok {
		return s.listRepo(rel, buf)
	}
	found, err := readDirAt(s.root, dir, buf)
	if s.linked == nil || dir != "" || err != nil {
		return found, err
	}
	for i := range found {
		if found[i].Path == ".git" {
			var st unix.Stat_t
			if err := unix.Fstat(int(s.own.Fd()), &st); err != nil {
				return nil, &os.PathError{Op: "stat", Path: s.linked.Dir, Err: err}
			}
			found[i] = Found{Path: ".git", Stat: StatOf(&st), UID: st.Uid, GID: st.Gid}
		}
	}
	return found, nil
}

// listRepo lists a folder of the linked repository.
func (s *sourceTree) listRepo(rel string, buf []byte) ([]Found, error) {
	var all []Found
	have := map[string]bool{}
	for _, root := range []*linux.Dir{s.common, s.own} {
		inCommon := root == s.common
		mixed := s.linked.Mixed(rel)
		if !mixed && s.linked.In(rel) != inCommon {
			continue
		}
		found, err := readDirAt(root, rel, buf)
		if mixed && rel != "" && os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			folder := f.Type() == Folder
			onlyOwn := !inCommon && folder && s.linked.Mixed(f.Path) && !have[f.Path]
			if s.linked.Skips(f.Path) || s.linked.In(f.Path) != inCommon && !onlyOwn {
				continue
			}
			have[f.Path] = true
			f.Path = ".git/" + f.Path
			all = append(all, f)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return all, nil
}

// standalone returns the content of a file in the cell, where a linked repository is an ordinary
// one.
func (s *sourceTree) standalone(path string, content []byte) []byte {
	if s.alters(path) {
		return gitdir.Standalone(content, path == ".git/config")
	}
	return content
}

// alters reports whether standalone changes a file.
func (s *sourceTree) alters(path string) bool {
	return s.linked != nil && (path == ".git/config" || path == ".git/config.worktree")
}
