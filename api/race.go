package api

import "time"

// RaceRequest starts a race: several attempts at one task, each a governed run in a cell of its own. The cells are forks of
// one source, cell or template, so that all attempts begin with the same files. The best result wins.
type RaceRequest struct {
	// Attempt is the run that each attempt is. In its command, and in its agent's prompt, {{.NAME}} stands for a field of the
	// attempt's variation, and {{.n}} for its number, from 1; {{"…"}} is text as it stands. Its from or upload is the source.
	// It has no cell, no terminal, and leaves its result pending.
	Attempt  RunRequest `json:"attempt"`
	Cell     string     `json:"cell,omitempty"`     // CELL, or CELL@N: the attempts begin with its files, instead of a source
	Template string     `json:"template,omitempty"` // the attempts begin with its memory and files, instead of a source
	Name     string     `json:"name,omitempty"`     // prefix of the cells' names: NAME-1, NAME-2; default: race- and a part of the race's id
	Count    int        `json:"count,omitempty"`    // number of attempts, at most 256; default: that of the variations, else 3
	Parallel int        `json:"parallel,omitempty"` // number of attempts that run at a time; default: that of the host's processors
	// Until says when the race ends: "all" (default): when all attempts have; "first": when one has succeeded; a number:
	// when so many have. The others are stopped then.
	Until string `json:"until,omitempty"`
	// Variations are fields for templates, a row for each attempt. With more attempts than rows they repeat in turn.
	Variations []map[string]string `json:"variations,omitempty"`
	// EnvVariations are variables of the environment, a row for each attempt, in the same way.
	EnvVariations []map[string]string `json:"env_variations,omitempty"`
	// Score is a shell command that runs in a fork of each successful result. The last line that it prints is a number;
	// higher is better.
	Score string `json:"score,omitempty"` // the shell command that scores each good result; redacted
	// DiscardLosers gives up the results of all attempts but the winner's.
	DiscardLosers bool `json:"discard_losers,omitempty"`
}

// The states of a race.
const (
	RacePreparing = "preparing" // its cells are made
	RaceRunning   = "running"
	RaceEnded     = "ended"
)

// Race is several attempts at one task.
type Race struct {
	ID       string        `json:"race"`  // its id
	Name     string        `json:"name"`  // prefix of its cells' names
	State    string        `json:"state"` // "preparing", "running", "ended"
	Created  time.Time     `json:"created"`
	Ended    time.Time     `json:"ended,omitzero"`   // when it ended
	From     string        `json:"from"`             // what the attempts began with, in words
	Command  []string      `json:"command"`          // with its templates; redacted
	Agent    string        `json:"agent,omitempty"`  // the coding agent that each attempt is the work of
	Prompt   string        `json:"prompt,omitempty"` // its task, with its templates; redacted
	Check    string        `json:"check,omitempty"`  // the shell command that judges each result; redacted
	Score    string        `json:"score,omitempty"`  // the shell command that scores each good result; redacted
	Until    string        `json:"until"`            // "all", "first", or a number
	Parallel int           `json:"parallel"`         // number of attempts that run at a time
	Attempts []RaceAttempt `json:"attempts"`         // by number
	Winner   string        `json:"winner,omitempty"` // name of the cell of the best attempt; empty: none succeeded, or it has not ended
	Why      string        `json:"why,omitempty"`    // why that one won, or why none did
	Notes    []string      `json:"notes,omitempty"`
	Cause    string        `json:"cause,omitempty"` // "interrupted"
	Error    *Error        `json:"error,omitempty"` // why it could not be carried out
}

// The states of an attempt.
const (
	AttemptWaiting   = "waiting"   // for its turn
	AttemptStarting  = "starting"  // its run prepares its cell
	AttemptRunning   = "running"   // its command runs
	AttemptFinishing = "finishing" // its result is taken, and checked
	AttemptScoring   = "scoring"   // its scorer runs
	AttemptSucceeded = "succeeded" // its command, and its check if there is one
	AttemptFailed    = "failed"    // one of these failed, or it did not start
	AttemptStopped   = "stopped"   // the race ended first
	AttemptLost      = "lost"      // its command ended with what ran it, twice
)

// RaceAttempt is one attempt of a race.
type RaceAttempt struct {
	Number   int               `json:"number"` // from 1
	Cell     string            `json:"cell,omitempty"`
	CellName string            `json:"cell_name,omitempty"` // name of the cell
	Run      string            `json:"run,omitempty"`       // its run, the newest if it was started again
	Starts   int               `json:"starts"`              // number of times that it was started
	Varies   map[string]string `json:"varies,omitempty"`    // its rows; redacted
	State    string            `json:"state"`               // "waiting", "starting", "running", "finishing", "scoring", "succeeded", "failed", "stopped", "lost"
	Started  time.Time         `json:"started,omitzero"`    // when its command did
	ExitCode *int              `json:"exit_code"`           // null: its command has not ended
	Cause    string            `json:"cause,omitempty"`     // the cause of its end, if not the command's own
	Check    *Check            `json:"check,omitempty"`     // outcome of its check
	Score    *float64          `json:"score,omitempty"`     // what its scorer said; null: none
	Scored   string            `json:"scored,omitempty"`    // why its scorer said nothing
	Files    int               `json:"files"`               // number of changed files
	Added    int               `json:"added"`               // lines
	Deleted  int               `json:"deleted"`             // lines
	TookMS   int64             `json:"took_ms"`             // duration of its command, in milliseconds
	Turns    int               `json:"turns,omitempty"`     // number of turns of its agent
	Tokens   int64             `json:"tokens,omitempty"`    // of models, as their answers say it
	USD      float64           `json:"usd,omitempty"`       // the list price of these, in US dollars
	High     []string          `json:"high,omitempty"`      // the rules that found something of severity high in it
	Rank     int               `json:"rank,omitempty"`      // from 1, once the race has ended; 0: it has none
	Problem  string            `json:"problem,omitempty"`   // why it did not start, or why a part of this is missing
}
