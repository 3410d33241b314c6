package api

import (
	"encoding/json"
	"time"
)

// Operation is long work that goes on without the request that asked for it: one
// with Prefer: respond-async is answered with it, and 202, once the request itself
// is found right.
type Operation struct {
	ID       string          `json:"operation"`          // o-…
	Kind     string          `json:"kind"`               // what is done: run, create, build, pull, fork, …
	Object   string          `json:"object,omitempty"`   // what it is done with or what comes of it: a cell, a run, a template
	State    string          `json:"state"`              // running, done, failed, aborted, lost
	By       string          `json:"by"`                 // who asked: a token's name, or local
	Request  string          `json:"request"`            // the X-Request-Id of who asked
	Began    time.Time       `json:"began"`              // when it was asked for
	Ended    time.Time       `json:"ended,omitzero"`     // absent while it goes on
	Progress *Progress       `json:"progress,omitempty"` // how far it is
	Lines    int64           `json:"lines"`              // how many lines it has told, see its events
	Result   json.RawMessage `json:"result,omitempty"`   // of one that is done: what the request is otherwise answered with
	Error    *Error          `json:"error,omitempty"`    // why there is no result
	Note     string          `json:"note,omitempty"`     // why the result of one that is done is not here
}

// The states of an operation. All but the first are its end.
const (
	OperationRunning = "running"
	OperationDone    = "done"
	OperationFailed  = "failed"
	OperationAborted = "aborted" // somebody stopped it, and it was undone
	OperationLost    = "lost"    // the daemon ended while it went on
)

// OperationKind is a POST that can be asked for as an operation.
type OperationKind struct {
	Kind string
	Path string // of the route, with {cell} and the like
}

// OperationKinds are all of them.
var OperationKinds = []OperationKind{
	{"run", "/v1/runs"},
	{"accept", "/v1/runs/{run}/accept"},
	{"accept-cell", "/v1/cells/{cell}/accept"},
	{"create", "/v1/cells"},
	{"checkpoint", "/v1/cells/{cell}/checkpoints"},
	{"restore", "/v1/cells/{cell}/restore"},
	{"undo", "/v1/cells/{cell}/undo"},
	{"fork", "/v1/cells/{cell}/fork"},
	{"branch", "/v1/cells/{cell}/branch"},
	{"eval", "/v1/cells/{cell}/eval"},
	{"build", "/v1/templates"},
	{"fork-template", "/v1/templates/{template}/fork"},
	{"pull", "/v1/images"},
	{"gc", "/v1/gc"},
}
