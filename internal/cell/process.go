package cell

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one command to run in a cell.
type Process struct {
	Args    []string `json:"args"`
	Env     []string `json:"env"`  // complete: NAME=value
	Path    []string `json:"path"` // candidate files for the program, in order
	Workdir string   `json:"workdir"`
	TTY     bool     `json:"tty,omitempty"`
	Rows    uint16   `json:"rows,omitempty"`
	Cols    uint16   `json:"cols,omitempty"`
}

// MaxArgument is the maximum length of an argument or a variable (NAME=value), in bytes:
// Linux' MAX_ARG_STRLEN, less the NUL at its end (execve(2)).
const MaxArgument = 128<<10 - 1

// ByAnotherWay is the hint when arguments are too long.
const ByAnotherWay = "pass it on standard input, or write it to a file in the cell and pass the file's name"

// CheckArguments returns an Invalid error for arguments and variables that execve(2) cannot
// pass; op is the operation of the error.
func CheckArguments(op string, args, env []string) error {
	for i, a := range slices.Concat(args, env) {
		what := "argument " + strconv.Itoa(i)
		if i >= len(args) {
			name, _, _ := strings.Cut(a, "=")
			what = "variable " + strconv.QuoteToGraphic(name[:min(len(name), 64)])
		}
		switch {
		case strings.Contains(a, "\x00"):
			return Errorf(Invalid, op, "", "cannot run: %s contains a NUL", what)
		case len(a) > MaxArgument:
			return Errorf(Invalid, op, ByAnotherWay, "cannot run: %s has %d bytes, and Linux takes %d", what, len(a), MaxArgument)
		}
	}
	return nil
}

// CantExecute returns the error for a failed execve(2): always NotRunnable.
func CantExecute(op, program string, err error) error {
	if errors.Is(err, syscall.E2BIG) {
		return Errorf(NotRunnable, op, ByAnotherWay, "cannot execute %s: its arguments and variables together are longer than Linux takes (a quarter of the limit of the stack, mostly 2 MiB)", program)
	}
	return Errorf(NotRunnable, op, "", "cannot execute %s: %w", program, err)
}

// Start is a process to start, and its circumstances.
type Start struct {
	Process Process       `json:"process"`
	Run     RunID         `json:"run,omitempty"` // names the event stream; "" for none
	Timeout time.Duration `json:"timeout,omitempty"`
	// EndsCell says that the end of this process ends the others of the cell.
	EndsCell bool `json:"ends_cell,omitempty"`
	// Hold says that output beyond the limit waits a while for the first client that
	// attaches, instead of being dropped.
	Hold bool `json:"hold,omitempty"`
	// Hide are parts of the command and its environment that are credentials: no record of it has them.
	Hide []string `json:"hide,omitempty"`
	// NoInput says that its standard input is at its end from the beginning.
	NoInput bool `json:"no_input,omitempty"`
	// Screen says that the program draws a screen, and throws away what was typed before: input of
	// clients without a terminal waits for it.
	Screen bool `json:"screen,omitempty"`
	// Wire is what the gateway does with the HTTP of the cell while the process runs; nil: nothing.
	Wire     *Wire `json:"wire,omitempty"`
	LogLimit int64 `json:"log_limit"` // bytes kept of each stream, in its file or, without one, in memory
}

// Exit is how a process ended, as the kernel reported it.
type Exit struct {
	Code   int    `json:"code"`             // exit code; 128+n after signal n
	Signal string `json:"signal,omitempty"` // "SIGKILL"
	// Cause is set when something else ended the process: one of the causes below, a limit
	// ("memory limit", "disk limit"), or a text for people.
	Cause string `json:"cause,omitempty"`
}

// Causes of an end that programs decide on.
const (
	CauseTimeout     = "timeout"
	CauseInterrupted = "interrupted"
	CauseStopped     = "stopped"     // by a request to stop the cell
	CauseRemoved     = "removed"     // by a request to remove the cell
	CauseKeeperLost  = "keeper lost" // the process ended with its keeper

	// Of an evaluation, beside timeout and interrupted.
	CauseEnded = "ended" // the interpreter ended
	CauseStuck = "stuck" // it timed out, cannot be interrupted and is still busy
)

// Usage is the resource use of a process and its ended children.
type Usage struct {
	UserMS   int64 `json:"user_ms"`
	SystemMS int64 `json:"system_ms"`
	MaxRSS   int64 `json:"max_rss"` // bytes, of the largest process
}

// Stats is the resource use of all processes of a cell together. Measured names the fields
// that this host can measure; the others are zero.
type Stats struct {
	Processes  int      `json:"processes"`
	Memory     int64    `json:"memory"`      // bytes now
	PeakMemory int64    `json:"peak_memory"` // bytes
	CPU        int64    `json:"cpu_us"`      // microseconds used
	Written    int64    `json:"written"`     // bytes to block devices
	OOMKills   int64    `json:"oom_kills"`
	PeakPIDs   int64    `json:"peak_pids"`
	Measured   []string `json:"measured"`
}

// Since returns the use since an earlier measurement b. A peak that is not above that of b
// was reached at an unknown time and counts as not measured.
func (s Stats) Since(b Stats) Stats {
	s.CPU -= b.CPU
	s.Written -= b.Written
	s.OOMKills -= b.OOMKills
	s.Measured = slices.Clone(s.Measured)
	for _, p := range []struct {
		name   string
		now    *int64
		before int64
	}{{"peak_memory", &s.PeakMemory, b.PeakMemory}, {"peak_pids", &s.PeakPIDs, b.PeakPIDs}} {
		if *p.now <= p.before {
			*p.now = 0
			s.Measured = slices.DeleteFunc(s.Measured, func(n string) bool { return n == p.name })
		}
	}
	return s
}

// ProcessInfo is one process for `pando ps`.
type ProcessInfo struct {
	PID     int       `json:"pid"` // inside the cell
	PPID    int       `json:"ppid"`
	State   string    `json:"state"` // one letter as in ps(1)
	RSS     int64     `json:"rss"`   // bytes
	CPU     int64     `json:"cpu_ms"`
	Started time.Time `json:"started"`
	Command string    `json:"command"`
}

// Status is the state of a process.
type Status struct {
	Running  bool         `json:"running"`
	Exit     *Exit        `json:"exit,omitempty"`
	Usage    Usage        `json:"usage"`
	Stats    Stats        `json:"stats"` // of the cell, when the process ended; empty for one without events
	Stdout   StreamStatus `json:"stdout"`
	Stderr   StreamStatus `json:"stderr"`
	Started  time.Time    `json:"started"`
	Ended    time.Time    `json:"ended,omitzero"`
	LeftOver int          `json:"left_over,omitempty"` // number of processes that were ended with the cell
	Typed    bool         `json:"typed,omitempty"`     // there was input from its terminal
	Args     []string     `json:"args,omitempty"`      // in the answer to a query: the command line
	Awaited  bool         `json:"awaited,omitempty"`   // a client waits for its end
	Unsealed string       `json:"unsealed,omitempty"`  // why the event stream could not be completed
	Events   int64        `json:"events,omitempty"`    // number of its events, without samples of its use
	// KilledAfter is how long it was waited for after it was asked to end, before it was killed; 0: it
	// was not killed for that.
	KilledAfter time.Duration `json:"killed_after,omitempty"`
	Recording   *Recording    `json:"recording,omitempty"` // at its end, if it was recorded
	Replayed    *Replayed     `json:"replayed,omitempty"`  // at its end, if it was answered from a recording
}

// Sample is what a cell uses at some time in a command, as an event of its run.
type Sample struct {
	CPU       int64 `json:"cpu_us"`              // processor time since the command began, in microseconds
	Memory    int64 `json:"memory"`              // bytes now
	Written   int64 `json:"written"`             // bytes to disks since the command began
	Processes int   `json:"processes,omitempty"` // 0: not counted
}

// Written is how far the output of a command is at some time, as an event of its run.
type Written struct {
	Stdout int64 `json:"stdout"` // bytes since the command began
	Stderr int64 `json:"stderr"`
}

// StreamStatus is the amount of output of a process.
type StreamStatus struct {
	Bytes  int64  `json:"bytes"`
	Kept   int64  `json:"kept"`   // bytes in the log file
	Digest Digest `json:"digest"` // of all bytes, kept or not
}
