package api

import (
	"encoding/json"
	"time"
)

// PolicyRequest names a policy: that of a cell or a run, or the one that a run
// would have.
type PolicyRequest struct {
	Of  string     `json:"of,omitempty"`  // a cell or a run; empty: what Run would have
	Run RunRequest `json:"run,omitzero"`  // of which the policy, the flags and the source count
	Dir string     `json:"dir,omitempty"` // the caller's directory, absolute
	// Request is what is asked about: "POST https://api.github.com/repos",
	// "connect HOST:PORT", "resolve HOST", "execute PROGRAM".
	Request string `json:"request,omitempty"`
}

// Policy is an effective policy, with where each line of it comes from.
type Policy struct {
	Of      string          `json:"of"` // "cell web", "run r-…", "a run from /home/me/proj"
	Digest  string          `json:"policy_digest"`
	Layers  []PolicyLayer   `json:"layers,omitempty"` // that made it, the uppermost first
	Lines   []PolicyLine    `json:"lines"`            // all of it, presets expanded
	Talks   bool            `json:"talks"`            // the cell has a network beside its own loopback
	Bound   string          `json:"bound,omitempty"`  // the line that says what flags may allow at most
	Text    json.RawMessage `json:"policy"`           // the canonical form, of which the digest is
	Cedar   string          `json:"cedar,omitempty"`  // the same in the words of Cedar, which decides
	Skipped []string        `json:"notes,omitempty"`  // what is there and not in force, and why
}

// PolicyLayer is one source of a policy.
type PolicyLayer struct {
	Layer  string `json:"layer"`  // "host", "user", "project", "run"
	File   string `json:"file"`   // where it stands
	Digest string `json:"digest"` // of the file's bytes
}

// PolicyLine is one thing that a policy says. Of a file that is only checked, Force and How
// are empty: they are the host's.
type PolicyLine struct {
	Section string `json:"section"` // "network", "limits", …
	Name    string `json:"name"`    // "allow 2": as decisions name it
	Text    string `json:"text"`    // the line, in words
	Origin  string `json:"origin"`  // "pando.policy.yaml:31", "--allow @npm", "default"
	Force   string `json:"force"`   // "enforced", "accounted", "not enforced"
	How     string `json:"how"`     // by what, or why not
}

// PolicyAnswer says what a policy makes of a request.
type PolicyAnswer struct {
	Request string `json:"request"`       // as it was understood
	Effect  string `json:"effect"`        // "allow", "deny" or "ask": the strictest of all steps
	Digest  string `json:"policy_digest"` // of the policy that was asked
	// Steps are the decisions that the request would meet: the name, the
	// connection, the request.
	Steps []PolicyStep `json:"steps"`
}

// PolicyStep is one decision.
type PolicyStep struct {
	Want       string `json:"want"`                 // "connect api.github.com:443"
	Effect     string `json:"effect"`               // "allow", "deny", "ask"
	Rule       string `json:"rule"`                 // that decided
	Origin     string `json:"origin"`               // where it stands
	Reason     string `json:"reason"`               // in one sentence
	Permit     string `json:"permit,omitempty"`     // the flag that would allow it
	Line       string `json:"line,omitempty"`       // what to write into a policy file
	Narrower   string `json:"narrower,omitempty"`   // the least grant that would do
	Open       bool   `json:"open,omitempty"`       // the gateway looks into the connection
	Credential string `json:"credential,omitempty"` // what is put into the request
}

// PolicyCheckRequest is a policy file to look at.
type PolicyCheckRequest struct {
	Name string `json:"name"` // for messages
	Text string `json:"text"` // of the file
}

// PolicyCheck says that a policy file can be used, and what is odd about it.
type PolicyCheck struct {
	Name    string       `json:"name"`
	Digest  string       `json:"digest"`  // of the file's bytes
	Rules   int          `json:"rules"`   // of every kind: how many Lines
	Lines   []PolicyLine `json:"lines"`   // what the file says, presets written out; without what holds by default
	Remarks []string     `json:"remarks"` // what is odd about it: rules without effect, rules that allow much
}

// PolicyDiffRequest names two policies.
type PolicyDiffRequest struct {
	A PolicyRequest `json:"a"` // one of them
	B PolicyRequest `json:"b"` // the other
}

// PolicyDiff is what differs between two effective policies.
type PolicyDiff struct {
	A       string         `json:"a"`        // name of one
	B       string         `json:"b"`        // name of the other
	DigestA string         `json:"digest_a"` // of the canonical form of A
	DigestB string         `json:"digest_b"` // of the canonical form of B
	Changes []PolicyChange `json:"changes"`  // none: they say the same
}

// PolicyChange is a line that only one of both has.
type PolicyChange struct {
	Change  string `json:"change"`  // "+": only B has it, "-": only A
	Section string `json:"section"` // "network", "limits", …
	Text    string `json:"text"`    // the line, in words
	Origin  string `json:"origin"`  // where it stands
}

// PolicyReplayRequest is a policy to try on what a run was decided.
type PolicyReplayRequest struct {
	Name string `json:"name"`          // of the file, for messages
	Text string `json:"text"`          // of the file
	Dir  string `json:"dir,omitempty"` // the caller's directory, absolute
}

// PolicyReplay says which decisions of a run another policy would make
// otherwise.
type PolicyReplay struct {
	Run       string       `json:"run"`
	Was       string       `json:"was_digest"` // of the policy that decided
	Now       string       `json:"now_digest"` // of the one that was tried
	Decisions int          `json:"decisions"`  // that were tried
	Skipped   int          `json:"skipped"`    // that no policy makes: what never leaves a cell, budgets
	Flips     []PolicyFlip `json:"flips"`      // that would be others
}

// PolicyFlip is a decision that would be another.
type PolicyFlip struct {
	Want   string `json:"want"`   // what was wanted: "connect api.github.com:443"
	Times  int64  `json:"times"`  // how often it was made
	Was    string `json:"was"`    // "allow", "deny", "ask"
	Now    string `json:"now"`    // the same
	Rule   string `json:"rule"`   // that would decide
	Origin string `json:"origin"` // where it stands
	Reason string `json:"reason"` // in one sentence
}

// PolicyAllowRequest allows a project's policy file to count.
type PolicyAllowRequest struct {
	Path   string `json:"path"`             // absolute
	Digest string `json:"digest,omitempty"` // of the bytes that were looked at; others are not allowed
	Forget bool   `json:"forget,omitempty"` // take it back
}

// PolicyAllowed is a project's policy file that was allowed.
type PolicyAllowed struct {
	Path   string    `json:"path"`            // of the file, absolute
	Digest string    `json:"digest"`          // of the bytes that were allowed
	At     time.Time `json:"at"`              // when
	State  string    `json:"state,omitempty"` // "in force", "changed", "gone", "forgotten"
}
