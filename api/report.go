package api

import (
	"slices"
	"time"
)

// Report is what happened in a run, for a person that was not there. It is drawn from evidence when it is asked for; a part
// that can't be had is named in Problems, and the rest is there.
type Report struct {
	Run      Run       `json:"run"`      // the run itself
	Drawn    time.Time `json:"drawn"`    // when it was drawn
	Version  string    `json:"version"`  // of pando, that drew it
	Headline string    `json:"headline"` // one sentence: outcome, changes, check
	Evidence string    `json:"evidence"` // "verified", "unproven": something could not be checked; "broken"
	// Posture is what the run was held by, and what was weaker.
	Posture []Fact `json:"posture"`
	// Unknown are sentences on what can't be concluded from this evidence.
	Unknown  []string       `json:"unknown"`
	Findings []RunFinding   `json:"findings"`       // the most severe first
	Held     []Held         `json:"held"`           // changes that accept would hold back
	Files    []ReportFile   `json:"files"`          // the changed files: those to look at first, then by path
	More     int            `json:"more,omitempty"` // number of further changed files
	Ignored  int            `json:"ignored"`        // number of further changed files that git ignores
	Notes    []string       `json:"notes"`          // changes that git can't represent
	Output   []ReportOutput `json:"output"`         // the end of what the command wrote
	// ToolCalls are what its agent reports of its tool calls; null where none are kept.
	ToolCalls *ToolCalls `json:"tool_calls,omitempty"`
	// Processes are those that the command started, as far as its backend observes them; null: nothing is known.
	Processes *Processes `json:"processes,omitempty"`
	Events    []Event    `json:"events"` // the first of the run's events, without those about processes
	// Samples are what the cell used while the command ran, in their order.
	Samples []Sample `json:"samples"`
	// MoreEvents is the number of further events: pando events RUN has all.
	MoreEvents   int           `json:"more_events,omitempty"`
	Receipts     []Receipt     `json:"receipts"`               // of the run, oldest first, and what was signed about it later
	Verification *Verification `json:"verification,omitempty"` // of its receipts and files; null if that failed
	Problems     []string      `json:"problems"`               // parts of the report that could not be drawn
}

// Unjudged says why the findings of a report can't stand for the whole run; "" means that they do. A run without findings is
// to be let through only then.
func (r *Report) Unjudged() string {
	switch {
	case r.Run.Error != nil && r.Run.ExitCode == nil:
		return "its command never started"
	case r.Run.ExitCode == nil:
		return "it is under way"
	case r.Verification == nil:
		return "its evidence could not be verified"
	case !r.Verification.OK:
		return "its evidence does not hold"
	case len(r.Problems) > 0:
		return r.Problems[0]
	}
	return ""
}

// CellReport is what all that was done in a cell came to: its runs, commands, evaluations and turns since its beginning, and
// what it changed by now. A part that can't be had is named in Problems, and the rest is there.
type CellReport struct {
	Cell     Cell      `json:"cell"`     // the cell itself
	Drawn    time.Time `json:"drawn"`    // when it was drawn
	Version  string    `json:"version"`  // of pando, that drew it
	Headline string    `json:"headline"` // one sentence: runs, changes, findings
	Evidence string    `json:"evidence"` // "verified", "unproven": something could not be checked; "broken"
	From     string    `json:"from"`     // what the changes lead from: "the source", CELL@N
	To       string    `json:"to"`       // what they lead to
	// Findings are those in the changes, and those in the evidence of each run; the most severe first.
	Findings []RunFinding `json:"findings"`
	Held     []Held       `json:"held"`           // changes that accept would hold back
	Files    []ReportFile `json:"files"`          // the changed files: those to look at first, then by path
	More     int          `json:"more,omitempty"` // number of further changed files
	Ignored  int          `json:"ignored"`        // number of further changed files that git ignores
	Notes    []string     `json:"notes"`          // changes that git can't represent, rules that are off
	Steps    []Step       `json:"steps"`          // the newest, oldest first
	// MoreSteps is the number of steps before those: pando timeline CELL has all.
	MoreSteps int       `json:"more_steps,omitempty"`
	Runs      []CellRun `json:"runs"`                // the newest, oldest first
	MoreRuns  int       `json:"more_runs,omitempty"` // number of runs before those: they are not looked at
	Network   *Network  `json:"network,omitempty"`   // of its runs together; null if none had one
	Usage     CellUsage `json:"usage"`               // of its runs together
	Weaker    []string  `json:"weaker"`              // in what any of its runs was weaker than by default
	Unknown   []string  `json:"unknown"`             // sentences on what can't be concluded from this evidence
	Problems  []string  `json:"problems"`            // parts of the report that could not be drawn
}

// CellRun is a run in the report of its cell.
type CellRun struct {
	Run      string    `json:"run"`              // its id
	Command  []string  `json:"command"`          // and its arguments
	Agent    string    `json:"agent,omitempty"`  // the coding agent that it is, if so
	Outcome  string    `json:"outcome"`          // how the command ended, in words
	Good     bool      `json:"good"`             // it succeeded, and so did its check
	Verdict  string    `json:"verdict"`          // as in Run
	Reason   string    `json:"reason,omitempty"` // of the verdict
	Check    string    `json:"check,omitempty"`  // how its check ended, in words
	Started  time.Time `json:"started,omitzero"` // when its command began
	Took     string    `json:"took,omitempty"`   // the command's time, in words
	Files    int       `json:"files"`            // number of files that it changed
	Evidence string    `json:"evidence"`         // as in Report
	// Unjudged says why its findings can't stand for it; empty: they do.
	Unjudged     string        `json:"unjudged,omitempty"`
	Receipts     []Receipt     `json:"receipts"`               // oldest first, and what was signed about it later
	Verification *Verification `json:"verification,omitempty"` // of its receipts and files; null if that failed
}

// CellUsage is what the runs of a cell used together.
type CellUsage struct {
	WallMS     int64 `json:"wall_ms"`     // duration of the commands, in milliseconds
	CPUMS      int64 `json:"cpu_ms"`      // CPU time, in milliseconds
	PeakMemory int64 `json:"peak_memory"` // bytes, of the run that had most
	Written    int64 `json:"written"`     // bytes
}

// Unjudged says why the findings of a cell's report can't stand for the whole of it; "" means that they do.
func (r *CellReport) Unjudged() string {
	if r.MoreRuns > 0 {
		return "it has more runs than are looked at"
	}
	if len(r.Runs) == 0 {
		return "it has no run, so nothing signed says what held it"
	}
	for _, x := range r.Runs {
		if x.Unjudged != "" {
			return "run " + x.Run + ": " + x.Unjudged
		}
	}
	if len(r.Problems) > 0 {
		return r.Problems[0]
	}
	return ""
}

// Processes are those that a command started.
type Processes struct {
	Starts     int             `json:"starts"`         // programs that were executed, of those that are recorded
	Ends       int             `json:"ends"`           // processes that ended, of those that are recorded
	Failed     int             `json:"failed"`         // of those, the number with another exit code than 0
	LostStarts int64           `json:"lost_starts"`    // starts that were counted, and not recorded
	LostEnds   int64           `json:"lost_ends"`      // ends that were counted, and not recorded
	Why        []string        `json:"why"`            // why some were not recorded
	Unseen     []string        `json:"unseen"`         // what could not be observed, and why
	List       []ReportProcess `json:"list"`           // those that failed first, then by their start
	More       int             `json:"more,omitempty"` // number of further ones: pando events RUN --kind process.exec has all
}

// ReportProcess is a process that executes a program.
type ReportProcess struct {
	PID      int       `json:"pid"`                 // its number, as the keeper sees it; of a cell with a kernel of its own, in the cell
	Parent   int       `json:"parent"`              // that of its parent; 0: not known
	Args     []string  `json:"args"`                // its words, without credentials, cut
	Path     string    `json:"path"`                // the file
	Cut      bool      `json:"cut,omitempty"`       // there was more of its words
	As       string    `json:"as"`                  // "observed", "asked": what the process asked for
	At       time.Time `json:"at"`                  // when it was recorded
	Ended    bool      `json:"ended"`               // whether its end is recorded
	ExitCode *int      `json:"exit_code,omitempty"` // 128+n after signal n; null: not known
	Signal   string    `json:"signal,omitempty"`    // that ended it; empty: none
	MS       int64     `json:"ms"`                  // from its start to its end, in milliseconds
}

// Sample is what a cell used at some time in a run.
type Sample struct {
	At     time.Time `json:"at"`      // when it was taken
	CPUMS  int64     `json:"cpu_ms"`  // processor time since the command began, in milliseconds
	Memory int64     `json:"memory"`  // bytes at that time
	Wrote  int64     `json:"written"` // bytes to disks since the command began
}

// What a fact of a report rests on.
const (
	Enforced = "enforced" // a mechanism outside of the cell stopped what is not allowed
	Observed = "observed" // the kernel, the keeper or the gateway saw it
	Reported = "reported" // the command, or what is in the cell, says it
)

// Fact is one line of a report.
type Fact struct {
	Name  string `json:"name"`
	Text  string `json:"text"`
	Basis string `json:"basis"`          // "enforced", "observed", "reported"
	Weak  bool   `json:"weak,omitempty"` // it is weaker than it could be
}

// The severities of findings, the lowest first.
const (
	SeverityInfo   = "info"
	SeverityLow    = "low"
	SeverityMedium = "medium"
	SeverityHigh   = "high"
)

// Severities are all severities, the lowest first.
func Severities() []string {
	return []string{SeverityInfo, SeverityLow, SeverityMedium, SeverityHigh}
}

// SeverityWeight orders severities, from 1; a word that is none has 0.
func SeverityWeight(severity string) int { return 1 + slices.Index(Severities(), severity) }

// RunFinding is something in the evidence of a run that a person should look at.
type RunFinding struct {
	Rule     string `json:"rule"`           // its id: "ci-changed"
	Severity string `json:"severity"`       // "info", "low", "medium", "high"
	Title    string `json:"title"`          // what was found, in words
	Path     string `json:"path,omitempty"` // of the file concerned
	Line     int    `json:"line,omitempty"` // in it, after the run; from 1
	What     string `json:"what"`           // in detail
	Why      string `json:"why"`            // why it matters
	See      string `json:"see"`            // the command that shows it
	// Runs are, in the report of a cell, the runs that it happened in; none: it is in what the cell changed.
	Runs []string `json:"runs,omitempty"`
}

// ReportFile is a changed file with its diff.
type ReportFile struct {
	File  FileChange `json:"file"`            // what was done to it
	First string     `json:"first,omitempty"` // why to look at it before the rest; empty: not
	Held  string     `json:"held,omitempty"`  // why accept would hold it back; empty: it would not
	// Lines are those of its unified diff, the first of them; NoLines says why there are none.
	Lines     []DiffLine `json:"lines"`
	MoreLines int        `json:"more_lines,omitempty"` // number of further lines
	NoLines   string     `json:"no_lines,omitempty"`   // why there are none, if so: "binary", …
}

// DiffLine is a line of a unified diff.
type DiffLine struct {
	Kind string `json:"kind"`          // "@": head of a hunk; " ", "-", "+"; "\": the line before has no newline
	Old  int    `json:"old,omitempty"` // its number before the run, from 1
	New  int    `json:"new,omitempty"` // its number after the run, from 1
	Text string `json:"text"`          // with control characters escaped; long ones are cut
}

// ReportOutput is the end of one output stream.
type ReportOutput struct {
	Name  string `json:"name"`          // "stdout", "stderr"
	Bytes int64  `json:"bytes"`         // of all of it
	Text  string `json:"text"`          // its end, with control characters escaped, redacted
	Cut   bool   `json:"cut,omitempty"` // the beginning is not in Text
}
