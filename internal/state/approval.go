package state

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Approval is what the registry keeps of something that a person decides on:
// it survives a restart of the daemon, and so does its answer.
type Approval struct {
	Ask    cell.Asked     `json:"ask"`
	State  string         `json:"state"`
	Answer *cell.Answered `json:"answer,omitempty"`
	At     time.Time      `json:"answered,omitzero"`
}

// The states of an approval.
const (
	ApprovalWaiting = "waiting"
	Approved        = "approved"
	Denied          = "denied"
	Expired         = "expired"
)
