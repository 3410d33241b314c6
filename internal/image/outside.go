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

// A Lead is something outside the source that the source points to. The
// source is never a reason to mount it: it is in the cell only where the
// system, the caller's environment or --mount shows it.
type Lead struct {
	From string // the file of the source that points there, relative to the source
	To   string // where it leads, without symlinks
	Why  string // one clause
	Fix  string // the flag that lets it in; "" if no flag does
}

// outside names what the project links to outside itself and the cell does not
// have. It mounts nothing. The work is bounded: it looks at the top levels and
// at known files, whatever the project's size.
func (p *planner) outside() {
	if p.source == "" || p.req.Source == "" {
		return
	}
	for _, s := range p.sources {
		p.outsideOf(s)
	}
}

// outsideOf is outside for one of the sources.
func (p *planner) outsideOf(source string) {
	queue := []folder{{path: source}}
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
				if !isVenv {
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
		p.cargoManifest(at)
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
	if p.inSource(at) && below(p.top, at) {
		return strings.TrimPrefix(at[len(p.top):], "/")
	}
	return at
}

// follow names what the file from points to. The path is absolute, or relative
// to from's directory.
func (p *planner) follow(from, to string) {
	if !path.IsAbs(to) {
		to = join(path.Dir(from), to)
	}
	p.lead(from, p.t.resolve(to))
}

// lead names a place that the file from of the source points to, unless it is
// part of the source or the cell has it anyway.
func (p *planner) lead(from string, pl place) {
	if !pl.exists() || p.inSource(pl.path) {
		return
	}
	if p.shown(pl.path) {
		p.link(pl)
		return
	}
	p.outsider(from, pl, "leads to "+pl.path+", outside the source", p.mountFix(pl.path))
}

// outsider records a lead, once.
func (p *planner) outsider(from string, pl place, why, fix string) {
	l := Lead{From: p.rel(from), To: pl.path, Why: why, Fix: fix}
	if slices.Contains(p.plan.Outside, l) {
		return
	}
	if len(p.plan.Outside) == maxLeads {
		p.note(p.rel(from), "and others lead out of the source, too: not all are named", "")
		return
	}
	if l.Fix == "" {
		if refused := p.refuseAsked(pl); refused != "" {
			l.Why += ": " + refused
		}
	}
	p.plan.Outside = append(p.plan.Outside, l)
}

// redirected reports whether the way to pl passes a symlink of the source: the
// caller named a path in the source, and the source says where it leads.
func (p *planner) redirected(pl place) bool {
	return p.source != "" && !p.inSource(pl.path) && slices.ContainsFunc(pl.links, func(l link) bool { return p.inSource(l.at) })
}

// refuseRedirected says why pl is not shown when the source redirects the path
// that led to it, and names it among what was left out.
func (p *planner) refuseRedirected(pl place) string {
	if !p.redirected(pl) {
		return ""
	}
	if !p.shown(pl.path) {
		for _, l := range pl.links {
			if p.inSource(l.at) {
				p.lead(l.at, pl)
				break
			}
		}
	}
	return "a symlink of the source leads to it"
}

// data shows a directory or file that a package of the caller's own tools is
// linked to, with its secrets and its repository covered.
func (p *planner) data(from string, pl place) {
	if p.leads++; p.leads > maxLeads {
		return
	}
	if s, ok := p.slotOf(pl.path); ok && s.own && !s.data {
		p.link(pl)
		return
	}
	refused := p.unsuited(pl)
	if refused == "" {
		refused = p.show(pl.path, cell.Bind, linkedFrom+from)
	}
	if refused != "" {
		p.note(from, "points to "+pl.path+", which is not in the cell: "+refused, p.mountFix(pl.path))
		return
	}
	if s := p.slots[pl.path]; s.own {
		s.data = true
		p.slots[pl.path] = s
	}
	p.link(pl)
	p.cover(pl.path, pl.path, true, 0)
}

// unsuited says why what a tool is linked to is not shown; "" is nothing
// against it.
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

// cover hides what an import would leave out of the host's directory dir, which is shown at
// the path at: secrets by name and sockets in its top two levels. It returns what it hid.
// With repo it also hides the repository, because its settings may hold a password, and
// the settings of agents.
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

// symlink names what a link in the top levels of the project leads to.
func (p *planner) symlink(at string, e entry) {
	to := e.text
	if !path.IsAbs(to) {
		to = join(path.Dir(at), to)
	}
	if p.inSource(path.Clean(to)) && !strings.Contains(e.text, "..") {
		return
	}
	for _, own := range []string{"/dev", "/proc"} {
		if within(own, path.Clean(to)) {
			return // the cell has its own
		}
	}
	p.lead(at, p.t.resolve(at))
}

// above says what lies above the source and would be used on the host: the
// project is a member of something larger.
func (p *planner) above(top folder) {
	has := func(dir, name string) bool { return p.t.lstat(join(dir, name)).exists() }
	source := top.path
	dir := source
	for range 4 {
		if dir = path.Dir(dir); dir == "/" || within(dir, p.home) {
			return
		}
		fix := ""
		if p.g.refuseSource(dir, p.t.resolve(dir)) == "" {
			fix = "--from " + dir + " --workdir " + source
		}
		if top.has("go.mod") && !top.has("go.work") && p.env["GOWORK"] == "" && has(dir, "go.work") {
			p.note(join(dir, "go.work"), "is above the source: in the cell Go uses the module alone", fix)
		}
		if top.has("Cargo.toml") && has(dir, "Cargo.toml") && strings.Contains(p.t.text(join(dir, "Cargo.toml"), maxManifest), "[workspace]") &&
			!strings.Contains(p.t.text(join(source, "Cargo.toml"), maxManifest), "[workspace]") {
			p.note(join(dir, "Cargo.toml"), "is a workspace above the source, which is not in the cell", fix)
		}
		if top.has("package.json") && !top.has("node_modules") && has(dir, "node_modules") {
			p.note(join(dir, "node_modules"), "is above the source and not in the cell", fix)
		}
	}
}
