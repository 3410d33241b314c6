package state

import (
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// Records are what is recorded while look runs: all of one moment.
type Records struct{ r *Registry }

// Look calls f with the records of one moment. f calls no method of the registry, and keeps
// and changes no record.
func (r *Registry) Look(f func(now Records)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f(Records{r})
}

// Cells yields all cells, removed ones too.
func (n Records) Cells() iter.Seq[*Cell] { return values(n.r.cells.each()) }

// Checkpoints yields all checkpoints, collected ones too.
func (n Records) Checkpoints() iter.Seq[*Checkpoint] { return values(n.r.checkpoints.each()) }

// Interps yields the latest interpreter of each cell that ever had one.
func (n Records) Interps() iter.Seq[*Interp] { return values(n.r.interps.each()) }

// Ops yields the operations that are not over.
func (n Records) Ops() iter.Seq[*operation.Redo] {
	return func(yield func(*operation.Redo) bool) {
		for _, o := range n.r.ops {
			if !yield(o) {
				return
			}
		}
	}
}

// Checkpoint is the checkpoint of an id; nil for none.
func (n Records) Checkpoint(id cell.CheckpointID) *Checkpoint { return n.r.checkpoints.at(id) }

// FounderOf is the checkpoint that a cell's head goes back to in the end: what its source was
// imported into. It may be another cell's, which is gone.
func (n Records) FounderOf(c *Cell) cell.CheckpointID { return n.r.x.places[c.ID].founder }

// values yields the values of pairs.
func values[K, V any](pairs iter.Seq2[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range pairs {
			if !yield(v) {
				return
			}
		}
	}
}

// FounderOf is the checkpoint that a state goes back to in the end: what a source was
// imported into. It may be another cell's, which is gone.
func (r *Registry) FounderOf(id cell.CheckpointID) (Checkpoint, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.founder(id); k != nil {
		return *k, true
	}
	return Checkpoint{}, false
}

// Approvals returns the approvals, newest first.
func (r *Registry) Approvals() []Approval {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Approval, 0, len(r.approvals))
	for _, a := range r.approvals {
		out = append(out, *a)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Ask.At.After(out[j].Ask.At) })
	return out
}

// Approval is the approval of an id.
func (r *Registry) Approval(id string) (Approval, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if a := r.approvals[id]; a != nil {
		return *a, true
	}
	return Approval{}, false
}

// Forked is how many cells were made of a cell, removed ones too, without those of templates.
func (r *Registry) Forked(id cell.ID) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.x.kids[id]
}

// Recount brings the index to other ceilings: paused cells may be kept for another time, and
// requests that wait may have room.
func (r *Registry) Recount() {
	r.mu.Lock()
	for id := range r.cells.each() {
		r.reindex(id)
	}
	r.freed()
	r.mu.Unlock()
	select {
	case r.leased <- struct{}{}:
	default:
	}
}

// KeepPaused sets how long a paused cell is kept by its lease; 0 for ever.
func (r *Registry) KeepPaused(keeps func(*Lease) time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeps = keeps
}

// Wake has requests that wait for a claim try again.
func (r *Registry) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed()
}

// Room is closed when there may be room for another claim.
func (r *Registry) Room() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.free
}

// Uncounted are the labels of a cell that does not count among those there are at once; false
// for one that does, and for none.
func (r *Registry) Uncounted(id cell.ID) (labels map[string]string, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.x.places[id]
	if p == nil || p.takesPart() {
		return nil, false
	}
	return p.labels, true
}

// NextDue is when the next lease ends; zero when none does.
func (r *Registry) NextDue() time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	next, _ := r.x.due.Min()
	return next.until
}

// CellsOnImage are the cells that are not removed on an image, by the names that the index has for
// it (see imageOf), newest first.
func (r *Registry) CellsOnImage(names []string) (out []Cell) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range names {
		for c := range r.members(r.x.images[k]) {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b Cell) int { return a.Key().Compare(b.Key()) })
	return out
}

// HoldsOthers reports whether the keeper of a cell holds other cells that have processes.
func (r *Registry) HoldsOthers(id cell.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.x.awake[id]) > 0
}

// Lowers reports whether a living cell needs layers in the folder of another.
func (r *Registry) Lowers(id cell.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.x.lowers[id] > 0
}

// Size is how many cells are not removed.
func (r *Registry) Size() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.alive
}

// PendingFrom is the newest result from a source that waits in an anonymous cell.
func (r *Registry) PendingFrom(source string) (Run, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	of, ok := r.x.pendings[source]
	if !ok {
		return Run{}, false
	}
	for at := range of.each() {
		v := r.runs.at(at.id)
		if v == nil || v.CellName != "" || v.OffersNothing() {
			continue
		}
		if c := r.cells.at(v.CellID()); c != nil && c.State != cell.Removed { // else it was thrown away
			return *v, true
		}
	}
	return Run{}, false
}

// ForksOf are the listed cells that were forked from a template.
func (r *Registry) ForksOf(template string) (out []Cell) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for c := range r.members(r.x.forks[template]) {
		out = append(out, *c)
	}
	return out
}

// CountForks counts them.
func (r *Registry) CountForks(template string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.x.forks[template])
}

// Carries reports whether a cell has all of these labels.
func (r *Registry) Carries(id cell.ID, labels map[string]string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	l := r.leases.of[id]
	return l != nil && carries(l.Labels, labels, "")
}

// CountStates counts the listed cells by state and backend.
func (r *Registry) CountStates() map[[2]string]int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := map[[2]string]int{}
	for k, n := range r.x.states {
		out[[2]string{k.state, k.backend}] = n
	}
	return out
}

// HasShared reports whether a shared record is recorded.
func (r *Registry) HasShared(d cell.Digest) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shared[d] != nil
}

// Visited is how many records and entries of the index walks have visited.
func (r *Registry) Visited() int64 { return r.walked.Load() }

// LeaseChanges says that a lease which ends was changed.
func (r *Registry) LeaseChanges() <-chan struct{} { return r.leased }
