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
	Key       string          `json:"key"`     // its subject: "r-…/run"
	Run       string          `json:"run,omitempty"`
	Cell      string          `json:"cell,omitempty"`
	Verdict   string          `json:"verdict,omitempty"`   // the run's verdict in this receipt
	At        time.Time       `json:"at,omitzero"`         // when it was signed
	Summary   string          `json:"summary"`             // one line for lists
	Isolation string          `json:"isolation"`           // isolation of its subject: "isolated" or "not isolated" (backend none)
	Statement json.RawMessage `json:"statement,omitempty"` // in full, for a single receipt
	Envelope  json.RawMessage `json:"envelope,omitempty"`  // DSSE envelope, for a single receipt
	Markdown  string          `json:"markdown,omitempty"`  // for people, for a single receipt
}

// Verification is the outcome of verifying receipts.
type Verification struct {
	OK       bool      `json:"ok"`             // no problem was found and nothing is missing
	Receipts int64     `json:"receipts"`       // number of checked receipts
	Files    int       `json:"files"`          // number of the files that they name
	Head     int64     `json:"head"`           // size of the ledger
	Root     string    `json:"root,omitempty"` // Merkle root of the ledger, hex
	KeyID    string    `json:"key_id"`         // id of the signing key
	Problems []Problem `json:"problems"`       // the problems found
	Unproven []string  `json:"unproven"`       // what could not be checked
	TookMS   float64   `json:"took_ms"`
}

// Problem is one problem of evidence.
type Problem struct {
	Reason string `json:"reason"`         // edited, recomputed, dropped, reordered, truncated, wrong-key, …
	Index  int64  `json:"index"`          // place in the ledger
	File   string `json:"file,omitempty"` // the file concerned
	What   string `json:"what"`           // the problem, in words
}

// Diagnosis is the result of `pando doctor`.
type Diagnosis struct {
	OK      bool      `json:"ok"`     // the default path works
	Host    string    `json:"host"`   // kind of machine: distribution, container, WSL2
	Kernel  string    `json:"kernel"` // release of the kernel
	User    string    `json:"user"`   // the user, with its rights
	Checks  []Finding `json:"checks"` // one entry for each check
	Backend string    `json:"backend"`
	Disk    *Disk     `json:"disk,omitempty"` // disk usage of pando
}

// Finding is the result of one check.
type Finding struct {
	Name   string `json:"name"`
	Status string `json:"status"`         // "ok", "missing", "broken", "note"
	Found  string `json:"found"`          // the result, in words
	Adds   string `json:"adds,omitempty"` // what it would add, when it is missing
	Fix    string `json:"fix,omitempty"`  // a command or a step that fixes it
	// For names what needs it, where pando works without: "microVM cells".
	For string `json:"for,omitempty"`
	// Verdict is a word for programs where status is not enough: "kvm" has "absent", "no
	// access", "not hardware" (a device without hardware support), "switched off", "works".
	Verdict string `json:"verdict,omitempty"`
}

// Ledger describes the ledger of an installation's receipts, as its newest signed head says.
type Ledger struct {
	Origin  string   `json:"origin"`            // the ledger's name, after its key
	KeyID   string   `json:"keyid"`             // digest of the key that signs
	Size    int64    `json:"size"`              // number of receipts
	Root    string   `json:"root"`              // of their Merkle tree
	Head    string   `json:"head"`              // the signed head, a C2SP checkpoint
	Extends []string `json:"extends,omitempty"` // with since: the consistency proof from the head of that size, after RFC 9162

	Keys    []LedgerKey `json:"keys"`              // all that it has had, the one that signs last
	Changes []KeyChange `json:"changes,omitempty"` // the receipts that changed them
}

// LedgerKey is one of the keys of a ledger.
type LedgerKey struct {
	KeyID   string `json:"keyid"`                   // its digest
	Key     string `json:"key"`                     // "ed25519:" and its 32 bytes in base64
	First   int64  `json:"first"`                   // index of the first receipt that it signs
	Last    *int64 `json:"last,omitempty"`          // index of the last; none for the one that signs now
	Revoked *int64 `json:"revoked_since,omitempty"` // index of the first receipt that its signature does not count for
}

// KeyChange is a receipt that changed the keys of a ledger.
type KeyChange struct {
	Index    int64           `json:"index"`    // which receipt
	Envelope json.RawMessage `json:"envelope"` // signed by the key of before
}

// KeyChangeRequest asks for another key of the ledger, for the end of one, or for both.
type KeyChangeRequest struct {
	Revoke string `json:"revoke,omitempty"` // digest of the key, or a beginning of it; empty: the key that signs is replaced and stays good
	Since  *int64 `json:"since,omitempty"`  // with revoke: index of the first receipt that it does not count for; none: from now on
	Reason string `json:"reason,omitempty"` // is in the receipt
}
