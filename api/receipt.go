package api

import (
	"encoding/json"
	"time"
)

// Receipt is one signed statement of the ledger.
type Receipt struct {
	ID        string          `json:"receipt"` // digest of the envelope
	Index     int64           `json:"index"`   // place in the ledger, from 0
	Type      string          `json:"type"`    // predicate type
	Key       string          `json:"key"`     // what it is about: "r-…/run"
	Run       string          `json:"run,omitempty"`
	Cell      string          `json:"cell,omitempty"`
	Verdict   string          `json:"verdict,omitempty"`   // the run's verdict, as this receipt says it
	At        time.Time       `json:"at,omitzero"`         // when it was signed
	Summary   string          `json:"summary"`             // one line for lists
	Isolation string          `json:"isolation"`           // of what it is about: "isolated" or "not isolated" (backend none)
	Statement json.RawMessage `json:"statement,omitempty"` // in full, when one is shown
	Envelope  json.RawMessage `json:"envelope,omitempty"`  // DSSE envelope, when one is shown
	Markdown  string          `json:"markdown,omitempty"`  // for people, when one is shown
}

// Verification is the outcome of verifying receipts.
type Verification struct {
	OK       bool      `json:"ok"`             // nothing is wrong and nothing is missing
	Receipts int64     `json:"receipts"`       // how many were checked
	Files    int       `json:"files"`          // how many files that they name
	Head     int64     `json:"head"`           // size of the ledger
	Root     string    `json:"root,omitempty"` // Merkle root of the ledger, hex
	KeyID    string    `json:"key_id"`         // the key that signed
	Problems []Problem `json:"problems"`       // what is wrong
	Unproven []string  `json:"unproven"`       // what could not be checked
	TookMS   float64   `json:"took_ms"`
}

// Problem is one thing that is wrong with evidence.
type Problem struct {
	Reason string `json:"reason"`         // edited, recomputed, dropped, reordered, truncated, wrong-key, …
	Index  int64  `json:"index"`          // place in the ledger
	File   string `json:"file,omitempty"` // the file concerned
	What   string `json:"what"`           // what is wrong with it, in words
}

// Diagnosis is what `pando doctor` found.
type Diagnosis struct {
	OK      bool      `json:"ok"`     // the default path works
	Host    string    `json:"host"`   // what kind of machine: distribution, container, WSL2
	Kernel  string    `json:"kernel"` // release of the kernel
	User    string    `json:"user"`   // who asked, and with which rights
	Checks  []Finding `json:"checks"` // one per thing examined
	Backend string    `json:"backend"`
	Disk    *Disk     `json:"disk,omitempty"` // what pando holds on disk
}

// Finding is one thing that was examined.
type Finding struct {
	Name   string `json:"name"`
	Status string `json:"status"`         // "ok", "missing", "broken", "note"
	Found  string `json:"found"`          // what was found, in words
	Adds   string `json:"adds,omitempty"` // what it would add, when it is missing
	Fix    string `json:"fix,omitempty"`  // a command or a step that mends it
	// For is what needs it, where pando works without: "microVM cells".
	For string `json:"for,omitempty"`
	// Verdict is a word for a program to decide on, where status is not enough: "kvm" has
	// "absent", "no access", "not hardware" (a device without machines behind it), "switched off", "works".
	Verdict string `json:"verdict,omitempty"`
}
