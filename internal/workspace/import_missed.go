package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// importRounds is how often a source is looked at when some of it goes away while it is
// read. What went away may be somewhere else now: `git gc` moves objects into a pack, and
// a base with neither would be a broken repository.
const importRounds = 4

// missed are the paths of a source that a walk found and that were not there, or something
// else, when they were read. It is safe for concurrent use.
type missed struct {
	mu    sync.Mutex
	paths map[string]bool
}

func (m *missed) add(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paths == nil {
		m.paths = map[string]bool{}
	}
	m.paths[path] = true
}

func (m *missed) none() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.paths) == 0
}

// clear forgets a look whose result is not used.
func (m *missed) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paths = nil
}

// note names what was missed.
func (m *missed) note() string {
	const most = 5
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for p := range m.paths {
		names = append(names, linux.Abridged(p))
	}
	sort.Strings(names)
	text := strings.Join(names[:min(most, len(names))], ", ")
	if n := len(names) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return "the source changed while it was read, and is without what went away: " + text
}

// gone notes the disappearance of a path of the source and makes nothing of it: it is as
// if it had gone before. Other errors stay.
func (s *sourceTree) gone(path string, err error) error {
	if !isGone(err) {
		return err
	}
	s.missed.add(path)
	return nil
}

// isGone reports whether what a walk found is not there any more, or something else.
func isGone(err error) bool {
	for _, e := range []error{os.ErrNotExist, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// listThere is list, for which a folder that has gone away is empty.
func (s *sourceTree) listThere(root *linux.Dir, dir string, buf []byte) ([]Found, error) {
	found, err := s.list(root, dir, buf)
	if err != nil && dir != "" {
		return nil, s.gone(dir, err)
	}
	return found, err
}

// Import makes a base of a source, or brings the base of an earlier import up
// to date at the cost of looking at every file and copying those that changed.
// The source is never written. When Import fails, nothing remains.
//
// What goes away while it is read is left out. The source is looked at again then, and
// what the last look still missed is among the notes.
func Import(ctx context.Context, req ImportRequest) (*Imported, error) {
	out, lost, err := importOnce(ctx, req)
	for round := 1; err == nil && !lost.none() && round < importRounds; round++ {
		again := req
		again.Prev = out
		var next *Imported
		if next, lost, err = importOnce(ctx, again); err == nil {
			next.Copied += out.Copied
			err = dropLayers(req, out.State, next.State)
		} else {
			err = errors.Join(err, dropLayers(req, out.State, State{}))
		}
		out = next
	}
	if err != nil {
		return nil, err
	}
	if !lost.none() {
		out.Notes = append(slices.Clip(out.Notes), lost.note())
	}
	return out, nil
}

// dropLayers removes the layers of a state that this import made and that another does not
// stand on.
func dropLayers(req ImportRequest, of, keep State) (err error) {
	for _, l := range of.Layers {
		if !slices.Contains(keep.Layers, l) && (req.Prev == nil || !slices.Contains(req.Prev.State.Layers, l)) {
			err = errors.Join(err, req.Provider.Drop(l))
		}
	}
	return err
}
