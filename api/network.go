package api

import (
	"fmt"
	"time"
)

// Network is the network traffic of a run, and its denials.
type Network struct {
	Link      string `json:"link,omitempty"` // how the cell reached its gateway: "tun", "veth", "socket"
	Decisions int    `json:"decisions"`      // number of decisions
	Denied    int    `json:"denied"`         // how many of them denied
	Approved  int    `json:"approved"`       // how many of them a person allowed
	Requests  int    `json:"requests"`       // HTTP requests that were let through
	Sent      int64  `json:"sent"`           // bytes out of the cell
	Received  int64  `json:"received"`       // bytes into it
	// Tried is the number of packets that a cell without a network sent in vain.
	Tried int64 `json:"tried,omitempty"`
	// Unchecked is the number of connections and requests through the host's proxy to names that
	// the host itself could not look up: their addresses were not checked.
	Unchecked int `json:"unchecked,omitempty"`
	// Unresolved are names that are allowed, and that the host could not look up, which is no
	// denial. The first error of each, at most 100.
	Unresolved []Unresolved `json:"unresolved,omitempty"`
	// Peers are the hosts of its connections, the most used first. Denials are its denied
	// requests, in the order of their first time. Both are cut at 100; More counts the rest.
	Peers   []Peer   `json:"peers,omitempty"`
	Denials []Denial `json:"denials,omitempty"` // its denied requests
	More    int      `json:"more,omitempty"`    // peers and denials that are not listed
	// Models is its use of models, and Prices the date of the price table, if that was used.
	Models []ModelUse `json:"models,omitempty"`
	Prices string     `json:"prices,omitempty"` // YYYY-MM-DD
	// Budget lists the events of its cell's budget, in order, the first 100.
	Budget []BudgetNote `json:"budget,omitempty"`
}

// ModelUse is the use of one model, as its answers state it.
type ModelUse struct {
	Model      string `json:"model"`                 // name in the answers; empty if they have none
	Requests   int64  `json:"requests"`              // answered requests
	Input      int64  `json:"input"`                 // input tokens that no cache had
	Output     int64  `json:"output"`                // output tokens
	CacheRead  int64  `json:"cache_read,omitempty"`  // input tokens read from a cache
	CacheWrite int64  `json:"cache_write,omitempty"` // input tokens written to a cache
	Unseen     int64  `json:"unseen,omitempty"`      // successful answers without usage fields, or unreadable
	Calls      int64  `json:"calls,omitempty"`       // tool calls in the answers
	MicroUSD   int64  `json:"usd_millionths"`        // list price, in millionths of a US dollar
	Unpriced   bool   `json:"unpriced,omitempty"`    // neither the policy nor the table has a price for the model
	OwnPrice   bool   `json:"own_price,omitempty"`   // priced by the policy, and not by the table
}

// BudgetNote is an event of a budget.
type BudgetNote struct {
	What   string `json:"what"`         // near, reached, granted, refused
	Budget string `json:"budget"`       // time, requests, tokens, usd; price or usage if these are unknown
	Text   string `json:"text"`         // in one sentence
	By     string `json:"by,omitempty"` // name of the deciding person
}

// Unresolved is a name that the host could not look up: its resolver failed or did not answer.
type Unresolved struct {
	Host  string `json:"host"`  // the name
	Error string `json:"error"` // the error
}

// Peer is a host that a run connected to.
type Peer struct {
	Host       string   `json:"host"`                 // a name, or an address
	Port       int      `json:"port"`                 // TCP port
	Requests   int      `json:"requests,omitempty"`   // HTTP requests seen in opened connections
	Flows      int      `json:"flows"`                // connections, or requests
	Sent       int64    `json:"sent"`                 // bytes to it
	Received   int64    `json:"received"`             // bytes from it
	Opened     bool     `json:"opened,omitempty"`     // the gateway opened the connection
	Credential []string `json:"credential,omitempty"` // handles of the credentials that were put in
}

// Denial is a denied request of a run, with the number of attempts.
type Denial struct {
	Want     string `json:"want"`               // "POST https://api.github.com/repos/x/y/issues", "resolve evil.example"
	Times    int64  `json:"times"`              // number of attempts
	Rule     string `json:"rule"`               // the rule that denied it
	Origin   string `json:"origin"`             // where the rule is written
	Reason   string `json:"reason"`             // in one sentence
	Permit   string `json:"permit,omitempty"`   // the flag that would allow it
	Line     string `json:"line,omitempty"`     // the line for a policy file
	Narrower string `json:"narrower,omitempty"` // the least grant that suffices
	By       string `json:"by"`                 // "policy", "person", "gateway", "budget"
}

// String returns the denial in one line.
func (d Denial) String() string {
	s := d.Want
	if d.Times > 1 {
		s += fmt.Sprintf(" (%d times)", d.Times)
	}
	s += ", " + d.Reason
	if d.Permit != "" {
		s += ": " + d.Permit + " would allow it"
	}
	return s
}

// Approval is a request of a cell that a person decides on.
type Approval struct {
	ID       string    `json:"approval"`            // "q-" and 16 hexadecimal digits
	Cell     string    `json:"cell"`                // id of the cell
	CellName string    `json:"cell_name,omitempty"` // its name, if it has one
	Run      string    `json:"run,omitempty"`       // id of the run
	Want     string    `json:"want"`                // "POST https://api.github.com/repos/x/y/issues"
	Reason   string    `json:"reason"`              // why the rule asks
	Rule     string    `json:"rule"`                // the rule that asks
	Origin   string    `json:"origin"`              // where the rule is written
	Policy   string    `json:"policy_digest"`       // digest of the policy in force
	Digest   string    `json:"digest"`              // of the request and the policy: a decision is valid for nothing else
	State    string    `json:"state"`               // waiting, approved, denied, expired
	Scope    string    `json:"scope,omitempty"`     // scope of an approval: "once", "run", or a duration such as "10m0s"
	By       string    `json:"by,omitempty"`        // name of the deciding person
	Asked    time.Time `json:"asked"`               // when it was requested
	Expires  time.Time `json:"expires,omitzero"`    // when it is denied without a decision; absent for a budget; once approved, when the approval ends
	Answered time.Time `json:"answered,omitzero"`   // when it was decided
}

// ApprovalRequest answers an approval.
type ApprovalRequest struct {
	// Scope of an approval: "once" (default), "run", or a duration such as "10m".
	Scope string `json:"scope,omitempty"`
}
