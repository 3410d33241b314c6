package gc

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// needs is what something beside the records of cells and checkpoints names: layers, trees by
// digest, and those that are in memory.
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

// beside finds that out.
func (m *Manager) beside() *needs {
	n := &needs{layers: map[string]bool{}, trees: map[cell.Digest]bool{}}
	imports := m.cfg.Pins.imports()
	m.cfg.Records.Look(func(now state.Records) {
		for o := range now.Ops() {
			for _, g := range m.cfg.Begun(o) {
				n.layers[g.Layer] = true
				n.state(g.Base)
			}
		}
	})
	for _, id := range m.cfg.Records.TemplateCells() {
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

// unneeded reports whether nothing names a layer, as if the checkpoint but were gone. Of each
// layer it says so once.
func (m *Manager) unneeded(beside func() *needs, layer string, but cell.CheckpointID) bool {
	// The records are asked first, because that is cheap, and last, for what was recorded since.
	named := func() bool { return m.cfg.Records.NamesLayer(layer, but) }
	if named() || beside().layers[layer] || named() {
		return false
	}
	beside().layers[layer] = true
	return true
}

// fresh is how old a layer must be to be collected, so that a clock that is set doesn't make
// one look older than the work that makes it.
const fresh = 10 * time.Minute

// collectLayers removes layers that nothing names.
func (m *Manager) collectLayers(dry bool) (items []api.GCItem, failed error) {
	young := m.cfg.Pins.oldest() // before what is needed is found out: see Pins
	beside := sync.OnceValue(m.beside)
	for _, p := range m.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			return items, err
		}
		for _, l := range all {
			if !m.unneeded(beside, l, "") {
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

// reachable is what records name, beside n: trees, roots of memory images, and contents of files.
func (m *Manager) reachable(n *needs) (memories, contents []cell.Digest) {
	m.cfg.Records.Look(func(now state.Records) {
		for o := range now.Ops() {
			trees, files := m.cfg.BegunObjects(o)
			for _, d := range trees {
				n.trees[d] = true
			}
			contents = append(contents, files...)
		}
		for k := range now.Checkpoints() {
			if k.Gone {
				continue
			}
			n.trees[k.Tree] = true
			if k.Memory != nil {
				memories = append(memories, k.Memory.Root)
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
			for _, a := range c.Agreed {
				n.trees[a.Before], n.trees[a.After] = true, true
			}
			contents = append(contents, c.Contents...)
			for _, id := range append([]cell.CheckpointID{now.FounderOf(c)}, c.KnownAt...) {
				if k := now.Checkpoint(id); k != nil {
					n.trees[k.Tree] = true
				}
			}
		}
	})
	return memories, contents
}

// collectObjects drops the objects that no tree and no memory image reaches. What that
// would be is not found out dry.
func (m *Manager) collectObjects(dry bool) ([]api.GCItem, error) {
	if dry {
		return nil, nil
	}
	done := m.cfg.Pins.collect()
	defer done()
	n := m.beside()
	memories, contents := m.reachable(n)
	reach := map[cell.Digest]bool{}
	for _, d := range contents {
		reach[d] = true
	}
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
	for _, root := range memories {
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
