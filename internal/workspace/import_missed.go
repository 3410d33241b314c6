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

// importRounds is the number of passes over a source in which files vanish while it is read. A
// vanished file may have moved: `git gc` moves objects into a pack, and a base with neither
// would be a broken repository.
const importRounds = 4

// missed are the paths of a source that a walk found and that were missing, or of another type,
// when they were read. It is safe for concurrent use.
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

// clear drops the findings of a discarded pass.
func (m *missed) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paths = nil
}

// note names the missed paths.
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
	return "the source changed while it was read; without the removed files: " + text
}

// gone records a vanished path of the source, and returns nil: it counts as removed before. It
// returns other errors.
func (s *sourceTree) gone(path string, err error) error {
	if !isGone(err) {
		return err
	}
	s.missed.add(path)
	return nil
}

// isGone reports whether a found path is missing or of another type.
func isGone(err error) bool {
	for _, e := range []error{os.ErrNotExist, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// listThere is list, for which a vanished folder is empty.
func (s *sourceTree) listThere(root *linux.Dir, dir string, _ *Stat, buf []byte) ([]Found, error) {
	found, err := s.list(root, dir, buf)
	if err != nil && dir != "" {
		return nil, s.gone(dir, err)
	}
	return found, err
}

// Import makes a base from a source, or updates the base of an earlier import at the cost of a
// stat of every file and a copy of the changed ones. It never writes to the source. When it
// fails, nothing remains.
//
// Files that vanish while the source is read are left out. The source is then read again, and a
// note lists what the last pass missed.
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

// dropLayers removes the layers of a state that this import made, except those of another state.
func dropLayers(req ImportRequest, of, keep State) (err error) {
	for _, l := range of.Layers {
		if !slices.Contains(keep.Layers, l) && (req.Prev == nil || !slices.Contains(req.Prev.State.Layers, l)) {
			err = errors.Join(err, req.Provider.Drop(l))
		}
	}
	return err
}
