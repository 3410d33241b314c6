package state

import "github.com/pando-dev/pando/internal/cell"

// The index counts how often records name a layer: checkpoints that are not gone, writable
// layers of cells that are not removed, and checkpoints that such a cell holds, gone or not.
// A cell holds the workspace of its founder, in whatever cell that was recorded (without it
// the changes of a fork would be changes of nothing), and of what was applied to its source.

// NamesLayer reports whether a record names a layer, as if the checkpoint but were gone.
func (r *Registry) NamesLayer(layer string, but cell.CheckpointID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := r.x.layers[layer]
	if k := r.checkpoints.of[but]; k != nil && !k.Gone {
		states := k.States()
		if r.x.held[but] > 0 {
			states = states[1:]
		}
		for _, s := range states {
			for _, l := range s.Layers {
				if l == layer {
					n--
				}
			}
		}
	}
	return n > 0
}

// TemplateCells are templates' own cells that are not removed.
func (r *Registry) TemplateCells() (ids []cell.ID) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for id := range r.x.own {
		ids = append(ids, id)
	}
	return ids
}

// name counts the layers of a checkpoint; of one that is gone, those of its workspace.
func (x *index) name(k *Checkpoint, step int) {
	states := k.States()
	if k.Gone {
		states = states[:1]
	}
	for _, s := range states {
		for _, l := range s.Layers {
			tally(x.layers, l, step)
		}
	}
}

// placeLayers fills in which layers and checkpoints a cell needs. Its founder is that of
// before, as long as its head comes from the head of before. The caller holds r.mu.
func (r *Registry) placeLayers(p *place, c *Cell) {
	for _, g := range c.Gens() {
		p.layers = append(append(p.layers, g.Layer), g.Base.Layers...)
	}
	p.head, p.known = c.Head, c.KnownAt
	k := r.checkpoints.of[c.Head]
	if k == nil {
		return
	}
	if old := r.x.places[p.id]; old != nil && old.founder != "" && (old.head == c.Head || old.head == k.Parent) {
		p.founder = old.founder
		return
	}
	p.founder = r.founder(c.Head).ID
}

// hold counts the checkpoints that a cell holds. The caller holds r.mu.
func (r *Registry) hold(p *place, step int) {
	if p == nil {
		return
	}
	for _, id := range append([]cell.CheckpointID{p.founder}, p.known...) {
		if id == "" {
			continue
		}
		was := r.x.held[id] > 0
		tally(r.x.held, id, step)
		if k := r.checkpoints.of[id]; k != nil && k.Gone && was != (r.x.held[id] > 0) {
			r.x.name(k, step)
			r.indexRemoved(k.Cell)
		}
	}
}
