package api

import "time"

// ToolCalls are the calls of tools of a run, as its agent reports them: the agent's own words, of which nothing is
// a fact.
type ToolCalls struct {
	Basis string `json:"basis"`           // always "reported"
	Agent string `json:"agent,omitempty"` // the agent that says it; empty for the log of another program
	// Read are the files of the cell that were read: transcripts of the agent, or the log that the run names.
	Read  []Transcript `json:"read"`
	Calls []ToolCall   `json:"calls"`          // in the order of their times
	More  int          `json:"more,omitempty"` // number of further calls
	// Problems say why there is less than there may be.
	Problems []string `json:"problems,omitempty"`
}

// Transcript is a file of a cell in which tool calls were reported.
type Transcript struct {
	Path    string `json:"path"`              // in the cell; below the home it begins with ~/
	Bytes   int64  `json:"bytes"`             // read of it
	Calls   int    `json:"calls"`             // of the run, found in it
	Problem string `json:"problem,omitempty"` // what of it was not read, or why
}

// ToolCall is a call of a tool, as an agent reports it.
type ToolCall struct {
	Time  time.Time `json:"time,omitzero"`   // when it began
	Tool  string    `json:"tool"`            // its name, as the agent has it
	Kind  string    `json:"kind,omitempty"`  // "shell", "edit", "read"; empty: not known, it can do anything
	What  string    `json:"what,omitempty"`  // the command, the files, or the beginning of what it was given
	Files []string  `json:"files,omitempty"` // that an edit wrote; in the workspace relative to it
	// ExitCode is that of a command; null where none is reported.
	ExitCode *int `json:"exit_code"`
	Ended    bool `json:"ended"`  // a result is reported
	Failed   bool `json:"failed"` // the result says so
}
