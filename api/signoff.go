package api

import (
	"encoding/json"
	"time"
)

// SignOff is what an approver signed about changes.
type SignOff struct {
	Approver string    `json:"approver"`          // name of the approver, as in the policy
	Key      string    `json:"key"`               // public key, as in the policy
	Decision string    `json:"decision"`          // approve or reject
	Digest   string    `json:"digest"`            // digest of the changes, as pando diff prints it
	Commit   string    `json:"commit,omitempty"`  // commit that was checked out in the cell
	Runs     []string  `json:"runs"`              // runs that made the changes
	Message  string    `json:"message,omitempty"` // what the approver says about it
	At       time.Time `json:"at"`                // time of the signature, as the approver says
	// Envelope is the signed statement (DSSE), as text; runs have none.
	Envelope string `json:"envelope,omitempty"`
}

// SignOffNeed says how many sign-offs a result needs.
type SignOffNeed struct {
	Needs int64    `json:"needs"` // number of approvers
	Why   []string `json:"why"`   // reasons, in words
}

// SignOffs is what there is to sign off, and what was signed.
type SignOffs struct {
	Ledger string   `json:"ledger"`           // origin of the installation's ledger
	Cell   string   `json:"cell"`             // id of the cell
	Runs   []string `json:"runs"`             // runs that made the changes
	Digest string   `json:"digest"`           // digest of the changes, as pando diff prints it
	Base   string   `json:"base"`             // content digest of what they are changes to
	After  string   `json:"after"`            // content digest of what they lead to
	Commit string   `json:"commit,omitempty"` // commit that is checked out in the cell
	Policy string   `json:"policy"`           // digest of the policy of the newest run
	Needs  int64    `json:"needs"`            // number of approvers that have to sign; 0: none
	Given  int64    `json:"given"`            // number of those that have approved exactly this
	Why    []string `json:"why"`              // why it needs sign-offs, in words
	// Approvers are the ones that the policy names, with what keeps each from signing this.
	Approvers []Approver `json:"approvers"`
	SignOffs  []SignOff  `json:"sign_offs"`      // what was signed about the cell, oldest first
	Void      []string   `json:"void,omitempty"` // why some of that does not count, in words
}

// Approver is a person with a key that the policy names.
type Approver struct {
	Name   string `json:"name"`
	Key    string `json:"key"`              // public key
	Denied string `json:"denied,omitempty"` // why the signature does not count for this
}

// SignOffRequest gives a sign-off.
type SignOffRequest struct {
	Envelope json.RawMessage `json:"envelope"` // signed statement (DSSE) of type https://pando.dev/sign-off/v1
}
