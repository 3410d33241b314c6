package state

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Interp is what the registry keeps of a cell's latest interpreter. The
// interpreter itself is in the keeper, and gone with it. It is a record of its
// own, and not a part of the cell's: it begins and ends while a run holds the
// cell's lock.
type Interp struct {
	Cell     cell.ID   `json:"cell"`
	Kind     string    `json:"kind"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Depth    int       `json:"depth,omitempty"`
	Template string    `json:"template,omitempty"` // that it was forked from
	Former   string    `json:"former,omitempty"`   // the template that an earlier interpreter of the cell was forked from
	Batch    string    `json:"batch,omitempty"`    // key of the receipt with its certificate
	Ended    string    `json:"ended,omitempty"`    // why it is gone
}

// Why a cell has no interpreter.
const (
	PutToRest  = "the cell was put to rest"
	KeeperLost = "its processes ended with their keeper" // also of a cell without one
)
