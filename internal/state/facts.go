package state

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// What is known of a run, as its record and its receipt have it. The names of the members are
// those of docs/format.md; what the API shows of them is made in view.go.

// Point is the state of a workspace at one end of a run.
type Point struct {
	Checkpoint    string `json:"checkpoint"`
	Number        int    `json:"number"`
	TreeDigest    string `json:"tree_digest"`
	ContentDigest string `json:"content_digest"`
}

// Changes counts what a run changed.
type Changes struct {
	Files   int   `json:"files"`   // how many files differ
	Added   int   `json:"added"`   // files
	Deleted int   `json:"deleted"` // files
	Ignored int   `json:"ignored"` // of Files: those that git ignores
	Bytes   int64 `json:"bytes"`   // in the files that are new or have other content
	// First is what to look at before the rest, at most 50 entries.
	First     []Look `json:"first,omitempty"`
	FirstMore int    `json:"first_more,omitempty"` // how many entries First leaves out
}

// Look is a change to look at before all others: a file that controls what runs
// on the host, that is executable, or hidden.
type Look struct {
	Path  string `json:"path"` // with a slash at the end: of all that lies there
	Why   string `json:"why"`
	Files int    `json:"files"` // how many changed files it stands for
}

// LeftOut is one thing that import did not bring into the cell.
type LeftOut struct {
	Path string   `json:"path"`
	Why  string   `json:"why"`
	Kind string   `json:"kind"`             // "secret", "fields", "special", "unreadable"; "outside": the path leads out of the source; "tracked": a secret that is in the cell, since git tracks it
	Of   []string `json:"fields,omitempty"` // which fields of the file, when only they were left out
	Fix  string   `json:"fix,omitempty"`    // the flag that lets it in, when one does
	// Masked says that git tracks it, and that it was left out by the rule
	// secrets: mask of the policy.
	Masked bool `json:"masked,omitempty"`
	// History says that what was committed of it is in the cell all the same, in git's
	// objects.
	History bool `json:"history,omitempty"`
}

// Check is the outcome of --check.
type Check struct {
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`        // of the check
	Cause    string `json:"cause,omitempty"`  // why, when it was not the check's own doing
	Output   string `json:"output,omitempty"` // last part, redacted
	// Pins are the paths that were as before the run where it was checked; Restored what the result has otherwise there, and
	// RestoredMore how many more of these.
	Pins         []string `json:"pins,omitempty"`
	Restored     []string `json:"restored,omitempty"`
	RestoredMore int      `json:"restored_more,omitempty"`
	// Changed are programs and scripts that the check runs, and that the run changed.
	Changed []string `json:"changed,omitempty"`
}

// Usage is what a run used. Measured names the fields that this host counts.
type Usage struct {
	WallMS     int64    `json:"wall_ms"`            // time from start to end of the command, in milliseconds
	CPUMS      int64    `json:"cpu_ms"`             // CPU time, in milliseconds
	CPUAverage float64  `json:"cpu_average"`        // cores
	PeakMemory int64    `json:"peak_memory"`        // bytes
	PeakPIDs   int64    `json:"peak_pids"`          // most processes at once
	Written    int64    `json:"written"`            // bytes
	OOMKills   int64    `json:"oom_kills"`          // processes killed at the memory limit
	LeftOver   int      `json:"left_over"`          // processes ended with the command
	Measured   []string `json:"measured,omitempty"` // names of the fields that this host counts
}

// Outputs is what the command wrote.
type Outputs struct {
	Stdout Output `json:"stdout"` // standard output, or the terminal
	Stderr Output `json:"stderr"` // standard error
}

// OutputsOf is what a process has written.
func OutputsOf(st cell.Status) Outputs {
	of := func(s cell.StreamStatus) Output {
		return Output{Bytes: s.Bytes, Kept: s.Kept, SHA256: s.Digest.String()}
	}
	return Outputs{Stdout: of(st.Stdout), Stderr: of(st.Stderr)}
}

// Output is one stream: kept is less than bytes when the log's limit was
// reached.
type Output struct {
	Bytes  int64  `json:"bytes"`
	Kept   int64  `json:"kept"`   // bytes that the log has
	SHA256 string `json:"sha256"` // of all bytes, kept or not
}

// Timings are wall times in milliseconds.
type Timings struct {
	Import     float64 `json:"import"`     // reading the source
	Checkpoint float64 `json:"checkpoint"` // keeping the state before it
	Start      float64 `json:"start"`      // building the cell
	Run        float64 `json:"run"`        // the command
	Freeze     float64 `json:"freeze"`     // making the result a layer
	Digest     float64 `json:"digest"`     // computing digests and the patch
	Restore    float64 `json:"restore"`    // going back, when it failed
	Receipt    float64 `json:"receipt"`    // signing the receipt
	Total      float64 `json:"total"`      // all of it, as the caller felt it
}

// Provider says how the workspace is kept.
type Provider struct {
	Name string `json:"provider"` // overlay or clone
	Why  string `json:"why"`      // why not a better one; empty when it is the best
}

// Assurance is how strong the isolation was, as measured.
type Assurance struct {
	Isolation []string       `json:"isolation"` // what was found in force: namespaces, seccomp, landlock, …
	Limits    []AppliedLimit `json:"limits"`
	Canaries  Canaries       `json:"canaries"` // forbidden acts tried inside before the command
	Network   string         `json:"network"`  // none, or what can be reached
	IDs       string         `json:"ids"`      // how users and groups are mapped: a range, or squashed to the caller
}

// AssuranceOf is what a record has of it.
func AssuranceOf(a cell.Assurance) Assurance {
	v := Assurance{Isolation: append([]string{}, a.Isolation...), Limits: []AppliedLimit{}, Network: a.Network, IDs: a.IDs,
		Canaries: Canaries{Passed: a.Canaries.Passed, Total: a.Canaries.Total, Bites: append([]string{}, a.Canaries.Bites...),
			Skipped: a.Canaries.Skipped, At: a.Canaries.At, Fresh: a.Canaries.Fresh}}
	for _, l := range a.Limits {
		v.Limits = append(v.Limits, AppliedLimit(l))
	}
	return v
}

// AppliedLimit is one limit, asked and in force.
type AppliedLimit struct {
	Name    string `json:"name"`
	Asked   string `json:"asked"`   // what was asked for
	Applied string `json:"applied"` // what is in force
	How     string `json:"how"`     // by what means: cgroup v2, accounted, …
}

// Canaries is what was tried in the cell before the command.
type Canaries struct {
	Passed  int       `json:"passed"`            // how many were refused, as they should be
	Total   int       `json:"total"`             // how many were tried
	Bites   []string  `json:"bites"`             // the enforcements that one of them ran into: what is not listed was not seen to work
	Skipped []string  `json:"skipped,omitempty"` // those that were not tried, because the policy allows what they would do
	At      time.Time `json:"at,omitzero"`       // when they were tried
	Fresh   bool      `json:"fresh,omitempty"`   // they were tried by this command's own process
}

// Limits as people write them; the empty string asks for nothing.
type Limits struct {
	CPUs    string `json:"cpus,omitempty"`    // "1.5"
	Memory  string `json:"memory,omitempty"`  // "512M", "2GiB"
	PIDs    string `json:"pids,omitempty"`    // "256"
	Disk    string `json:"disk,omitempty"`    // "10G"
	Timeout string `json:"timeout,omitempty"` // "90s", "10m"
	// Budget is what the cell and its forks may use together: "time=2h,requests=500,tokens=200k,usd=5", or some of these.
	Budget string `json:"budget,omitempty"`
}

// CellCommits are commits that were made in a cell. Accept brings their files into the
// source, and not the commits.
type CellCommits struct {
	Source   string   `json:"source,omitempty"` // of a cell with several repositories: the directory of the one that they are in
	Commits  int      `json:"commits"`          // how many
	More     bool     `json:"more,omitempty"`   // there are others that are not counted: in packs that git made in the cell, or more than 10000
	Branches []string `json:"branches"`         // that have them; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"`  // the commit that the cell had checked out before; none when there was none
	// CheckedOut says that one of Branches is checked out in the cell.
	CheckedOut bool `json:"checked_out,omitempty"`
	// Submodules are those in which commits were made, which are in no bundle of the
	// repository's branches. Commits does not count those.
	Submodules []SubmoduleCommits `json:"submodules,omitempty"`
}

// SubmoduleCommits are commits that were made in a submodule of a cell's repository, as
// CellCommits.
type SubmoduleCommits struct {
	Path     string   `json:"path"`            // of its folder, relative to the repository
	Commits  int      `json:"commits"`         // how many
	More     bool     `json:"more,omitempty"`  // as of CellCommits
	Branches []string `json:"branches"`        // that have them; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"` // the commit that the submodule had checked out before; none when there was none
}

// Network is what a run said to the outside, and what it was refused.
type Network struct {
	Link      string `json:"link,omitempty"` // how the cell reached its gateway: "tun", "veth", "socket"
	Decisions int    `json:"decisions"`      // how many were made
	Denied    int    `json:"denied"`         // how many of them said no
	Approved  int    `json:"approved"`       // how many a person allowed
	Requests  int    `json:"requests"`       // HTTP requests that were let through
	Sent      int64  `json:"sent"`           // bytes out of the cell
	Received  int64  `json:"received"`       // bytes into it
	// Tried is how many packets of a cell without a network had nowhere to go to.
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
	// Models is what it used of models, and Prices the date of the table by which that is priced.
	Models []ModelUse `json:"models,omitempty"`
	Prices string     `json:"prices,omitempty"`
	// Budget is what was told of the budget of its cell, in order, the first 100.
	Budget []BudgetNote `json:"budget,omitempty"`
}

// ModelUse is what a run used of one model, by what its answers say.
type ModelUse struct {
	Model      string `json:"model"`                 // as it is named there
	Requests   int64  `json:"requests"`              // that were answered
	Input      int64  `json:"input"`                 // tokens, without those that a cache had
	Output     int64  `json:"output"`                // tokens
	CacheRead  int64  `json:"cache_read,omitempty"`  // tokens
	CacheWrite int64  `json:"cache_write,omitempty"` // tokens
	Unseen     int64  `json:"unseen,omitempty"`      // answers that did not say what was used, or could not be read
	Calls      int64  `json:"calls,omitempty"`       // of tools, in the answers
	MicroUSD   int64  `json:"usd_millionths"`        // what it costs
	Unpriced   bool   `json:"unpriced,omitempty"`    // no price is known
	OwnPrice   bool   `json:"own_price,omitempty"`   // it is priced by the policy, and not by the table
}

// BudgetNote is what happened to a budget: see cell.BudgetNote.
type BudgetNote struct {
	What   string `json:"what"`         // near, reached, granted, refused
	Budget string `json:"budget"`       // time, requests, tokens, usd; price, usage: they were not known
	Text   string `json:"text"`         // one sentence
	By     string `json:"by,omitempty"` // the person that decided
}

// Unresolved is a name that the host could not look up: its resolver did not answer, or failed.
type Unresolved struct {
	Host  string `json:"host"`  // the name
	Error string `json:"error"` // what went wrong
}

// Peer is a host that a run talked to.
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

// CacheUse is what a run had of a cache that is kept for its source.
type CacheUse struct {
	Name  string `json:"name"`  // "go", or a path
	Read  bool   `json:"read"`  // there was something in it, from earlier runs
	Wrote int64  `json:"wrote"` // bytes on disk: by this run, or by others that shared the cell's instance with it
}

// ServiceUse is a service that ran beside the cell of a run.
type ServiceUse struct {
	Name    string `json:"name"`
	Image   string `json:"image"`
	ImageID string `json:"image_digest,omitempty"` // of an OCI image: its manifest's
}

// Secrets is what a run had to do with credentials: what was lent to its cell,
// and where the values were looked for afterwards.
type Secrets struct {
	Lent       []SecretLent  `json:"lent"`        // what the cell has had
	Scanned    []string      `json:"scanned"`     // what was searched
	Found      []SecretFound `json:"found"`       // where a value is; none is as it should be
	More       int           `json:"more"`        // how many were found beyond those listed
	NotScanned []string      `json:"not_scanned"` // what was not searched, with the reason
	TookMS     float64       `json:"took_ms"`
}

// SecretLent is a credential that a run's cell has had.
type SecretLent struct {
	Credential string   `json:"credential"` // its name
	Kind       string   `json:"kind"`       // "token", "ssh"
	For        []string `json:"for"`        // where it may go
	Uses       int64    `json:"uses"`       // requests that it was put into during the run, or signatures
	Revoked    bool     `json:"revoked"`    // it was taken back before the run's end
}

// SecretFound says that a value of a credential is where it should not be.
type SecretFound struct {
	In         string `json:"in"`             // "workspace", or the record of the run: "stdout", "patch", …
	Path       string `json:"path,omitempty"` // of the file in the workspace
	Credential string `json:"credential"`     // its name
	Encoding   string `json:"encoding"`       // "plain", "base64", …
}

// In of a SecretFound in folders of the cell that are not its workspace.
const (
	InHome = "the cell's home"
	InTmp  = "the cell's /tmp"
)

// Place is where the value is, in words.
func (f SecretFound) Place() string {
	switch f.In {
	case "workspace":
		return f.Path
	case InHome, InTmp:
		return f.Path + " in " + f.In
	}
	return "the run's " + f.In
}

// Error is why something failed.
type Error struct {
	Kind    cell.Kind    `json:"kind"` // one word that a program decides on
	Subject cell.Subject `json:"subject,omitempty"`
	Message string       `json:"message"`        // one sentence for people
	Hint    string       `json:"hint,omitempty"` // what to do about it
}
