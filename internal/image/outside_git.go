package image

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/gitdir"
)

// gitDir names the object stores that a repository borrows from, and the git directory of a
// work tree with a ".git" file, where import does not bring it in.
func (p *planner) gitDir(at string, isDir bool) {
	dir := at
	if !isDir {
		to, ok := strings.CutPrefix(strings.TrimSpace(p.t.text(at, 1<<16)), "gitdir:")
		if !ok {
			return
		}
		if p.req.Root == "/" && p.isSource(path.Dir(at)) {
			if linked, err := gitdir.FindLinked(path.Dir(at)); linked != nil && err == nil { // import brings it in
				p.alternates(at, join(linked.Common, "objects/info/alternates"))
				return
			}
		}
		if to = strings.TrimSpace(to); !path.IsAbs(to) {
			to = join(path.Dir(at), to)
		}
		p.lead(at, p.t.resolve(to))
		return
	}
	p.alternates(at, join(dir, "objects/info/alternates"))
}

// alternates names the object stores that a repository borrows from.
func (p *planner) alternates(from, file string) {
	objects := path.Dir(path.Dir(file))
	for line := range strings.Lines(p.t.text(file, 1<<16)) {
		to := strings.TrimSpace(line)
		if to == "" || to[0] == '#' {
			continue
		}
		if !path.IsAbs(to) {
			to = join(objects, to)
		}
		p.lead(from, p.t.resolve(to))
	}
}
