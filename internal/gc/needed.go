package gc

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// needs is what something names: layers, trees by digest, and those that are in memory.
type needs struct {
	layers map[string]bool
	trees  map[cell.Digest]bool
	loaded []*workspace.Tree
}

func (n *needs) state(s workspace.State) {
	for _, l := range s.Layers {
		n.layers[l] = true
	}
}

// needed returns all that something names, as if the checkpoint but were gone.
func (m *Manager) needed(but cell.CheckpointID) *needs {
	n := &needs{layers: map[string]bool{}, trees: map[cell.Digest]bool{}}
	var templates []cell.ID         // cells of them
	imports := m.cfg.Pins.imports() // before the records, which what ends meanwhile is in
	m.cfg.Records.Look(func(now state.Records) {
		for k := range now.Checkpoints() {
			if !k.Gone && k.ID != but {
				for _, s := range k.States() {
					n.state(s)
				}
				n.trees[k.Tree] = true
			}
		}
		for c := range now.Cells() {
			n.trees[c.Known] = true
			for _, a := range c.Applied {
				n.trees[a.Before], n.trees[a.After] = true, true
			}
			if c.State == cell.Removed {
				continue
			}
			for _, g := range c.Gens() {
				n.layers[g.Layer] = true
				n.state(g.Base)
			}
			if c.Template != "" {
				templates = append(templates, c.ID)
			}
			// What its source was, in whatever cell that was recorded: without it
			// the changes of a fork would be changes of nothing.
			if k := now.Founder(c.Head); k != nil {
				n.state(k.State)
				n.trees[k.Tree] = true
			}
			for _, id := range c.KnownAt {
				if k := now.Checkpoint(id); k != nil {
					n.state(k.State)
					n.trees[k.Tree] = true
				}
			}
		}
		for o := range now.Ops() {
			for _, g := range m.cfg.Begun(o) {
				n.layers[g.Layer] = true
				n.state(g.Base)
			}
		}
	})
	for _, id := range templates {
		for _, s := range m.cfg.Above(id) {
			n.state(s)
		}
	}
	imports = append(imports, m.cfg.Sources.Loaded()...)
	imports = append(imports, m.cfg.Pins.imports()...) // what began meanwhile
	for _, im := range imports {
		n.state(im.State)
		n.loaded = append(n.loaded, im.Tree)
	}
	list, _ := m.cfg.Sources.Recorded()
	for _, s := range list {
		n.state(s.State)
		n.trees[s.Tree] = true
	}
	return n
}

// fresh is how old a layer must be to be collected, so that a clock that is set doesn't make
// one look older than the work that makes it.
const fresh = 10 * time.Minute

// collectLayers removes layers that nothing names.
func (m *Manager) collectLayers(dry bool) (items []api.GCItem, failed error) {
	young := m.cfg.Pins.oldest() // before what is needed is found out: see Pins
	n := m.needed("")
	for _, p := range m.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			return items, err
		}
		for _, l := range all {
			if n.layers[l] {
				continue
			}
			st, err := os.Lstat(filepath.Join(m.cfg.Home.Layers(), l))
			if err != nil || st.ModTime().After(young) || time.Since(st.ModTime()) < fresh {
				continue
			}
			size, _ := p.Size(l)
			items = append(items, api.GCItem{What: "layer", Name: l, Bytes: size, Why: "no checkpoint names it"})
			if !dry {
				failed = errors.Join(failed, p.Drop(l)) // the others go all the same
			}
		}
	}
	return items, failed
}

// memories are the roots of the images that checkpoints name.
func (m *Manager) memories() (roots []cell.Digest) {
	m.cfg.Records.Look(func(now state.Records) {
		for k := range now.Checkpoints() {
			if !k.Gone && k.Memory != nil {
				roots = append(roots, k.Memory.Root)
			}
		}
	})
	return roots
}

// collectObjects drops the objects that no tree and no memory image reaches. What that
// would be is not found out dry.
func (m *Manager) collectObjects(dry bool) ([]api.GCItem, error) {
	if dry {
		return nil, nil
	}
	done := m.cfg.Pins.collect()
	defer done()
	n := m.needed("")
	reach := map[cell.Digest]bool{}
	for d := range n.trees {
		if d.IsZero() {
			continue
		}
		t, err := m.cfg.Tree(d)
		if err != nil {
			continue // computed again when it is needed
		}
		reach[d] = true
		n.loaded = append(n.loaded, t)
	}
	for _, t := range n.loaded {
		err := t.Reach(reach)
		if k := cell.KindOf(err); k == cell.NotFound || k == cell.Corrupt {
			delete(reach, t.Digest()) // a part of it is lost: it is computed again, too
		} else if err != nil {
			return nil, err
		}
	}
	for _, root := range m.memories() {
		if err := memory.Reach(m.cfg.Pins, root, reach); err != nil {
			if k := cell.KindOf(err); k != cell.NotFound && k != cell.Corrupt {
				return nil, err
			}
			m.cfg.Log.Warn("a memory image is damaged", "root", root, "error", err)
		}
	}
	defer m.cfg.ForgetTrees()
	freed, err := m.cfg.Pins.Keep(func(d cell.Digest) bool { return reach[d] || m.cfg.Pins.recent(d) })
	if err != nil || freed == 0 {
		return nil, err
	}
	return []api.GCItem{{What: "trees", Name: "objects", Bytes: freed, Why: "no checkpoint names them"}}, nil
}
