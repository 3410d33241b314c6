package workspace

import (
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// A Finder is Lookup for callers that look up most paths of a tree: it reads each directory
// once, and keeps it. Safe for concurrent use.
type Finder struct {
	t *Tree

	mu   sync.Mutex // guards dirs
	dirs map[string]Dir
}

// Finder returns a Finder that has read nothing yet.
func (t *Tree) Finder() *Finder { return &Finder{t: t, dirs: map[string]Dir{}} }

// Lookup is Tree.Lookup.
func (f *Finder) Lookup(path string) (Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lookup(path)
}

func (f *Finder) lookup(path string) (Entry, error) {
	if path == "" {
		return f.t.Root, nil
	}
	parent, name := split(path)
	dir, ok := f.dirs[parent]
	if !ok {
		up, err := f.lookup(parent)
		if cell.KindOf(err) == cell.NotFound || err == nil && up.Type != Folder {
			return Entry{}, notThere(path)
		}
		if err != nil {
			return Entry{}, err
		}
		if dir, err = f.t.ReadDir(up.Digest); err != nil {
			return Entry{}, err
		}
		f.dirs[parent] = dir
	}
	if i, ok := dir.find(name); ok {
		return dir[i], nil
	}
	return Entry{}, notThere(path)
}
