package api

import (
	"encoding/json"
	"time"
)

// Operation is long work that continues without its request. A request with Prefer:
// respond-async is answered with 202 and an operation after its checks have passed.
type Operation struct {
	ID       string          `json:"operation"`          // o-…
	Kind     string          `json:"kind"`               // kind of the work: run, create, build, pull, fork, …
	Object   string          `json:"object,omitempty"`   // its object or result: a cell, a run, a template
	State    string          `json:"state"`              // running, done, failed, aborted, lost
	By       string          `json:"by"`                 // the caller: a token's name, or local
	Request  string          `json:"request"`            // the X-Request-Id of the request
	Began    time.Time       `json:"began"`              // when it began
	Ended    time.Time       `json:"ended,omitzero"`     // absent while it runs
	Progress *Progress       `json:"progress,omitempty"` // its progress
	Lines    int64           `json:"lines"`              // number of lines in its events
	Result   json.RawMessage `json:"result,omitempty"`   // when done: the body that the request would have been answered with
	Error    *Error          `json:"error,omitempty"`    // why there is no result
	Note     string          `json:"note,omitempty"`     // why a result is missing although it is done
}

// The states of an operation. All but the first are final.
const (
	OperationRunning = "running"
	OperationDone    = "done"
	OperationFailed  = "failed"
	OperationAborted = "aborted" // it was stopped and undone
	OperationLost    = "lost"    // the daemon ended while it ran, and what it did is in no record
)

// OperationKind is a POST that can run as an operation.
type OperationKind struct {
	Kind string
	Path string // path of the route, with {cell} and other parameters
}

// OperationKinds lists all kinds.
var OperationKinds = []OperationKind{
	{"run", "/v1/runs"},
	{"accept", "/v1/runs/{run}/accept"},
	{"accept-cell", "/v1/cells/{cell}/accept"},
	{"replay", "/v1/runs/{run}/replay"},
	{"create", "/v1/cells"},
	{"checkpoint", "/v1/cells/{cell}/checkpoints"},
	{"sync", "/v1/cells/{cell}/sync"},
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
