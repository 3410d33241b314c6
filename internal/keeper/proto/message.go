package proto

import (
	"encoding/json"
	"os"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// The verbs. Files that come with a request are named at its message.
var (
	Hello    = Verb[Greeting, Welcome]{"hello", true}
	Shutdown = Verb[None, None]{"shutdown", false}
	Deaths   = Verb[Since, News]{"deaths", true} // waits for news for a while
	Room     = Verb[Forks, Count]{"room", true}  // how many forks there are file descriptors for

	Create  = Verb[NewCell, Made]{"create", false}
	Note    = Verb[OfCell, Noted]{"note", true}
	Mounts  = Verb[OfCell, []cell.Mount]{"mounts", true}
	List    = Verb[OfCell, Listing]{"list", true}
	Stats   = Verb[OfCell, cell.Stats]{"stats", true}
	Ports   = Verb[OfCell, []cell.Listening]{"ports", true}
	Mapped  = Verb[OfCell, []cell.MappedFile]{"mapped", true}
	Freeze  = Verb[OfCell, None]{"freeze", false}
	Thaw    = Verb[OfCell, None]{"thaw", false}
	KillAll = Verb[Ending, Count]{"killall", false} // how many processes were killed
	Remove  = Verb[Ending, Count]{"remove", false}  // how many cells are left in the family

	Start  = Verb[NewProcess, Begun]{"start", false}
	Run    = Verb[NewProcess, Done]{"run", false} // answers at the end of the process, and forgets it; it has no files
	Status = Verb[OfProcess, State]{"status", true}
	Wait   = Verb[OfProcess, State]{"wait", true} // answers at the end of the process
	Signal = Verb[ToProcess, None]{"signal", false}
	End    = Verb[EndProcess, None]{"end", false}
	Forget = Verb[OfProcess, None]{"forget", false}

	Govern  = Verb[Governance, None]{"govern", false}
	Asked   = Verb[Since, Questions]{"asked", true} // waits for news for a while
	Decide  = Verb[Decision, None]{"decide", false}
	Refused = Verb[OfCell, []cell.Refused]{"refused", true}
	Agent   = Verb[Lent, None]{"agent", false}
	Denials = Verb[OfCell, None]{"denials", false} // files: the two that the cell reads, for people and as JSON lines

	ServeLink = Verb[OfCell, None]{"serve link", false} // file: the end of a link that leads to the cell's ports
	TakeLink  = Verb[Service, None]{"take link", false} // file: the end of a link that leads to a service beside the cell

	Warm    = Verb[Warming, cell.Warmth]{"warm", false} // output comes before the answer; a client that hangs up interrupts
	Eval    = Verb[Evaluation, cell.Evaluated]{"eval", false}
	Warmth  = Verb[OfCell, cell.Warmth]{"warmth", true}
	Dismiss = Verb[OfCell, None]{"dismiss", false}
	Seal    = Verb[OfCell, cell.Warmth]{"seal", false}
	Fork    = Verb[NewFork, Made]{"fork", false}
	Adopt   = Verb[Adoption, cell.Certificate]{"adopt", false}
	Prepare = Verb[Preparation, None]{"prepare", false}
	Capture = Verb[OfCell, Captured]{"capture", false} // files: those that Prepare had

	// A branch is a conversation: see package server.
	Branch   = Verb[OfCell, None]{"branch", false}
	Source   = Verb[NewCell, None]{"source", false}
	BranchTo = Verb[NewCell, None]{"branch to", false}
	Hold     = Verb[None, None]{"hold", false}
	GoOn     = Verb[None, cell.Pause]{"go on", false}
	Complete = Verb[None, None]{"complete", false}
	GiveUp   = Verb[None, None]{"give up", false}

	// The connection belongs to these when they are answered: what they change comes later.
	Attach = Verb[Attachment, None]{"attach", true} // frames of package api, until FrameExit or hang-up
	Files  = Verb[Archive, None]{"files", true}     // pieces of an archive, see piece.go
	Manage = Verb[FileAct, None]{"manage", true}    // pieces, as with Files
	Dial   = Verb[Port, None]{"dial", true}         // bytes to and from a port of the cell
	SFTP   = Verb[Session, None]{"sftp", true}      // bytes of the SSH File Transfer Protocol
)

// None is a message without content.
type None struct{}

// OfCell names a cell, OfProcess a process by the daemon's name for it.
type (
	OfCell struct {
		Cell cell.ID `json:"cell"`
	}
	OfProcess struct {
		Proc string `json:"proc"`
	}
)

// Greeting begins a conversation.
type Greeting struct {
	Version int `json:"version"`
}

// Welcome answers it.
type Welcome struct {
	Version int       `json:"version"`
	PID     int       `json:"pid"`
	Backend string    `json:"backend"`
	Cells   []cell.ID `json:"cells,omitempty"` // living ones
}

// Since asks for what is newer than a version of a list.
type Since struct {
	Cell  cell.ID `json:"cell,omitempty"`
	Since int64   `json:"since,omitempty"`
}

// News are deaths, and the version of their list.
type News struct {
	Deaths []cell.Death `json:"deaths,omitempty"`
	At     int64        `json:"at"`
}

// Forks are forks that may talk, or may not.
type Forks struct {
	Talk bool `json:"talk,omitempty"`
}

// Count counts what its verb says.
type Count struct {
	Count int `json:"count"`
}

// NewCell describes a cell to make. Its files are the driver's, and then Watch.Dirs directories.
type NewCell struct {
	Cell cell.ID         `json:"cell,omitempty"`
	Spec json.RawMessage `json:"spec,omitempty"` // the driver's
	// Note is for the daemon's own use. Verb Note hands it back, with what was measured.
	Note    json.RawMessage  `json:"note,omitempty"`
	Network *cell.Governance `json:"network,omitempty"` // of a cell that may talk
	Warmth  *cell.Warmth     `json:"warmth,omitempty"`  // of a copy that has an interpreter: as it was
	Watch   *Watch           `json:"watch,omitempty"`
}

// NewFork is a cell that is forked from another one's interpreter.
type NewFork struct {
	Of cell.ID `json:"of"`
	NewCell
}

// Watch bounds the bytes below directories.
type Watch struct {
	Dirs  int   `json:"dirs"` // how many there are
	Limit int64 `json:"limit"`
	Exact bool  `json:"exact,omitempty"` // was asked for: count at the end of every command, too
	// Quiet looks only while something is evaluated or run, and when that ends:
	// forks are many, and most of them wait.
	Quiet bool `json:"quiet,omitempty"`
	// Paths are where the keeper finds the directories itself, if it does: then it
	// need not have them open. Nothing that a cell can rename is on the way.
	Paths []string `json:"paths,omitempty"`
}

// Split divides the files of a request into the driver's and the directories to watch.
func (n *NewCell) Split(files []*os.File) (driver, dirs []*os.File, err error) {
	if n.Watch == nil {
		return files, nil, nil
	}
	at := len(files) - n.Watch.Dirs
	if at < 0 || n.Watch.Dirs <= 0 || n.Watch.Limit <= 0 {
		return files, nil, Malformed("create")
	}
	return files[:at:at], files[at:], nil
}

// Made is what was measured of a new cell.
type Made struct {
	Measured json.RawMessage `json:"measured,omitempty"`
}

// Noted is a cell's note. Measured is what came to be known after it was written.
type Noted struct {
	Note     json.RawMessage `json:"note,omitempty"`
	Measured json.RawMessage `json:"measured,omitempty"`
}

// Listing is what runs in a cell, and the daemon's names of those that it has not forgotten.
type Listing struct {
	List  []cell.ProcessInfo `json:"list,omitempty"`
	Procs []string           `json:"procs,omitempty"`
}

// Ending ends what is in a cell. Cause becomes that of its processes' exits.
type Ending struct {
	Cell  cell.ID `json:"cell"`
	Cause string  `json:"cause,omitempty"`
}

// NewProcess is a process to start. Its files are stdout, stderr and events, or none.
type NewProcess struct {
	Cell   cell.ID    `json:"cell"`
	Proc   string     `json:"proc"`
	Start  cell.Start `json:"start"`
	NoLogs []int      `json:"no_logs,omitempty"` // which of the files are only placeholders
}

// Begun is a process that was started.
type Begun struct {
	PID      int             `json:"pid"`
	Inner    int             `json:"inner,omitempty"` // its number in the cell; 0: not known
	Measured json.RawMessage `json:"measured,omitempty"`
}

// State is a process, and how it stands.
type State struct {
	Begun
	Status cell.Status `json:"status"`
}

// Done is a process that has ended, and what is kept of its output.
type Done struct {
	Status cell.Status `json:"status"`
	Stdout []byte      `json:"stdout,omitempty"`
	Stderr []byte      `json:"stderr,omitempty"`
}

// ToProcess sends a signal: "SIGTERM".
type ToProcess struct {
	Proc   string `json:"proc"`
	Signal string `json:"signal"`
}

// EndProcess ends a process. Cause becomes that of its exit.
type EndProcess struct {
	Proc  string        `json:"proc"`
	Cause string        `json:"cause"`
	Grace time.Duration `json:"grace,omitempty"` // until it is killed; 0: the keeper's own
}

// Governance replaces what a cell's gateway goes by.
type Governance struct {
	Cell    cell.ID         `json:"cell"`
	Network cell.Governance `json:"network"`
}

// Questions wait for a person. At is the version of the list.
type Questions struct {
	Asked []cell.Asked `json:"asked,omitempty"`
	At    int64        `json:"at"`
}

// Decision is a person's answer to a question.
type Decision struct {
	Cell   cell.ID       `json:"cell"`
	Answer cell.Answered `json:"answer"`
}

// Lent is an SSH agent for a cell, which sees its socket at a path. Its files are the listening
// socket, and a connection to the caller's agent.
type Lent struct {
	Cell cell.ID `json:"cell"`
	Path string  `json:"path"`
}

// Service is one that runs beside a cell, by its name there.
type Service struct {
	Cell cell.ID `json:"cell"`
	Name string  `json:"name"`
}

// Warming is an interpreter to start.
type Warming struct {
	Cell cell.ID   `json:"cell"`
	Warm cell.Warm `json:"warm"`
}

// Evaluation is code to evaluate.
type Evaluation struct {
	Cell cell.ID   `json:"cell"`
	Eval cell.Eval `json:"eval"`
}

// Adoption gives a fork or copy its identity.
type Adoption struct {
	Cell  cell.ID       `json:"cell"`
	Adopt cell.Adoption `json:"adopt"`
}

// Preparation begins to write a cell's memory into the files. With Own it may be answered with
// a file: what the cell began with, beside which they belong.
type Preparation struct {
	Cell cell.ID `json:"cell"`
	Own  bool    `json:"own,omitempty"`
}

// Captured is what, beside the files, a copy of the cell needs.
type Captured struct {
	More   json.RawMessage `json:"more,omitempty"`
	Warmth *cell.Warmth    `json:"warmth,omitempty"` // nil: it has no interpreter
}

// Attachment says from where the output of a process is wanted.
type Attachment struct {
	Proc   string `json:"proc"`
	Stdout int64  `json:"stdout"` // offsets already seen
	Stderr int64  `json:"stderr"`
	Input  bool   `json:"input"` // this connection is the process's terminal or standard input

	// Of a process with a terminal:
	Screen bool        `json:"screen,omitempty"` // begin with what is on the screen, and go on from there
	Size   *api.Resize `json:"size,omitempty"`   // of the client's terminal; with Input it becomes that of the process's
	// Client names the client that attaches: the input that it has fed is counted for it alone.
	Client string `json:"client,omitempty"`
}

// Archive names a path inside a cell, absolute.
type Archive struct {
	Cell  cell.ID `json:"cell"`
	Path  string  `json:"path"`
	Write bool    `json:"write"`         // extract the archive that follows; else send one
	UID   int     `json:"uid,omitempty"` // the owner of written files
	GID   int     `json:"gid,omitempty"`
}

// FileAct is something to do with single files of a cell.
type FileAct struct {
	Cell cell.ID      `json:"cell"`
	Act  cell.FileAct `json:"act"`
}

// Session is one of SFTP. What it makes has an owner.
type Session struct {
	Cell  cell.ID `json:"cell"`
	Start string  `json:"start"` // absolute: where relative paths begin
	UID   int     `json:"uid"`
	GID   int     `json:"gid"`
}

// Port is a TCP port of a cell's loopback.
type Port struct {
	Cell cell.ID `json:"cell"`
	Port int     `json:"port"`
}
