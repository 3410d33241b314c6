package cell

import (
	"encoding/json"
	"strings"
	"time"
)

// Warm is the interpreter of a cell: one process that keeps its state from one evaluation
// to the next, and that can be forked with it.
type Warm struct {
	Kind    string        `json:"kind"`              // one of the constants below
	Process Process       `json:"process"`           // the program; for a built-in kind, its path and environment
	Name    string        `json:"name,omitempty"`    // its name in messages; "": the first of its arguments
	Setup   string        `json:"setup,omitempty"`   // evaluated once, before anything else
	Ready   string        `json:"ready,omitempty"`   // evaluated until it is true; "": ready when the set-up has ended
	Timeout time.Duration `json:"timeout"`           // of set-up and probe together
	ToFork  bool          `json:"to_fork,omitempty"` // only for forks of the process: reject what cannot be forked before the set-up
}

// The kinds of interpreters.
const (
	WarmPython  = "python"  // built in: Python 3.8 and later
	WarmNode    = "node"    // built in: Node 18 and later
	WarmJava    = "java"    // built in: Java 11 and later, with jdk.jshell
	WarmCommand = "command" // a program that speaks the protocol in docs/reference/eval-protocol.md
)

// ForkSandbox is the last part of the hint when an interpreter cannot be forked by itself,
// and could be forked together with its whole sandbox.
const ForkSandbox = "choose a backend that forks whole sandboxes: --backend gvisor, or --backend microvm"

// Isolated is the hint when only a cell without isolation cannot do it.
const Isolated = "choose --backend namespace, gvisor or microvm"

// RoomHint is the hint when a keeper has no file descriptors left for forks.
const RoomHint = "ask for fewer, remove unused cells (pando ls), or start the daemon with a higher limit of open files (ulimit -n) and build the template again"

// Warmth is the state of a cell's interpreter.
type Warmth struct {
	Kind    string    `json:"kind"`
	Version string    `json:"version"` // "Python 3.11.2"
	PID     int       `json:"pid"`     // in its cell
	Started time.Time `json:"started"` // when it began, or was forked
	Evals   int64     `json:"evals"`   // number of answered evaluations
	Depth   int       `json:"depth"`   // forks and branches between it and the first of its family
	Sealed  bool      `json:"sealed"`  // a template's: it is only forked
	Busy    bool      `json:"busy"`    // an evaluation is running
	IsCell  bool      `json:"is_cell"` // its end ends the cell: it is that of a fork or branch, or was branched
	Memory  int64     `json:"memory"`  // bytes of its own, not shared with its fork parents; 0: not measured
	// CannotFork is the reason why it cannot be forked, as a sentence; "" if it can.
	CannotFork string `json:"cannot_fork,omitempty"`
	// Slow is the reason why forking it takes longer than necessary; "" if it does not.
	Slow string `json:"slow,omitempty"`
	// Inherited names the random number generators that its set-up made, and that all
	// copies have in common.
	Inherited []string `json:"inherited,omitempty"`
	// Layer is the writable layer of the workspace that it works on. A branch changes it.
	Layer string `json:"layer,omitempty"`
}

// Eval is one evaluation.
type Eval struct {
	Code    string        `json:"code"`
	Timeout time.Duration `json:"timeout"` // required: the evaluation is interrupted then
	Limit   int64         `json:"limit"`   // bytes of the value's repr; the rest is only counted
	Output  int64         `json:"output"`  // bytes each of stdout and stderr that are passed on, at least Limit; the rest is only counted
}

// Output is a piece of an evaluation's output, as it arrived.
type Output struct {
	Stream int    `json:"stream"` // 1 stdout, 2 stderr
	Data   []byte `json:"data"`
}

// Evaluated is the result of an evaluation. Its JSON is the same in the interpreter's
// protocol, the API, the command line and the SDKs.
type Evaluated struct {
	OK    bool   `json:"ok"`
	Value *Value `json:"value,omitempty"` // of the last expression; absent when there was none, or it was None
	// Display is what the code displayed meanwhile: figures, display(…).
	Display []Bundle   `json:"display,omitempty"`
	Error   *EvalError `json:"error,omitempty"` // an exception; absent when OK
	// Cause is the reason of the end when it was not the code itself: CauseTimeout,
	// CauseInterrupted, CauseEnded or CauseStuck.
	Cause  string  `json:"cause,omitempty"`
	TookMS float64 `json:"took_ms"` // in the interpreter
	N      int64   `json:"n"`       // number of this evaluation in its interpreter, from 1
	// Stdout and Stderr are the bytes of its output.
	Stdout int64 `json:"stdout_bytes"`
	Stderr int64 `json:"stderr_bytes"`
	// MissingCalls are the system calls that processes of the cell made meanwhile and that
	// its kernel, which is not the host's, lacks; by name. "others" stands for those beyond
	// the ones that are counted by name.
	MissingCalls []string `json:"missing_calls,omitempty"`
}

// Value is a value of the interpreter's language.
type Value struct {
	// Type is the name of its type, qualified unless built in: "int", "numpy.ndarray".
	Type string `json:"type"`
	// JSON is the value, where JSON can represent it exactly. Values without a direct form
	// in JSON are an object with one key: {"$float": "NaN"|"Infinity"|"-Infinity"},
	// {"$int": "digits"} beyond ±2^53, {"$bytes": base64}, {"$str": base64} of a string
	// that is not Unicode (UTF-8 with surrogates), {"$tuple": […]}, {"$set": […]},
	// {"$dict": [[k, v], …]} of a dict with keys that are not strings or begin with "$".
	// It is absent for a value without an exact form, and above a megabyte. A part of a
	// value without an exact form is {"$opaque": {"type": …, "repr": …}}.
	JSON    json.RawMessage `json:"json,omitempty"`
	JSONCut bool            `json:"json_cut,omitempty"` // there is no JSON because it would be too long or too deep
	Repr    string          `json:"repr"`               // always, perhaps cut
	Cut     int64           `json:"repr_cut,omitempty"` // number of characters of the repr that were left out
	MIME    Bundle          `json:"mime,omitempty"`     // richer forms: _repr_html_ and the like
}

// A Bundle is one object in several forms, by media type. Text is as it is; binary data
// ("image/png") is base64.
type Bundle map[string]string

// EvalError is an exception.
type EvalError struct {
	Type      string `json:"type"` // "ZeroDivisionError"
	Message   string `json:"message"`
	Traceback string `json:"traceback"` // as the language prints it, without the interpreter's own frames
	Line      int    `json:"line,omitempty"`
}

// Adoption turns a fork that was made ahead into the cell it was requested for. It applies
// before any evaluation.
type Adoption struct {
	Hostname string            `json:"hostname"`
	Env      map[string]string `json:"env"` // its own variables: its name, its placeholders. "" removes one
	Network  *Governance       `json:"network,omitempty"`
	Kind     string            `json:"kind,omitempty"` // of its interpreter; the keeper sets it
	// Strict makes the adoption fail with Unsupported if the copy inherits a random number
	// generator.
	Strict bool `json:"strict,omitempty"`
	// Trial says that the copy is thrown away in any case: it runs only as far as its
	// certificate needs. A copy of a whole sandbox without an interpreter does not run.
	Trial bool `json:"trial,omitempty"`
	// First runs in the copy when it has its identity, before anything else of it runs.
	// The adoption fails if First fails.
	First *Start `json:"first,omitempty"`
}

// Certificate is the measurement of one fork: each thing that must not stay duplicated, and
// what ensures it. It is part of the batch's receipt.
type Certificate struct {
	Cell    ID        `json:"cell"`
	At      time.Time `json:"at"`      // when its hazards were handled
	Battery Canaries  `json:"battery"` // of its slot; At is when
	Hazards []Hazard  `json:"hazards"`
	Dropped []string  `json:"dropped,omitempty"` // what it had to leave behind: "socket 10.0.0.2:443"
}

// Hazard is one thing that a fork duplicates and that was made different.
type Hazard struct {
	// Name is "generators", "randomness", "numpy randomness", "seeded generators", "uuid", "hash seed", "hostname",
	// "machine-id", "environment", "clock", "descriptors", "mappings",
	// "namespaces", "privileges", "landlock", "hooks".
	Name string `json:"name"`
	// Seen is the observer: "outside" (the keeper, from the kernel) or "inside" (the
	// interpreter itself, which user code may have changed before).
	Seen  string `json:"seen"`
	Value string `json:"value"` // the measurement, in words: "fresh, sha256 1f3a…"
}

// AtFork is the name of the hazard that records how the command of Adoption.First ended.
const AtFork = "at-fork command"

// Inherited begins the value of a hazard that the copy shares with its source.
const Inherited = "inherited: "

// Renewed begins the value of a hazard that the copy would have inherited, and that was
// renewed from outside the process.
const Renewed = "renewed: "

// Renewed names the random number generators that were renewed.
func (c *Certificate) Renewed() (names []string) {
	for _, h := range c.Hazards {
		if what, ok := strings.CutPrefix(h.Value, Renewed); ok && h.Name == "generators" {
			names = append(names, what)
		}
	}
	return names
}

// Inherited names the random number generators that a copy shares with its source, or that
// could not be renewed. The hash seed is left out: it generates no numbers.
func (c *Certificate) Inherited() (names []string) {
	for _, h := range c.Hazards {
		what, inherited := strings.CutPrefix(h.Value, Inherited)
		switch {
		case h.Name == "hash seed":
		case inherited && h.Name == "generators":
			names = append(names, what)
		case h.Name == "seeded generators" && !strings.HasPrefix(h.Value, "none"), inherited || strings.HasPrefix(h.Value, "cannot be renewed"):
			names = append(names, h.Name+": "+what)
		}
	}
	return names
}

// Uncertified returns the error of a strict adoption when the copy inherits generators, or
// nil if it inherits none.
func Uncertified(inherited []string) error {
	if len(inherited) == 0 {
		return nil
	}
	return Errorf(Unsupported, "cell.Certify", "end or restart what has them in each copy (--at-fork COMMAND), or leave out --certify strict",
		"cannot certify a copy: it would draw the same random numbers as its source: inherited: %s", strings.Join(inherited, "; "))
}

// Held is a cell that a keeper holds. Family is "" for a cell that is its own family.
type Held struct{ ID, Family ID }

// Death is the event that a cell's interpreter is gone.
type Death struct {
	Cell  ID     `json:"cell"`
	Cause string `json:"cause"` // "exit 3", "memory limit", "killed by SIGSEGV"
}

// Branching is a branch of a running cell.
type Branching struct {
	// Self is the spec that the source continues with: its own, over new layers. The
	// layers that it wrote before are immutable.
	Self Spec
	// Cells are the branches.
	Cells []Spec
	// Paused is called during the pause, when no process of the source runs and its files
	// cannot change; nil for none. The new layers are mounted already. When it fails, the
	// source continues unchanged.
	Paused func() error `json:"-"`
}

// Pause is the cost of a branch for its source.
type Pause struct {
	Gap     time.Duration // time that the source was stopped, by the clock of the keeper; 0: it did not continue elsewhere
	Dropped []string      // what the branches had to leave behind
	Shared  int64         // bytes of memory that were not copied
}
