// Package server is the process that outlives the daemon, the keeper: it holds a family's
// cells, their processes, output and usage, and a daemon of this or the next
// version attaches to it. This package has everything about a keeper that does not depend on
// the isolation technology; a Driver knows that. The protocol is package proto.
//
// A keeper holds a family: the cell that it was started for, and those that were
// forked or branched from it. It ends with the last of them.
//
// Lock order: 1. Server.mu, 2. talk.mu, 3. Proc.mu, 4. sizes.mu, 5. Output.mu, 6. deaths.mu;
// Starts.mu is held while events are written alone;
// warm.mu, intakes.mu and drain.mu are held while nothing else is taken.
package server

import (
	"encoding/json"
	"net"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/repl"
)

// A Driver runs cells with one isolation technology, inside the keeper. It is
// safe for concurrent use.
type Driver interface {
	// Create makes a cell ready for processes; spec is what the backend's
	// daemon side encoded, files belong to the driver from now on. The answer
	// is what was measured, for the receipt. When it fails, nothing remains.
	Create(id cell.ID, spec json.RawMessage, files []*os.File) (measured json.RawMessage, err error)
	// Start runs a process in a cell with stdio as its streams; with p.TTY
	// all three are nil and the driver returns the terminal. A program that
	// is not there is a NoSuchBinary error, one that can't be executed
	// NotRunnable, a working directory that is not there NotFound. begins, unless
	// it is nil, is called after the canaries of the command and before its first
	// instruction. A driver that tries to start it twice calls it twice.
	Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (Started, error)
	// KillAll ends every process of the cell and returns how many were not
	// the driver's own.
	KillAll(id cell.ID) (int, error)
	Freeze(id cell.ID) error
	Thaw(id cell.ID) error
	// Root opens the cell's root directory as its processes see it.
	Root(id cell.ID) (*os.File, error)
	List(id cell.ID) ([]cell.ProcessInfo, error)
	Stats(id cell.ID) (cell.Stats, error)
	// Remove takes a cell down; its processes end.
	Remove(id cell.ID) error
}

// A Counter is a driver with counters of what a cell has used since it was
// made, which are cheaper to read than Stats.
type Counter interface {
	Counted(id cell.ID) (cell.Stats, error)
	// Killed is how many processes of a cell the kernel has ended for the cell's
	// limit on memory.
	Killed(id cell.ID) int64
	// Held is how much room on disk a cell's processes hold in files that have no
	// name any more, in bytes.
	Held(id cell.ID) int64
}

// A Syncer is a driver of cells with a kernel of their own, which caches what was written.
// Sync writes the cache to the cell's files.
type Syncer interface {
	Sync(id cell.ID) error
}

// A Refresher is a driver of cells with a kernel of their own, which remembers for a while what
// files were like. Refresh returns when it knows of what was changed from outside.
type Refresher interface {
	Refresh(id cell.ID) error
}

// A Listener is a driver of cells with a kernel that can't reach a socket of the host,
// though its file is there. Listen has that kernel listen at a path in the cell. The path's
// folder is there for nothing else.
type Listener interface {
	Listen(id cell.ID, path string) (net.Listener, error)
}

// An Observer is a driver that can tell what processes of a cell tried in vain since the cell
// was made.
type Observer interface {
	// Tried is how often they tried to use a network that the cell does not have.
	Tried(id cell.ID) int64
	// DeniedPrograms is how often they executed programs that the policy denies.
	DeniedPrograms(id cell.ID) map[Denied]int64
	// MissingCalls is how often they called what the cell's kernel does not have, by the
	// call's name, and with it what was asked for where only that is missing. There are few
	// names; what else was called is MissingOthers. It is nil for a Linux kernel.
	MissingCalls(id cell.ID) map[string]int64
}

// Denied is a program that the policy of a cell denies.
type Denied struct {
	Program string // its path in the cell
	cell.Denial
}

// Started is a process that a driver has started.
type Started struct {
	Process  Process
	Terminal *os.File        // the keeper's end; nil without TTY
	Measured json.RawMessage // what the canaries and the process's own status showed
}

// Process is one process, as its keeper sees it.
type Process interface {
	PID() int
	// Signal reaches the process and its group; it never reaches another
	// process that got the same number later.
	Signal(sig string) error
	// Wait is called once and returns when the process has ended and is
	// reaped. Before that it calls ended: a Signal from there still reaches
	// what is left of the group, a later one has no effect.
	Wait(ended func()) (cell.Exit, cell.Usage)
	// EndRest ends whatever the process has started and left behind, in
	// sessions of its own too, and returns how many that were. What others
	// started in the cell goes on.
	EndRest() (int, error)
}

// A Guest is a process with a kernel of its cell's own.
type Guest interface {
	// Programs are the processes on the host that this kernel and its memory are, if
	// that can be told apart from what they have in common with those of copies.
	Programs() []int
}

// A StartWatcher is a driver that observes which processes a command starts.
type StartWatcher interface {
	// StartWatched is Start of a command, and tells its processes to starts, from the command's
	// own execve on. Where that fails, the command runs all the same, and starts is told
	// what is not seen, and why.
	StartWatched(id cell.ID, p cell.Process, stdio [3]*os.File, begins func(), starts *Starts) (Started, error)
}

// A Settler is a process of a StartWatcher. Settle is called once, after Wait, and returns
// when what has happened up to then was told.
type Settler interface {
	Settle()
}

// A Releaser is a process that holds resources until what it left behind has ended.
// Release is called once, at the end.
type Releaser interface {
	Release()
}

// A Resizer is a process with a terminal outside the keeper, which has a socket to it.
type Resizer interface {
	Resize(rows, cols uint16) error
}

// An Interpreting driver can start interpreters: processes that are asked over a
// socket.
type Interpreting interface {
	// StartInterpreter is Start of a process with control as its descriptor 3, and
	// sets i.Process. i is the driver's, too, as long as the process lives.
	StartInterpreter(id cell.ID, p cell.Process, i *Interpreter, stdio [3]*os.File, control *os.File) error
}

// Interpreter is the process of a cell that evaluates.
type Interpreter struct {
	Process        Process
	Conn           *repl.Conn
	Stdout, Stderr *os.File // the keeper's ends
	Depth          int      // forks and branches between it and the first of its family
	IsCell         bool     // its cell ends with it
	Layer          string   // the writable layer that it works on, if that is known
}

// A Forker is a driver that can fork interpreters.
type Forker interface {
	// Seal makes a cell's interpreter one that is only forked.
	Seal(id cell.ID) error
	// Fork makes a cell out of a sealed interpreter, and sets i, which waits to
	// be adopted. spec and files are as with Create.
	Fork(trunk, id cell.ID, spec json.RawMessage, i *Interpreter, files []*os.File) (measured json.RawMessage, err error)
	// Branch begins a branch of a cell, in the middle of its life, of which the cell notices
	// nothing. What could not be branched now is refused.
	Branch(id cell.ID) (Branch, error)
	Adopter
}

// An Adopter is a driver of cells that are copies of others, and stand still until
// they are adopted.
type Adopter interface {
	// Adopt gives a copy its identity, and measures it. first, unless it is nil, is called
	// when the copy has its identity, and processes can be started in it; nothing else of
	// it goes on before first returns. Its error is Adopt's.
	Adopt(id cell.ID, a cell.Adoption, first func() error) (cell.Certificate, error)
}

// A Capturer is a driver that can capture what a cell has in memory. A cell that
// is created from that is a copy.
type Capturer interface {
	Adopter
	// Capture writes the memory of a frozen cell into files. What it returns is
	// needed, beside them, to create a copy.
	Capture(id cell.ID, files []*os.File) (more json.RawMessage, err error)
	// Resume takes over the interpreter that a copy came with, with streams of its
	// own, and sets i.Process.
	Resume(id cell.ID, i *Interpreter, stdio [3]*os.File, control *os.File) error
	// Rehearse has a new cell do what its adoption will have it do, if it is a copy that was
	// made ahead. It waits to be adopted afterwards, as before.
	Rehearse(id cell.ID) error
	// Prepare begins to write into the files that Capture will get, while the cell runs.
	// They are the caller's to close, as is base: with own, that is what the cell began
	// with, if the files will only hold what it has had of its own since; nil if they will
	// hold all.
	Prepare(id cell.ID, files []*os.File, own bool) (base *os.File, err error)
}

// A Branch is one of a cell that is under way. One goroutine calls its methods, in
// their order here; End after any of them, once.
type Branch interface {
	// Source says what the source goes on with, and Add a branch; spec and files
	// are as with Create.
	Source(spec json.RawMessage, files []*os.File) error
	Add(id cell.ID, spec json.RawMessage, files []*os.File) error
	// Hold makes the source stand still, and has it and its branches forked. It
	// returns what branches will have to leave behind.
	Hold() (dropped []string, err error)
	// GoOn lets the source go on in its fork, with all that the kernel held for it;
	// where it can't have that, it fails. Once it has succeeded the source is what it
	// is, whatever fails.
	GoOn(i *Interpreter) error
	// Settle puts away what the source was until then.
	Settle() error
	// Complete makes a branch that waits to be adopted. It may be called for
	// several at a time.
	Complete(id cell.ID, i *Interpreter) (measured json.RawMessage, err error)
	// End takes away what was not completed. A source that has not gone on goes on
	// as it was.
	End() error
}

// An Interrupter is a process that alone can be interrupted, without its group.
type Interrupter interface {
	Interrupt() error
}

// Events receives what happened, in order. Emit is safe for concurrent use;
// what it could not write makes Seal fail.
type Events interface {
	Emit(kind string, fields any)
	Seal() error
}

// NewEvents makes the event stream of a run that is written to f.
type NewEvents func(f *os.File, run string) Events
