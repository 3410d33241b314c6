package result

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// choose returns an offer's new state with the changes at some paths alone, and how many other changed files there
// are, with those of which hunks alone are taken. Paths are patterns, as glob.Below has them, or, exact, names; known is what the source is known to be. Changes that git can't have are not chosen by themselves, nor are those that it ignores, if ignored is
// given.
func (o *offer) choose(paths []string, exact bool, hunks []hunked, known *workspace.Tree, ignored func(path string, isDir bool) bool) (part workspace.Side, left int, err error) {
	changes, err := workspace.Changes(o.base.Tree, o.after.Tree)
	if err != nil {
		return part, 0, err
	}
	used := make([]bool, len(paths))
	var chosen []string
	is, partly := map[string]bool{}, map[string]cell.Digest{}
	for _, h := range hunks {
		partly[h.path] = cell.Sum(h.content)
	}
	for i := range changes {
		c := &changes[i]
		if !c.Git() || ignored != nil && ignored(c.Path, false) {
			continue
		}
		for j, p := range paths {
			if exact && p == c.Path || !exact && glob.Below(p, c.Path) {
				used[j], is[c.Path] = true, true
			}
		}
		now, err := known.Lookup(c.Path)
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return part, 0, err
		}
		to, half := partly[c.Path]
		switch there := err == nil; {
		case half && is[c.Path]:
			return part, 0, cell.Errorf(cell.Invalid, "result.Accept", "", "%s is to be taken as a whole, and in part", diff.Quote(c.Path))
		case half && c.New != nil && to == c.New.Digest && (c.Old.Mode^c.New.Mode)&0o100 == 0: // all of it
			delete(partly, c.Path)
		case half:
			left++
			delete(partly, c.Path)
		case is[c.Path]:
			chosen = append(chosen, c.Path)
		case there == (c.New != nil) && (!there || sameFile(&now, c.New)): // the source has it
		default:
			left++
		}
	}
	for j, ok := range used {
		if !ok {
			return part, 0, cell.Errorf(cell.Invalid, "result.Accept", "pando diff --stat lists the changes", "there is no change at %s", diff.Quote(paths[j]))
		}
	}
	for p := range partly {
		return part, 0, cell.Errorf(cell.Invalid, "result.Accept", "pando diff --patch shows them", "there is no change at %s", diff.Quote(p))
	}
	for i := range changes { // what is exchanged for a folder, or for a file, goes with it
		c := &changes[i]
		if !c.Git() || ignored != nil && ignored(c.Path, false) {
			continue
		}
		for up := workspace.Parent(c.Path); up != ""; up = workspace.Parent(up) {
			if is[c.Path] == is[up] {
				continue
			}
			old, oerr := o.base.Tree.Lookup(up)
			now, nerr := o.after.Tree.Lookup(up)
			if oerr == nil && old.Type != workspace.Folder || oerr == nil && (nerr != nil || now.Type != workspace.Folder) && is[up] {
				return part, 0, cell.Errorf(cell.Invalid, "result.Accept", "take "+diff.Quote(up)+" as a whole, or leave it",
					"cannot take %s without %s: one is in the place of the other", diff.Quote(pick(is[c.Path], c.Path, up)), diff.Quote(pick(is[c.Path], up, c.Path)))
			}
		}
	}
	tree, err := workspace.Taken(o.base.Tree, o.after.Tree, chosen)
	return workspace.Side{Tree: tree, Contents: o.after.Contents}, left, err
}

func pick(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}
