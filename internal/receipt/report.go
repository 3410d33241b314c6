package receipt

import (
	"fmt"
)

// A Reason is what was done to evidence, as a word for programs.
type Reason string

// The reasons why verification fails.
const (
	// Edited: something was changed, and its signature or hash is wrong.
	Edited Reason = "edited"
	// Recomputed: something was changed and all hashes were made to fit, but
	// the signature is not the key's.
	Recomputed Reason = "recomputed"
	// Dropped: one in the middle is missing.
	Dropped Reason = "dropped"
	// Reordered: all are there, in another order.
	Reordered Reason = "reordered"
	// Repeated: one is there twice.
	Repeated Reason = "repeated"
	// Truncated: the end is missing.
	Truncated Reason = "truncated"
	// WrongKey: it is signed, but not by this key.
	WrongKey Reason = "wrong-key"
	// Forked: the key has signed two histories.
	Forked Reason = "forked"
	// NotIncluded: a genuine receipt is not shown to be in the ledger.
	NotIncluded Reason = "not-included"
	// Damaged: the file around the receipts was changed, not the receipts.
	Damaged Reason = "damaged"
	// Unlinked: a receipt completes one that is not there or not incomplete.
	Unlinked Reason = "unlinked"
	// Added: there is more at the end than was sealed.
	Added Reason = "added"
	// Revoked: it is signed by a key of the ledger, after the receipt from which on that key is revoked.
	Revoked Reason = "revoked"
	// Missing: a file that a receipt binds is not there.
	Missing Reason = "missing"
)

// A Problem is one thing that is wrong.
type Problem struct {
	Reason Reason `json:"reason"`
	Index  int64  `json:"index"`          // of the receipt, or the number of the event; -1 when it is about none
	File   string `json:"file,omitempty"` // of files that a receipt binds
	What   string `json:"what"`           // one sentence without a full stop
}

// A Report is the outcome of a verification.
type Report struct {
	Receipts int64 `json:"receipts"` // how many were checked
	// Head is the newest that was found; it is worth remembering only when
	// there is no problem.
	Head     Head      `json:"head"`
	Problems []Problem `json:"problems"`
	More     int64     `json:"more,omitempty"` // problems beyond the first maxProblems
	// Open lists incomplete receipts that none of those checked completes.
	// That is no problem of the evidence, but it is less than it could be.
	Open []int64 `json:"open,omitempty"`
	// Unproven says what was not or could not be checked.
	Unproven []string `json:"unproven,omitempty"`
}

const maxProblems = 100

// OK reports whether everything that was checked is as it was written.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

func (r *Report) add(reason Reason, index int64, format string, args ...any) {
	if len(r.Problems) == maxProblems {
		r.More++
		return
	}
	r.Problems = append(r.Problems, Problem{Reason: reason, Index: index, What: fmt.Sprintf(format, args...)})
}

func (r *Report) unproven(format string, args ...any) {
	r.Unproven = append(r.Unproven, fmt.Sprintf(format, args...))
}
