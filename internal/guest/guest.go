// Package guest is the protocol with the program inside a sandbox, both ends. The
// program (cmd/pando-guest, Serve) is the sandbox's first process and starts the
// commands of its cell; the keeper holds the other end of its one socket (Client).
//
// A connection begins with a greeting, in which each side proves that it knows
// the cell's token without saying it:
//
//	keeper                                   guest
//	  │ version, nonce ──────────────────▶     │   (at boot, with the token itself)
//	  │ ◀── version, nonce, HMAC(token, …)     │
//	  │ HMAC(token, …) ──────────────────▶     │
//	  │ ◀── welcome                            │
//	  │ ask ─────────────────────────────▶     │   JSON, any number under way
//	  │ ◀── answer                             │
//	  │ ◀── note                               │   a process has ended
//	  │ ◀═════ data, end, room, stop ════▶     │   streams
//
// Frames follow (frame.go): questions of the keeper and their answers, and streams. The sender
// of a stream sends no more than the receiver's window, so that no stream blocks another. Both
// ends always read their socket.
//
// After "hold" neither side sends anything, and the guest waits for one of two messages. "goon"
// resumes everything. A new greeting means that the guest is a restored copy on another
// keeper's socket. The copy freezes the cell's processes until that keeper sets its identity
// ("adopt"). It buffers a little of their output until the keeper takes the streams
// ("reattach").
//
// Commands run in a PID namespace below the guest's, with a first process that only waits: no
// command, root or not, sees the guest or can signal it. Each command is in its own cgroup, the
// root of its cgroup namespace. Its descendants stay in that cgroup, whatever sessions and user
// namespaces they make, because cgroups outside have no name there.
//
// Lock order: 1. inside.mu, 2. task.mu, 3. mux.mu, 4. stream.mu. The write turn is taken while
// none of them is held.
// is taken while none of them is held.
package guest

import (
	"encoding/json"
	"errors"
	"syscall"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/hazard"
)

// Version is the protocol version. Both ends support this one and the one before.
const Version = 1

// Command is a process to start.
type Command struct {
	ID      string         `json:"id"` // chosen by the keeper, used once
	Process cell.Process   `json:"process"`
	UID     int            `json:"uid"`
	GID     int            `json:"gid"`
	Caps    uint64         `json:"caps,omitempty"`      // capability bounding set of root; other users have none
	NoSetID bool           `json:"no_set_id,omitempty"` // deny set-user-ID and set-group-ID bits
	Limits  confine.Limits `json:"limits"`
	// Input is the standard input as a file, if there is no stream for it.
	Input []byte         `json:"input,omitempty"`
	Place *confine.Place `json:"place,omitempty"` // for its canaries; nil: none
	// Attempts are the canaries that the gateway must deny, Skipped the names of those that it
	// allows. With attempts the command waits at a gate before its exec.
	Attempts []confine.Attempt `json:"attempts,omitempty"`
	Skipped  []string          `json:"skipped,omitempty"`
	Gate     func() error      `json:"-"` // called by the keeper at the gate, if Gated or with Attempts
	Gated    bool              `json:"gated,omitempty"`
}

// Known is a process of the guest that was started and not released.
type Known struct {
	ID    string `json:"id"`
	PID   int    `json:"pid"` // in the cell
	TTY   bool   `json:"tty,omitempty"`
	Ended bool   `json:"ended,omitempty"` // it has ended and was not waited for
	// Control is set if the process has a descriptor 3, as interpreters do.
	Control bool `json:"control,omitempty"`
}

// Adoption is the identity of a restored copy, or of a machine that has just booted.
type Adoption struct {
	Hostname string            `json:"hostname"`
	Clock    time.Time         `json:"clock,omitzero"` // current time; zero: the guest's kernel has it
	Files    map[string][]byte `json:"files"`          // by path, such as /etc/machine-id
	Token    []byte            `json:"token"`          // the copy's new token
	Limits   *Limits           `json:"limits,omitempty"`
	Seed     []byte            `json:"seed,omitempty"` // entropy for the guest's own kernel, if it has one
	// Waits announces another adoption. The guest's processes stay frozen until then.
	Waits bool `json:"waits,omitempty"`
	// Still keeps the processes frozen until Client.Still thaws them. Commands can be started
	// meanwhile.
	Still bool `json:"still,omitempty"`
}

// Limits apply to all commands together, if no cgroup outside can count them. 0 is no limit.
type Limits struct {
	Memory int64 `json:"memory,omitempty"` // bytes
	PIDs   int64 `json:"pids,omitempty"`   // processes and threads
}

// Operations of questions.
const (
	opStart     = "start"
	opReattach  = "reattach"
	opReap      = "reap"
	opRelease   = "release" // without an answer, processed in order
	opSignal    = "signal"
	opInterrupt = "interrupt"
	opEndRest   = "endrest"
	opResize    = "resize"
	opKnown     = "known"
	opList      = "list"
	opKillAll   = "killall"
	opSync      = "sync"
	opRead      = "read"
	opWrite     = "write"
	opDial      = "dial"
	opAccept    = "accept"
	opPorts     = "ports"
	opTried     = "tried"
	opHold      = "hold"
	opGoOn      = "goon"
	opAdopt     = "adopt"
	opStill     = "still"
	opDraws     = "draws" // random number generators of the processes
	opPass      = "pass"
)

// question is a request of the keeper.
type question struct {
	Op      string     `json:"op"`
	ID      string     `json:"id,omitempty"`
	Command *Command   `json:"command,omitempty"`
	Streams []uint32   `json:"streams,omitempty"` // start, reattach: stdin, stdout, stderr, control; 0 for none. read, write, dial, accept: one
	Signal  string     `json:"signal,omitempty"`
	Path    string     `json:"path,omitempty"`
	UID     int        `json:"uid,omitempty"`
	GID     int        `json:"gid,omitempty"`
	Port    int        `json:"port,omitempty"`
	Rows    uint16     `json:"rows,omitempty"`
	Cols    uint16     `json:"cols,omitempty"`
	Adopt   *Adoption  `json:"adopt,omitempty"`
	Refused *wireError `json:"refused,omitempty"` // pass: the reason to refuse the start
	Renew   bool       `json:"renew,omitempty"`   // draws: reseed the generators of a frozen copy
	Stop    bool       `json:"stop,omitempty"`    // hold: freeze the processes, too; still: freeze or thaw
}

// answer is the guest's response to a question.
type answer struct {
	Error   *wireError         `json:"error,omitempty"`
	PID     int                `json:"pid,omitempty"`
	Made    *confine.Measured  `json:"made,omitempty"` // start
	Count   int                `json:"count,omitempty"`
	Exit    cell.Exit          `json:"exit,omitzero"`
	Usage   cell.Usage         `json:"usage,omitzero"`
	List    []cell.ProcessInfo `json:"list,omitempty"`
	Ports   []cell.Listening   `json:"ports,omitempty"`
	Known   []Known            `json:"known,omitempty"`
	Hazards []cell.Hazard      `json:"hazards,omitempty"`
	Draws   []hazard.Process   `json:"draws,omitempty"`
}

// note is an unsolicited message of the guest: a process has ended, and keeps its PID until it
// is reaped; or one waits at its gate for "pass".
type note struct {
	Ended string `json:"ended,omitempty"`
	Gate  string `json:"gate,omitempty"` // one waits at its gate
}

// wireError is the JSON form of a cell.Error.
type wireError struct {
	Kind    cell.Kind     `json:"kind"`
	Op      string        `json:"op,omitempty"`
	Message string        `json:"message"`
	Hint    string        `json:"hint,omitempty"`
	Subject cell.Subject  `json:"subject,omitempty"`
	Errno   syscall.Errno `json:"errno,omitempty"`
}

func toWire(err error) *wireError {
	w := &wireError{Kind: cell.KindOf(err), Op: "guest", Message: err.Error(), Hint: cell.HintOf(err), Subject: cell.SubjectOf(err), Errno: cell.ErrnoOf(err)}
	if e, ok := errors.AsType[*cell.Error](err); ok {
		w.Op = e.Op
	}
	return w
}

func (w *wireError) err() error {
	return &cell.Error{Op: w.Op, Kind: w.Kind, Subject: w.Subject, Hint: w.Hint, Err: &cell.Told{Text: w.Message, Errno: w.Errno}}
}

// maxValues limits the number of JSON values in a message. A list of 60,000 processes fits.
const maxValues = 1 << 19

// decode parses JSON from the other end.
func decode(b []byte, v any) error {
	if err := bound.Values(b, "the guest's message", maxValues); err != nil {
		return errProtocol("%v", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return errProtocol("%v", err)
	}
	return nil
}

// TimerSlack is the timer slack of the processes that serve a machine, inside and outside.
const TimerSlack = 2 * time.Millisecond
