package cell

import (
	"encoding/json"
	"strings"
	"time"
)

// Warm says which interpreter a cell keeps: one process whose state lasts from
// one evaluation to the next, and which can be forked with it.
type Warm struct {
	Kind    string        `json:"kind"`              // one of those below
	Process Process       `json:"process"`           // the program; of what is built in, its path and environment
	Name    string        `json:"name,omitempty"`    // what messages call it; "": the first of its arguments
	Setup   string        `json:"setup,omitempty"`   // evaluated once, before anything else
	Ready   string        `json:"ready,omitempty"`   // evaluated until it is true; "": ready when the set-up has ended
	Timeout time.Duration `json:"timeout"`           // of set-up and probe together
	ToFork  bool          `json:"to_fork,omitempty"` // it is to be forked by itself: what can't be is refused before its set-up
}

// The kinds of interpreters.
const (
	WarmPython  = "python"  // built in: Python 3.8 and later
	WarmNode    = "node"    // built in: Node 18 and later
	WarmJava    = "java"    // built in: Java 11 and later, with jdk.jshell
	WarmCommand = "command" // a program that speaks the protocol in docs/reference/eval-protocol.md
)

// ForkSandbox ends the hint of a refusal to fork an interpreter that could be
// forked with all that it runs in.
const ForkSandbox = "choose a backend that forks whole sandboxes: --backend gvisor, or --backend microvm"

// Isolated is the hint where only a cell without isolation can't do it.
const Isolated = "choose --backend namespace, gvisor or microvm"

// RoomHint is what to do where a keeper has no file descriptors left for forks.
const RoomHint = "ask for fewer, remove cells that nobody needs (pando ls), or start the daemon with a higher limit of open files (ulimit -n) and build the template again"

// Warmth is what is known of a cell's interpreter.
type Warmth struct {
	Kind    string    `json:"kind"`
	Version string    `json:"version"` // "Python 3.11.2"
	PID     int       `json:"pid"`     // in its cell
	Started time.Time `json:"started"` // when it began, or was forked
	Evals   int64     `json:"evals"`   // how many evaluations it has answered
	Depth   int       `json:"depth"`   // forks and branches between it and the first of its family
	Sealed  bool      `json:"sealed"`  // a template's: it is only forked
	Busy    bool      `json:"busy"`    // an evaluation is under way
	IsCell  bool      `json:"is_cell"` // all that runs in its cell ends with it: that of a fork or branch, and of what was branched
	Memory  int64     `json:"memory"`  // bytes of its own, not shared with those it was forked from; 0: not measured
	// CannotFork is why it can't be forked at all, "" if it can: a sentence.
	CannotFork string `json:"cannot_fork,omitempty"`
	// Slow is why forking it takes longer than it could, "" if it doesn't.
	Slow string `json:"slow,omitempty"`
	// Inherited names the generators of random numbers that its set-up has made, and that
	// all copies have in common.
	Inherited []string `json:"inherited,omitempty"`
	// Layer is the writable layer of the workspace that it works on: after a
	// branch, another than before.
	Layer string `json:"layer,omitempty"`
}

// Eval is one evaluation.
type Eval struct {
	Code    string        `json:"code"`
	Timeout time.Duration `json:"timeout"` // required: it is interrupted then
	Limit   int64         `json:"limit"`   // bytes of the value's repr; what is beyond is counted
	Output  int64         `json:"output"`  // bytes of stdout and stderr, each, that are handed on, at least Limit; what is beyond is counted
}

// Output is a piece of what an evaluation wrote, as it came.
type Output struct {
	Stream int    `json:"stream"` // 1 stdout, 2 stderr
	Data   []byte `json:"data"`
}

// Evaluated is what came of an evaluation. Its JSON is the same in the
// interpreter's protocol, the API, the command line and the SDKs.
type Evaluated struct {
	OK    bool   `json:"ok"`
	Value *Value `json:"value,omitempty"` // of the last expression; absent when there was none, or it was None
	// Display is what the code showed on the way: figures, display(…).
	Display []Bundle   `json:"display,omitempty"`
	Error   *EvalError `json:"error,omitempty"` // an exception; absent when OK
	// Cause is why it ended, when that was not the code's doing: "timeout",
	// "interrupted", "ended" (the interpreter is gone), "stuck" (it timed out
	// and can't be interrupted: it is still busy).
	Cause  string  `json:"cause,omitempty"`
	TookMS float64 `json:"took_ms"` // in the interpreter
	N      int64   `json:"n"`       // the how-manieth evaluation of this interpreter
	// Stdout and Stderr are how much it wrote.
	Stdout int64 `json:"stdout_bytes"`
	Stderr int64 `json:"stderr_bytes"`
	// MissingCalls are the system calls that processes of the cell made meanwhile and
	// its kernel, which is not the host's, does not have, by name; "others" stands for
	// those that are not told apart any more.
	MissingCalls []string `json:"missing_calls,omitempty"`
}

// Value is a value of the interpreter's language.
type Value struct {
	// Type is the name of its type, qualified unless built in: "int",
	// "numpy.ndarray".
	Type string `json:"type"`
	// JSON is the value itself where that can be said exactly. What JSON has
	// no word for is an object with one key: {"$float": "NaN"|"Infinity"|
	// "-Infinity"}, {"$int": "digits"} beyond ±2^53, {"$bytes": base64},
	// {"$str": base64} of a string that is not Unicode (UTF-8 with
	// surrogates), {"$tuple": […]}, {"$set": […]}, {"$dict": [[k, v], …]} of a
	// dict whose keys are not all strings or begin with "$". Absent for what
	// has no exact form, and for more than a megabyte; what is in something else and has
	// none is {"$opaque": {"type": …, "repr": …}} there.
	JSON    json.RawMessage `json:"json,omitempty"`
	JSONCut bool            `json:"json_cut,omitempty"` // there is no JSON because it would be too long or too deep
	Repr    string          `json:"repr"`               // always, perhaps cut
	Cut     int64           `json:"repr_cut,omitempty"` // characters of the repr that were left out
	MIME    Bundle          `json:"mime,omitempty"`     // richer forms: _repr_html_ and the like
}

// A Bundle is one thing in several forms, by media type. Text is as it is,
// what is binary ("image/png") is base64.
type Bundle map[string]string

// EvalError is an exception.
type EvalError struct {
	Type      string `json:"type"` // "ZeroDivisionError"
	Message   string `json:"message"`
	Traceback string `json:"traceback"` // as the language prints it, without the interpreter's own frames
	Line      int    `json:"line,omitempty"`
}

// Adoption gives a forked cell that was made ahead the identity that it was
// forked for, before anything is evaluated in it.
type Adoption struct {
	Hostname string            `json:"hostname"`
	Env      map[string]string `json:"env"` // variables of its own: its name, its placeholders. "" takes one away
	Network  *Governance       `json:"network,omitempty"`
	Kind     string            `json:"kind,omitempty"` // of its interpreter; the keeper sets it
	// Strict says that nothing of the copy may go on that inherits a generator of random
	// numbers: adopting it is Unsupported then.
	Strict bool `json:"strict,omitempty"`
	// Trial says that the copy is thrown away whatever comes of it: it goes no further than
	// its certificate needs. What is copied whole and has no interpreter does not go on.
	Trial bool `json:"trial,omitempty"`
	// First is run in the copy when it has its identity, before anything else of it goes
	// on. A copy in which it fails is not adopted.
	First *Start `json:"first,omitempty"`
}

// Certificate is what was measured of one fork: what must not stay duplicated,
// and what holds it. It is part of the batch's receipt.
type Certificate struct {
	Cell    ID        `json:"cell"`
	At      time.Time `json:"at"`      // when its hazards were handled
	Battery Canaries  `json:"battery"` // of its slot; At says how old
	Hazards []Hazard  `json:"hazards"`
	Dropped []string  `json:"dropped,omitempty"` // what it had to leave behind: "socket 10.0.0.2:443"
}

// Hazard is one thing that a fork duplicates and that was made different.
type Hazard struct {
	// Name is "generators", "randomness", "numpy randomness", "seeded generators", "uuid", "hash seed", "hostname",
	// "machine-id", "environment", "clock", "descriptors", "mappings",
	// "namespaces", "privileges", "landlock", "hooks".
	Name string `json:"name"`
	// Seen is who saw it: "outside" (the keeper, from the kernel) or "inside"
	// (the interpreter itself, which user code may have changed before).
	Seen  string `json:"seen"`
	Value string `json:"value"` // what was measured, in words: "fresh, sha256 1f3a…"
}

// AtFork is the name of the hazard that says how the command of Adoption.First ended.
const AtFork = "at-fork command"

// Inherited begins the value of a hazard that the copy has in common with its source.
const Inherited = "inherited: "

// Renewed begins the value of a hazard that would be inherited, and was renewed in the copy
// from outside of the process that has it.
const Renewed = "renewed: "

// Renewed names the generators of random numbers that were.
func (c *Certificate) Renewed() (names []string) {
	for _, h := range c.Hazards {
		if what, ok := strings.CutPrefix(h.Value, Renewed); ok && h.Name == "generators" {
			names = append(names, what)
		}
	}
	return names
}

// Inherited names the generators of random numbers that a copy has in common with its
// source, or that could not be renewed. The seed of hashes is left out: nothing is drawn
// from it.
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

// Uncertified is the error of a strict adoption whose copy inherits generators; nil for
// none.
func Uncertified(inherited []string) error {
	if len(inherited) == 0 {
		return nil
	}
	return Errorf(Unsupported, "cell.Certify", "end or restart what has them in each copy (--at-fork COMMAND), or leave out --certify strict",
		"cannot certify a copy: it would draw the same random numbers as its source: inherited: %s", strings.Join(inherited, "; "))
}

// Held is a cell that a keeper holds. Family is "" for one that is alone.
type Held struct{ ID, Family ID }

// Death says that a cell's interpreter is gone.
type Death struct {
	Cell  ID     `json:"cell"`
	Cause string `json:"cause"` // "exit 3", "memory limit", "killed by SIGSEGV"
}

// Branching is a branch of a running cell.
type Branching struct {
	// Self is what the source goes on with: its own spec, over layers that are
	// new; what it wrote until now has become immutable.
	Self Spec
	// Cells are the branches.
	Cells []Spec
	// Paused is called in the pause, when nothing of the source runs and its
	// files can't change; nil for nothing. What it changes is mounted already.
	// When it fails the source goes on as if nothing had happened.
	Paused func() error `json:"-"`
}

// Pause is what a branch cost its source.
type Pause struct {
	Gap     time.Duration // during which the source stood still, by the keeper's clock; 0: it did not go on elsewhere
	Dropped []string      // what the branches had to leave behind
	Shared  int64         // bytes of memory that were not copied
}
