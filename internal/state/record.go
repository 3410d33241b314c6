package state

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// version is of the journal: of what its records say, and how. The first record says it.
const version = 1

// Record is one record of the registry's journal: exactly one field is set.
type Record struct {
	Version    int             `json:"version,omitempty"` // of the first record alone
	Cell       *Cell           `json:"cell,omitempty"`
	Checkpoint *Checkpoint     `json:"checkpoint,omitempty"`
	Run        *Run            `json:"run,omitempty"`
	Op         *operation.Redo `json:"op,omitempty"`
	Lending    *Lending        `json:"lending,omitempty"`
	Approval   *Approval       `json:"approval,omitempty"`
	Spent      *Spent          `json:"spent,omitempty"`
	Budget     *Budget         `json:"budget,omitempty"`
	Counted    *Counted        `json:"counted,omitempty"`
	Template   *Template       `json:"template,omitempty"`
	Interp     *Interp         `json:"interp,omitempty"`
	Shared     *Shared         `json:"shared,omitempty"`
	Lease      *Lease          `json:"lease,omitempty"`
	Cache      *Cache          `json:"cache,omitempty"`
	CellCaches *CellCaches     `json:"cell_caches,omitempty"`
	Race       *Race           `json:"race,omitempty"`
	Attempt    *Attempt        `json:"attempt,omitempty"`
	Retained   *Retained       `json:"retained,omitempty"`
	Change     *StateChange    `json:"change,omitempty"`
	Forget     string          `json:"forget,omitempty"` // the id of a record that is dropped
}

// StateChange is a change of a cell's state alone, by work that does not hold the cell's
// lock. It counts if the state is still From by then: a cell that was removed meanwhile, for
// example, stays removed.
type StateChange struct {
	Cell cell.ID    `json:"cell"`
	From cell.State `json:"from"`
	To   cell.State `json:"to"`
}

// ForgetTemplate begins the id of a template that is forgotten.
const ForgetTemplate = "template "

// Forget is committed to drop the record of an id, or of ForgetTemplate and a name, of ForgetCache and an id, of ForgetBudget and an id, or of a race with its attempts.
type Forget string
