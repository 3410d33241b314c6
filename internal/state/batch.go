package state

import "github.com/pando-dev/pando/internal/cell"

// What a Batch is.
const (
	BatchBuild  = "build"
	BatchWarm   = "warm" // again, of a template that had gone cold
	BatchFork   = "fork"
	BatchBranch = "branch"
)

// Batch is what the receipt of a template, of forks or of branches says beside what the record
// of their source does.
type Batch struct {
	Act         string // see BatchBuild
	Template    string
	Digest      string // of the template
	CellName    string // of the source
	Interpreter string
	Program     string // the digest of the interpreter's file
	From        *Point // the files' state that the cells began on
	Assurance   *Assurance
	Cells       []BatchCell
	Failed      []string // cells that could not be made, each with its cause
	Took        string
	Dropped     string
	PauseMS     float64 // of a branch: how long the source stood still
	MemoryTaken string  // of a branch: how the source's memory was, in the backend's words
}

// BatchCell is one cell of a batch.
type BatchCell struct {
	Cell        string            `json:"cell"`
	Name        string            `json:"name"`
	Ahead       bool              `json:"made_ahead,omitempty"`
	Certificate *cell.Certificate `json:"certificate,omitempty"`
}
