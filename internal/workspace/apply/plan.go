package apply

import (
	"strings"

	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// operation is one path to write.
type operation struct {
	path   string
	change diff.FileChange
	base   *workspace.Entry // in the base; nil: missing
	after  *workspace.Entry // the new state; nil: missing, or a folder
	folder bool             // the new state is a folder
	seen   seen             // the present state in the source
	done   bool             // the source already has the new state

	time  int64    // the modification time of the written file, in nanoseconds
	n     int      // the number of its files in the staging folder
	stage int      // index of the staging folder
	made  fileMark // the staged file
}

// workPlan is the plan of a request, before the source is checked.
type workPlan struct {
	ops      []*operation // in order of paths
	held     []*operation // those of result.Held
	byPath   map[string]*operation
	result   Result
	reserved []PathConflict // changes of paths that were left out of the cell
}

// plan sorts the changes into applied, held and ignored ones.
func plan(req *Request, source string) (*workPlan, error) {
	changes, err := workspace.Changes(req.Base, req.After.Tree)
	if err != nil {
		return nil, err
	}
	p := &workPlan{byPath: map[string]*operation{}}
	ignoring := req.IsIgnored
	if req.Ignored {
		ignoring = nil
	}
	if p.result.Unrepresented, err = diff.Notes(req.Base, req.After.Tree, changes, ignoring); err != nil {
		return nil, err
	}
	reserved := newReserved(req.Reserved)
	var candidates, ignored []workspace.Change
	for _, c := range changes {
		if reserved.covers(c.Path) && !gitdir.Inside(c.Path) {
			p.reserved = append(p.reserved, PathConflict{c.Path, "was left out of the cell and is never written"})
			continue
		}
		switch {
		case !c.Git():
		case ignoring != nil && ignoring(c.Path, false):
			ignored = append(ignored, c)
		default:
			candidates = append(candidates, c)
		}
	}
	p.result.Ignored = diff.SumIgnored(ignored, ignoring)
	k := newController(req.Base, req.After.Tree, reserved)
	if err := k.learn(source, req); err != nil {
		return nil, err
	}
	for i := range candidates {
		if err := k.prepare(candidates[i].Path); err != nil {
			return nil, err
		}
	}
	held := holdBack(candidates, k, newIncludes(req.Include, &p.result), req.Strict)
	for _, c := range candidates {
		op := &operation{path: c.Path, change: diff.FileChangeOf(c), base: c.Old, after: c.New.Git(), n: len(p.ops)}
		op.folder = c.New != nil && c.New.Type == workspace.Folder
		if h, ok := held[c.Path]; ok {
			p.held = append(p.held, op)
			p.result.Held = append(p.result.Held, h)
			continue
		}
		if r := reserved.below(c.Path); r != "" && c.New.Git() != nil {
			p.reserved = append(p.reserved, PathConflict{c.Path, "is a folder that holds " + diff.Quote(r) + ", which was left out of the cell"})
			continue
		}
		p.ops = append(p.ops, op)
		p.byPath[c.Path] = op
	}
	return p, nil
}

// holdBack returns the changes that are held back. A held path holds everything below it, and a
// change that would replace a folder is held with any file in that folder.
func holdBack(changes []workspace.Change, k *controller, inc *includes, strict bool) map[string]Held {
	held := map[string]Held{}
	hold := func(p, flag, why, other string) {
		held[p] = Held{Path: p, Why: why, Flag: "--include " + diff.ShellWord(flag), include: flag, other: other}
	}
	for i := range changes {
		c := &changes[i]
		why, included := k.why(c), inc.has(c.Path)
		if why == "" && strict {
			why = lookWhy(c)
		}
		if why != "" && !included {
			hold(c.Path, c.Path, why, "")
		}
	}
	for grown := true; grown; {
		grown = false
		holds := map[string]string{} // folder → a held path in it
		for p := range held {
			for d := workspace.Parent(p); d != ""; d = workspace.Parent(d) {
				if holds[d] == "" || p < holds[d] {
					holds[d] = p
				}
			}
		}
		for i := range changes {
			c := &changes[i]
			if _, ok := held[c.Path]; ok {
				continue
			}
			if below := holds[c.Path]; below != "" && c.New.Git() != nil {
				hold(c.Path, c.Path, "it replaces a folder in which "+diff.Quote(below)+" is held back", below)
				grown = true
				continue
			}
			for d := workspace.Parent(c.Path); d != ""; d = workspace.Parent(d) {
				if _, ok := held[d]; ok {
					hold(c.Path, d, "it lies below "+diff.Quote(d)+", which is held back", d)
					grown = true
					break
				}
			}
		}
	}
	return held
}

// includes are the included control paths.
type includes struct {
	paths  []string
	unused *[]string
}

func newIncludes(paths []string, r *Result) *includes {
	inc := &includes{unused: &r.UnusedInclude}
	for _, p := range paths {
		inc.paths = append(inc.paths, included(p))
	}
	*inc.unused = append(*inc.unused, paths...)
	return inc
}

// included is the path that an include names.
func included(p string) string { return strings.TrimPrefix(strings.Trim(p, "/"), "./") }

// has reports whether path, or a folder above it, is included; "." is everything.
func (inc *includes) has(path string) bool {
	found := false
	for _, p := range inc.paths {
		if p != path && p != "." && !strings.HasPrefix(path, p+"/") {
			continue
		}
		found = true
		for i, u := range *inc.unused {
			if included(u) == p {
				*inc.unused = append((*inc.unused)[:i:i], (*inc.unused)[i+1:]...)
				break
			}
		}
	}
	return found
}
