//go:build linux

package gitdir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Orders returns what git's configuration names below a source: the
// repository's own, of its worktrees, submodules and nested repositories, the
// users' and the system's, with all that they include, whatever the condition.
// Nothing is executed.
//
// There is no list of variables that git executes or reads as configuration:
// tools bring their own (filters, drivers, hooks, aliases), and git gets more
// with each release. Every value counts, except for those of variables that
// hold no path and no command (see harmless).
func Orders(p Places) []Named {
	n := newNamer(p)
	tops := []string{p.Source} // to which paths in a user's configuration are relative
	for _, dir := range p.Nested {
		tops = append(tops, filepath.Join(p.Source, dir))
	}
	tops = append(tops, p.Beside...)
	for _, h := range append([]string{""}, p.Homes...) {
		files := []string{filepath.Join(h, ".config/git/config"), filepath.Join(h, ".gitconfig")}
		if h == "" {
			files = []string{p.System + "/etc/gitconfig", p.System + "/usr/local/etc/gitconfig"}
		}
		for _, file := range files {
			n.gitConfig(file, tops, false, 0)
		}
	}
	for _, file := range p.Extra {
		n.gitConfig(file, tops, false, 0)
	}
	for _, top := range append([]string{p.Source}, p.Beside...) {
		repo, err := Find(top)
		if err != nil {
			// Git runs nothing from an unreadable repository. If only the format is unknown here,
			// the config is read all the same.
			repo = nil
			if dir := dirAt(top); dir != "" {
				repo = &Repo{dir: dir, common: commonDir(dir), top: top}
			}
		}
		if repo != nil {
			n.repository(repo.dir, repo.top)
			n.repository(repo.common, repo.top)
		}
	}
	for _, dir := range p.Nested {
		top := filepath.Join(p.Source, dir)
		if git := dirAt(top); git != "" {
			n.repository(git, top)
			n.repository(commonDir(git), top)
		}
	}
	return n.list
}

// repository reads the configuration in dir, and that of its worktrees and submodules.
func (n *namer) repository(dir, top string) {
	for _, name := range []string{"config", "config.worktree"} {
		file := filepath.Join(dir, name)
		bases := []string{top, n.Source}
		if conf, err := readRegular(file, maxFile); err == nil {
			if w := configValue(conf, "core.worktree"); w != "" {
				bases = append(bases, absFrom(dir, w))
			}
		}
		n.gitConfig(file, bases, true, 0)
	}
	n.hooks(dir, top)
	trees, _ := os.ReadDir(filepath.Join(dir, "worktrees"))
	for _, t := range trees {
		n.gitConfig(filepath.Join(dir, "worktrees", t.Name(), "config.worktree"), []string{top, n.Source}, true, 0)
	}
	modules := filepath.Join(dir, "modules")
	filepath.WalkDir(modules, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		switch d.Name() {
		case "objects", "refs", "logs", "hooks", "info":
			return fs.SkipDir
		}
		if path != modules && len(n.seen) <= maxConfigs && isRepository(path) {
			n.repository(path, top)
		}
		return nil
	})
}

// hooks adds the targets of the hooks in dir, and the paths that they name: git runs the hooks,
// and they run those.
func (n *namer) hooks(dir, top string) {
	dir = filepath.Join(dir, "hooks")
	n.leads(dir, "git's folder of hooks is a symlink to it", false)
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if e.IsDir() || strings.HasSuffix(e.Name(), ".sample") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		n.leads(file, "git's hook "+e.Name()+" is a symlink to it", true)
		if b := n.open(file); strings.HasPrefix(string(b), "#!") {
			n.text(ConfigFile{File: file, Base: top, Why: "git's hook " + e.Name() + " names it"}, b)
		}
	}
}

// leads adds the target of a symlink, if it is in the source.
func (n *namer) leads(link, why string, exact bool) {
	for range 40 {
		to, err := os.Readlink(link)
		if err != nil {
			return
		}
		link = absFrom(filepath.Dir(link), to)
		if p, ok := n.below(link); ok && p != "." && !Inside(p) {
			n.add(Named{Path: p, Why: why, Exact: exact})
		}
	}
}

// maxIncludes is git's limit on nested includes.
const maxIncludes = 10

// gitConfig adds the paths named by the values of a config file.
func (n *namer) gitConfig(file string, bases []string, own bool, depth int) {
	conf := n.open(file)
	c := configReader{rest: conf}
	for len(c.rest) > 0 {
		if !c.next() {
			c.line() // git stops here; continuing finds more
			continue
		}
		n.gitValue(file, c.section, c.key, c.value, bases, own)
		section, _, _ := strings.Cut(c.section, " ")
		if c.key == "path" && strings.HasPrefix(section, "include") && depth < maxIncludes && c.value != "" {
			for _, to := range n.absolutes(c.value, []string{filepath.Dir(file)}) {
				n.gitConfig(to, bases, own, depth+1)
			}
		}
	}
}

// gitValue adds the paths named by one value. own says that it comes from the source's own
// configuration.
func (n *namer) gitValue(file, section, key, value string, bases []string, own bool) {
	first, sub, _ := strings.Cut(strings.ReplaceAll(section, "\t", " "), " ")
	first, _, _ = strings.Cut(first, ".")
	sub = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(strings.Trim(strings.TrimSpace(sub), `"`))
	name := first + "." + key
	if sub != "" {
		name = first + "." + sub + "." + key
	}
	if first == "url" {
		value, name = sub, "url."+key // the prefix that addresses are rewritten to
	}
	kind := kindOf(first, key)
	if value == "" || kind != isFile && kind != isFolder && plainValue(value) || harmless(first, key) {
		return
	}
	v := Named{Why: "git's configuration names it (" + clean(name) + ")"}
	bases = append(bases[:len(bases):len(bases)], filepath.Dir(file))
	if kind == isURL {
		switch i, j := strings.IndexByte(value, ':'), strings.IndexByte(value, '/'); {
		case strings.Contains(value, "::"): // ext::COMMAND, or another helper's
			kind = isCommand
		case strings.HasPrefix(value, "file:"):
		case i >= 0 && (j < 0 || i < j):
			return // another machine
		}
	}
	homes := n.Homes
	if len(homes) == 0 {
		homes = []string{""}
	}
	for _, home := range homes {
		if kind != isCommand {
			w := v
			w.Exact = kind == isFile
			value := strings.TrimPrefix(value, "%(prefix)/")
			if rest, ok := strings.CutPrefix(strings.ReplaceAll(value, "${HOME}", "$HOME"), "$HOME/"); ok {
				value = filepath.Join(home, rest)
			}
			if kind != isOther || strings.ContainsAny(value, "/") {
				n.name(word{text: value, all: key == "hookspath"}, bases, w)
			}
		}
		for _, w := range words(value, home) {
			v := v
			switch {
			case w.bare() && kind == isCommand && w.first && !strings.HasPrefix(w.text, "."):
				continue // found by PATH
			case w.bare() && (kind == isFile || kind == isURL || kind == isFolder):
				continue // the value is one path
			case w.bare() && first == "alias" && !strings.HasPrefix(value, "!"):
				continue // an argument of git's
			case w.bare() && kind == isOther && !strings.Contains(w.text, "."):
				continue
			case w.bare() && kind == isCommand && !own:
				v.Exact = true // "npm test" of a user does not mean a folder of that name
			}
			n.name(w, bases, v)
		}
	}
}

// The kind of a value.
type valueKind int

const (
	isOther   valueKind = iota
	isCommand           // of a shell
	isFile              // one path
	isFolder            // one path, with everything below it
	isURL
)

// kindOf returns the kind of a variable's value by its name. It only decides how the value is
// split: one of an unknown kind is searched as well.
func kindOf(section, key string) valueKind {
	has := func(suffixes ...string) bool {
		for _, s := range suffixes {
			if strings.HasSuffix(key, s) {
				return true
			}
		}
		return false
	}
	switch {
	case section == "alias" || section == "pager" || section == "credential" && key == "helper":
		return isCommand
	case has("url", "insteadof", "vcs"):
		return isURL
	case has("hookspath", "dir", "directory", "capath", "templatedir"):
		return isFolder
	case has("path", "file", "template", "skiplist", "cainfo", "cert", "sslkey"):
		return isFile
	case has("cmd", "command", "program", "helper", "driver", "textconv", "clean", "smudge", "process", "editor", "pager", "hook", "askpass",
		"fsmonitor", "external", "filter", "proxy", "pack", "archive", "update", "browser", "server", "exec", "viewer", "tool"):
		return isCommand
	}
	return isOther
}

// harmless are the variables with values that are names, refs, patterns or the place of a
// repository.
func harmless(section, key string) bool {
	switch section {
	case "branch", "color", "column", "advice", "extensions", "safe", "maintenance", "gc":
		return key != "mergeoptions"
	case "remote", "submodule":
		switch key {
		case "fetch", "push", "tagopt", "active", "branch", "path":
			return true
		}
	case "user", "author", "committer":
		return key == "name" || key == "email"
	case "core":
		return key == "worktree"
	case "gui":
		return key == "recentrepo" || key == "wmstate" || key == "geometry"
	}
	return false
}

// plainValue reports whether a value is a number, or a keyword of git.
func plainValue(v string) bool {
	switch strings.ToLower(v) {
	case "true", "false", "yes", "no", "on", "off", "auto", "always", "never":
		return true
	}
	return strings.Trim(v, "0123456789kKmMgG.-+%") == ""
}
