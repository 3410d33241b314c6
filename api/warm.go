package api

import (
	"encoding/json"
	"time"
)

// TemplateRequest builds a template: a cell as for a run, with a warm interpreter that is kept
// to be forked. `pando.template.yaml` has the same fields.
type TemplateRequest struct {
	Name       string            `json:"name"`
	From       string            `json:"from,omitempty"`       // source directory; "": an empty workspace
	Upload     string            `json:"upload,omitempty"`     // the id of an uploaded source, instead of From
	Backend    string            `json:"backend,omitempty"`    // default auto
	Image      string            `json:"image,omitempty"`      // default host
	Kernel     string            `json:"kernel,omitempty"`     // as in RunRequest
	Warm       string            `json:"warm,omitempty"`       // "python" (default), "node", "java", or a command that speaks the evaluation protocol
	Setup      string            `json:"setup,omitempty"`      // code that is evaluated once; its imports and variables are kept
	Ready      string            `json:"ready,omitempty"`      // an expression that is evaluated until it is true
	Timeout    string            `json:"timeout,omitempty"`    // of set-up and readiness; default 2m
	Allow      []string          `json:"allow,omitempty"`      // hosts that the template's cells may reach
	Credential []string          `json:"credential,omitempty"` // names of credentials to lend to its cells
	Policy     string            `json:"policy,omitempty"`     // text of a policy file
	Limits     Limits            `json:"limits,omitzero"`      // of each cell
	Env        []string          `json:"env,omitempty"`
	WithSecret []string          `json:"with_secret,omitempty"` // paths to import although they look like secrets
	Labels     map[string]string `json:"labels,omitempty"`      // names and values that callers choose
	CallerEnv  []string          `json:"caller_env,omitempty"`  // as in RunRequest
	CallerDir  string            `json:"caller_dir,omitempty"`
	DryRun     bool              `json:"dry_run,omitempty"` // check all values, start nothing
}

// Template is a warm cell that is kept to be forked.
type Template struct {
	Name    string          `json:"name"`            // its name
	Cell    string          `json:"cell"`            // the id of its cell
	State   string          `json:"state"`           // building, warm, cold (it is warmed on demand), failed
	Cause   string          `json:"cause,omitempty"` // cause of state failed, or of the latest end of its interpreter
	Spec    TemplateRequest `json:"spec"`            // the request that made it, and that rebuilds it
	Digest  string          `json:"digest"`          // digest of its inputs: spec, source, image, interpreter
	Built   time.Time       `json:"built"`           // when it was last built
	TookMS  float64         `json:"took_ms"`         // duration of the latest build or warming
	Version string          `json:"version"`         // of its interpreter
	Policy  string          `json:"policy_digest"`
	Memory  int64           `json:"memory"` // resident bytes, 0 while it is cold
	Cells   []string        `json:"cells"`  // names of its living forks
	Forks   int64           `json:"forks"`  // number of forks ever made
	Ready   int             `json:"ready"`  // prepared forks in its pool
	Receipt string          `json:"receipt,omitempty"`
	Notes   []string        `json:"notes,omitempty"`
	// Inherited names the random number generators that the set-up has made: each fork starts
	// with the same state of them, unless a hook renews them.
	Inherited []string `json:"inherited,omitempty"`
}

// TemplateRemoval says what happens to a template's living forks. By default a template with
// forks is not removed.
type TemplateRemoval struct {
	Cascade bool `json:"cascade,omitempty"` // remove them, too
	Force   bool `json:"force,omitempty"`   // keep them: its memory stays until the last is removed
	DryRun  bool `json:"dry_run,omitempty"`
}

// WarmForkRequest makes cells from a template.
type WarmForkRequest struct {
	Count   int      `json:"count,omitempty"` // default 1
	Name    string   `json:"name,omitempty"`  // of one cell, or the prefix of several: NAME-1, NAME-2; default the template's
	Eval    string   `json:"eval,omitempty"`  // code that is evaluated in each
	Command []string `json:"command,omitempty"`
	Timeout string   `json:"timeout,omitempty"` // of each evaluation or command
	DryRun  bool     `json:"dry_run,omitempty"` // return the needs, make nothing
	Remove  bool     `json:"remove,omitempty"`  // remove each cell after its answer
	Certify string   `json:"certify,omitempty"` // "strict": fail if a copy inherits a random number generator
	// AtFork is a command that a shell runs in each copy before any of its processes continues.
	// A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// ForkNeeds are the resources that N forks would need, and those of this host.
type ForkNeeds struct {
	Cells           int      `json:"cells"`             // number of forks
	Memory          int64    `json:"memory"`            // bytes, estimated from earlier forks of this template
	MemoryAvailable int64    `json:"memory_available"`  // bytes available
	Disk            int64    `json:"disk"`              // bytes
	DiskAvailable   int64    `json:"disk_available"`    // bytes
	Processes       int64    `json:"processes"`         // number of further processes
	ProcessesLeft   int64    `json:"processes_left"`    // number of further processes that are possible
	Refused         string   `json:"refused,omitempty"` // why it is impossible; "" if it is possible
	Measured        []string `json:"measured"`          // the figures that were measured, not assumed
}

// WarmFork is one forked cell with its answer.
type WarmFork struct {
	Cell   Cell            `json:"cell"`             // the cell itself
	Hit    bool            `json:"hit"`              // it was taken from the pool
	Result json.RawMessage `json:"result,omitempty"` // an evaluation (type Evaluated)
	Stdout string          `json:"stdout,omitempty"` // of the evaluation or command, up to 64 KiB
	Stderr string          `json:"stderr,omitempty"` // standard error, likewise
	Exit   *int            `json:"exit,omitempty"`   // exit code of the command
	Error  *Error          `json:"error,omitempty"`  // why it could not be forked, or did not answer
	MS     float64         `json:"ms"`               // from the request to its answer, in milliseconds
}

// WarmForkResult is the outcome of a fork.
type WarmForkResult struct {
	Template string     `json:"template"` // its name
	Forks    []WarmFork `json:"forks"`    // one per cell, in the order of their names
	Hits     int        `json:"hits"`     // number of forks taken from the pool
	Needs    ForkNeeds  `json:"needs"`    // their estimated needs
	Took     string     `json:"took"`     // what the forks have
	Dropped  string     `json:"dropped"`  // what the forks lack
	ReadyMS  float64    `json:"ready_ms"` // until the last cell was ready, in milliseconds
	TookMS   float64    `json:"took_ms"`  // until the last answer, in milliseconds
	// Inherited names the random number generators in user space that the copies share with
	// their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the random number generators in user space that seed themselves anew in each
	// copy, and would otherwise be shared with the source.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // differences from the source, such as hard links that are split
	Receipt string   `json:"receipt,omitempty"`
}

// EvalRequest evaluates code in a cell's interpreter, which is started in a cell without one.
type EvalRequest struct {
	Code    string `json:"code"`              // the code
	Timeout string `json:"timeout,omitempty"` // default 1m
	Fresh   bool   `json:"fresh,omitempty"`   // start a new interpreter
	Kind    string `json:"kind,omitempty"`    // python, node or java; default that of the cell, else python
}

// EvalResult is the outcome of an evaluation: the fields of Evaluated
// (docs/reference/eval-protocol.md), and its cell.
type EvalResult struct {
	Cell      string          `json:"cell"`
	Name      string          `json:"name"`
	Isolation string          `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	Result    json.RawMessage `json:"result"`    // value, sizes of the output, exception
	Notes     []string        `json:"notes,omitempty"`
	WallMS    float64         `json:"wall_ms"` // from the request to the answer, in milliseconds
}

// StreamLine is one line of a streamed answer. Exactly one field is set; the last line, and no
// other, is a result or an error.
type StreamLine struct {
	Progress *Progress       `json:"progress,omitempty"` // progress of the work
	Stdout   []byte          `json:"stdout,omitempty"`   // base64
	Stderr   []byte          `json:"stderr,omitempty"`   // base64
	Needs    *ForkNeeds      `json:"needs,omitempty"`    // for a fork: the estimated needs, before any fork is made
	Fork     *WarmFork       `json:"fork,omitempty"`     // for a fork: one cell, as soon as it has answered
	Result   json.RawMessage `json:"result,omitempty"`   // the result of the request; the last line
	Error    *Error          `json:"error,omitempty"`    // the error of the request; the last line
}

// BranchRequest makes branches of a running cell.
type BranchRequest struct {
	Count   int    `json:"count,omitempty"`   // default 1
	Name    string `json:"name,omitempty"`    // as in a fork; default CELL-b: CELL-b1, CELL-b2
	Certify string `json:"certify,omitempty"` // "strict": fail if a copy inherits a random number generator
	// AtFork is a command that a shell runs in each copy before any of its processes continues.
	// A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// BranchResult is the outcome of a branch.
type BranchResult struct {
	Source     string  `json:"source"`     // id of the branched cell
	Cells      []Cell  `json:"cells"`      // the branches
	Checkpoint int     `json:"checkpoint"` // number of the source's checkpoint with the files
	PauseMS    float64 `json:"pause_ms"`   // how long the source was paused, in milliseconds
	// MemoryTaken says how its memory was captured, where there are several ways: "recorded: …",
	// while it ran, or "in the pause: …".
	MemoryTaken string   `json:"memory_taken,omitempty"`
	TookMS      float64  `json:"took_ms"`
	Took        string   `json:"took"`    // what the branches have
	Dropped     []string `json:"dropped"` // what was left behind
	Depth       int      `json:"depth"`   // depth of the branches
	// Inherited names the random number generators in user space that the copies share with
	// their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the random number generators in user space that seed themselves anew in each
	// copy, and would otherwise be shared with the source.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // differences from the source, such as hard links that are split
	Receipt string   `json:"receipt,omitempty"`
}

// Interpreter describes a cell's interpreter.
type Interpreter struct {
	Kind     string    `json:"kind"`               // python, node, java or command
	Version  string    `json:"version"`            // as it reports
	PID      int       `json:"pid"`                // process id in its cell
	Started  time.Time `json:"started"`            // when it started or was forked
	Evals    int64     `json:"evals"`              // number of evaluations answered
	Depth    int       `json:"depth"`              // number of forks and branches between it and the first of its family
	Memory   int64     `json:"memory"`             // bytes of memory of its own
	Busy     bool      `json:"busy"`               // an evaluation is under way
	Ended    string    `json:"ended,omitempty"`    // cause of its end
	Template string    `json:"template,omitempty"` // name of the template that it was forked from
}

// Overview is the present usage of everything, and the resources of this host.
type Overview struct {
	Templates []TemplateUse  `json:"templates"` // usage by template
	Cells     map[string]int `json:"cells"`     // number of cells, by state
	Stats     []Stats        `json:"stats"`     // of the cells with processes
	Host      HostUse        `json:"host"`      // resources of the host
	Ceilings  []Ceiling      `json:"ceilings"`  // ceilings of callers, and their usage
	Waiting   int            `json:"waiting"`   // requests that wait until there are fewer cells
}

// TemplateUse is the usage of a template, its pool and its forks.
type TemplateUse struct {
	Template string `json:"template"`  // its name
	State    string `json:"state"`     // as in Template
	Memory   int64  `json:"memory"`    // resident bytes of the template; for gVisor and microVM the size of its image
	Cells    int    `json:"cells"`     // number of living forks
	PerCell  int64  `json:"per_cell"`  // bytes of a fork, as measured; 0: not measured yet
	Ready    int    `json:"ready"`     // number of forks in its pool
	Wanted   int    `json:"wanted"`    // number of forks that the pool keeps, by recent use
	Hits     int64  `json:"hits"`      // number of forks taken from the pool
	Misses   int64  `json:"misses"`    // number of forks made on request
	OldestMS int64  `json:"oldest_ms"` // age of the oldest fork in the pool, in milliseconds
	IdleMS   int64  `json:"idle_ms"`   // time since its last use, in milliseconds
}

// HostUse is the resources of the host, and what is left of them.
type HostUse struct {
	Memory          int64 `json:"memory"`           // bytes
	MemoryAvailable int64 `json:"memory_available"` // bytes available to programs
	Reserved        int64 `json:"reserved"`         // bytes reserved for forks in the making
	Processes       int64 `json:"processes"`        // number of processes of pando's user, or of the host
	ProcessesMax    int64 `json:"processes_max"`    // maximum number of processes
	Pooled          int   `json:"pooled"`           // number of forks in all pools
	PooledMax       int   `json:"pooled_max"`       // maximum number of forks in pools now
}
