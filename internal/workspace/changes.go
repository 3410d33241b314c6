package workspace

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// A Change is one path that differs between two trees. Old is nil for a new path, New for a
// removed one. A new or removed folder is reported, and so is everything below it.
type Change struct {
	Path     string
	Old, New *Entry
}

// Meta reports whether only metadata differ: mode, mtime or xattrs.
func (c *Change) Meta() bool {
	if c.Old == nil || c.New == nil || c.Old.Type != c.New.Type {
		return false
	}
	switch c.Old.Type {
	case File:
		return c.Old.Digest == c.New.Digest
	case Symlink:
		return c.Old.Target == c.New.Target
	case CharDev, Block:
		return c.Old.Rdev == c.New.Rdev
	}
	return true
}

// Git reports whether git would see the change: content, type, target or
// executable bit of a file or symlink that it can hold (see Tree).
func (c *Change) Git() bool {
	if gitdir.Inside(c.Path) {
		return false
	}
	o, n := c.Old.Git(), c.New.Git()
	if o == nil || n == nil {
		return o != n
	}
	return !c.Meta() || (c.Old.Type == File && (c.Old.Mode^c.New.Mode)&0o100 != 0)
}

// Git returns e if git can hold it, a file or symlink with a valid name, else nil. e may be nil.
func (e *Entry) Git() *Entry {
	if e != nil && (e.Type == File || e.Type == Symlink) && gitTakes(e.Name, e.Type) {
		return e
	}
	return nil
}

// Changes lists the differences from a to b, in order of paths. Its cost is that of the
// directories that differ.
func Changes(a, b *Tree) ([]Change, error) {
	var out []Change
	if a.Root.Mode != b.Root.Mode || a.Root.MTime != b.Root.MTime {
		o, n := a.Root, b.Root
		out = append(out, Change{Path: "", Old: &o, New: &n})
	}
	err := diffDirs(a, b, "", a.Root, b.Root, &out)
	return out, err
}

func diffDirs(a, b *Tree, path string, x, y Entry, out *[]Change) error {
	if x.Digest == y.Digest {
		return nil
	}
	xd, err := a.ReadDir(x.Digest)
	if err != nil {
		return err
	}
	yd, err := b.ReadDir(y.Digest)
	if err != nil {
		return err
	}
	for i, j := 0, 0; i < len(xd) || j < len(yd); {
		var o, n *Entry
		switch {
		case j == len(yd) || (i < len(xd) && xd[i].Name < yd[j].Name):
			o, i = &xd[i], i+1
		case i == len(xd) || yd[j].Name < xd[i].Name:
			n, j = &yd[j], j+1
		default:
			o, n, i, j = &xd[i], &yd[j], i+1, j+1
		}
		if err := diffEntry(a, b, path, o, n, out); err != nil {
			return err
		}
	}
	return nil
}

func diffEntry(a, b *Tree, dir string, o, n *Entry, out *[]Change) error {
	if o != nil && n != nil {
		p := join(dir, o.Name)
		if !o.same(n) {
			*out = append(*out, Change{Path: p, Old: o, New: n})
		}
		if o.Type == Folder && n.Type == Folder {
			return diffDirs(a, b, p, *o, *n, out)
		}
		if o.Type == Folder {
			return below(a, p, *o, false, out)
		}
		if n.Type == Folder {
			return below(b, p, *n, true, out)
		}
		return nil
	}
	if o != nil {
		p := join(dir, o.Name)
		*out = append(*out, Change{Path: p, Old: o})
		return below(a, p, *o, false, out)
	}
	p := join(dir, n.Name)
	*out = append(*out, Change{Path: p, New: n})
	return below(b, p, *n, true, out)
}

// below reports everything below a folder that is only in one tree.
func below(t *Tree, path string, e Entry, isNew bool, out *[]Change) error {
	if e.Type != Folder {
		return nil
	}
	return t.walk(path, e, func(p string, e Entry) error {
		if p == path {
			return nil
		}
		if isNew {
			*out = append(*out, Change{Path: p, New: &e})
		} else {
			*out = append(*out, Change{Path: p, Old: &e})
		}
		return nil
	})
}

// same compares everything except what lies below a folder.
func (e *Entry) same(o *Entry) bool {
	if e.Type != o.Type || e.Mode != o.Mode || e.MTime != o.MTime || len(e.XAttrs) != len(o.XAttrs) {
		return false
	}
	for i := range e.XAttrs {
		if e.XAttrs[i] != o.XAttrs[i] {
			return false
		}
	}
	switch e.Type {
	case File:
		return e.Digest == o.Digest && e.Size == o.Size
	case Symlink:
		return e.Target == o.Target
	case CharDev, Block:
		return e.Rdev == o.Rdev
	}
	return true
}

// Taken returns base with the given paths as in after: the state of a source after these were
// applied.
func Taken(base, after *Tree, lists ...[]string) (*Tree, error) {
	ed := base.Edit()
	group := map[string]string{} // of names of one file: the first
	for _, g := range after.Links {
		for _, p := range g {
			group[p] = g[0]
		}
	}
	for _, list := range lists {
		for _, p := range list {
			if err := Take(ed, after, p); err != nil {
				return nil, err
			}
			if g, ok := group[p]; ok {
				ed.Link(p, g)
			}
		}
	}
	return ed.Commit()
}

// Take gives a tree that is edited what another has at a path: nothing, if that has nothing there. Folders on the way are made, also in
// the place of something else. Of a folder the entry alone is taken.
func Take(ed *Editor, after *Tree, path string) error {
	e, err := after.Lookup(path)
	if cell.KindOf(err) == cell.NotFound {
		return ed.Remove(path)
	}
	if err != nil {
		return err
	}
	for i, c := range path { // new folders on the path
		if c != '/' {
			continue
		}
		old, ok, err := ed.Lookup(path[:i])
		if err != nil {
			return err
		}
		if !ok || old.Type != Folder {
			up, err := after.Lookup(path[:i])
			if err != nil {
				return err
			}
			if err := ed.Put(path[:i], up); err != nil {
				return err
			}
		}
	}
	return ed.Put(path, e)
}
