package state

import (
	"maps"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Budget is what the registry keeps of what a cell and its forks may use together. The cells are those
// with Setup.Budgets.Of.
type Budget struct {
	ID      cell.ID       `json:"id"`      // the cell for which it was asked
	Asked   policy.Budget `json:"asked"`   // by its policy, and with each grant again
	Granted policy.Budget `json:"granted"` // in all
	Used    policy.Budget `json:"used"`
	Near    []string      `json:"near,omitempty"`    // parts of which it was told that they are nearly used up
	Waived  []string      `json:"waived,omitempty"`  // what a person lets pass although it can't be counted
	Reached string        `json:"reached,omitempty"` // why its cells are paused; "": they are not
	Waives  string        `json:"waives,omitempty"`  // what a grant lets pass
	Asks    string        `json:"asks,omitempty"`    // the approval of that
	Paused  []cell.ID     `json:"paused,omitempty"`  // the cells that were paused for it
}

// Counted is what was counted of a cell's gateway already.
type Counted struct {
	Cell   cell.ID         `json:"cell"`
	Source string          `json:"source"` // the gateway
	Used   []cell.ModelUse `json:"used,omitempty"`
}

// ForgetBudget begins the id of a budget that is forgotten.
const ForgetBudget = "budget "

// Budget returns the record of a budget.
func (r *Registry) Budget(id cell.ID) (Budget, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b := r.budgets[id]
	if b == nil {
		return Budget{}, false
	}
	return *b, true
}

// Budgets lists all, by id.
func (r *Registry) Budgets() (list []Budget) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(r.budgets)) {
		list = append(list, *r.budgets[id])
	}
	return list
}

// Counted returns what was counted of a cell's gateway.
func (r *Registry) Counted(id cell.ID) Counted {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.counted[id]; c != nil {
		return *c
	}
	return Counted{Cell: id}
}

// Spent returns how many commands ran in a cell outside of runs, while they were
// counted.
func (r *Registry) Spent(id cell.ID) int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.execs[id]
}

// budgetRecords are the records of budgets.
func (r *Registry) budgetRecords() (recs []Record) {
	for _, b := range r.budgets {
		recs = append(recs, Record{Budget: b})
	}
	for id, n := range r.counted {
		if c := r.cells.of[id]; c != nil && c.State != cell.Removed {
			recs = append(recs, Record{Counted: n})
		}
	}
	return recs
}
