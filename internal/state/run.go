package state

import (
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Run is what the registry keeps of a run: what the API shows, and what a
// restarted daemon needs to go on.
type Run struct {
	api.Run
	In RunInternal `json:"internal"`
}

// RunInternal is what a restarted daemon needs of a run, beside what the API shows.
type RunInternal struct {
	Before    cell.CheckpointID `json:"before,omitempty"`
	After     cell.CheckpointID `json:"after,omitempty"`
	OnFailure string            `json:"on_failure"`
	OnSuccess string            `json:"on_success"`
	Check     string            `json:"check,omitempty"` // redacted
	// CheckHidden: the check had a secret in it, and only the daemon that
	// started the run could know it.
	CheckHidden bool          `json:"check_hidden,omitempty"`
	Attach      bool          `json:"attach,omitempty"`
	Timeout     time.Duration `json:"timeout,omitempty"`
	SourceFP    cell.Digest   `json:"source_before,omitzero"`
	SourceFP2   cell.Digest   `json:"source_after,omitzero"`
	EnvNames    []string      `json:"env_names,omitempty"`
	Proof       string        `json:"proof,omitempty"`
	LetGo       string        `json:"let_go,omitempty"` // why the result could not be kept
	Asked       api.Limits    `json:"asked"`
	ExecutedAt  time.Time     `json:"executed_at,omitzero"`
	EndedAt     time.Time     `json:"ended_at,omitzero"`
}

// Undecided reports whether a result waits for a verdict.
func (r *Run) Undecided() bool {
	return r.Verdict == string(cell.Pending) || r.Verdict == string(cell.Forked)
}

// OffersNothing reports whether the workspace after a run is what it was before: a run that
// timed out, for example, and wrote nothing.
func (r *Run) OffersNothing() bool { return r.In.After != "" && r.In.After == r.In.Before }

// NeverStarted reports whether the run ended before its command ran.
func (r *Run) NeverStarted() bool {
	return cell.Phase(r.Phase) == cell.Ended && r.ExitCode == nil && r.In.After == ""
}

// RunID is the run's identifier.
func (r *Run) RunID() cell.RunID { return cell.RunID(r.ID) }

// CellID is the run's cell.
func (r *Run) CellID() cell.ID { return cell.ID(r.Cell) }
