// Package proto is the protocol between the daemon and its keepers: what both ends need of it.
// The daemon's end is package client, the keeper's is package server.
//
// A keeper listens on a unix socket that the daemon made for it. Each
// connection begins with a greeting and carries requests, one at a time:
//
//	daemon                                keeper
//	  │ Request{Op: "hello", Version} ──▶   │
//	  │ ◀── Response                        │
//	  │ Request{Op: "create", …} + files ─▶ │  namespaces, mounts, first process
//	  │ ◀── Response                        │
//	  │ Request{Op: "start", …} + logs ──▶  │  a process; its output goes to the logs
//	  │ ◀── Response                        │
//	  │ Request{Op: "attach", …} ─────────▶ │  from here on frames of package api,
//	  │ ◀═══════════ frames ═════════════▶  │  until FrameExit or hang-up
//
// A cell that may talk has a gateway in its keeper (Networks): "create" brings
// what it goes by, "govern" replaces that, "asked" waits for what a person has
// to decide and "answer" says what was decided. "denials" brings the files in which the cell
// sees what it was refused last. "agent" brings two sockets: one
// that the cell's SSH clients connect to, and a connection to the caller's agent.
//
// "prepare" begins to write what a cell has in memory into files, while it runs, and
// "capture" writes what a frozen one has into the same. Where what it has of its own will
// do, "prepare" may be answered with a file: what it began with, beside which they belong. A cell that is
// created from that is a copy: its interpreter is taken over, and it stands still
// until "adopt" gives it an identity.
//
// "warm" starts the cell's interpreter, "eval" evaluates in it: what the code
// writes comes in Responses of its own before the answer, and a client that hangs
// up interrupts it (see eval.go).
package proto

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
)

// Version is that of the protocol. A keeper serves this version, the one before and the one
// after, and so does a daemon: what an old keeper does not know is Unsupported.
var Version, _ = strconv.Atoi(protocol[len(protocol)-2:])

// protocol ends with the version. TestX39NextProtocol makes a program of the next version by
// exchanging this text in a built one.
const protocol = "pando keeper protocol 04"

// Role is the role of a keeper's process.
const Role = "keeper"

// Assign is the first message to a keeper's process, over the socket that it inherited. Its
// files are the socket that it listens on, and the lock.
type Assign struct {
	Backend string  `json:"backend"`
	Cell    cell.ID `json:"cell"`
}

// Request is one question of the daemon.
type Request struct {
	Op      string  `json:"op"`
	Version int     `json:"version,omitempty"` // hello
	Cell    cell.ID `json:"cell,omitempty"`
	Proc    string  `json:"proc,omitempty"` // the daemon's name for a process

	Spec   json.RawMessage `json:"spec,omitempty"`    // create; files: the driver's
	Note   json.RawMessage `json:"note,omitempty"`    // annotate: handed back by "note", for the daemon's own use
	Start  *cell.Start     `json:"start,omitempty"`   // start; files: stdout, stderr, events
	Whole  bool            `json:"whole,omitempty"`   // start: answer at its end, with its status and output, and forget it
	NoLogs []int           `json:"no_logs,omitempty"` // start: which of the files are only placeholders
	Attach *AttachRequest  `json:"attach,omitempty"`  // attach
	Signal string          `json:"signal,omitempty"`  // signal: "SIGTERM"
	Cause  string          `json:"cause,omitempty"`   // signal, killall: becomes the exit's cause
	Files  *FilesRequest   `json:"files,omitempty"`   // files: the archive follows, or comes, as pieces (see piece.go)
	Manage *cell.FileAct   `json:"manage,omitempty"`  // manage: bytes follow or come as with files
	Port   int             `json:"port,omitempty"`    // dial: the connection becomes one to a port of the cell
	Talk   bool            `json:"talk,omitempty"`    // room: for forks that may talk
	Own    bool            `json:"own,omitempty"`     // prepare: what the cell has of its own may do, beside what it began with
	Watch  *WatchRequest   `json:"watch,omitempty"`   // watch; files: directories

	Path    string           `json:"path,omitempty"`    // agent: where the cell sees its socket
	Network *cell.Governance `json:"network,omitempty"` // create, of a cell that may talk; govern
	Since   int64            `json:"since,omitempty"`   // asked: the version that is known already
	Answer  *cell.Answered   `json:"answer,omitempty"`  // answer

	Warmth *cell.Warmth `json:"warmth,omitempty"` // create, of a copy that has an interpreter: as it was

	Warm *cell.Warm `json:"warm,omitempty"` // warm
	Eval *cell.Eval `json:"eval,omitempty"` // eval

	Trunk cell.ID        `json:"trunk,omitempty"` // fork: the cell of the interpreter to fork
	Adopt *cell.Adoption `json:"adopt,omitempty"` // adopt
}

// AttachRequest says from where output is wanted.
type AttachRequest struct {
	Stdout int64 `json:"stdout"` // offsets already seen
	Stderr int64 `json:"stderr"`
	Input  bool  `json:"input"` // this connection is the process's terminal or standard input

	// Of a process with a terminal:
	Screen bool        `json:"screen,omitempty"` // begin with what is on the screen, and go on from there
	Size   *api.Resize `json:"size,omitempty"`   // of the client's terminal; with Input it becomes that of the process's
	// Client names the client that attaches: the input that it has fed is counted for it alone.
	Client string `json:"client,omitempty"`
}

// WatchRequest bounds the bytes below the directories that come with it.
type WatchRequest struct {
	Limit int64 `json:"limit"`
	Exact bool  `json:"exact,omitempty"` // was asked for: count at the end of every command, too
	// Quiet looks only while something is evaluated or run, and when that ends:
	// forks are many, and most of them wait.
	Quiet bool `json:"quiet,omitempty"`
	// Paths are where the keeper finds the directories itself, if it does: then it
	// need not have them open. Nothing that a cell can rename is on the way.
	Paths []string `json:"paths,omitempty"`
}

// Response answers a request.
type Response struct {
	Error    *WireError         `json:"error,omitempty"`
	Version  int                `json:"version,omitempty"`
	PID      int                `json:"pid,omitempty"`
	Inner    int                `json:"inner,omitempty"`    // start, status: its number in the cell; 0: not known
	Measured json.RawMessage    `json:"measured,omitempty"` // create, start, status
	Captured json.RawMessage    `json:"captured,omitempty"` // capture
	Note     json.RawMessage    `json:"note,omitempty"`     // note
	Status   *cell.Status       `json:"status,omitempty"`
	Stdout   []byte             `json:"stdout,omitempty"` // start, when whole: what is kept of it
	Stderr   []byte             `json:"stderr,omitempty"`
	List     []cell.ProcessInfo `json:"list,omitempty"`
	Stats    *cell.Stats        `json:"stats,omitempty"`
	Ports    []cell.Listening   `json:"ports,omitempty"`
	Procs    []string           `json:"procs,omitempty"`    // hello, list: known processes, of the cell
	Backend  string             `json:"backend,omitempty"`  // hello
	Cells    []cell.ID          `json:"cells,omitempty"`    // hello: living cells
	Count    int                `json:"count,omitempty"`    // killall: processes; remove: cells that are left; room: forks
	Asked    []cell.Asked       `json:"asked,omitempty"`    // asked
	AskedAt  int64              `json:"asked_at,omitempty"` // asked: the version of that list
	Refused  []cell.Refused     `json:"refused,omitempty"`  // refused

	Output    *cell.Output    `json:"output,omitempty"`    // warm, eval: a piece, before the answer
	Warmth    *cell.Warmth    `json:"warmth,omitempty"`    // warm, warmth, capture
	Evaluated *cell.Evaluated `json:"evaluated,omitempty"` // eval

	Mounts      []cell.Mount      `json:"mounts,omitempty"`      // mounts: those of the cell
	Certificate *cell.Certificate `json:"certificate,omitempty"` // adopt
	Pause       *cell.Pause       `json:"pause,omitempty"`       // branch
	Deaths      []cell.Death      `json:"deaths,omitempty"`      // deaths
	DeathsAt    int64             `json:"deaths_at,omitempty"`   // deaths: the version of that list

	Given []*os.File `json:"-"` // prepare, when own will do: what the cell began with; the receiver closes it
}

// WireError is a cell.Error on its way.
type WireError struct {
	Kind    cell.Kind `json:"kind"`
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"`
}

// Wire makes an error ready to be sent.
func Wire(err error) *WireError {
	return &WireError{Kind: cell.KindOf(err), Message: err.Error(), Hint: cell.HintOf(err)}
}

// Err is what the sender had as its error over a request.
func (w *WireError) Err(op string) error {
	return &cell.Error{Op: "keeper." + op, Kind: w.Kind, Hint: w.Hint, Err: errors.New(w.Message)}
}

// Changes reports whether a request does something that can be half done.
func Changes(op string) bool {
	switch op {
	case "hello", "status", "wait", "note", "list", "stats", "asked", "refused", "deaths", "mounts", "room", "warmth", "interrupt":
		return false
	}
	return true
}

// Exchange sends a request and receives its answer.
func Exchange(k *reexec.Conn, req Request, files ...*os.File) (*Response, error) {
	if err := k.Send(req, files...); err != nil {
		return nil, err
	}
	var resp Response
	got, err := k.Recv(&resp)
	if req.Own && err == nil {
		resp.Given = got
	} else {
		CloseAll(got)
	}
	return &resp, err
}

// CloseAll closes files, of which some may be nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
