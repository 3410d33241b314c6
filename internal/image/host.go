package image

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// HostRequest is what the host image is made for.
type HostRequest struct {
	Root   string    // where the host's files lie: "/"; tests have others
	Env    []string  // the caller's environment, NAME=value
	Home   string    // the caller's home directory; its path is the cell's too
	Cwd    string    // the caller's directory, for relative --mount sources
	User   cell.User // identity of commands in the cell
	Source string    // the source directory; "" for a cell without one
	// Further are directories that are sources beside Source, or places beside Place, and Top is what the paths of all are
	// named from.
	Further []string
	Top     string
	Workdir string   // where the command will run
	Command []string // the command; its program must be reachable
	// Confined: the caller may not name files of the host. Workdir and the path of a
	// program are looked up in the cell alone, and no hint says what the host has.
	Confined bool
	// Place is where the workspace belongs when no directory of the host is its
	// source.
	Place  string
	Mounts []string // --mount SRC:DST[:rw]
	Caches []string // the caches that are kept: see CheckKept
	EtcDir string   // on the real disk: where filtered /etc directories are kept
	State  []string // pando's own directories: never mounted, nor one above them
}

// HostPlan is a root file system as data. Mounts are in the order in which
// they are made, parents before children. The caller puts the cell's own
// places into it with Insert: at Home, at Tmp and at Workspaces.
type HostPlan struct {
	Mounts     []cell.Mount
	Env        []string // sorted, complete; the caller adds what was asked with --env
	Path       string   // the value of PATH in Env
	Home       string   // where the cell's own home directory belongs
	Tmp        string   // where the cell's own /tmp belongs
	Workspaces []string // where the workspace belongs: the sources without symlinks, that of Source first
	Workdir    string   // Workdir without symlinks of the host, where these are looked up
	Notes      []Note
	Outside    []Lead // what the source points to and the cell does not have
	Downgrades []string
	Seeds      []Seed // files that the cell finds over an image

	find   *finder // of the host image
	rooted *rooted // of another
}

// A Note names, before anything starts, something that the project or the
// caller's environment points to and that is different or missing in the cell.
type Note struct {
	Path string // what points there, or what is missing
	What string // one clause
	Fix  string // a flag or a step that would change it; "" if nothing would
}

// Host plans the host image for req. It executes nothing and writes only
// below EtcDir. Errors: Invalid and Denied for what was asked for, Unsupported
// for a host on which this image can't be made.
func Host(req HostRequest) (*HostPlan, error) {
	p, err := newPlanner(req)
	if err != nil {
		return nil, err
	}
	if err := p.base(); err != nil {
		return nil, err
	}
	if err := p.etc(); err != nil {
		return nil, err
	}
	for _, at := range []string{p.req.Home, req.Source} {
		p.link(p.t.resolve(at))
	}
	if p.resolvesWorkdir() {
		p.link(p.t.resolve(req.Workdir))
	}
	// What was asked for comes first: nothing automatic lies in its way.
	if err := p.asked(); err != nil {
		return nil, err
	}
	if err := p.keep(); err != nil {
		return nil, err
	}
	p.toolchains()
	p.caches()
	p.environment()
	p.outside()
	return p.finish()
}

// A planner gathers the mounts of one plan.
type planner struct {
	req     HostRequest
	t       *tree
	g       *guard
	env     map[string]string
	home    string   // without symlinks
	source  string   // without symlinks; "" if there is none
	sources []string // it, and those beside it
	top     string   // what paths of the sources are named from
	workdir string   // without symlinks
	uid     uint32   // owner of the home
	path    []string // PATH's entries, absolute
	empty   string   // an empty file on the real disk, which covers secrets

	rows    map[string]*manager // by the directory they own
	slots   map[string]slot     // by target
	found   map[string]string   // programs by name
	looked  map[string]bool     // programs and environments that were followed
	scanned int                 // programs looked at without being asked for
	leads   int                 // things shown because a tool is linked to them

	told []string // variables that tell tools where their kept caches are, NAME=value
	plan HostPlan
}

// A slot is what lies at one target of the cell.
type slot struct {
	cell.Mount
	own   bool // shows the host's files of the same path
	asked bool // by --mount
	data  bool // linked from a tool: what is secret in it is covered
	cover bool // hides something: never dropped
	fixed bool // part of something else: never dropped
	cells bool // the cell's own (home, /tmp, workspace): the caller inserts it
}

func newPlanner(req HostRequest) (*planner, error) {
	const op = "image.Host"
	if req.Root == "" {
		req.Root = "/"
	}
	p := &planner{
		req: req, t: newTree(req.Root), env: map[string]string{}, slots: map[string]slot{},
		found: map[string]string{}, looked: map[string]bool{},
	}
	for _, kv := range req.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			p.env[k] = v
		}
	}
	if !path.IsAbs(req.Home) || path.Clean(req.Home) == "/" {
		return nil, cell.Errorf(cell.Invalid, op, "set HOME to a directory of your own", "cannot make a root file system: %q is no home directory", req.Home)
	}
	p.req.Home = path.Clean(req.Home)
	sources := []string{req.Source}
	if req.Source != "" {
		sources = append(sources, req.Further...)
	}
	p.g = newGuard(p.t, p.req.Home, sources, req.State)
	home := p.t.resolve(p.req.Home)
	p.home, p.uid = home.path, home.uid
	for _, s := range []string{"/usr", "/etc", "/run", "/proc", "/dev", "/sys", "/tmp"} {
		if within(p.home, s) || s != "/tmp" && within(s, p.home) {
			return nil, cell.Errorf(cell.Unsupported, op, "set HOME to a directory of your own", "cannot make a root file system: the home directory %s overlaps %s", p.home, s)
		}
	}
	if req.Source != "" {
		if err := p.g.checkSource(req.Source); err != nil {
			return nil, err
		}
		p.source, p.sources = p.g.sources[0], p.g.sources
		for _, s := range req.Further {
			if err := p.g.checkSource(s); err != nil {
				return nil, err
			}
		}
	}
	if req.Source == "" && req.Place != "" {
		for _, place := range append([]string{req.Place}, req.Further...) {
			p.sources = append(p.sources, path.Clean(place))
		}
		p.source = p.sources[0]
	}
	p.top = cmp.Or(req.Top, p.source)
	for _, s := range p.sources {
		p.own(s)
	}
	p.own(p.home)
	p.own("/tmp")
	p.workdir = p.source
	switch {
	case p.resolvesWorkdir():
		p.workdir = p.t.resolve(req.Workdir).path
	case req.Workdir != "":
		p.workdir = path.Clean(req.Workdir)
	}
	base := p.source
	if base == "" {
		base = p.home
	}
	for _, dir := range strings.Split(p.env["PATH"], ":") {
		switch {
		case dir == "":
		case path.IsAbs(dir):
			p.path = append(p.path, path.Clean(dir))
		default:
			p.path = append(p.path, path.Join(base, dir))
		}
	}
	p.rows = managerRoots(p)
	p.plan = HostPlan{Home: p.home, Tmp: "/tmp", Workspaces: p.sources, Workdir: p.workdir}
	return p, nil
}

// resolvesWorkdir reports whether the host's symlinks decide where the working
// directory is. Those of a workspace without a source are not the host's, and a
// confined caller learns nothing of them.
func (p *planner) resolvesWorkdir() bool {
	w := p.req.Workdir
	return w != "" && !p.req.Confined && !(p.req.Source == "" && p.inSource(path.Clean(w)))
}

// inSource reports whether a path is in a source.
func (p *planner) inSource(at string) bool {
	return slices.ContainsFunc(p.sources, func(s string) bool { return within(s, at) })
}

// holdsSource reports whether a path is a source or above one.
func (p *planner) holdsSource(at string) bool {
	return slices.ContainsFunc(p.sources, func(s string) bool { return within(at, s) })
}

func (p *planner) isSource(at string) bool { return slices.Contains(p.sources, at) }

func (p *planner) own(target string) {
	p.slots[target] = slot{Mount: cell.Mount{Target: target}, cells: true}
}

// slotOf returns the slot that decides what is seen at a path.
func (p *planner) slotOf(at string) (slot, bool) {
	for dir := at; ; dir = path.Dir(dir) {
		if s, ok := p.slots[dir]; ok {
			return s, true
		}
		if dir == "/" {
			return slot{}, false
		}
	}
}

// shown reports whether the cell sees the host's file of the same path, which
// has no symlinks.
func (p *planner) shown(at string) bool {
	s, ok := p.slotOf(at)
	switch {
	case !ok:
		return false
	case s.cells:
		return p.isSource(s.Target)
	case s.Target == "/etc":
		return etcShows(at)
	}
	return s.own
}

// mayAppear reports whether a file that is not there now can come into being
// at the path in the cell.
func (p *planner) mayAppear(at string) bool {
	s, ok := p.slotOf(at)
	return ok && (s.cells || s.Kind == cell.Tmpfs && s.Target == "/var/tmp" || s.asked && !s.ReadOnly)
}

// linkedFrom begins the label of what a tool's files lead to. It is not
// id-mapped: what its owner alone may read stays unread.
const linkedFrom = "linked from "

// mount shows the host's file or directory pl at its own path, unless the
// guard refuses; then it says why.
func (p *planner) mount(pl place, kind cell.MountKind, label string) (refused string) {
	if !pl.exists() {
		return "it does not exist"
	}
	if s, ok := p.slotOf(pl.path); ok {
		switch {
		case s.own && s.Kind == cell.Cache, s.own && kind == cell.Bind:
			return ""
		case s.cells && p.isSource(s.Target):
			return "" // comes with the workspace
		case s.asked && !s.own:
			return "--mount put something else there"
		case s.Target == "/etc" || s.cover:
			return "it is hidden"
		}
	}
	if why := p.g.refuseAuto(pl); why != "" {
		return why
	}
	p.slots[pl.path] = slot{own: true, Mount: cell.Mount{
		Kind: kind, Target: pl.path, Source: p.t.disk(pl.path), ReadOnly: kind == cell.Bind,
		Owned: !strings.HasPrefix(label, linkedFrom) && (within(p.home, pl.path) || p.uid != 0 && pl.uid == p.uid), Why: label,
	}}
	return ""
}

// show makes the path usable in the cell: it is mounted if it is not there,
// and so are the symlinks that lead to it.
func (p *planner) show(at string, kind cell.MountKind, label string) (refused string) {
	pl := p.t.resolve(at)
	if why := p.refuseRedirected(pl); why != "" {
		return why
	}
	if !p.shown(pl.path) || kind == cell.Cache {
		if refused := p.mount(pl, kind, label); refused != "" {
			return refused
		}
	}
	p.link(pl)
	return ""
}

// link makes the symlinks on the way to pl, where they don't come with a
// directory that is mounted anyway.
func (p *planner) link(pl place) {
	for _, l := range pl.links {
		if _, ok := p.slots[l.at]; ok || within("/proc", l.at) {
			continue
		}
		if s, ok := p.slotOf(l.at); ok && (s.own || s.asked || s.cover || s.Target == "/etc" || s.cells && p.isSource(s.Target)) {
			continue
		}
		p.slots[l.at] = slot{Mount: cell.Mount{Kind: cell.Link, Target: l.at, Source: l.text, Why: "as on the host"}}
	}
}

func (p *planner) note(at, what, fix string) {
	n := Note{at, what, fix}
	for _, o := range p.plan.Notes {
		if o == n {
			return
		}
	}
	p.plan.Notes = append(p.plan.Notes, n)
}

// mountFix is the flag that would show pl, if that flag would be accepted.
func (p *planner) mountFix(at string) string {
	pl := p.t.resolve(at)
	if !pl.exists() || strings.Contains(pl.path, ":") || p.refuseAsked(pl) != "" || p.refuseTarget(pl.path, pl) != "" {
		return ""
	}
	arg := pl.path + ":" + pl.path
	if strings.ContainsFunc(arg, func(r rune) bool { return r > '~' || !strings.ContainsRune(plain, r) }) {
		arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return "--mount " + arg
}

// plain are the characters that mean nothing to a shell.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,=-"
