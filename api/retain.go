package api

import "time"

// Hold is a legal hold: nothing of a run or a cell is removed or erased while there is one.
type Hold struct {
	At     time.Time `json:"at"`               // since then
	By     string    `json:"by"`               // the caller that put it there
	Reason string    `json:"reason,omitempty"` // why, as that caller says
}

// OnHold is a run or a cell with a hold.
type OnHold struct {
	Run     string `json:"run,omitempty"`     // id of the run; "" for a hold on a cell
	Cell    string `json:"cell"`              // id of the cell
	Title   string `json:"title"`             // name of the cell for people
	Hold    *Hold  `json:"hold"`              // null once it is released
	Receipt string `json:"receipt,omitempty"` // digest of the receipt that says so
}

// HoldRequest puts a hold on a run or a cell, or releases it.
type HoldRequest struct {
	Reason  string `json:"reason,omitempty"`  // why; a release needs it
	Release bool   `json:"release,omitempty"` // take the hold away
}

// Erased is a file of a run's evidence that was erased.
type Erased struct {
	File   string    `json:"file"`            // name of the file, as the receipt has it
	Digest string    `json:"digest"`          // digest of what the receipt of the run names
	Found  string    `json:"found,omitempty"` // digest of what was there, if that was something else
	Bytes  int64     `json:"bytes"`           // size of what was there, in bytes
	At     time.Time `json:"at"`              // time of the erasure
	By     string    `json:"by"`              // caller that erased it; "pando" for what the policy keeps no longer
	Reason string    `json:"reason"`          // why
}

// EraseRequest erases contents of a run's evidence for good. Its receipts stay.
type EraseRequest struct {
	What   []string `json:"what"`              // events, output, recordings, tool_calls
	Reason string   `json:"reason"`            // why, which the receipt of the erasure says
	DryRun bool     `json:"dry_run,omitempty"` // only say what would be erased
}

// Erasure is what was erased of a run.
type Erasure struct {
	Run     string   `json:"run"`               // id of the run
	Erased  []Erased `json:"erased"`            // files
	Receipt string   `json:"receipt,omitempty"` // digest of the receipt of the erasure
	DryRun  bool     `json:"dry_run,omitempty"` // nothing was erased
}
