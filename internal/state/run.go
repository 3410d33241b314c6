package state

import (
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// SourceAbove is the one of a run's directories that dir is, or is in; "" for none.
func (r *Run) SourceAbove(dir string) string {
	for _, s := range append([]string{r.Source}, r.Repositories...) {
		if dir == s || strings.HasPrefix(dir, strings.TrimSuffix(s, "/")+"/") {
			return s
		}
	}
	return ""
}

// Run is what the registry keeps of a run: what the API shows (see API), and in In what a
// restarted daemon needs to go on.
type Run struct {
	ID       string   `json:"run"`
	Cell     string   `json:"cell"`
	CellName string   `json:"cell_name,omitempty"` // the cell's name, if it has one
	Command  []string `json:"command"`             // redacted
	Source   string   `json:"source"`
	// Repositories are the directories that are in its cell beside Source.
	Repositories []string     `json:"repositories,omitempty"`
	Backend      string       `json:"backend"`
	Isolation    string       `json:"isolation"`              // "isolated" or "not isolated" (backend none)
	Image        string       `json:"image"`                  // "host", "dir:PATH", "oci:REF", "dockerfile:PATH": its root file system
	ImageID      string       `json:"image_digest,omitempty"` // of an OCI image: its manifest's digest
	Phase        cell.Phase   `json:"phase"`                  // preparing, executing, finishing, ended
	Created      time.Time    `json:"created"`
	Started      time.Time    `json:"started,omitzero"`
	Ended        time.Time    `json:"ended,omitzero"` // when it ended
	ExitCode     *int         `json:"exit_code"`      // null: it did not start or has not ended
	Signal       string       `json:"signal,omitempty"`
	Cause        string       `json:"cause,omitempty"`    // why, when it was not the command's own doing
	Verdict      cell.Verdict `json:"verdict,omitempty"`  // pending, accepted, restored, forked or discarded; empty while it goes on
	Reason       string       `json:"reason,omitempty"`   // of the verdict
	By           string       `json:"by,omitempty"`       // "pando", or "user"
	Applied      int          `json:"applied,omitempty"`  // files written to the source when it was accepted
	Before       *Point       `json:"before,omitempty"`   // the workspace before it
	After        *Point       `json:"after,omitempty"`    // the workspace after it
	Receipt      string       `json:"receipt,omitempty"`  // digest of the newest receipt
	Receipts     []string     `json:"receipts,omitempty"` // digests of all its receipts, oldest first
	Policy       string       `json:"policy_digest,omitempty"`
	Changes      Changes      `json:"changes"` // how much it changed
	LeftOut      []LeftOut    `json:"left_out"`
	Notes        []string     `json:"notes,omitempty"`
	Conflicts    []string     `json:"conflicts,omitempty"` // paths that accept --apply will refuse
	// Commits were made by it in the cell; null when there are none.
	Commits   *CellCommits `json:"commits,omitempty"`
	Check     *Check       `json:"check,omitempty"` // outcome of --check
	Usage     Usage        `json:"usage"`           // what it used
	Output    Outputs      `json:"output"`          // what it wrote
	Timings   Timings      `json:"timings_ms"`      // how long each part took
	Assurance Assurance    `json:"assurance"`       // what isolated it, as measured
	Provider  Provider     `json:"workspace"`
	TTY       bool         `json:"tty,omitempty"`
	Agent     string       `json:"agent,omitempty"`     // the coding agent that it started
	Mode      string       `json:"mode,omitempty"`      // of the agent, if not strict
	Autonomy  string       `json:"autonomy,omitempty"`  // of the agent, if not full
	ModelURL  string       `json:"model_url,omitempty"` // the model server in place of the agent's service
	ReplayOf  string       `json:"replay_of,omitempty"` // the run of which it executed the command again
	// Ref is the reason that was given for it, and Asked the caller that asked for it.
	Ref   string `json:"ref,omitempty"`
	Asked *Asked `json:"asked,omitempty"`
	// NeedsSignOff is what the policy demanded for its result when it ended, and SignOffs what approvers signed about it.
	NeedsSignOff *SignOffNeed `json:"needs_sign_off,omitempty"`
	SignOffs     []SignOff    `json:"sign_offs,omitempty"`
	// ModeReason is why its mode is breakglass. DowngradeWords are those of package policy.
	ModeReason     string   `json:"mode_reason,omitempty"`
	DowngradeWords []string `json:"downgrade_words,omitempty"`
	// Interactive: its terminal was typed at; a failure of it is left for a person to judge.
	Interactive bool     `json:"interactive,omitempty"`
	Downgrades  []string `json:"downgrades"`
	Network     *Network `json:"network,omitempty"` // what it said to the outside; null for a cell that does not talk
	// MissingCalls are the system calls that it made and the cell's kernel, which is
	// not the host's, does not have, by name. Not all that failed for that are known.
	MissingCalls []string `json:"missing_calls,omitempty"`
	// Caches is what it had of caches that are kept for its source, by name.
	Caches   []CacheUse   `json:"caches,omitempty"`
	Services []ServiceUse `json:"services,omitempty"`
	// Recording is what was recorded of its network, with --record.
	Recording *cell.Recording `json:"recording,omitempty"`
	Error     *Error          `json:"error,omitempty"` // why it did not start; with an exit code, why its result could not be read or recorded
	Folder    string          `json:"-"`               // where its records are
	// Hold, Erased and Acts are of its Retained: a legal hold, what of its evidence was erased, and the receipts of that.
	Hold    *Hold    `json:"-"`
	Erased  []Erased `json:"-"`
	Acts    []string `json:"-"`
	Secrets *Secrets `json:"secrets,omitempty"` // what the search for lent credentials found; null when none was lent

	In RunInternal `json:"internal"`
}

// RunInternal is what a restarted daemon needs of a run, beside what the API shows.
type RunInternal struct {
	Before    cell.CheckpointID `json:"before,omitempty"`
	After     cell.CheckpointID `json:"after,omitempty"`
	OnFailure string            `json:"on_failure"`
	IdlePause time.Duration     `json:"idle_pause,omitempty"` // after which its cell is paused; 0: never
	OnSuccess string            `json:"on_success"`
	Check     string            `json:"check,omitempty"` // redacted
	// Pins are the paths that a check has as they were before the run.
	Pins []string `json:"pins,omitempty"`
	// ToolLog is the file of the cell in which the command reports its tool calls.
	ToolLog string `json:"tool_log,omitempty"`
	// CheckHidden: the check had a secret in it, and only the daemon that
	// started the run could know it.
	CheckHidden bool          `json:"check_hidden,omitempty"`
	Attach      bool          `json:"attach,omitempty"`
	Timeout     time.Duration `json:"timeout,omitempty"`
	Workdir     string        `json:"workdir,omitempty"` // where the command was started, in the cell
	SourceFP    cell.Digest   `json:"source_before,omitzero"`
	SourceFP2   cell.Digest   `json:"source_after,omitzero"`
	EnvNames    []string      `json:"env_names,omitempty"`
	Proof       string        `json:"proof,omitempty"`
	LetGo       string        `json:"let_go,omitempty"` // why the result could not be kept
	// Confined says that a caller began it that may not name files of the host, nor accept results.
	Confined bool `json:"confined,omitempty"`
	// Race is the race that began it, for one of its attempts.
	Race cell.RaceID `json:"race,omitempty"`
	// Record says that its network is to be recorded. Replayed is what became of its requests, for a replay.
	Record   bool           `json:"record,omitempty"`
	Replayed *cell.Replayed `json:"replayed,omitempty"`
	// AgentStart is how its agent was started, if it is recorded.
	AgentStart *AgentStart `json:"agent_start,omitempty"`
	// Notify are the ways to give notice of it (package notice).
	Notify     []string  `json:"notify,omitempty"`
	Asked      Limits    `json:"asked"`
	ExecutedAt time.Time `json:"executed_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	// Parts are, of a cell with several directories, these with what each was before and after it.
	Parts []RunPart `json:"parts,omitempty"`
}

// AgentStart is how an agent was started: what its replay needs beside the command.
type AgentStart struct {
	Task      bool   `json:"task,omitempty"`      // it had one, and asked for nothing
	Asks      bool   `json:"asks,omitempty"`      // before it uses a tool
	Continues bool   `json:"continues,omitempty"` // a conversation in the home of its cell
	Trusts    bool   `json:"trusts,omitempty"`    // it runs what the repository configures
	Brought   bool   `json:"brought,omitempty"`   // files of the user's home came along
	Login     string `json:"login,omitempty"`     // the credential of its login
	// Env are variables, NAME=value: its adapter's, and the placeholders of credentials. No value of a credential is among them.
	Env []string `json:"env,omitempty"`
}

// Undecided reports whether a result waits for a verdict.
func (r *Run) Undecided() bool {
	return r.Verdict == cell.Pending || r.Verdict == cell.Forked
}

// OffersNothing reports whether the workspace after a run is what it was before: a run that
// timed out, for example, and wrote nothing, or changed what its services keep alone.
func (r *Run) OffersNothing() bool {
	if r.In.After == "" || r.In.After == r.In.Before {
		return r.In.After != ""
	}
	return len(r.Services) > 0 && r.Before != nil && r.After != nil && r.After.TreeDigest == r.Before.TreeDigest
}

// NeverStarted reports whether the run ended before its command ran.
func (r *Run) NeverStarted() bool {
	return r.Phase == cell.Ended && r.ExitCode == nil && r.In.After == ""
}

// To moves the run to another phase, if the table of package cell allows that; a Conflict
// otherwise. That it stays is no move.
func (r *Run) To(next cell.Phase) error {
	if r.Phase == next {
		return nil
	}
	if _, err := r.Phase.To(next); err != nil {
		return err
	}
	r.Phase = next
	return nil
}

// Decide gives the run a verdict, if the table of package cell allows that; a Conflict
// otherwise. The same verdict may be given again, for another reason.
func (r *Run) Decide(v cell.Verdict, reason, by string) error {
	if r.Verdict != v {
		if _, err := r.Verdict.To(v); err != nil {
			return err
		}
	}
	r.Verdict, r.Reason, r.By = v, reason, by
	return nil
}

// Sealed gives the run the verdict of its own receipt, which was written before the record
// could be. It takes the place of any that the record has got since, and is a first one.
func (r *Run) Sealed(v cell.Verdict, reason, by string) error {
	if _, err := cell.Verdict("").To(v); err != nil {
		return err
	}
	r.Verdict, r.Reason, r.By = v, reason, by
	return nil
}

// AddReceipt has the run name one more receipt, which is its newest.
func (r *Run) AddReceipt(d cell.Digest) {
	r.Receipt = d.String()
	if !slices.Contains(r.Receipts, r.Receipt) {
		r.Receipts = append(slices.Clone(r.Receipts), r.Receipt)
	}
}

// RunID is the run's identifier.
func (r *Run) RunID() cell.RunID { return cell.RunID(r.ID) }

// CellID is the run's cell.
func (r *Run) CellID() cell.ID { return cell.ID(r.Cell) }

// HasOpenRun reports whether a cell has a run that is under way or waits for a verdict.
func (r *Registry) HasOpenRun(id cell.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.ContainsFunc(r.runsOf[id], func(id cell.RunID) bool {
		v := r.runs.of[id]
		return v.Verdict == cell.Pending || v.Phase != cell.Ended
	})
}

// LatestResult is the latest run of a cell that has, or may get, a result: one that never
// started does not count. nil if there is none.
func (r *Registry) LatestResult(id cell.ID) *Run {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, id := range slices.Backward(r.runsOf[id]) {
		if v := *r.runs.of[id]; !v.NeverStarted() {
			return &v
		}
	}
	return nil
}

// RunPart is one directory of a run's workspace.
type RunPart struct {
	Source string      `json:"path"`   // of the host
	At     string      `json:"at"`     // in the workspace
	Before cell.Digest `json:"before"` // digests of its tree
	After  cell.Digest `json:"after"`
}
