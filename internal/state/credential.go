package state

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Lending is what the registry keeps of a credential in the hands of a cell. It
// is a record of its own, and not a part of the cell's: it is taken back while
// a run holds the cell's lock.
type Lending struct {
	Cell        cell.ID   `json:"cell"`
	Handle      string    `json:"handle"`
	Placeholder string    `json:"placeholder,omitempty"` // none for a key of SSH
	Since       time.Time `json:"since"`
	Revoked     time.Time `json:"revoked,omitzero"`
}
