package api

import "time"

// Step is something that was done in a cell: a run, a command or an evaluation beside it, a turn of an agent's
// conversation, or a checkpoint. What it began with can be restored, forked and compared by its number.
type Step struct {
	// Number is that of the checkpoint that it began with. Steps that follow on one that changed nothing, and evaluations
	// within a quarter of a second after another, have the same.
	Number int `json:"number"`
	// Without is why it has no checkpoint of its own, and the cell may not have been at that of the number any more.
	Without string `json:"without,omitempty"`
	Kind    string `json:"kind"`           // "run", "exec", "eval", "turn", "checkpoint"; "tool": a call of a tool, as the agent reports it
	ID      string `json:"id,omitempty"`   // of the run, command or evaluation
	Text    string `json:"text,omitempty"` // the command, the beginning of the code, or what the user said
	Turn    int    `json:"turn,omitempty"` // number of the turn; of a tool call, the turn in which it was
	Tool    string `json:"tool,omitempty"` // of a tool call: the tool's name
	// Basis is "reported" for what the agent says alone: it has no checkpoint, and its exit code is the agent's word. Else it
	// is empty: pando saw it.
	Basis string `json:"basis,omitempty"`
	// Within is the run in the middle of which it was.
	Within string    `json:"within,omitempty"`
	Began  time.Time `json:"began"`             // when it began
	TookMS float64   `json:"took_ms,omitempty"` // duration in milliseconds; 0: it goes on, or is not known
	// Running says that it goes on. Neither that nor an exit code: what became of it is not known.
	Running  bool   `json:"running,omitempty"`
	ExitCode *int   `json:"exit_code"`         // of an evaluation 0 or 1; null for a turn, and where it is not known
	Signal   string `json:"signal,omitempty"`  // that ended it
	Cause    string `json:"cause,omitempty"`   // of its end, if not its own; of a tool call "failed", "no result"
	Verdict  string `json:"verdict,omitempty"` // of a run
	// Files is the number of files that changed until the next step began, or until now; of a run, while it ran. Changed
	// lists the first 20 of them. Unknown says why there is neither.
	Files   int          `json:"files"`
	Changed []StepChange `json:"changed,omitempty"` // in the order of their paths
	Unknown string       `json:"unknown,omitempty"` // why the changes are not known
	Hosts   []string     `json:"hosts,omitempty"`   // that a run spoke with, at most 100
	Denied  int          `json:"denied,omitempty"`  // decisions of a run's network that denied
	Undone  bool         `json:"undone,omitempty"`  // the cell went back to a state without what it changed
	Gone    bool         `json:"gone,omitempty"`    // the files of its checkpoint are removed
}

// StepChange is a file that changed in a step.
type StepChange struct {
	Path   string `json:"path"`
	Status string `json:"status"`           // "added", "modified", "deleted"
	Digest string `json:"digest,omitempty"` // SHA-256 of a file's content after it
}
