package cache

import (
	"context"
	"errors"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Remove removes caches. Cells that have them go on with what they were mounted with.
func (m *Manager) Remove(ids ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var objects []any
	var gone []state.Cache
	for _, id := range ids {
		k, err := m.cfg.Records.Cache(id)
		if err != nil {
			return err
		}
		gone = append(gone, k)
		objects = append(objects, state.Forget(state.ForgetCache+id))
	}
	if len(objects) == 0 {
		return nil
	}
	if err := m.cfg.Records.Commit(objects...); err != nil {
		return err
	}
	for _, k := range gone {
		for _, d := range k.Dirs {
			m.drop(k.Provider, d.Layers)
		}
	}
	return nil
}

// Verified is what Verify found of one cache.
type Verified struct {
	Files int      // that are named by what they hold
	Bad   []string // where they are, in a cell, that hold something else
}

// Verify compares the files of a cache that are named by their content with their names.
func (m *Manager) Verify(ctx context.Context, id string) (out Verified, err error) {
	k, err := m.cfg.Records.Cache(id)
	if err != nil {
		return out, err
	}
	p, err := m.cfg.Provider(k.Provider)
	if err != nil {
		return out, err
	}
	for _, d := range k.Dirs {
		below := []string{d.Host}
		for _, l := range d.Layers {
			found, err := checkLayer(ctx, k.Name, layerDir(p, l), below, m.cfg.Most)
			if _, gone := m.cfg.Records.Cache(id); err != nil && gone == nil {
				return out, err
			}
			if err != nil {
				return out, cell.Errorf(cell.Conflict, "cache.Verify", "try again", "cannot verify cache %s: it was changed meanwhile: %w", k.Name, err)
			}
			out.Files += found.Files
			for _, b := range found.Bad {
				out.Bad = append(out.Bad, d.Target+"/"+b)
			}
			below = append([]string{layerDir(p, l)}, below...)
		}
	}
	return out, nil
}

// Uses lists what a run had of kept caches, by name, when its cell's instance has ended.
func (m *Manager) Uses(id cell.ID, run cell.RunID) (list []state.CacheUse, err error) {
	rec, _, p, ok, err := m.of(id)
	if !ok {
		return nil, err
	}
	at := map[string]*state.CacheUse{}
	var names []string
	for _, d := range rec.Dirs {
		u := at[d.Name]
		if u == nil {
			u = &state.CacheUse{Name: d.Name}
			at[d.Name] = u
			names = append(names, d.Name)
		}
		u.Read = u.Read || len(d.Layers) > 0
		for _, o := range d.Own {
			if slices.Contains(o.Runs, run) {
				n, serr := p.Size(o.Layer)
				err = errors.Join(err, serr)
				u.Wrote += n
			}
		}
	}
	slices.Sort(names)
	for _, n := range names {
		list = append(list, *at[n])
	}
	return list, err
}

// Waiting lists the names of the caches that are kept when runs of a cell are accepted.
func (m *Manager) Waiting(id cell.ID, runs []cell.RunID) (names []string) {
	rec, ok := m.cfg.Records.CellCaches(id)
	if !ok {
		return nil
	}
	for _, d := range rec.Dirs {
		for _, o := range d.Own {
			rest := slices.DeleteFunc(slices.Clone(o.Runs), func(r cell.RunID) bool { return slices.Contains(runs, r) })
			if len(o.Runs) > 0 && len(rest) == 0 || m.accepted(id, rest) {
				names = append(names, d.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Inherit is what a cell that is forked from another begins with of kept caches, for its record: mounted says that it has
// the other's mounts. nil: nothing.
func (m *Manager) Inherit(from, to cell.ID, mounted bool) *state.CellCaches {
	rec, ok := m.cfg.Records.CellCaches(from)
	if !ok {
		return nil
	}
	rec.Cell, rec.Since, rec.Open, rec.Answered = to, "", nil, ""
	for i := range rec.Dirs {
		if !mounted {
			rec.Dirs[i].Layers = nil
		}
	}
	return &rec
}
