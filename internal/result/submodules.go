package result

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// maxSubmodules bounds in how many submodules commits are looked for.
const maxSubmodules = 1000

// submodules are the folders with the git files of the submodules, and of theirs.
func (g *gitFiles) submodules() ([]string, error) {
	var out []string
	below := g.dir + "/modules"
	err := g.Tree.Walk(below, func(dir string, e workspace.Entry) error {
		if e.Type != workspace.Folder {
			return nil
		}
		m := newGitFiles(g.Side, dir)
		if !m.there("HEAD") || !m.there("objects") {
			return nil
		}
		deeper, err := m.submodules()
		if err != nil {
			return err
		}
		if out = append(append(out, dir), deeper...); len(out) > maxSubmodules {
			return bound.Exceed(below, maxSubmodules, "submodules")
		}
		return workspace.ErrSkipDir
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return out, err
}

// workTree is the folder of a submodule's files, as its configuration names it, or its name.
func (g *gitFiles) workTree() string {
	config, err := g.read("config")
	for line := range strings.Lines(string(config)) {
		if key, value, _ := strings.Cut(line, "="); err == nil && strings.TrimSpace(key) == "worktree" {
			if dir := path.Join(g.dir, strings.TrimSpace(value)); filepath.IsLocal(dir) && dir != "." {
				return dir
			}
		}
	}
	return strings.TrimPrefix(g.dir, gitFolder+"/modules/")
}
