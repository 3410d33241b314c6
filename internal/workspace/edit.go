package workspace

import (
	"path"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// An Editor makes a new tree from an old one. Its cost is that of the directories that it
// changes, whatever the size of the tree. Not safe for concurrent use.
type Editor struct {
	objs  Objects
	root  *node
	links map[string]string // path → group: first path of an old group, or "\x00" and a key of LinkKey
	dead  bool

	// trail holds the nodes on the path of the latest lookup. The next path, most often near it,
	// is looked up from where the two part: else each lookup would cost the depth of the tree.
	trail []step
	last  string
}

// step is one node of a trail.
type step struct {
	end     int // end of its path, in the latest path
	n       *node
	touched bool // and so are those before it
}

// node is a directory that may have been edited.
type node struct {
	self   Entry
	loaded bool
	dirty  bool
	kids   map[string]*node
}

// Edit returns an Editor that starts from t.
func (t *Tree) Edit() *Editor {
	ed := &Editor{objs: t.objs, root: &node{self: t.Root}, links: map[string]string{}}
	for _, g := range t.Links {
		for _, p := range g {
			ed.links[p] = g[0]
		}
	}
	return ed
}

func (ed *Editor) load(n *node) error {
	if n.loaded {
		return nil
	}
	n.kids = map[string]*node{}
	n.loaded = true
	if n.self.Digest.IsZero() {
		return nil
	}
	d, err := readDir(ed.objs, n.self.Digest)
	if err != nil {
		return err
	}
	for _, e := range d {
		n.kids[e.Name] = &node{self: e}
	}
	return nil
}

// at returns the node at path, nil if it is not there.
func (ed *Editor) at(path string, touch bool) (*node, error) {
	n, done := ed.root, 0
	n.dirty = n.dirty || touch
	ed.trail = ed.trail[:ed.shared(path)]
	ed.last = path
	for i := len(ed.trail) - 1; touch && i >= 0 && !ed.trail[i].touched; i-- {
		s := &ed.trail[i]
		s.touched, s.n.dirty = true, s.n.dirty || s.n.self.Type == Folder
	}
	if i := len(ed.trail); i > 0 {
		n, done = ed.trail[i-1].n, ed.trail[i-1].end
	}
	for done < len(path) {
		if done > 0 {
			done++ // the slash
		}
		name, _, _ := strings.Cut(path[done:], "/")
		done += len(name)
		if n.self.Type != Folder {
			return nil, nil
		}
		if err := ed.load(n); err != nil {
			return nil, err
		}
		k := n.kids[name]
		if k == nil {
			return nil, nil
		}
		n = k
		if touch && n.self.Type == Folder {
			n.dirty = true
		}
		ed.trail = append(ed.trail, step{done, n, touch})
	}
	return n, nil
}

// shared returns the number of steps of the trail that path shares.
func (ed *Editor) shared(path string) int {
	same, most := 0, min(len(path), len(ed.last))
	for same < most && path[same] == ed.last[same] {
		same++
	}
	k := len(ed.trail)
	for ; k > 0; k-- {
		if end := ed.trail[k-1].end; end < same || end == same && (end == len(path) || path[end] == '/') {
			break
		}
	}
	return k
}

// Lookup returns the entry at path as edited so far; ok is false when there is none. A folder's
// digests are those before the edit.
func (ed *Editor) Lookup(path string) (e Entry, ok bool, err error) {
	n, err := ed.at(path, false)
	if n == nil || err != nil {
		return Entry{}, false, err
	}
	return n.self, true, nil
}

// Put sets the entry at path, and replaces an earlier one. The parent must be a folder. If both
// entries are folders the children stay. e.Name and a folder's digests are ignored.
func (ed *Editor) Put(path string, e Entry) error {
	if path == "" {
		if e.Type != Folder {
			return corrupt("root that is no folder")
		}
		d, c := ed.root.self.Digest, ed.root.self.Content
		ed.root.self = e
		ed.root.self.Name, ed.root.self.Digest, ed.root.self.Content = "", d, c
		ed.root.dirty = true
		return nil
	}
	dir, name := split(path)
	p, err := ed.at(dir, true)
	if err != nil {
		return err
	}
	if p == nil || p.self.Type != Folder {
		return cell.Errorf(cell.NotFound, "workspace.Put", "", "no folder %s for %s", dir, path)
	}
	if err := ed.load(p); err != nil {
		return err
	}
	e.Name = name
	old := p.kids[name]
	if e.Type == Folder {
		if old != nil && old.self.Type == Folder {
			e.Digest, e.Content = old.self.Digest, old.self.Content
			old.self, old.dirty = e, true
			return nil
		}
		e.Digest, e.Content = cell.Digest{}, cell.Digest{}
	}
	if old != nil {
		ed.unlink(path)
		ed.trail = nil
	}
	p.kids[name] = &node{self: e, dirty: e.Type == Folder}
	return nil
}

// Remove removes the entry at path, with everything below it. A missing entry is no error.
func (ed *Editor) Remove(path string) error {
	dir, name := split(path)
	n, err := ed.at(path, false)
	if n == nil || err != nil {
		return err
	}
	p, err := ed.at(dir, true)
	if err != nil {
		return err
	}
	delete(p.kids, name)
	ed.trail = nil
	ed.unlink(path)
	return nil
}

// Clear empties the folder at path.
func (ed *Editor) Clear(path string) error {
	n, err := ed.at(path, true)
	if n == nil || err != nil {
		return err
	}
	n.kids, n.loaded = map[string]*node{}, true
	ed.trail = nil
	for p := range ed.links {
		if strings.HasPrefix(p, path+"/") || path == "" {
			delete(ed.links, p)
		}
	}
	return nil
}

// Graft gives the folder at path the children of fromPath in from.
func (ed *Editor) Graft(path string, from *Tree, fromPath string) error {
	src, err := from.Lookup(fromPath)
	if err != nil {
		return err
	}
	if err := ed.Clear(path); err != nil {
		return err
	}
	n, err := ed.at(path, true)
	if err != nil {
		return err
	}
	if n == nil || src.Type != Folder || n.self.Type != Folder {
		return corrupt("redirect " + path)
	}
	n.self.Digest, n.self.Content = src.Digest, src.Content
	n.kids, n.loaded = nil, false
	ed.trail = nil
	for _, g := range from.Links {
		for _, p := range g {
			if rest, ok := strings.CutPrefix(p, fromPath+"/"); ok {
				ed.links[join(path, rest)] = g[0]
			}
		}
	}
	return nil
}

// Link adds the file at path to those that share key (such as device and inode). Files with a
// common key at the commit are one group.
func (ed *Editor) Link(path, key string) { ed.links[path] = "\x00" + key }

func (ed *Editor) unlink(path string) {
	if len(ed.links) == 0 {
		return
	}
	delete(ed.links, path)
	for p := range ed.links {
		if strings.HasPrefix(p, path+"/") {
			delete(ed.links, p)
		}
	}
}

// Commit stores the new directories and returns the new tree. The editor must
// not be used afterwards.
func (ed *Editor) Commit() (*Tree, error) {
	if ed.dead {
		return nil, cell.Errorf(cell.Internal, "workspace.Commit", "", "editor used twice")
	}
	ed.dead = true
	if err := ed.commit(ed.root); err != nil {
		return nil, err
	}
	groups := map[string][]string{}
	for p, g := range ed.links {
		groups[g] = append(groups[g], p)
	}
	t := &Tree{Root: ed.root.self, objs: ed.objs}
	for _, g := range groups {
		if len(g) > 1 {
			sort.Strings(g)
			t.Links = append(t.Links, g)
		}
	}
	sort.Slice(t.Links, func(i, j int) bool { return t.Links[i][0] < t.Links[j][0] })
	return t, nil
}

func (ed *Editor) commit(n *node) error {
	if n.self.Type != Folder || (!n.dirty && !n.self.Digest.IsZero()) {
		return nil
	}
	if err := ed.load(n); err != nil {
		return err
	}
	d := make(Dir, 0, len(n.kids))
	for _, k := range n.kids {
		if err := ed.commit(k); err != nil {
			return err
		}
		d = append(d, k.self)
	}
	sort.Slice(d, func(i, j int) bool { return d[i].Name < d[j].Name })
	b := d.encode()
	n.self.Digest, n.self.Content = cell.Sum(b), d.contentDigest()
	return ed.objs.Put(n.self.Digest, b)
}

func split(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// Parent returns the folder that holds path; "" is the top.
func Parent(p string) string {
	if d := path.Dir(p); d != "." {
		return d
	}
	return ""
}
