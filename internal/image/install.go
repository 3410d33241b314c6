package image

import (
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// binNames are directories that hold the programs of the install root above.
var binNames = []string{"bin", "sbin", "libexec", "shims", "condabin", "scripts"}

// broadInHome are directories below a home that hold the things of many
// programs, or a person's own: none of them is one install root.
var broadInHome = []string{".local", ".local/share", ".local/lib", ".local/state", ".local/opt", ".config", ".cache", ".var", ".var/app",
	"apps", "opt", "programs", "src", "code", "projects", "work", "git", "repos", "dev", "development", "workspace", "snap"}

// personal are a person's own directories in the home. What tools are linked
// to is never shown from there.
var personal = []string{"desktop", "documents", "downloads", "pictures", "photos", "music", "videos", "movies", "public", "templates", "mail", "maildir",
	"dropbox", "onedrive", "nextcloud", "owncloud", "google drive", "icloud", "sync", "private", "vaults", "notes"}

// inHome returns the path below the home, "" if it is not below it.
func (p *planner) inHome(at string) string {
	if below(p.home, at) {
		return at[len(p.home)+1:]
	}
	return ""
}

// broad reports whether a directory is too much to be one install root.
func (p *planner) broad(dir string) bool {
	if dir == "/" || strings.Count(dir, "/") < 2 || within(dir, p.home) || within(dir, p.req.Home) {
		return true
	}
	for _, h := range p.g.homes {
		if dir == h {
			return true
		}
	}
	switch dir {
	case "/var/lib", "/var/opt", "/var/cache", "/var/local", "/var/tmp":
		return true
	}
	rel := strings.ToLower(p.inHome(dir))
	return rel != "" && (slices.Contains(broadInHome, rel) || slices.Contains(personal, rel))
}

// isPersonal reports whether a path lies among a person's own or hidden
// things, where no project has any business.
func (p *planner) isPersonal(at string) bool {
	rel := p.inHome(at)
	if rel == "" {
		return false
	}
	top, _, _ := strings.Cut(strings.ToLower(rel), "/")
	return top[0] == '.' || slices.Contains(personal, top)
}

// careful are the parts that are mounted of an install root which holds more
// than a program should.
var careful = []string{"bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "include", "shims", "versions", "plugins", "tools", "jre", "jbr", "modules"}

// holdsMore reports whether a directory in the home holds, at its top, things
// that are no program's: settings, credentials, a checkout.
func (p *planner) holdsMore(dir string) bool {
	if p.inHome(dir) == "" {
		return false
	}
	for _, e := range p.t.list(dir) {
		n := strings.ToLower(e.name)
		if n == ".git" || e.mode.IsRegular() && (secretFile(n) || settingName(n)) {
			return true
		}
	}
	return false
}

func settingName(n string) bool {
	stem, _, _ := strings.Cut(n, ".")
	switch stem {
	case "config", "settings", "auth", "credentials", "credential", "token", "tokens", "secrets", "account", "accounts", "hosts", "session", "login":
		return true
	}
	return strings.HasSuffix(n, ".key") || strings.HasSuffix(n, ".token")
}

// installRoot is the general rule: of a program or a directory of programs,
// what has to be mounted so that it works. The result may be pl itself.
func (p *planner) installRoot(pl place) []part {
	if i := strings.Index(pl.path, "/node_modules/"); i > 0 {
		// A package finds what it needs beside itself.
		return []part{{pl.path[:i+len("/node_modules")], cell.Bind}}
	}
	dir := pl.path
	if !pl.isDir() {
		dir = path.Dir(pl.path)
	}
	root := dir
	if slices.Contains(binNames, strings.ToLower(path.Base(dir))) {
		root = path.Dir(dir)
	}
	if root == dir && pl.isDir() {
		// On PATH as it is: that directory, but not what else lies beside it.
		if p.broad(dir) {
			return nil
		}
		return []part{{dir, cell.Bind}}
	}
	if p.broad(root) {
		if p.broad(dir) || root == dir {
			return []part{{pl.path, cell.Bind}}
		}
		return []part{{dir, cell.Bind}}
	}
	if p.holdsMore(root) {
		if root == dir {
			return []part{{pl.path, cell.Bind}}
		}
		out := []part{{dir, cell.Bind}}
		for _, name := range careful {
			if at := join(root, name); at != dir && p.t.lstat(at).isDir() {
				out = append(out, part{at, cell.Bind})
			}
		}
		return out
	}
	return []part{{root, cell.Bind}}
}

// install makes the program or directory of programs at the path usable: its
// install root is mounted, and the symlinks that lead to it are made. It says
// why not if it can't.
func (p *planner) install(at string) (refused string) {
	pl := p.t.resolve(at)
	if !pl.exists() {
		return "it does not exist"
	}
	if why := p.refuseRedirected(pl); why != "" {
		return why
	}
	if !p.shown(pl.path) {
		parts, label := p.installParts(at, pl)
		refused = p.showParts(parts, label)
		if !p.shown(pl.path) && !p.partly(pl) {
			if refused == "" {
				refused = "its directory holds more than programs"
			}
			return refused
		}
	}
	p.link(pl)
	return ""
}

// showParts mounts the parts that exist. It says why the first was refused.
func (p *planner) showParts(parts []part, label string) (refused string) {
	for _, part := range parts {
		pl := p.t.resolve(part.path)
		if !pl.exists() {
			continue
		}
		if why := p.show(part.path, part.kind, label); why != "" {
			if refused == "" {
				refused = why
			}
			continue
		}
		if pl.isDir() && p.t.lstat(join(pl.path, "pyvenv.cfg")).isFile() {
			p.venv(pl.path, false)
		}
	}
	return refused
}

// partly reports whether something in the directory pl is mounted.
func (p *planner) partly(pl place) bool {
	if !pl.isDir() {
		return false
	}
	for at, s := range p.slots {
		if s.own && below(pl.path, at) {
			return true
		}
	}
	return false
}

func (p *planner) installParts(at string, pl place) ([]part, string) {
	if m, root, rest := p.managerOf(at, pl); m != nil {
		if parts := m.parts(root, rest); parts != nil {
			return parts, "toolchain " + m.name
		}
	}
	parts := p.installRoot(pl)
	if len(parts) == 0 {
		return nil, ""
	}
	return parts, "toolchain " + path.Base(parts[0].path)
}
