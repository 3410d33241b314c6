package api

import (
	"encoding/json"
	"time"
)

// PolicyRequest names a policy: that of a cell or a run, or of a planned run.
type PolicyRequest struct {
	Of  string     `json:"of,omitempty"`  // a cell or a run; empty: the policy of Run
	Run RunRequest `json:"run,omitzero"`  // the planned run: its policy, flags and source are used
	Dir string     `json:"dir,omitempty"` // the caller's directory, absolute
	// Request is the request to decide: "POST https://api.github.com/repos", "connect
	// HOST:PORT", "resolve HOST", "execute PROGRAM".
	Request string `json:"request,omitempty"`
}

// Policy is an effective policy, with the origin of each line.
type Policy struct {
	Of      string          `json:"of"` // "cell web", "run r-…", "a run from /home/me/proj"
	Digest  string          `json:"policy_digest"`
	Layers  []PolicyLayer   `json:"layers,omitempty"` // its layers, the uppermost first
	Lines   []PolicyLine    `json:"lines"`            // all of it, presets expanded
	Talks   bool            `json:"talks"`            // the cell has a network beside its own loopback
	Bound   string          `json:"bound,omitempty"`  // the line that bounds what flags may allow
	Text    json.RawMessage `json:"policy"`           // the canonical form, which the digest is of
	Cedar   string          `json:"cedar,omitempty"`  // the same as a Cedar policy, which decides
	Skipped []string        `json:"notes,omitempty"`  // parts that are not in force, with the reason
}

// PolicyLayer is one source of a policy.
type PolicyLayer struct {
	Layer  string `json:"layer"`  // "host", "user", "project", "run"
	File   string `json:"file"`   // path of its file
	Digest string `json:"digest"` // of the file's bytes
}

// PolicyLine is one rule or setting of a policy. For a file that is only checked, Force and How
// are empty, because they depend on the host.
type PolicyLine struct {
	Section string `json:"section"` // "network", "limits", …
	Name    string `json:"name"`    // "allow 2": its name in decisions
	Text    string `json:"text"`    // the line, in words
	Origin  string `json:"origin"`  // "pando.policy.yaml:31", "--allow @npm", "mode development @npm", "config allow @npm", "agent claude @anthropic", "default"
	Force   string `json:"force"`   // "enforced", "accounted", "not enforced"
	How     string `json:"how"`     // the mechanism, or the reason why not
}

// PolicyAnswer is the decision of a policy on a request.
type PolicyAnswer struct {
	Request string `json:"request"`       // the parsed request
	Effect  string `json:"effect"`        // "allow", "deny" or "ask": the strictest of all steps
	Digest  string `json:"policy_digest"` // of the deciding policy
	// Steps are the decisions on the parts of the request: the name, the connection, the
	// request.
	Steps []PolicyStep `json:"steps"`
}

// PolicyStep is one decision.
type PolicyStep struct {
	Want       string `json:"want"`                 // "connect api.github.com:443"
	Effect     string `json:"effect"`               // "allow", "deny", "ask"
	Rule       string `json:"rule"`                 // the deciding rule
	Origin     string `json:"origin"`               // where it is written
	Reason     string `json:"reason"`               // in one sentence
	Permit     string `json:"permit,omitempty"`     // the flag that would allow it
	Line       string `json:"line,omitempty"`       // the line for a policy file
	Narrower   string `json:"narrower,omitempty"`   // the least grant that suffices
	Open       bool   `json:"open,omitempty"`       // the gateway looks into the connection
	Credential string `json:"credential,omitempty"` // the credential that is put into the request
}

// PolicyCheckRequest is a policy file to check.
type PolicyCheckRequest struct {
	Name string `json:"name"` // for messages
	Text string `json:"text"` // of the file
}

// PolicyCheck describes a valid policy file, with remarks.
type PolicyCheck struct {
	Name    string       `json:"name"`
	Digest  string       `json:"digest"`  // of the file's bytes
	Rules   int          `json:"rules"`   // number of lines of every kind
	Lines   []PolicyLine `json:"lines"`   // the lines of the file with presets expanded, without defaults
	Remarks []string     `json:"remarks"` // remarks: rules without effect, rules that allow much
}

// PolicyDiffRequest names two policies.
type PolicyDiffRequest struct {
	A PolicyRequest `json:"a"` // one of them
	B PolicyRequest `json:"b"` // the other
}

// PolicyDiff lists the differences between two effective policies.
type PolicyDiff struct {
	A       string         `json:"a"`        // name of one
	B       string         `json:"b"`        // name of the other
	DigestA string         `json:"digest_a"` // of the canonical form of A
	DigestB string         `json:"digest_b"` // of the canonical form of B
	Changes []PolicyChange `json:"changes"`  // empty when they are equal
}

// PolicyChange is a line that only one of the policies has.
type PolicyChange struct {
	Change  string `json:"change"`  // "+": only B has it, "-": only A
	Section string `json:"section"` // "network", "limits", …
	Text    string `json:"text"`    // the line, in words
	Origin  string `json:"origin"`  // where it is written
}

// PolicyReplayRequest is a policy to try on the decisions of a run.
type PolicyReplayRequest struct {
	Name string `json:"name"`          // of the file, for messages
	Text string `json:"text"`          // of the file
	Dir  string `json:"dir,omitempty"` // the caller's directory, absolute
}

// PolicyReplay lists the decisions of a run that another policy would change.
type PolicyReplay struct {
	Run       string       `json:"run"`
	Was       string       `json:"was_digest"` // of the policy that decided
	Now       string       `json:"now_digest"` // of the tried policy
	Decisions int          `json:"decisions"`  // number of tried decisions
	Skipped   int          `json:"skipped"`    // decisions that depend on no policy: what never leaves a cell, budgets
	Flips     []PolicyFlip `json:"flips"`      // the changed decisions
}

// PolicyFlip is a changed decision.
type PolicyFlip struct {
	Want   string `json:"want"`   // the request: "connect api.github.com:443"
	Times  int64  `json:"times"`  // number of times
	Was    string `json:"was"`    // "allow", "deny", "ask"
	Now    string `json:"now"`    // likewise
	Rule   string `json:"rule"`   // the rule that would decide
	Origin string `json:"origin"` // where it is written
	Reason string `json:"reason"` // in one sentence
}

// PolicyAllowRequest allows a project's policy file.
type PolicyAllowRequest struct {
	Path   string `json:"path"`             // absolute
	Digest string `json:"digest,omitempty"` // of the reviewed bytes; others are not allowed
	Forget bool   `json:"forget,omitempty"` // withdraw the permission
}

// PolicyAllowed is an allowed policy file of a project.
type PolicyAllowed struct {
	Path   string    `json:"path"`            // of the file, absolute
	Digest string    `json:"digest"`          // of the allowed bytes
	At     time.Time `json:"at"`              // when
	State  string    `json:"state,omitempty"` // "in force", "changed", "gone", "forgotten"
}
