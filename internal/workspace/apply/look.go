package apply

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Look is a change to look at before all others.
type Look struct {
	Path string // with a final slash: all files below it
	Why  string
	// Files is the number of changes.
	Files int
}

// A Review describes changes to people before they are applied.
type Review struct {
	// First lists the changes to look at first, in order of paths: control paths, and new or
	// changed files that are executable, hidden, or configuration of tools that act when a
	// folder is opened. Many files of one hidden folder with one reason are one entry.
	First []Look
	// Held lists the changes that Do would hold back, in order of paths.
	Held []Held
}

// reviewOf is ReviewOf for one directory.
func reviewOf(req *Request) (r Review, err error) {
	changes, err := workspace.Changes(req.Base, req.After.Tree)
	if err != nil {
		return r, err
	}
	var candidates []workspace.Change
	for _, c := range changes {
		if c.Git() && (req.IsIgnored == nil || !req.IsIgnored(c.Path, false)) {
			candidates = append(candidates, c)
		}
	}
	if len(candidates) == 0 {
		return r, nil
	}
	k := newController(req.Base, req.After.Tree, newReserved(req.Reserved))
	if err := k.learn(req.Source, req); err != nil {
		return r, err
	}
	for i := range candidates {
		if err := k.prepare(candidates[i].Path); err != nil {
			return r, err
		}
	}
	held := holdBack(candidates, k, newIncludes(req.Include, &Result{}), req.Strict)
	var list []Look
	for i := range candidates {
		c := &candidates[i]
		if h, ok := held[c.Path]; ok {
			r.Held = append(r.Held, h)
		}
		why := k.why(c)
		if why == "" {
			why = lookWhy(c)
		}
		if why != "" {
			list = append(list, Look{c.Path, why, 1})
		}
	}
	r.First = grouped(list)
	return r, nil
}

// lookWhy returns why a change that is no control path is listed first, "" if it is not.
func lookWhy(c *workspace.Change) string {
	if c.New == nil || c.New.Git() == nil {
		return ""
	}
	if row := rowOf(c.Path, true); row != nil {
		return row.why
	}
	if c.New.Type == workspace.File && c.New.Mode&0o111 != 0 {
		if c.Old == nil || c.Old.Type != workspace.File || c.Old.Mode&0o111 == 0 {
			return "it becomes executable"
		}
		return "it is executable"
	}
	for _, name := range strings.Split(gitdir.FoldPath(c.Path), "/") {
		if strings.HasPrefix(name, ".") {
			return "it is hidden"
		}
	}
	return ""
}

// maxAlike is the number of files of one hidden folder that are listed one by one.
const maxAlike = 2

// grouped merges more than maxAlike entries in the same hidden folder with the same reason into
// one.
func grouped(list []Look) (out []Look) {
	type key struct{ dir, why string }
	of := func(l Look) key { return key{hiddenFolder(l.Path), l.Why} }
	count := map[key]int{}
	for _, l := range list {
		count[of(l)]++
	}
	done := map[key]bool{}
	for _, l := range list {
		k := of(l)
		switch {
		case k.dir == "" || count[k] <= maxAlike:
			out = append(out, l)
		case !done[k]:
			done[k] = true
			out = append(out, Look{k.dir + "/", l.Why, count[k]})
		}
	}
	return out
}

// hiddenFolder returns the innermost folder of p if it or one above is hidden.
func hiddenFolder(p string) string {
	dir := path.Dir(p)
	for _, name := range strings.Split(dir, "/") {
		if name != "." && strings.HasPrefix(gitdir.FoldName(name), ".") {
			return dir
		}
	}
	return ""
}
