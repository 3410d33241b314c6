package state

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// removedKey is a removed cell's place in the order of removals.
type removedKey struct {
	at time.Time
	id cell.ID
}

// indexRemoved notes whether a cell is removed and no other record needs its own: neither a
// run, a fork nor a template names it, nothing of it was applied to its source, and no cell
// holds one of its checkpoints. The caller holds r.mu.
func (r *Registry) indexRemoved(id cell.ID) {
	if k, ok := r.x.unnamed[id]; ok {
		delete(r.x.unnamed, id)
		r.x.removals.Delete(k)
	}
	c := r.cells.at(id)
	if c == nil || c.State != cell.Removed || len(r.x.children[id]) > 0 || len(r.runsOf[id]) > 0 || len(c.Applied) > 0 {
		return
	}
	if t := r.templates[c.Template]; t != nil && t.Cell == id {
		return
	}
	for _, k := range r.numbered[id] {
		if r.x.held[k] > 0 {
			return
		}
	}
	k := removedKey{c.RemovedAt, id}
	r.x.unnamed[id] = k
	r.x.removals.ReplaceOrInsert(k)
}

// Forgettable is what to commit so that no record is left of removed cells that no other
// record needs: of those that were removed before a time, of the oldest when there are more
// than most (by a half, so that not every removal commits), and of those among ids that were
// forked with their memory. It may make others forgettable, which they were forked from.
func (r *Registry) Forgettable(ids []cell.ID, before time.Time, most int) (objects []any) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	named := map[cell.ID]bool{}
	forget := func(id cell.ID) {
		if named[id] {
			return
		}
		named[id] = true
		for _, k := range r.numbered[id] {
			objects = append(objects, Forget(k))
		}
		objects = append(objects, Forget(id))
	}
	for _, id := range ids {
		if _, ok := r.x.unnamed[id]; ok && r.interps.of[id] != nil && r.interps.of[id].Batch != "" {
			forget(id)
		}
	}
	over := r.x.removals.Len() - most
	if over <= most/2 {
		over = 0
	}
	for k := range r.x.removals.each() {
		if over--; over < 0 && !k.at.Before(before) {
			break
		}
		forget(k.id)
	}
	return objects
}
