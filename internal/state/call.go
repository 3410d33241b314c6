package state

import (
	"time"

	"github.com/pando-dev/pando/api"
)

// ToolCalls are the calls of tools of a run as its agent reports them: the first line of the run's record of them.
type ToolCalls struct {
	Basis    string       `json:"basis"` // "reported"
	Agent    string       `json:"agent,omitempty"`
	Read     []Transcript `json:"read"`
	Count    int          `json:"calls"` // lines that follow
	More     int          `json:"more,omitempty"`
	Problems []string     `json:"problems,omitempty"`
	Calls    []ToolCall   `json:"-"` // the lines that follow
}

// Transcript is a file of a cell in which calls were reported.
type Transcript struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Calls   int    `json:"calls"`
	Problem string `json:"problem,omitempty"`
}

// ToolCall is a call of a tool as an agent reports it.
type ToolCall struct {
	Time     time.Time `json:"time,omitzero"`
	Tool     string    `json:"tool"`
	Kind     string    `json:"kind,omitempty"`
	What     string    `json:"what,omitempty"`
	Files    []string  `json:"files,omitempty"`
	ExitCode *int      `json:"exit_code"`
	Ended    bool      `json:"ended"`
	Failed   bool      `json:"failed"`
}

// API is what the API shows of the calls; nil for nil.
func (t *ToolCalls) API() *api.ToolCalls {
	if t == nil {
		return nil
	}
	out := &api.ToolCalls{Basis: t.Basis, Agent: t.Agent, Read: []api.Transcript{}, Calls: []api.ToolCall{}, More: t.More, Problems: t.Problems}
	for _, r := range t.Read {
		out.Read = append(out.Read, api.Transcript(r))
	}
	for _, c := range t.Calls {
		out.Calls = append(out.Calls, api.ToolCall(c))
	}
	return out
}
