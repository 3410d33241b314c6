package image

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Bounds on what is looked at of a project.
const (
	maxFolders  = 300 // directories
	maxDepth    = 2   // of a directory below the source: its files are at 3
	maxManifest = 1 << 20
	maxLeads    = 256 // things that a project points to
)

// skipped are directories without manifests of the project itself.
var skipped = []string{"node_modules", "vendor", "target", "dist", "build", "out", "__pycache__", "third_party", "bower_components"}

// hiddenFolders are the hidden directories that are looked into.
var hiddenFolders = []string{".venv", ".env", ".tox", ".nox", ".virtualenv", ".direnv"}

// A folder is one directory of the project.
type folder struct {
	path    string
	depth   int
	entries []entry
}

func (f folder) has(name string) bool {
	return slices.ContainsFunc(f.entries, func(e entry) bool { return e.name == name })
}

// outside shows, read-only, what the project links to outside itself, or says
// why it is not there. The work is bounded: it looks at the top levels and at
// known files, whatever the project's size.
func (p *planner) outside() {
	if p.source == "" {
		return
	}
	queue := []folder{{path: p.source}}
	for n := 0; n < len(queue); n++ {
		queue[n].entries = p.t.list(queue[n].path)
		f := queue[n]
		isVenv := f.has("pyvenv.cfg")
		if isVenv {
			p.venv(f.path, true)
		}
		for _, e := range f.entries {
			at := join(f.path, e.name)
			switch {
			case e.text != "":
				if f.depth < 2 && !isVenv {
					p.symlink(at, e)
				}
			case e.name == ".git":
				p.gitDir(at, e.mode.IsDir())
			case e.name == "node_modules" && e.mode.IsDir():
				p.nodeModules(at)
			case e.mode.IsRegular():
				p.manifest(at, e.name)
			case e.mode.IsDir() && f.depth < maxDepth && !isVenv && len(queue) < maxFolders && !slices.Contains(skipped, e.name) &&
				(e.name[0] != '.' || slices.Contains(hiddenFolders, e.name)):
				queue = append(queue, folder{path: at, depth: f.depth + 1})
			}
		}
	}
	p.above(queue[0])
}

// manifest follows what a known file of the project points to.
func (p *planner) manifest(at, name string) {
	switch {
	case name == "go.mod" || name == "go.work":
		p.goManifest(at)
	case name == "Cargo.toml":
		p.cargoManifest(at, 0)
	case name == "package.json":
		p.npmManifest(at)
	case name == "pyproject.toml":
		p.pyproject(at)
	case strings.HasPrefix(name, "requirements") && strings.HasSuffix(name, ".txt"):
		p.requirements(at)
	}
}

// rel names a file for people: as seen from the source if it lies there.
func (p *planner) rel(at string) string {
	if below(p.source, at) {
		return at[len(p.source)+1:]
	}
	return at
}

// follow shows what the file from points to, if it is what it should be. The
// path is absolute, or relative to from's directory.
func (p *planner) follow(from, to, what string, genuine func(place) bool) (place, bool) {
	if !path.IsAbs(to) {
		to = join(path.Dir(from), to)
	}
	pl := p.t.resolve(to)
	if !pl.exists() || within(p.source, pl.path) {
		return pl, false
	}
	if s, ok := p.slotOf(pl.path); ok && s.own && !s.data {
		p.link(pl)
		return pl, true
	}
	if !genuine(pl) {
		if pl.isDir() {
			p.note(p.rel(from), "points to "+pl.path+", which is no "+what, p.mountFix(pl.path))
		}
		return pl, false
	}
	return pl, p.data(p.rel(from), pl)
}

// unsuited says why what the project points to is not shown without being
// asked for; "" is nothing against it.
func (p *planner) unsuited(pl place) string {
	if why := p.g.refuseAuto(pl); why != "" {
		return why
	}
	if p.isPersonal(pl.path) {
		return "it lies among your personal files"
	}
	if pl.isDir() && p.broad(pl.path) {
		return "it holds more than one project"
	}
	return ""
}

// data shows a directory or file that is part of some other project, with its
// secrets and its repository covered.
func (p *planner) data(from string, pl place) bool {
	if p.leads++; p.leads > maxLeads {
		return false
	}
	refused := p.unsuited(pl)
	if refused == "" {
		refused = p.show(pl.path, cell.Bind, "linked from "+from)
	}
	if refused != "" {
		p.note(from, "points to "+pl.path+", which is not in the cell: "+refused, p.mountFix(pl.path))
		return false
	}
	if s := p.slots[pl.path]; s.own {
		s.data, s.Owned = true, pl.uid == p.uid
		p.slots[pl.path] = s
	}
	p.link(pl)
	p.cover(pl.path, pl.path, true, 0)
	return true
}

// cover hides what an import would leave out of the host's directory dir,
// which is shown at the path at: secrets by name and sockets in its top two
// levels. It returns what it hid. With repo also the repository, whose
// settings may hold a password, and the settings of agents.
func (p *planner) cover(dir, at string, repo bool, depth int) (hidden []string) {
	for n, e := range p.t.list(dir) {
		low := strings.ToLower(e.name)
		target := join(at, e.name)
		m := cell.Mount{Kind: cell.Bind, Target: target, Source: p.empty, ReadOnly: true, Why: "hidden"}
		switch {
		case e.mode.IsDir() && (repo && low == ".git" || low[0] == '.' && secretIn("/"+low) != ""):
			m.Kind, m.Source = cell.Tmpfs, ""
		case e.mode&fs.ModeSocket != 0, e.mode.IsRegular() && (repo && low == ".git" || secretFile(low)):
		case e.mode.IsDir() && depth == 0 && n < maxFolders && !slices.Contains(skipped, low):
			hidden = append(hidden, p.cover(join(dir, e.name), target, repo, 1)...)
			continue
		default:
			continue
		}
		if s, ok := p.slots[target]; !ok || !s.asked && !s.cells {
			p.slots[target] = slot{Mount: m, cover: true}
			hidden = append(hidden, join(dir, e.name))
		}
	}
	return hidden
}

// symlink follows a link in the top levels of the project.
func (p *planner) symlink(at string, e entry) {
	to := e.text
	if !path.IsAbs(to) {
		to = join(path.Dir(at), to)
	}
	if within(p.source, path.Clean(to)) && !strings.Contains(e.text, "..") {
		return
	}
	for _, own := range []string{"/dev", "/proc"} {
		if within(own, path.Clean(to)) {
			return // the cell has its own
		}
	}
	pl := p.t.resolve(at)
	if !pl.exists() || within(p.source, pl.path) {
		return
	}
	if p.shown(pl.path) {
		p.link(pl)
		return
	}
	if m, root, rest := p.managerOf("", pl); m != nil {
		// Nix's "result", a link to a toolchain: the whole install root.
		if parts := m.parts(root, rest); parts != nil {
			p.showParts(parts, "toolchain "+m.name)
			p.link(pl)
			return
		}
	}
	switch {
	case e.name == ".git":
		p.note(p.rel(at), "leads to the git directory "+pl.path+", which is not in the cell", p.mountFix(pl.path))
	case secretFile(e.name) && !pl.isDir():
		p.note(p.rel(at), "leads to "+pl.path+", which is not in the cell: its name is a secret's", "")
	default:
		p.data(p.rel(at), pl)
	}
}

// above says what lies above the source and would be used on the host: the
// project is a member of something larger.
func (p *planner) above(top folder) {
	has := func(dir, name string) bool { return p.t.lstat(join(dir, name)).exists() }
	dir := p.source
	for range 4 {
		if dir = path.Dir(dir); dir == "/" || within(dir, p.home) {
			return
		}
		fix := ""
		if p.g.refuseSource(dir, p.t.resolve(dir)) == "" {
			fix = "--from " + dir + " --workdir " + p.source
		}
		if top.has("go.mod") && !top.has("go.work") && p.env["GOWORK"] == "" && has(dir, "go.work") {
			p.note(join(dir, "go.work"), "is above the source: in the cell Go uses the module alone", fix)
		}
		if top.has("Cargo.toml") && has(dir, "Cargo.toml") && strings.Contains(p.t.text(join(dir, "Cargo.toml"), maxManifest), "[workspace]") &&
			!strings.Contains(p.t.text(join(p.source, "Cargo.toml"), maxManifest), "[workspace]") {
			p.note(join(dir, "Cargo.toml"), "is a workspace above the source, which is not in the cell", fix)
		}
		if top.has("package.json") && !top.has("node_modules") && has(dir, "node_modules") {
			p.note(join(dir, "node_modules"), "is above the source and not in the cell", fix)
		}
	}
}
