package api

import (
	"encoding/json"
	"time"
)

// TemplateRequest asks for a template: a cell made as for a run, with a warmed
// interpreter that is kept to be forked. It is what `pando.template.yaml` says,
// too.
type TemplateRequest struct {
	Name       string            `json:"name"`
	From       string            `json:"from,omitempty"`       // source directory; "": an empty workspace
	Upload     string            `json:"upload,omitempty"`     // the id of a source that was sent, in the place of From
	Backend    string            `json:"backend,omitempty"`    // default auto
	Image      string            `json:"image,omitempty"`      // default host
	Kernel     string            `json:"kernel,omitempty"`     // as in RunRequest
	Warm       string            `json:"warm,omitempty"`       // "python" (default), "node", "java", or a command that speaks the protocol of evaluations
	Setup      string            `json:"setup,omitempty"`      // code that is evaluated once; its imports and variables stay
	Ready      string            `json:"ready,omitempty"`      // an expression that is evaluated until it is true
	Timeout    string            `json:"timeout,omitempty"`    // of set-up and probe; default 2m
	Allow      []string          `json:"allow,omitempty"`      // whom the template's cells may reach
	Credential []string          `json:"credential,omitempty"` // names of credentials to lend to its cells
	Policy     string            `json:"policy,omitempty"`     // text of a policy file
	Limits     Limits            `json:"limits,omitzero"`      // of each cell
	Env        []string          `json:"env,omitempty"`
	WithSecret []string          `json:"with_secret,omitempty"` // paths to import although they look like secrets
	Labels     map[string]string `json:"labels,omitempty"`      // words of your own
	CallerEnv  []string          `json:"caller_env,omitempty"`  // as in RunRequest
	CallerDir  string            `json:"caller_dir,omitempty"`
	DryRun     bool              `json:"dry_run,omitempty"` // check everything, start nothing
}

// Template is a warm cell that is kept to be forked.
type Template struct {
	Name    string          `json:"name"`            // what it is called
	Cell    string          `json:"cell"`            // the id of its cell
	State   string          `json:"state"`           // building, warm, cold (it is warmed when it is needed), failed
	Cause   string          `json:"cause,omitempty"` // of state failed, or of the last end of its interpreter
	Spec    TemplateRequest `json:"spec"`            // what it was asked to be; rebuilds it
	Digest  string          `json:"digest"`          // of what it was built from: spec, source, image, interpreter
	Built   time.Time       `json:"built"`           // when it was last built
	TookMS  float64         `json:"took_ms"`         // the last build or warming
	Version string          `json:"version"`         // of its interpreter
	Policy  string          `json:"policy_digest"`
	Memory  int64           `json:"memory"` // bytes resident, 0 while it is cold
	Cells   []string        `json:"cells"`  // names of its living forks
	Forks   int64           `json:"forks"`  // how many there ever were
	Ready   int             `json:"ready"`  // slots that wait in its pool
	Receipt string          `json:"receipt,omitempty"`
	Notes   []string        `json:"notes,omitempty"`
	// Inherited names the generators of random numbers that the set-up has made: each fork
	// goes on from the same state of them, unless a hook renews them.
	Inherited []string `json:"inherited,omitempty"`
}

// TemplateRemoval says what to do about a template's living forks: by default
// it is refused.
type TemplateRemoval struct {
	Cascade bool `json:"cascade,omitempty"` // remove them, too
	Force   bool `json:"force,omitempty"`   // leave them: its memory stays until the last is gone
	DryRun  bool `json:"dry_run,omitempty"`
}

// WarmForkRequest asks for cells out of a template.
type WarmForkRequest struct {
	Count   int      `json:"count,omitempty"` // default 1
	Name    string   `json:"name,omitempty"`  // of one cell, or the stem of several: NAME-1, NAME-2; default the template's
	Eval    string   `json:"eval,omitempty"`  // evaluated in each
	Command []string `json:"command,omitempty"`
	Timeout string   `json:"timeout,omitempty"` // of each evaluation or command
	DryRun  bool     `json:"dry_run,omitempty"` // say what it needs, make nothing
	Remove  bool     `json:"remove,omitempty"`  // remove each cell when it has answered
	Certify string   `json:"certify,omitempty"` // "strict": it is an error if a copy inherits a generator of random numbers
	// AtFork is a command that a shell runs in each copy, before anything else of it goes
	// on. A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// ForkNeeds is what N forks would need, and what this host has.
type ForkNeeds struct {
	Cells           int      `json:"cells"`             // how many
	Memory          int64    `json:"memory"`            // bytes, by what forks of this template took until now
	MemoryAvailable int64    `json:"memory_available"`  // bytes that may be used
	Disk            int64    `json:"disk"`              // bytes
	DiskAvailable   int64    `json:"disk_available"`    // bytes
	Processes       int64    `json:"processes"`         // how many more there will be
	ProcessesLeft   int64    `json:"processes_left"`    // how many more there may be
	Refused         string   `json:"refused,omitempty"` // why it can't be, "" if it can
	Measured        []string `json:"measured"`          // which of the figures were measured, not assumed
}

// WarmFork is one cell that was forked, and what it answered.
type WarmFork struct {
	Cell   Cell            `json:"cell"`             // the cell itself
	Hit    bool            `json:"hit"`              // it was made ahead
	Result json.RawMessage `json:"result,omitempty"` // an evaluation (type Evaluated)
	Stdout string          `json:"stdout,omitempty"` // of the evaluation or command, up to 64 KiB
	Stderr string          `json:"stderr,omitempty"` // the same of standard error
	Exit   *int            `json:"exit,omitempty"`   // of the command
	Error  *Error          `json:"error,omitempty"`  // it could not be forked, or not answer
	MS     float64         `json:"ms"`               // from the request to its answer
}

// WarmForkResult is what came of a fork.
type WarmForkResult struct {
	Template string     `json:"template"` // its name
	Forks    []WarmFork `json:"forks"`    // one per cell, in the order of their names
	Hits     int        `json:"hits"`     // how many were made ahead
	Needs    ForkNeeds  `json:"needs"`    // what they were expected to take
	Took     string     `json:"took"`     // what the children have
	Dropped  string     `json:"dropped"`  // what they have not
	ReadyMS  float64    `json:"ready_ms"` // until the last cell was ready
	TookMS   float64    `json:"took_ms"`  // until the last answer
	// Inherited names the generators of random numbers in user space that the copies have in
	// common with their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the generators of random numbers in user space that the copies would have
	// in common with their source, and that seed themselves anew in each copy instead.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what is not as in the source, such as hard links that come apart
	Receipt string   `json:"receipt,omitempty"`
}

// EvalRequest asks for an evaluation in a cell's interpreter, which is started
// if the cell never had one.
type EvalRequest struct {
	Code    string `json:"code"`              // what is evaluated
	Timeout string `json:"timeout,omitempty"` // default 1m
	Fresh   bool   `json:"fresh,omitempty"`   // begin with a new interpreter
	Kind    string `json:"kind,omitempty"`    // python, node or java; default what the cell has or had, else python
}

// EvalResult is what came of an evaluation: the members of Evaluated
// (docs/reference/eval-protocol.md), and where.
type EvalResult struct {
	Cell      string          `json:"cell"`
	Name      string          `json:"name"`
	Isolation string          `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	Result    json.RawMessage `json:"result"`    // what came of it: value, output sizes, exception
	Notes     []string        `json:"notes,omitempty"`
	WallMS    float64         `json:"wall_ms"` // from the request to the answer, in milliseconds
}

// StreamLine is one line of an answer that streams: exactly one member is set;
// the last line, and no other, is a result or an error.
type StreamLine struct {
	Progress *Progress       `json:"progress,omitempty"` // how far the work is
	Stdout   []byte          `json:"stdout,omitempty"`   // base64
	Stderr   []byte          `json:"stderr,omitempty"`   // base64
	Needs    *ForkNeeds      `json:"needs,omitempty"`    // of a fork: what it will take, before anything is made
	Fork     *WarmFork       `json:"fork,omitempty"`     // of a fork: one of its cells, as soon as it has answered
	Result   json.RawMessage `json:"result,omitempty"`   // what the request asked for; the last line
	Error    *Error          `json:"error,omitempty"`    // why it can't be done; the last line
}

// BranchRequest asks for branches of a running cell.
type BranchRequest struct {
	Count   int    `json:"count,omitempty"`   // default 1
	Name    string `json:"name,omitempty"`    // as in a fork; default CELL-b: CELL-b1, CELL-b2
	Certify string `json:"certify,omitempty"` // "strict": it is an error if a copy inherits a generator of random numbers
	// AtFork is a command that a shell runs in each copy, before anything else of it goes
	// on. A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// BranchResult is what came of a branch.
type BranchResult struct {
	Source     string  `json:"source"`     // id of the cell that was branched
	Cells      []Cell  `json:"cells"`      // the branches
	Checkpoint int     `json:"checkpoint"` // the number, in the source, of the files' state
	PauseMS    float64 `json:"pause_ms"`   // how long the source stood still
	// MemoryTaken is how its memory was, where there are several ways: "recorded: …", while
	// it ran, or "in the pause: …".
	MemoryTaken string   `json:"memory_taken,omitempty"`
	TookMS      float64  `json:"took_ms"`
	Took        string   `json:"took"`    // what the branches have
	Dropped     []string `json:"dropped"` // what they had to leave behind
	Depth       int      `json:"depth"`   // of the branches
	// Inherited names the generators of random numbers in user space that the copies have in
	// common with their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the generators of random numbers in user space that the copies would have
	// in common with their source, and that seed themselves anew in each copy instead.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what is not as in the source, such as hard links that come apart
	Receipt string   `json:"receipt,omitempty"`
}

// Interpreter is what `show` says of a cell's interpreter.
type Interpreter struct {
	Kind     string    `json:"kind"`               // python, node, java or command
	Version  string    `json:"version"`            // as it says itself
	PID      int       `json:"pid"`                // in its cell
	Started  time.Time `json:"started"`            // when it began, or was forked
	Evals    int64     `json:"evals"`              // evaluations it has answered
	Depth    int       `json:"depth"`              // forks and branches between it and the first of its family
	Memory   int64     `json:"memory"`             // bytes of its own
	Busy     bool      `json:"busy"`               // an evaluation is under way
	Ended    string    `json:"ended,omitempty"`    // why it is gone
	Template string    `json:"template,omitempty"` // that it was forked from
}

// Overview is what everything uses now, and what this host has.
type Overview struct {
	Templates []TemplateUse  `json:"templates"` // the templates there are
	Cells     map[string]int `json:"cells"`     // how many there are, by state
	Stats     []Stats        `json:"stats"`     // of the cells that have processes
	Host      HostUse        `json:"host"`      // what the host has
	Ceilings  []Ceiling      `json:"ceilings"`  // what callers may have, and what is in use of it
	Waiting   int            `json:"waiting"`   // requests that wait until fewer cells are there at once
}

// TemplateUse is what a template, its pool and its forks use.
type TemplateUse struct {
	Template string `json:"template"`  // its name
	State    string `json:"state"`     // as in Template
	Memory   int64  `json:"memory"`    // bytes resident, of the template itself; of one that is an image (gVisor, microVM), the image's
	Cells    int    `json:"cells"`     // living forks
	PerCell  int64  `json:"per_cell"`  // bytes that a fork of it takes, as measured; 0: none was measured yet
	Ready    int    `json:"ready"`     // forks that wait in its pool
	Wanted   int    `json:"wanted"`    // how many the pool keeps ready, by recent use
	Hits     int64  `json:"hits"`      // forks that were taken from the pool
	Misses   int64  `json:"misses"`    // forks that had to be made when they were asked for
	OldestMS int64  `json:"oldest_ms"` // age of the oldest fork in the pool, in milliseconds
	IdleMS   int64  `json:"idle_ms"`   // since it was last used, in milliseconds
}

// HostUse is what the host has, and how much of it is left.
type HostUse struct {
	Memory          int64 `json:"memory"`           // bytes
	MemoryAvailable int64 `json:"memory_available"` // bytes that programs can have
	Reserved        int64 `json:"reserved"`         // bytes promised to forks that are being made
	Processes       int64 `json:"processes"`        // of the user that pando runs as, or of the host where that is all
	ProcessesMax    int64 `json:"processes_max"`    // how many there may be
	Pooled          int   `json:"pooled"`           // forks that wait in all pools
	PooledMax       int   `json:"pooled_max"`       // how many may wait now
}
