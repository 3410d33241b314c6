package apply

import (
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
)

// maxLinks is the kernel's limit of symlinks in one path.
const maxLinks = 40

// resolve follows the symlink at p within t, with symlinks on the way. It returns the target,
// which need not exist, and false if a step leads out of the workspace, or if there is a loop.
func resolve(t *workspace.Tree, p string) (string, bool) {
	var at []string // the path so far, free of symlinks
	todo := strings.Split(p, "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return "", false
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, name)
		e, err := t.Lookup(strings.Join(at, "/"))
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return "", false
		}
		if err != nil || e.Type != workspace.Symlink {
			continue
		}
		if links++; links > maxLinks || strings.HasPrefix(e.Target, "/") {
			return "", false
		}
		at = at[:len(at)-1]
		todo = append(strings.Split(e.Target, "/"), todo...)
	}
	return strings.Join(at, "/"), true
}

// listDir returns the entries of the folder at path, none if t has no folder
// there.
func listDir(t *workspace.Tree, path string) (workspace.Dir, error) {
	e, err := t.Lookup(path)
	if cell.KindOf(err) == cell.NotFound || (err == nil && e.Type != workspace.Folder) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.ReadDir(e.Digest)
}

// reservedPaths are the paths that import left out, each with everything below it. Names are
// folded: another spelling of a reserved path is that path.
type reservedPaths struct {
	paths   map[string]bool
	parents map[string]string // folder → a reserved path in it
}

func newReserved(paths []string) reservedPaths {
	r := reservedPaths{map[string]bool{}, map[string]string{}}
	for _, p := range paths {
		f := gitdir.FoldPath(strings.Trim(p, "/"))
		r.paths[f] = true
		for d := workspace.Parent(f); d != ""; d = workspace.Parent(d) {
			r.parents[d] = p
		}
	}
	return r
}

// covers reports whether p is reserved or lies below a reserved path.
func (r reservedPaths) covers(p string) bool {
	if len(r.paths) == 0 {
		return false
	}
	for f := gitdir.FoldPath(p); f != ""; f = workspace.Parent(f) {
		if r.paths[f] {
			return true
		}
	}
	return false
}

// below returns a reserved path below p, "" if there is none.
func (r reservedPaths) below(p string) string {
	if len(r.parents) == 0 {
		return ""
	}
	return r.parents[gitdir.FoldPath(p)]
}
