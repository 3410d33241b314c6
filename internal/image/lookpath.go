package image

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A finder answers, after a plan was made, where a program is in the cell. It
// never changes, so that any number of goroutines may ask.
type finder struct {
	made planner  // the planner as it was when the plan was complete
	dirs []string // PATH of the cell
	host []string // the caller's
}

func newFinder(p *planner) *finder {
	return &finder{made: *p, dirs: strings.Split(p.plan.Path, ":"), host: p.path}
}

// now returns the planner with fresh eyes: a plan outlives what it has seen of
// the host.
func (f *finder) now() *planner {
	p := f.made
	p.t = newTree(p.req.Root)
	g := *p.g
	g.t = p.t
	p.g = &g
	return &p
}

// LookPath returns the files to try, in order, as the program of that name.
// A name with a slash is a path, relative to workdir. What may come into being
// in the cell alone (in the workspace, the home, /tmp) is returned unchecked;
// of what the cell shares with the host, only a file that is there and can be
// executed. With nothing to try the error is NotFound's.
func (h *HostPlan) LookPath(name, workdir string) ([]string, error) {
	if h.rooted != nil {
		return h.rooted.lookPath(name, workdir)
	}
	f, p := h.find, h.find.now()
	if name == "" {
		return nil, cell.Errorf(cell.Invalid, "image.LookPath", "", "cannot run a command without a name")
	}
	if strings.Contains(name, "/") {
		at := name
		if !path.IsAbs(at) {
			at = workdir + "/" + at
		}
		if ok, sure := p.candidate(at); ok || sure {
			return []string{at}, nil
		}
		return nil, h.NotFound(name)
	}
	var files []string
	for _, dir := range f.dirs {
		at := join(path.Clean(dir), name)
		ok, sure := p.candidate(at)
		if ok {
			files = append(files, at)
		}
		if sure {
			break
		}
	}
	if name == whyProgram { // is there once the cell has a network, which the plan may not know yet
		files = append(files, path.Join(TalkDir, whyProgram))
	}
	if len(files) == 0 {
		return nil, h.NotFound(name)
	}
	return files, nil
}

// Has reports whether the file of LookPath is surely a program in the cell, and not one that may come
// into being there.
func (h *HostPlan) Has(at string) bool {
	if h.rooted != nil {
		return newTree(h.rooted.req.Dir).resolve(at).isProgram()
	}
	_, sure := h.find.now().candidate(at)
	return sure
}

// candidate reports whether the file may be a program in the cell, and
// whether it surely is one.
func (p *planner) candidate(at string) (ok, sure bool) {
	pl := p.t.resolve(at)
	if within("/proc", pl.path) || within("/dev", pl.path) {
		return true, false
	}
	s, there := p.slotOf(pl.path)
	if there && s.asked && !s.own {
		return p.t.resolve(s.hostPath(p.t, pl.path)).exists(), false
	}
	if there && !s.cells && p.shown(pl.path) && p.linksShown(pl) {
		return pl.isProgram(), pl.isProgram()
	}
	return p.mayAppear(pl.path) || p.mayAppear(path.Clean(at)), false
}

// linksShown reports whether the symlinks that lead to pl are in the cell.
func (p *planner) linksShown(pl place) bool {
	for _, l := range pl.links {
		if s, ok := p.slots[l.at]; ok && s.Kind == cell.Link {
			continue
		}
		if !p.shown(path.Dir(l.at)) && !isSystem(l.at) {
			return false
		}
	}
	return true
}

// NotFound is the error for a program that the cell does not have: where it
// was searched and, if the host has it, what would help. It is for LookPath,
// and for the caller when none of LookPath's files turned out to exist.
func (h *HostPlan) NotFound(name string) error {
	const op = "image.LookPath"
	f, p := h.find, h.find.now()
	if strings.Contains(name, "/") {
		return cell.Errorf(cell.NoSuchBinary, op, p.hint(name), "cannot run %s: there is no such file in the cell", name)
	}
	hint := ""
	for _, dir := range append(slices.Clone(f.host), "/snap/bin") {
		if hint = p.hint(join(dir, name)); hint != "" {
			break
		}
	}
	return cell.Errorf(cell.NoSuchBinary, op, hint, "cannot run %s: not found in %s", name, strings.Join(f.dirs, ", "))
}

// hint says what would bring the host's program at the path into the cell.
func (p *planner) hint(at string) string {
	if !path.IsAbs(at) || p.req.Confined {
		return ""
	}
	pl := p.t.resolve(at)
	if !pl.isProgram() || p.shown(pl.path) && p.linksShown(pl) {
		return ""
	}
	if within("/snap", at) {
		return "install " + path.Base(at) + " without snap: snaps can't run in a cell"
	}
	dirs := []string{path.Dir(pl.path), pl.path}
	if parts, _ := p.installParts(at, pl); len(parts) > 0 {
		dirs = slices.Insert(dirs, 0, parts[0].path)
	}
	for _, dir := range dirs {
		if fix := p.mountFix(dir); fix != "" {
			return fmt.Sprintf("add %s: the host has %s", fix, at)
		}
	}
	return fmt.Sprintf("put it somewhere else: the host has %s, which may not be shown (%s)", at, p.refuseAsked(p.t.resolve(path.Dir(pl.path))))
}
