package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Retained is what was decided on how long the evidence of a run, or a cell, is kept. It is a record of its own: a hold can be put
// on a run that goes on, since its own record is the run's to write.
type Retained struct {
	ID     string   `json:"id"` // of a run or a cell
	Hold   *Hold    `json:"hold,omitempty"`
	Erased []Erased `json:"erased,omitempty"` // files of a run, oldest first
	// Unfinished says that some of these files may still be there.
	Unfinished bool     `json:"unfinished,omitempty"`
	Receipts   []string `json:"receipts"` // digests of the receipts of all that, oldest first
}

// Hold is a legal hold: nothing of a run or a cell is removed or erased while there is one.
type Hold struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"` // the caller, for people
	Reason string    `json:"reason,omitempty"`
}

// Words tells of it for people.
func (h *Hold) Words() string {
	return "on hold since " + h.At.UTC().Format(time.DateOnly) + ", by " + h.By + strings.TrimRight(": "+h.Reason, ": ")
}

// API is what the API shows of it; nil for nil.
func (h *Hold) API() *api.Hold { return (*api.Hold)(h) }

// Erased is a file of a run's evidence that was erased.
type Erased struct {
	File   string    `json:"file"`   // in the run's folder
	Digest string    `json:"digest"` // of what its receipt names
	Found  string    `json:"found,omitempty"`
	Bytes  int64     `json:"bytes"`
	At     time.Time `json:"at"`
	By     string    `json:"by"` // the caller, for people; "pando" for what the policy kept no longer
	Reason string    `json:"reason"`
}

// Words tells of it for people, after what was erased.
func (e Erased) Words() string {
	return fmt.Sprintf("erased on %s by %s, for: %s", e.At.UTC().Format(time.DateOnly), e.By, e.Reason)
}

// API is what the API shows of it.
func (e Erased) API() api.Erased { return api.Erased(e) }

// clone is a copy that shares nothing which is changed in place.
func (k Retained) clone() Retained {
	k.Erased, k.Receipts = slices.Clone(k.Erased), slices.Clone(k.Receipts)
	return k
}

// AddReceipt has it name one more receipt.
func (k *Retained) AddReceipt(d cell.Digest) {
	if !slices.Contains(k.Receipts, d.String()) {
		k.Receipts = append(slices.Clone(k.Receipts), d.String())
	}
}

// retain gives a run what is recorded of it beside its own record; k may be nil.
func (r *Run) retain(k *Retained) {
	if r.Hold, r.Erased, r.Acts = nil, nil, nil; k != nil {
		r.Hold, r.Erased, r.Acts = k.Hold, k.Erased, k.Receipts
	}
}

// AllReceipts are the digests of all receipts about a run: its own and those of decisions on its result, then those of holds and erasures.
func (r *Run) AllReceipts() []string { return slices.Concat(r.Receipts, r.Acts) }

// ErasedFile is what is recorded of a file of the run that was erased; nil for one that was not.
func (r *Run) ErasedFile(name string) *Erased {
	for i := range r.Erased {
		if r.Erased[i].File == name {
			return &r.Erased[i]
		}
	}
	return nil
}

// Retained is what is recorded of a run or a cell by its id; with nothing but that, if there is nothing.
func (r *Registry) Retained(id string) Retained {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.retained[id]; k != nil {
		return k.clone()
	}
	return Retained{ID: id}
}

// Holds are all records with a hold, oldest hold first, and Unerased are those with files that are still to be removed.
func (r *Registry) Holds() []Retained {
	list := r.retainedIf(func(k *Retained) bool { return k.Hold != nil })
	slices.SortFunc(list, func(a, b Retained) int { return a.Hold.At.Compare(b.Hold.At) })
	return list
}

// Unerased: see Holds.
func (r *Registry) Unerased() []Retained {
	return r.retainedIf(func(k *Retained) bool { return k.Unfinished })
}

func (r *Registry) retainedIf(is func(*Retained) bool) (list []Retained) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(r.retained)) {
		if k := r.retained[id]; is(k) {
			list = append(list, k.clone())
		}
	}
	return list
}

// HoldOn is the hold that keeps a cell from being removed, with its checkpoints: its own, or that of one of its runs. what is "cell ID" or
// "run ID"; the hold is nil for none.
func (r *Registry) HoldOn(id cell.ID) (what string, hold *Hold) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.retained[string(id)]; k != nil && k.Hold != nil {
		return "cell " + string(id), k.Hold
	}
	for _, run := range r.runsOf[id] {
		if k := r.retained[string(run)]; k != nil && k.Hold != nil {
			return "run " + string(run), k.Hold
		}
	}
	return "", nil
}

// Unheld refuses to do something to a cell while there is a hold on it; doing is "remove", for example, and what is it done to.
func (r *Registry) Unheld(id cell.ID, doing, what string) error {
	on, hold := r.HoldOn(id)
	if hold == nil {
		return nil
	}
	_, sel, _ := strings.Cut(on, " ")
	return cell.Errorf(cell.Conflict, "state.Unheld", "release it first, on the record: pando hold --release "+sel, "cannot %s %s: %s is %s", doing, what, on, hold.Words())
}

// applyRetained makes it what is recorded. The caller holds r.mu.
func (r *Registry) applyRetained(k *Retained) {
	r.retained[k.ID] = k
	if old := r.runs.at(cell.RunID(k.ID)); old != nil {
		now := *old
		now.retain(k)
		r.runs.of[now.RunID()] = &now
	}
	if old := r.cells.at(cell.ID(k.ID)); old != nil {
		now := *old
		now.Hold, now.Acts = k.Hold, k.Receipts
		r.cells.of[now.ID] = &now
	}
}
