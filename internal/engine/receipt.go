package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// runPredicate is what the receipt of a run says. Every field was computed or
// measured; what is not known is absent.
type runPredicate struct {
	Run         string                 `json:"run"`
	Cell        string                 `json:"cell"`
	CellName    string                 `json:"cell_name,omitempty"`
	Pando       string                 `json:"pando"` // version
	Command     []string               `json:"command"`
	EnvNames    []string               `json:"environment_names"`
	Source      sourceFacts            `json:"source"`
	Workspace   state.Provider         `json:"workspace"`
	Image       string                 `json:"image"`
	ImageID     string                 `json:"image_digest,omitempty"`
	Backend     string                 `json:"backend"`
	Isolation   *isolationFacts        `json:"isolation"`
	Assurance   state.Assurance        `json:"assurance"`
	Downgrades  []string               `json:"downgrades"`
	Policy      policyFacts            `json:"policy"`
	LimitsAsked state.Limits           `json:"limits_asked"`
	Before      *state.Point           `json:"before,omitempty"`
	After       *state.Point           `json:"after,omitempty"`
	Changes     state.Changes          `json:"changes"`
	Commits     *state.CellCommits     `json:"commits,omitempty"`
	Started     *time.Time             `json:"started,omitempty"`
	Ended       *time.Time             `json:"ended,omitempty"`
	ExitCode    *int                   `json:"exit_code"`
	Signal      string                 `json:"signal,omitempty"`
	Cause       string                 `json:"cause,omitempty"`
	Error       *state.Error           `json:"error,omitempty"`
	Usage       state.Usage            `json:"usage"`
	Output      state.Outputs          `json:"output"`
	Files       map[string]cell.Digest `json:"files"` // of the run's folder
	Check       *state.Check           `json:"check,omitempty"`
	Secrets     *state.Secrets         `json:"secrets,omitempty"`
	Verdict     verdictFacts           `json:"verdict"`
	Restore     *restoreFacts          `json:"restore,omitempty"`
	Network     *state.Network         `json:"network,omitempty"` // from the event stream, whose digest is in Files
	Missing     []string               `json:"missing_calls,omitempty"`
	Timings     state.Timings          `json:"timings_ms"`
	// Bound: the receipt names both a checkpoint before the run and the policy
	// that governed it.
	Bound bool `json:"bound"`
}

type sourceFacts struct {
	Path      string          `json:"path"`
	Before    cell.Digest     `json:"fingerprint_before,omitzero"`
	After     cell.Digest     `json:"fingerprint_after,omitzero"`
	Untouched bool            `json:"untouched"`
	LeftOut   []state.LeftOut `json:"left_out"`
}

type policyFacts struct {
	Digest string          `json:"digest"`
	Text   json.RawMessage `json:"text,omitempty"` // the canonical form
}

type verdictFacts struct {
	Verdict cell.Verdict `json:"verdict"`
	Reason  string       `json:"reason,omitempty"`
	By      string       `json:"by"`
}

type restoreFacts struct {
	To    string `json:"to"` // checkpoint
	Proof string `json:"proof"`
}

// runKey makes the receipt of a run happen once.
func runKey(run *state.Run) string { return run.ID + "/run" }

// runReceipt writes the receipt of a run at its end, once.
func (e *Engine) runReceipt(ctx context.Context, run *state.Run, c *state.Cell) (cell.Digest, error) {
	key := runKey(run)
	if old, err := e.cfg.Ledger.Lookup(key); err == nil { // an earlier try, that could not be recorded
		sealed, err := readRunPredicate(old)
		if err == nil {
			err = adopt(run, &sealed)
		}
		return old.ID, err
	}
	p := runPredicate{
		Run: run.ID, Cell: run.Cell, CellName: run.CellName, Pando: e.cfg.Version, Command: run.Command, EnvNames: orEmpty(run.In.EnvNames),
		Source:    sourceFacts{Path: run.Source, Before: run.In.SourceFP, After: run.In.SourceFP2, LeftOut: run.LeftOut},
		Workspace: run.Provider, Image: orElse(run.Image, image.KindHost), ImageID: run.ImageID, Backend: run.Backend, Isolation: isolationOf(c, run.Backend), Assurance: run.Assurance, Downgrades: run.Downgrades,
		Policy: policyFacts{Digest: run.Policy}, LimitsAsked: run.In.Asked, Before: run.Before, After: run.After, Changes: run.Changes, Commits: run.Commits,
		ExitCode: run.ExitCode, Signal: run.Signal, Cause: run.Cause, Error: run.Error, Usage: run.Usage, Output: run.Output, Check: run.Check, Network: run.Network, Missing: run.MissingCalls, Secrets: run.Secrets,
		Verdict: verdictFacts{run.Verdict, run.Reason, run.By}, Timings: run.Timings, Files: map[string]cell.Digest{},
	}
	p.Source.Untouched = !run.In.SourceFP.IsZero() && run.In.SourceFP == run.In.SourceFP2
	if c != nil && c.Setup.Policy.String() == run.Policy && cell.Sum([]byte(c.Setup.PolicyText)) == c.Setup.Policy {
		p.Policy.Text = json.RawMessage(c.Setup.PolicyText)
	}
	if !run.Started.IsZero() {
		p.Started = &run.Started
	}
	if !run.Ended.IsZero() {
		p.Ended = &run.Ended
	}
	if run.Verdict == cell.Restored && run.Before != nil {
		p.Restore = &restoreFacts{To: run.Before.Checkpoint, Proof: run.In.Proof}
	}
	p.Bound = run.Before != nil && run.Before.TreeDigest != "" && p.Policy.Text != nil
	for _, name := range []string{"manifest.json", "stdout", "stderr", "events.jsonl", "patch", "check"} {
		if d, err := sumRecord(run.Folder, name); err == nil {
			p.Files[name] = d
		} else if !os.IsNotExist(err) {
			return cell.Digest{}, err
		}
	}
	subjects := []receipt.Subject{{Name: "policy", Digest: digest(run.Policy)}}
	if run.Before != nil {
		subjects = append(subjects, receipt.Subject{Name: "workspace before", Digest: digest(run.Before.TreeDigest)})
	}
	if run.After != nil {
		subjects = append(subjects, receipt.Subject{Name: "workspace after", Digest: digest(run.After.TreeDigest)})
	}
	entry, err := e.cfg.Ledger.Append(ctx, receipt.Request{Key: key, Type: receipt.PredicateRun, Subjects: subjects, Predicate: p})
	if err != nil {
		return cell.Digest{}, fmt.Errorf("cannot write the receipt: %w", err)
	}
	return entry.ID, nil
}

// endPredicate is what the receipt of a later verdict, or of a restore or
// fork by hand, says.
type endPredicate struct {
	Act        string         `json:"act"`            // "accept", "revert", "discard", "restore", "fork", "reopen"
	Run        string         `json:"run,omitempty"`  // of Runs, when it is one
	Runs       []decidedRun   `json:"runs,omitempty"` // whose verdict it decides
	Cell       string         `json:"cell"`
	CellName   string         `json:"cell_name,omitempty"`
	Pando      string         `json:"pando"`
	At         time.Time      `json:"at"`
	Verdict    *verdictFacts  `json:"verdict,omitempty"`
	Forced     bool           `json:"forced,omitempty"`
	From       *state.Point   `json:"from,omitempty"`
	To         *state.Point   `json:"to,omitempty"`
	Proof      string         `json:"proof,omitempty"`
	Lost       []string       `json:"lost,omitempty"`
	Children   []string       `json:"children,omitempty"`
	Digest     string         `json:"digest,omitempty"` // of the changes that were accepted, as pando diff prints it
	Applied    []string       `json:"applied,omitempty"`
	Reverted   []string       `json:"reverted,omitempty"`
	Already    []string       `json:"already,omitempty"` // not Reverted: they were as before the accept
	Held       []api.Held     `json:"held,omitempty"`
	Source     string         `json:"source,omitempty"`
	Head       *api.HeadMoved `json:"head,omitempty"` // of the source: it was applied to another branch
	Downgrades []string       `json:"downgrades,omitempty"`
	Backend    string         `json:"backend"`
	Isolation  string         `json:"isolation"` // "isolated" or "not isolated"
}

// decidedRun is a run whose verdict is another since an act.
type decidedRun struct {
	Run     string       `json:"run"`
	Receipt string       `json:"receipt,omitempty"` // the run's own
	Verdict cell.Verdict `json:"verdict"`
}

// endReceipt writes the receipt of an act, once per key.
func (e *Engine) endReceipt(ctx context.Context, key string, p endPredicate) (cell.Digest, error) {
	if old, err := e.cfg.Ledger.Lookup(key); err == nil {
		return old.ID, nil
	}
	p.Isolation = api.IsolationOf(p.Backend)
	var subjects []receipt.Subject
	if p.To != nil && p.To.TreeDigest != "" {
		subjects = append(subjects, receipt.Subject{Name: "workspace", Digest: digest(p.To.TreeDigest)})
	} else if p.From != nil && p.From.TreeDigest != "" {
		subjects = append(subjects, receipt.Subject{Name: "workspace", Digest: digest(p.From.TreeDigest)})
	} else {
		subjects = append(subjects, receipt.Subject{Name: "cell " + p.Cell, Digest: cell.Sum([]byte(p.Cell))})
	}
	entry, err := e.cfg.Ledger.Append(ctx, receipt.Request{Key: key, Type: receipt.PredicateVerdict, Subjects: subjects, Predicate: p})
	if err != nil {
		return cell.Digest{}, fmt.Errorf("cannot write the receipt: %w", err)
	}
	return entry.ID, nil
}

// writeManifest writes what was asked into the run's folder, before anything
// is done.
func (e *Engine) writeManifest(run *state.Run, p *runPlan) error {
	m := map[string]any{
		"run": run.ID, "cell": run.Cell, "cell_name": run.CellName, "created": run.Created, "command": run.Command, "source": run.Source,
		"backend": run.Backend, "image": run.Image, "environment_names": orEmpty(run.In.EnvNames), "on_failure": run.In.OnFailure,
		"on_success": run.In.OnSuccess, "check": run.In.Check, "tty": run.TTY, "limits_asked": run.In.Asked, "policy_digest": run.Policy,
		"policy": json.RawMessage(p.policy.Canonical()), "policy_origins": p.policy.Origins, "pando": e.cfg.Version,
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	failpoint.Step("write a manifest")
	f, err := createRecord(run.Folder, "manifest.json")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
