package diff

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Note names a change that git can't hold.
type Note struct {
	Path string `json:"path"` // "." is the workspace itself
	What string `json:"what"` // "mode 0600", "empty folder"
}

// Notes lists the changes from a to b that no patch can contain, in order of paths. It omits
// modification times that are consequences: of a file with changed content, and of a folder with
// added, removed or rewritten files (many programs write a new file and rename it). Ignored
// files are left out, if ignored is not nil.
func Notes(a, b *workspace.Tree, changes []workspace.Change, ignored func(path string, isDir bool) bool) ([]Note, error) {
	n := noter{b: b, ignored: ignored, stirred: map[string]bool{}, git: map[string]bool{}, emptied: map[string]bool{}}
	for _, c := range changes {
		if c.Path != "" && !c.Meta() {
			n.stirred[workspace.Parent(c.Path)] = true
		}
	}
	for _, c := range changes {
		if err := n.change(c); err != nil {
			return nil, err
		}
	}
	n.links(a, b)
	sort.SliceStable(n.out, func(i, j int) bool { return n.out[i].Path < n.out[j].Path })
	return n.out, nil
}

type noter struct {
	b       *workspace.Tree
	ignored func(path string, isDir bool) bool // may be nil
	out     []Note
	stirred map[string]bool // folders with added, removed or changed files
	git     map[string]bool // ".git"s that have a note
	emptied map[string]bool // folders with a note that they are empty
}

func (n *noter) add(path, format string, args ...any) {
	if path == "" {
		path = "."
	}
	n.out = append(n.out, Note{path, fmt.Sprintf(format, args...)})
}

func (n *noter) change(c workspace.Change) error {
	if top := gitdir.Enclosing(c.Path); top != "" {
		if !n.git[top] {
			n.git[top] = true
			n.add(top, "git's own files, which are never part of a patch")
		}
		return nil
	}
	o, e := c.Old, c.New
	if n.skip(c.Path, (e != nil && e.Type == workspace.Folder) || (e == nil && o.Type == workspace.Folder)) {
		return nil
	}
	switch {
	case e == nil && o.Type == workspace.Folder:
		if o.Content.IsZero() {
			n.add(c.Path, "folder removed, in which git saw nothing")
		}
	case e == nil:
		if o.Git() == nil {
			n.add(c.Path, "%s removed", o.Type.String())
		}
		return n.left(c.Path)
	case e.Type == workspace.Folder:
		if o == nil || o.Type != workspace.Folder {
			o = nil
			if e.Content.IsZero() {
				n.add(c.Path, "folder in which git sees nothing")
			}
		}
		n.folder(c.Path, o, e)
		n.xattrs(c.Path, o, e)
	case e.Type == workspace.File && e.Git() != nil:
		n.file(c.Path, o, e)
		n.xattrs(c.Path, o, e)
	case e.Git() != nil:
		n.xattrs(c.Path, o, e)
		if o != nil && o.Type == workspace.Symlink && o.Target == e.Target && o.MTime != e.MTime {
			n.add(c.Path, "modification time")
		}
	case e.Type == workspace.Symlink:
		n.add(c.Path, "symlink of a name that git refuses for symlinks")
	default:
		n.add(c.Path, "%s", e.Type.String())
	}
	return nil
}

func (n *noter) skip(path string, isDir bool) bool {
	return n.ignored != nil && n.ignored(path, isDir)
}

func (n *noter) file(path string, o, e *workspace.Entry) {
	want := uint32(0o644)
	if e.Mode&0o100 != 0 {
		want = 0o755
	}
	if o != nil && o.Type == workspace.File {
		want = Exec(o.Mode, e.Mode&0o100 != 0)
	}
	if e.Mode != want {
		n.add(path, "mode %04o", e.Mode)
	}
	if o != nil && o.Type == workspace.File && o.Digest == e.Digest && o.MTime != e.MTime {
		n.add(path, "modification time")
	}
}

func (n *noter) folder(path string, o, e *workspace.Entry) {
	want := uint32(0o755)
	if o != nil {
		want = o.Mode
	}
	if e.Mode != want {
		n.add(path, "mode %04o of a folder", e.Mode)
	}
	if o != nil && o.MTime != e.MTime && !n.stirred[path] {
		n.add(path, "modification time of a folder")
	}
}

func (n *noter) xattrs(path string, o, e *workspace.Entry) {
	var old []workspace.XAttr
	if o != nil {
		old = o.XAttrs
	}
	if slices.Equal(old, e.XAttrs) {
		return
	}
	var names []string
	for _, x := range e.XAttrs {
		if !slices.Contains(old, x) {
			names = append(names, x.Name)
		}
	}
	for _, x := range old {
		if !slices.ContainsFunc(e.XAttrs, func(y workspace.XAttr) bool { return x.Name == y.Name }) {
			names = append(names, x.Name)
		}
	}
	n.add(path, "extended attributes %s", strings.Join(names, ", "))
}

// left notes the folder of a removed file, if the folder still exists and is now empty for git,
// which would remove it.
func (n *noter) left(path string) error {
	dir := workspace.Parent(path)
	if dir == "" || n.emptied[dir] {
		return nil
	}
	e, err := n.b.Lookup(dir)
	if cell.KindOf(err) == cell.NotFound {
		return nil
	}
	if err == nil && e.Type == workspace.Folder && e.Content.IsZero() {
		n.emptied[dir] = true
		n.add(dir, "folder in which git sees nothing any more")
	}
	return err
}

// links notes the paths that became, or ceased to be, names of one file.
func (n *noter) links(a, b *workspace.Tree) {
	groups := func(t *workspace.Tree) map[string]string {
		m := map[string]string{}
		for _, g := range t.Links {
			for _, p := range g {
				m[p] = strings.Join(g, "\x00")
			}
		}
		return m
	}
	old, now := groups(a), groups(b)
	for _, g := range b.Links {
		for _, p := range g[1:] {
			if old[p] != now[p] && !gitdir.Inside(p) && !n.skip(p, false) {
				n.add(p, "hard link to %s", quoteName(g[0], false))
			}
		}
	}
	for _, g := range a.Links {
		for _, p := range g {
			if _, linked := now[p]; linked || gitdir.Inside(p) || n.skip(p, false) {
				continue
			}
			if _, err := b.Lookup(p); err == nil {
				n.add(p, "no longer a hard link")
			}
		}
	}
}

// Exec returns a file's permission bits after a change of git's executable bit: execution
// then follows the permission to read. Other bits stay, except setuid, setgid and sticky.
func Exec(mode uint32, exec bool) uint32 {
	mode &= 0o777
	switch {
	case exec && mode&0o100 == 0:
		return mode | mode&0o444>>2 | 0o100
	case !exec && mode&0o100 != 0:
		return mode &^ 0o111
	}
	return mode
}
