// Package proto is the protocol between the daemon and its keepers: what both ends need of it.
// The daemon's end is package client, the keeper's is package server.
//
// A keeper listens on a unix socket that the daemon made for it. Each connection carries
// requests, one at a time. A daemon that did not start the keeper begins with a greeting:
//
//	daemon                        keeper
//	  │ Hello ────────────────────▶ │
//	  │ ◀────────────────── Welcome │
//	  │ Create + files ───────────▶ │  namespaces, mounts, first process
//	  │ ◀───────────────────── Made │
//	  │ Start + logs ─────────────▶ │  a process; its output goes to the logs
//	  │ ◀──────────────────── Begun │
//	  │ Attach ───────────────────▶ │  from here on frames of package api,
//	  │ ◀═════════ frames ════════▶ │  until FrameExit or hang-up
//
// Each kind of request is a Verb (message.go): its message and its answer have types of their
// own. A message is one JSON object, with files beside it (package reexec):
//
//	{"op": "start", "body": {"cell": …, "proc": …, "start": …}}
//	{"body": {"pid": …}}  or  {"error": {"kind": …, "message": …}}
//
// A cell is made, or forked, in one exchange: the request has its note, its gateway's rules and
// the directories that are watched. It is there as a whole, or not at all.
//
// A cell that may talk has a gateway in its keeper: Govern replaces its rules, Asked waits for
// questions to a person, and Decide brings the answer.
//
// Prepare begins to write what a cell has in memory into files, while it runs, and Capture
// writes what a frozen one has into the same. A cell that is created from that is a copy: its
// interpreter is taken over, and it stands still until Adopt gives it an identity.
package proto

import (
	"strconv"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
)

// Version is that of the protocol. A keeper serves this version, the one before and the one
// after, and so does a daemon: what an old keeper does not know is Unsupported.
var Version, _ = strconv.Atoi(protocol[len(protocol)-2:])

// protocol ends with the version. TestX39NextProtocol makes a program of the next version by
// exchanging this text in a built one.
const protocol = "pando keeper protocol 05"

// Role is the role of a keeper's process.
const Role = "keeper"

// Assign is the first message to a keeper's process, over the socket that it inherited. Its
// files are the socket that it listens on, and the lock.
type Assign struct {
	Backend string  `json:"backend"`
	Cell    cell.ID `json:"cell"`
}

// WireError is a cell.Error on its way.
type WireError struct {
	Kind    cell.Kind     `json:"kind"`
	Message string        `json:"message"`
	Hint    string        `json:"hint,omitempty"`
	Subject cell.Subject  `json:"subject,omitempty"`
	Errno   syscall.Errno `json:"errno,omitempty"`
}

// Wire makes an error ready to be sent.
func Wire(err error) *WireError {
	return &WireError{Kind: cell.KindOf(err), Message: err.Error(), Hint: cell.HintOf(err), Subject: cell.SubjectOf(err), Errno: cell.ErrnoOf(err)}
}

// Err is what the sender had as its error over a request.
func (w *WireError) Err(op string) error {
	return &cell.Error{Op: "keeper." + op, Kind: w.Kind, Subject: w.Subject, Hint: w.Hint, Err: &cell.Told{Text: w.Message, Errno: w.Errno}}
}
