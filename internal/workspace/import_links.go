package workspace

import (
	"sync"

	"github.com/pando-dev/pando/internal/linux"
)

// linkSet collects the files with several names that an import meets.
type linkSet struct {
	mu     sync.Mutex          // guards what follows
	groups map[string][]string // link key → paths, in the order they were met
	of     map[string]string   // path → link key
}

func newLinkSet() *linkSet {
	return &linkSet{groups: map[string][]string{}, of: map[string]string{}}
}

// later notes a file with several names and reports whether it has been met
// before, so that it need not be copied again.
func (l *linkSet) later(f *Found) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := LinkKey(&f.Stat)
	l.groups[k] = append(l.groups[k], f.Path)
	l.of[f.Path] = k
	return len(l.groups[k]) > 1
}

// key returns the group of a path that has siblings in the workspace.
func (l *linkSet) key(path string) (string, bool) {
	k, ok := l.of[path]
	return k, ok && len(l.groups[k]) > 1
}

// make creates the further names in dir and adds their entries.
func (l *linkSet) make(dir *linux.Dir, entries []pathEntry) ([]pathEntry, error) {
	if len(l.groups) == 0 {
		return entries, nil
	}
	first := map[string]Entry{}
	for _, pe := range entries {
		if _, ok := l.key(pe.path); ok {
			first[pe.path] = pe.e
		}
	}
	for _, paths := range l.groups {
		e, ok := first[paths[0]]
		if !ok {
			continue // one name only, or left out
		}
		for _, p := range paths[1:] {
			if err := LinkInto(dir, paths[0], dir, p); err != nil {
				return nil, err
			}
			_, e.Name = split(p)
			entries = append(entries, pathEntry{p, e})
		}
	}
	return entries, nil
}
