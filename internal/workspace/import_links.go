package workspace

import (
	"context"
	"sort"
	"sync"

	"github.com/pando-dev/pando/internal/secret"
)

// linkSet collects the files with several names. Each is decided on when all its names are
// known: they share one content, and each name may mark it as a secret.
type linkSet struct {
	mu     sync.Mutex            // guards the fields below
	groups map[string]*linkGroup // by link key
	of     map[string]string     // path → link key, of names imported with others
}

// linkGroup is one file with several names.
type linkGroup struct {
	names []linkName
	// secret is a name by which the file is left out, why the reason; "" for none.
	secret, why string
}

type linkName struct {
	f *Found
	d secret.Decision
}

func newLinkSet() *linkSet { return &linkSet{groups: map[string]*linkGroup{}, of: map[string]string{}} }

// takes records a file with several names, and reports whether it is one.
func (l *linkSet) takes(f *Found, d secret.Decision) bool {
	if f.Type() != File || f.Stat.Nlink < 2 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := LinkKey(&f.Stat)
	g := l.groups[k]
	if g == nil {
		g = &linkGroup{}
		l.groups[k] = g
	}
	if d.Action != secret.LeaveOut {
		own := *f
		g.names = append(g.names, linkName{&own, d})
	} else if g.secret == "" || f.Path < g.secret {
		g.secret, g.why = f.Path, d.Why
	}
	return true
}

// leaves records a left-out file, or all files in a left-out folder. In an unreadable folder no
// file has a readable name.
func (l *linkSet) leaves(src *sourceTree, f *Found, d secret.Decision) {
	if f.Type() != Folder {
		l.takes(f, d)
		return
	}
	buf := make([]byte, 16<<10)
	var deep depth
	for todo := []string{f.Path}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		found, err := src.list(src.root, dir, buf)
		if err != nil || deep.add(found) != nil {
			continue
		}
		for i := range found {
			if found[i].Type() == Folder {
				todo = append(todo, found[i].Path)
			}
			l.takes(&found[i], d)
		}
	}
}

// key returns the group of a path that has siblings in the workspace.
func (l *linkSet) key(path string) (string, bool) {
	k, ok := l.of[path]
	return k, ok
}

// decideLinks decides on the files with several names. take imports one name, according to the
// rules for that name, or leaves it out and lists it; same imports a further name of what take
// imported.
//
// A secret is left out under all its names, each of which is listed. A name that git tracks is
// decided on separately, as its content is in git's objects.
func (im *importer) decideLinks(ctx context.Context, links *linkSet, take func(f *Found, d secret.Decision) (bool, error), same func(first, f *Found) error) error {
	keys := make([]string, 0, len(links.groups))
	for k := range links.groups {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return Parallel(ctx, len(keys), func(i int) error {
		g := links.groups[keys[i]]
		sort.Slice(g.names, func(i, j int) bool {
			a, b := &g.names[i], &g.names[j]
			if x, y := strictness(a.d), strictness(b.d); x != y {
				return x > y
			}
			return a.f.Path < b.f.Path
		})
		var first *Found
		var in []string
		for _, n := range g.names {
			tracked := n.d.Tracked || !im.req.Mask && im.tracked.Has(n.f.Path)
			switch {
			case g.secret != "" && !tracked:
				im.leaveSecret(n.f, n.d, "another name of "+g.secret+": "+g.why)
				continue
			case first != nil:
				if err := same(first, n.f); err != nil {
					return err
				}
				if l := im.listed(first.Path, Fields); l != nil {
					also := *l
					also.Path = n.f.Path
					im.leaveOut(also)
				}
			default:
				ok, err := take(n.f, n.d)
				if err != nil {
					return err
				}
				if !ok {
					if l := im.listed(n.f.Path, Secret); l != nil {
						g.secret, g.why = n.f.Path, l.Why
					}
					continue
				}
				first = n.f
			}
			in = append(in, n.f.Path)
		}
		if len(in) > 1 {
			links.mu.Lock()
			defer links.mu.Unlock()
			for _, p := range in {
				links.of[p] = keys[i]
			}
		}
		return nil
	})
}

// strictness orders decisions by how much of a file they inspect.
func strictness(d secret.Decision) int {
	switch d.Action {
	case secret.Scrub:
		return 2
	case secret.ScanContent:
		return 1
	}
	return 0
}

// listed returns the list entry of a path under that kind, nil for none.
func (im *importer) listed(path, kind string) *LeftOut {
	im.mu.Lock()
	defer im.mu.Unlock()
	for i := len(im.leftOut) - 1; i >= 0; i-- {
		if l := im.leftOut[i]; l.Path == path && l.Kind == kind {
			return &l
		}
	}
	return nil
}
