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
// All that follows are frames (frame.go): questions of the keeper with their
// answers, and streams, whose sender sends no more than its receiver has room
// for, so that none stops another. Both ends read their socket always.
//
// After "hold" neither side sends anything, and the guest waits for one of two
// things: "goon", with which all goes on as if nothing had happened; or a new
// greeting. Then it is a restored copy of itself, on another keeper's socket. It
// stops the processes of the cell until that keeper has said who they are
// ("adopt"); what they write is kept, a little of it, until somebody takes their
// streams ("reattach").
//
// Commands live in a pid namespace below the guest's, whose first process only
// waits: none of them, root or not, sees the guest or can signal it. Each is in a
// cgroup of its own, which is the root of its cgroup namespace: whatever it starts
// stays in there, in other sessions and user namespaces, too, because nothing
// outside of it has a name there.
//
// Lock order: 1. inside.mu, 2. task.mu, 3. mux.mu, 4. stream.mu; the turn to write
// is taken while none of them is held.
package guest

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/hazard"
)

// Version is that of the protocol. Both ends serve this one and the one before.
const Version = 1

// Command is a process to start.
type Command struct {
	ID      string         `json:"id"` // the keeper's name for it, used once
	Process cell.Process   `json:"process"`
	UID     int            `json:"uid"`
	GID     int            `json:"gid"`
	Caps    uint64         `json:"caps,omitempty"`      // what root may ever have; others have none
	NoSetID bool           `json:"no_set_id,omitempty"` // it can set no set-user-id and set-group-id bits
	Limits  confine.Limits `json:"limits"`
	// Input is a file that the command has as its standard input, where that is no stream.
	Input []byte         `json:"input,omitempty"`
	Place *confine.Place `json:"place,omitempty"` // for its canaries; nil: there are none
	// Attempts are canaries that a gateway must deny, Skipped those that it would not.
	// With attempts the command waits at a gate before it becomes its program.
	Attempts []confine.Attempt `json:"attempts,omitempty"`
	Skipped  []string          `json:"skipped,omitempty"`
	Gate     func() error      `json:"-"` // the keeper's: whether it may begin; asked if Gated, or if there are Attempts
	Gated    bool              `json:"gated,omitempty"`
}

// Known is a process of the guest's that was started and not released.
type Known struct {
	ID    string `json:"id"`
	PID   int    `json:"pid"` // in the cell
	TTY   bool   `json:"tty,omitempty"`
	Ended bool   `json:"ended,omitempty"` // it waits to be waited for
	// Control says that it has a descriptor 3, as interpreters do.
	Control bool `json:"control,omitempty"`
}

// Adoption is who a restored copy is from now on, or a machine that has just booted.
type Adoption struct {
	Hostname string            `json:"hostname"`
	Clock    time.Time         `json:"clock,omitzero"` // what time it is; zero: the guest's kernel knows
	Files    map[string][]byte `json:"files"`          // by path: /etc/machine-id and the like
	Token    []byte            `json:"token"`          // of its own from now on
	Limits   *Limits           `json:"limits,omitempty"`
	Seed     []byte            `json:"seed,omitempty"` // for the generator of the guest's kernel, where that is the guest's own
	// Waits says that another adoption will come, until which the guest's processes
	// stand still.
	Waits bool `json:"waits,omitempty"`
	// Still says that the processes stand still until Client.Still lets them go on.
	// Commands can be started meanwhile.
	Still bool `json:"still,omitempty"`
}

// Limits are those of all commands together, where nobody outside can count them. 0
// is none.
type Limits struct {
	Memory int64 `json:"memory,omitempty"` // bytes
	PIDs   int64 `json:"pids,omitempty"`   // processes and threads
}

// The operations of questions.
const (
	opStart     = "start"
	opReattach  = "reattach"
	opReap      = "reap"
	opRelease   = "release" // has no answer, and its turn
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
	opDraws     = "draws" // what generators the processes have
	opPass      = "pass"
)

// question is one of the keeper's.
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
	Refused *wireError `json:"refused,omitempty"` // pass: why it may not begin
	Renew   bool       `json:"renew,omitempty"`   // draws: of a copy that stands still, what can be renewed from outside
	Stop    bool       `json:"stop,omitempty"`    // hold: the processes, too; still: whether they are to be
}

// answer is the guest's.
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

// note is what the guest says unasked: a process has ended, and keeps its number
// until it is reaped; or one waits for "pass" before it begins.
type note struct {
	Ended string `json:"ended,omitempty"`
	Gate  string `json:"gate,omitempty"` // one waits at its gate
}

// wireError is a cell.Error on its way.
type wireError struct {
	Kind    cell.Kind `json:"kind"`
	Op      string    `json:"op,omitempty"`
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"`
}

func toWire(err error) *wireError {
	w := &wireError{Kind: cell.KindOf(err), Op: "guest", Message: err.Error(), Hint: cell.HintOf(err)}
	if e, ok := errors.AsType[*cell.Error](err); ok {
		w.Op = e.Op
	}
	return w
}

func (w *wireError) err() error {
	return &cell.Error{Op: w.Op, Kind: w.Kind, Hint: w.Hint, Err: errors.New(w.Message)}
}

// maxValues bounds what a message expands to: a list of 60,000 processes fits.
const maxValues = 1 << 19

// decode reads JSON that the other end sent.
func decode(b []byte, v any) error {
	if err := bound.Values(b, "the guest's message", maxValues); err != nil {
		return errProtocol("%v", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return errProtocol("%v", err)
	}
	return nil
}

// TimerSlack is how late timers may be of who serves a machine, in it and outside.
const TimerSlack = 2 * time.Millisecond
