package apply

import (
	"path"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A survey lists the files of a workspace that may name control paths.
type survey struct {
	nested []string // folders with a repository of their own
	files  []string // files of rows that name further files
	seen   map[string]bool
}

// maxFollowed bounds the files of one workspace that are read for names.
const maxFollowed = 1000

// look adds the folder dir with the entries d.
func (s *survey) look(t *workspace.Tree, dir string, d workspace.Dir) error {
	for _, e := range d {
		p := path.Join(dir, e.Name)
		if gitdir.IsDotGit(e.Name) {
			if dir != "" && !s.seen[dir] {
				s.seen[dir] = true
				s.nested = append(s.nested, dir)
			}
			continue
		}
		if e.Type == workspace.Folder {
			switch gitdir.FoldName(e.Name) {
			case ".config", ".github", "tools", "gradle", ".yarn":
			default:
				if row := rowOf(e.Name, false); row == nil || row.named == namesNothing {
					continue
				}
			}
			below, err := t.ReadDir(e.Digest)
			if err != nil {
				return err
			}
			for _, b := range below {
				s.file(t, path.Join(p, b.Name), b)
			}
			continue
		}
		s.file(t, p, e)
	}
	return nil
}

func (s *survey) file(t *workspace.Tree, p string, e workspace.Entry) {
	row := rowOf(p, false)
	if row == nil || row.named == namesNothing || s.seen[p] || len(s.files) >= maxFollowed {
		return
	}
	switch path.Ext(gitdir.FoldName(p)) {
	case ".md", ".mdc", ".txt", ".log", ".lock": // prose, and output of programs
		return
	}
	if path.Base(p) == "launch.json" { // programs that a person starts
		return
	}
	s.seen[p] = true
	switch e.Type {
	case workspace.File:
		s.files = append(s.files, p)
	case workspace.Symlink:
		if _, ok := resolve(t, p); ok {
			s.files = append(s.files, p)
		}
	}
}

// everywhere visits all folders of t except those of package managers.
func (s *survey) everywhere(t *workspace.Tree, dir string, digest workspace.Entry) error {
	d, err := t.ReadDir(digest.Digest)
	if err != nil {
		return err
	}
	if err := s.look(t, dir, d); err != nil {
		return err
	}
	for _, e := range d {
		if e.Type != workspace.Folder || gitdir.IsDotGit(e.Name) || e.Name == "node_modules" {
			continue
		}
		if err := s.everywhere(t, path.Join(dir, e.Name), e); err != nil {
			return err
		}
	}
	return nil
}

// configFiles are the surveyed files of a source. named is what they are named from, "" for that.
func (s *survey) configFiles(source, named string) (files []gitdir.ConfigFile) {
	for _, p := range s.files {
		row := rowOf(p, false)
		files = append(files, gitdir.ConfigFile{File: filepath.Join(source, p), Base: filepath.Join(source, holderOf(p)),
			Why: diff.Quote(filepath.Join(named, p)) + " names it: " + row.why, Folders: row.named == namesFolders})
	}
	return files
}

// learn collects the paths named by the configuration of the host and by control files of the
// source. The source's present versions count: the cell's versions of these files are held back
// themselves.
func (k *controller) learn(source string, req *Request) error {
	if source == "" { // nothing can be run
		return nil
	}
	s := survey{seen: map[string]bool{}}
	if err := s.everywhere(k.base, "", k.base.Root); err != nil {
		return err
	}
	for _, p := range req.Reserved { // in the source, but not in the trees
		s.file(k.base, strings.Trim(p, "/"), workspace.Entry{Type: workspace.File})
	}
	files := s.configFiles(source, "")
	var beside []string
	for _, o := range req.beside {
		of := survey{seen: map[string]bool{}}
		if err := of.everywhere(o.tree, "", o.tree.Root); err != nil {
			return err
		}
		files = append(files, of.configFiles(o.source, o.source)...)
		beside = append(beside, o.source)
		for _, dir := range of.nested {
			beside = append(beside, filepath.Join(o.source, dir))
		}
	}
	for _, h := range req.Homes {
		for _, f := range userFiles {
			files = append(files, gitdir.ConfigFile{File: filepath.Join(h, f), Base: source, Why: "~/" + f + " names it"})
		}
	}
	places := gitdir.Places{Source: source, Homes: req.Homes, Extra: req.GitConfigs, Nested: s.nested, Beside: beside}
	for _, n := range append(gitdir.Orders(places), gitdir.NamedIn(places, files)...) {
		k.named.add(n)
		if n.Anywhere || n.Path == "." {
			continue
		}
		for _, t := range []*workspace.Tree{k.base, k.after} {
			links, end := way(t, n.Path)
			why := "the way to " + diff.Quote(n.Path) + " leads over it: " + n.Why
			for _, p := range links {
				k.named.add(gitdir.Named{Path: p, Why: why, Exact: true})
			}
			if end != "" && end != n.Path {
				k.named.add(gitdir.Named{Path: end, Why: why, Exact: n.Exact})
			}
		}
	}
	return nil
}

// holderOf returns the folder of the first control path in p: "a" for a/.vscode/tasks.json.
func holderOf(p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		if rowOf(path.Join(parts[:i+1]...), false) != nil {
			return path.Join(parts[:i]...)
		}
	}
	return workspace.Parent(p)
}

// way returns the symlinks that the kernel follows on the path p in t, and its target; "" is
// outside of t.
func way(t *workspace.Tree, p string) (links []string, end string) {
	var at []string
	todo := strings.Split(p, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return links, ""
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, name)
		here := strings.Join(at, "/")
		e, err := t.Lookup(here)
		if err != nil || e.Type != workspace.Symlink {
			continue
		}
		links = append(links, here)
		if len(links) > maxLinks || strings.HasPrefix(e.Target, "/") {
			return links, ""
		}
		at = at[:len(at)-1]
		todo = append(strings.Split(e.Target, "/"), todo...)
	}
	return links, strings.Join(at, "/")
}

// namedPaths are paths named by configurations, by folded path.
type namedPaths struct {
	exact, below   map[string]string // path → why; the path alone, and with everything below it
	ends, endBelow map[string]string // likewise for paths that begin in any folder
}

func newNamedPaths() *namedPaths {
	return &namedPaths{map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}}
}

func (s *namedPaths) add(n gitdir.Named) {
	m := s.below
	switch {
	case n.Anywhere && n.Exact:
		m = s.ends
	case n.Anywhere:
		m = s.endBelow
	case n.Exact:
		m = s.exact
	}
	p := gitdir.FoldPath(n.Path)
	if n.Path == "." {
		p = "."
	}
	if m[p] == "" {
		m[p] = n.Why
	}
}

// why returns why p is a named path, "" if it is not.
func (s *namedPaths) why(p string) string {
	p = gitdir.FoldPath(p)
	if why := s.below["."]; why != "" {
		return why
	}
	if why := s.exact[p]; why != "" {
		return why
	}
	for from := p; ; {
		if why := s.ends[from]; why != "" {
			return why
		}
		for at := from; at != ""; at = workspace.Parent(at) {
			if why := s.endBelow[at]; why != "" {
				return why
			}
			if why := s.below[at]; why != "" && len(from) == len(p) {
				return why
			}
		}
		i := strings.IndexByte(from, '/')
		if i < 0 {
			return ""
		}
		from = from[i+1:]
	}
}

// userFiles are configurations of a user, below the home directory, that may
// name files of a source.
var userFiles = []string{
	".hgrc", ".config/hg/hgrc", ".jjconfig.toml", ".config/jj/config.toml", ".config/sapling/sapling.conf", ".subversion/config",
	".cargo/config.toml", ".cargo/config", ".config/mise/config.toml", ".config/direnv/direnv.toml", ".bazelrc", ".npmrc", ".yarnrc.yml", ".config/pnpm/rc", ".bunfig.toml",
}
