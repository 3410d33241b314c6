package apply

import (
	"path"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// controls is the prepared controlTable: patterns by their first name, those that begin with a
// glob under "".
var controls = sync.OnceValue(func() map[string][]controlPattern {
	m := map[string][]controlPattern{}
	for i := range controlTable {
		row := &controlTable[i]
		for _, name := range strings.Fields(row.names) {
			parts := strings.Split(name, "/")
			first := parts[0]
			if strings.Contains(first, "*") {
				first = ""
			}
			c := controlPattern{row: row}
			for _, part := range parts {
				c.parts = append(c.parts, newNamePattern(part))
			}
			m[first] = append(m[first], c)
		}
	}
	return m
})

type controlPattern struct {
	parts []namePattern
	row   *controlRow
}

// controlWhy returns why p is a control path, "" if it is none.
func controlWhy(p string) string {
	if row := rowOf(p, false); row != nil {
		return row.why
	}
	for _, name := range strings.Split(gitdir.FoldPath(p), "/") {
		if shortName(name) {
			return "Windows file systems may take it for the short name of another file"
		}
	}
	return ""
}

// rowOf returns the row of controlTable that matches p, of those that hold back or of those that
// only show; nil if none.
func rowOf(p string, shown bool) *controlRow {
	parts := strings.Split(gitdir.FoldPath(p), "/")
	for i, name := range parts {
		for _, first := range []string{name, ""} {
			for _, c := range controls()[first] {
				if c.row.shown == shown && c.matches(parts[i:]) {
					return c.row
				}
			}
		}
	}
	return nil
}

func (c controlPattern) matches(parts []string) bool {
	if len(parts) < len(c.parts) {
		return false
	}
	for i := range c.parts {
		if !c.parts[i].matches(parts[i]) {
			return false
		}
	}
	return true
}

// namePattern is a pattern of path.Match for a name. What has to be at its ends is known beforehand: it is asked of each pattern for
// each part of each path that changed, and nearly never more than that.
type namePattern struct {
	text           string
	prefix, suffix string // before the first special character, and after the last
	special        bool
}

func newNamePattern(text string) namePattern {
	const special = `*?[]\`
	first := strings.IndexAny(text, special)
	if first < 0 {
		return namePattern{text: text}
	}
	return namePattern{text, text[:first], text[strings.LastIndexAny(text, special)+1:], true}
}

func (n *namePattern) matches(name string) bool {
	if !n.special {
		return name == n.text
	}
	if !strings.HasPrefix(name, n.prefix) || !strings.HasSuffix(name, n.suffix) {
		return false
	}
	ok, _ := path.Match(n.text, name)
	return ok
}

// shortName reports whether a name has the form that NTFS and FAT give to a
// second name of a file: "claude~1", "mcp~1.jso".
func shortName(name string) bool {
	stem, ext, _ := strings.Cut(name, ".")
	base, number, ok := strings.Cut(stem, "~")
	return ok && base != "" && len(stem) <= 8 && len(ext) <= 3 && number != "" && strings.Trim(number, "0123456789") == ""
}

// A controller decides which changes are control paths.
type controller struct {
	base, after *workspace.Tree
	named       *namedPaths // named by configurations of the host
	reserved    reservedPaths
	aliases     map[string]alias // targets of symlinks at control paths
	dirs        map[string]dirFacts
}

// alias is a symlink at a control path.
type alias struct{ name, why string }

// dirFacts are the findings about one folder.
type dirFacts struct{ repository bool }

func newController(base, after *workspace.Tree, reserved reservedPaths) *controller {
	return &controller{base: base, after: after, reserved: reserved, named: newNamedPaths(), aliases: map[string]alias{}, dirs: map[string]dirFacts{}}
}

// prepare inspects the folders of path, in both trees. It is called for all changes before why
// is called for the first.
func (k *controller) prepare(path string) error {
	for dir := workspace.Parent(path); ; dir = workspace.Parent(dir) {
		if _, known := k.dirs[dir]; known {
			return nil
		}
		var f dirFacts
		for _, t := range []*workspace.Tree{k.base, k.after} {
			d, err := listDir(t, dir)
			if err != nil {
				return err
			}
			f.repository = f.repository || (t == k.after && looksLikeRepository(d))
			if err := k.findAliases(t, dir, d); err != nil {
				return err
			}
		}
		k.dirs[dir] = f
		if dir == "" {
			return nil
		}
	}
}

// findAliases records the targets of symlinks at control paths in dir, and in folders like
// .github: ".vscode -> tools/vscode" makes tools/vscode a control path.
func (k *controller) findAliases(t *workspace.Tree, dir string, d workspace.Dir) error {
	for _, e := range d {
		p := path.Join(dir, e.Name)
		switch e.Type {
		case workspace.Symlink:
			why := controlWhy(p)
			if why == "" {
				continue
			}
			if to, ok := resolve(t, p); ok && to != "" {
				k.aliases[to] = alias{p, why}
			}
		case workspace.Folder:
			switch gitdir.FoldName(e.Name) {
			case ".github", ".gitlab", ".gitea", ".forgejo", ".config", ".docker":
				if _, known := k.dirs[p]; known {
					continue
				}
				below, err := t.ReadDir(e.Digest)
				if err != nil {
					return err
				}
				if err := k.findAliases(t, p, below); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// looksLikeRepository reports whether git would take a folder with these names for a repository,
// and run programs of its config.
func looksLikeRepository(d workspace.Dir) bool {
	has := map[string]bool{}
	for _, e := range d {
		has[gitdir.FoldName(e.Name)] = true
	}
	return has["head"] && (has["commondir"] || (has["objects"] && has["refs"]))
}

// why returns why the change is held back unless included, "" if it is not.
func (k *controller) why(c *workspace.Change) string {
	if w := controlWhy(c.Path); w != "" {
		return w
	}
	for p := c.Path; p != ""; p = workspace.Parent(p) {
		if a, ok := k.aliases[p]; ok {
			return "the symlink " + diff.Quote(a.name) + " leads here: " + a.why
		}
		if k.dirs[workspace.Parent(p)].repository {
			return "its folder looks like a git repository, with settings that run programs"
		}
	}
	if why := k.named.why(c.Path); why != "" {
		return why
	}
	if c.New != nil && c.New.Type == workspace.Symlink {
		return k.whyLink(c.Path)
	}
	return ""
}

// whyLink decides on a symlink by its target in the new state.
func (k *controller) whyLink(p string) string {
	to, ok := resolve(k.after, p)
	switch {
	case !ok:
		return "it is a symlink that leads out of the workspace"
	case gitdir.Inside(to):
		return "it is a symlink into git's own files"
	case k.reserved.covers(to):
		return "it is a symlink to what was left out of the cell"
	}
	return ""
}
