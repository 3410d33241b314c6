package api

import "time"

// Comparison sets runs, cells or checkpoints side by side.
type Comparison struct {
	Drawn    time.Time        `json:"drawn"`    // when it was drawn
	Version  string           `json:"version"`  // of pando, that drew it
	Subjects []CompareSubject `json:"subjects"` // what is compared, in the order it was asked for
	Files    []CompareFile    `json:"files"`    // all changed files: those that differ first, then by path
	Same     int              `json:"same"`     // number of files that all subjects changed to the same
	Differ   int              `json:"differ"`   // number of files that are not the same in all that changed them, or that some did not change
	Only     int              `json:"only"`     // number of files that one subject alone changed
	Notes    []string         `json:"notes"`    // what is to be known about the comparison: "they began with different files"
}

// CompareSubject is one of what is compared.
type CompareSubject struct {
	Name    string `json:"name"`           // as it was asked for; of an attempt of a race its cell
	Kind    string `json:"kind"`           // "run", "cell", "checkpoint"
	Run     *Run   `json:"run,omitempty"`  // the run, or the newest of the cell; null for a checkpoint
	Outcome string `json:"outcome"`        // in words; empty for a checkpoint
	Took    string `json:"took,omitempty"` // duration of its command
	From    string `json:"from"`           // what its changes are told from: "web@1", "the source"
	Base    string `json:"base,omitempty"` // tree digest of that, if it is known
	Files   int    `json:"files"`          // number of changed files
	Added   int    `json:"added"`          // lines
	Deleted int    `json:"deleted"`        // lines
	// Findings counts those of its run by severity: "high", "medium", "low", "info".
	Findings map[string]int `json:"findings"`
	Evidence string         `json:"evidence,omitempty"` // as in Report; empty without a run
	Tokens   int64          `json:"tokens,omitempty"`   // of models, as their answers say it
	USD      float64        `json:"usd,omitempty"`      // the list price of these, in US dollars
	Problem  string         `json:"problem,omitempty"`  // why a part of it is missing
}

// CompareFile is one file in all subjects.
type CompareFile struct {
	Path string `json:"path"`
	Is   string `json:"is"` // "same": all changed it to the same; "differs"; "only": one subject alone changed it
	// In has one entry for each subject, in their order; its status is empty where the subject did not change the file.
	In []CompareState `json:"in"`
}

// CompareState is a file in one subject.
type CompareState struct {
	Status  string `json:"status,omitempty"` // as in FileChange; empty: not changed
	Added   int    `json:"added"`            // lines
	Deleted int    `json:"deleted"`          // lines
	Digest  string `json:"digest,omitempty"` // SHA-256 of the content after; empty: it is not there, or not changed
	Group   int    `json:"group,omitempty"`  // subjects with the same number have the same file, from 1; 0: not changed
}
