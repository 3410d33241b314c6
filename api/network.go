package api

import (
	"fmt"
	"time"
)

// Network is what a run said to the outside, and what it was refused.
type Network struct {
	Link      string `json:"link,omitempty"` // how the cell reached its gateway: "tun", "veth", "socket"
	Decisions int    `json:"decisions"`      // how many were made
	Denied    int    `json:"denied"`         // how many of them said no
	Approved  int    `json:"approved"`       // how many a person allowed
	Requests  int    `json:"requests"`       // HTTP requests that were let through
	Sent      int64  `json:"sent"`           // bytes out of the cell
	Received  int64  `json:"received"`       // bytes into it
	// Tried is how many packets of a cell without a network found nobody to go to.
	Tried int64 `json:"tried,omitempty"`
	// Unchecked is how many connections and requests went through the host's proxy to names
	// that the host itself could not look up: which addresses they led to was not checked.
	Unchecked int `json:"unchecked,omitempty"`
	// Unresolved are names that are allowed, and that the host could not look up: which is no
	// refusal. The first error of each, at most 100.
	Unresolved []Unresolved `json:"unresolved,omitempty"`
	// Peers are those it talked to, the most first; Denials what it was refused,
	// in the order of their first time. Both are cut at 100; More counts the rest.
	Peers   []Peer   `json:"peers,omitempty"`
	Denials []Denial `json:"denials,omitempty"` // what it was refused
	More    int      `json:"more,omitempty"`    // peers and denials that are not listed
}

// Unresolved is a name that the host could not look up: its resolver did not answer, or failed.
type Unresolved struct {
	Host  string `json:"host"`  // the name
	Error string `json:"error"` // what went wrong
}

// Peer is somebody that a run talked to.
type Peer struct {
	Host       string   `json:"host"`                 // a name, or an address
	Port       int      `json:"port"`                 // of TCP
	Requests   int      `json:"requests,omitempty"`   // HTTP requests seen in opened connections
	Flows      int      `json:"flows"`                // connections, or requests
	Sent       int64    `json:"sent"`                 // bytes to it
	Received   int64    `json:"received"`             // bytes from it
	Opened     bool     `json:"opened,omitempty"`     // the gateway looked into the connection
	Credential []string `json:"credential,omitempty"` // handles of what was put in
}

// Denial is something that a run was refused, as often as it tried.
type Denial struct {
	Want     string `json:"want"`               // "POST https://api.github.com/repos/x/y/issues", "resolve evil.example"
	Times    int64  `json:"times"`              // how often it tried
	Rule     string `json:"rule"`               // that refused it
	Origin   string `json:"origin"`             // where the rule stands
	Reason   string `json:"reason"`             // in one sentence
	Permit   string `json:"permit,omitempty"`   // the flag that would allow it
	Line     string `json:"line,omitempty"`     // what to write into a policy file
	Narrower string `json:"narrower,omitempty"` // the least grant that would do
	By       string `json:"by"`                 // "policy", "person", "gateway", "budget"
}

// String is the denial in one line.
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

// Approval is something that a cell wants and a person decides on.
type Approval struct {
	ID       string    `json:"approval"`            // "q-" and 16 hexadecimal digits
	Cell     string    `json:"cell"`                // who wants it
	CellName string    `json:"cell_name,omitempty"` // its name, if it has one
	Run      string    `json:"run,omitempty"`       // in which run
	Want     string    `json:"want"`                // "POST https://api.github.com/repos/x/y/issues"
	Reason   string    `json:"reason"`              // why it is asked
	Rule     string    `json:"rule"`                // that asks
	Origin   string    `json:"origin"`              // where the rule stands
	Policy   string    `json:"policy_digest"`       // in force when it was asked
	Digest   string    `json:"digest"`              // of what is wanted and of the policy: an answer is good for nothing else
	State    string    `json:"state"`               // waiting, approved, denied, expired
	Scope    string    `json:"scope,omitempty"`     // of the answer: "once", "run", or a duration such as "10m0s"
	By       string    `json:"by,omitempty"`        // who answered
	Asked    time.Time `json:"asked"`               // when it was asked
	Expires  time.Time `json:"expires"`             // when it is denied without an answer; once approved, when the approval ends
	Answered time.Time `json:"answered,omitzero"`   // when it was answered
}

// ApprovalRequest answers an approval.
type ApprovalRequest struct {
	// Scope of an approval: "once" (default), "run", or a duration such as "10m".
	Scope string `json:"scope,omitempty"`
}
