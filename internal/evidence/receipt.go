package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
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
	Agent       string                 `json:"agent,omitempty"`
	Mode        string                 `json:"mode,omitempty"`
	ModeReason  string                 `json:"mode_reason,omitempty"`
	Ref         string                 `json:"ref,omitempty"`
	Asked       *state.Asked           `json:"asked,omitempty"`
	Autonomy    string                 `json:"autonomy,omitempty"`
	ModelURL    string                 `json:"model_url,omitempty"`
	ReplayOf    string                 `json:"replay_of,omitempty"`
	Words       []string               `json:"downgrade_words,omitempty"`
	EnvNames    []string               `json:"environment_names"`
	Workdir     string                 `json:"workdir,omitempty"` // where the command was started
	Source      sourceFacts            `json:"source"`
	Workspace   state.Provider         `json:"workspace"`
	Image       string                 `json:"image"`
	ImageID     string                 `json:"image_digest,omitempty"`
	Backend     string                 `json:"backend"`
	Isolation   isolationFacts         `json:"isolation"`
	Assurance   state.Assurance        `json:"assurance"`
	Downgrades  []string               `json:"downgrades"`
	Policy      policyFacts            `json:"policy"`
	LimitsAsked state.Limits           `json:"limits_asked"`
	Before      *state.Point           `json:"before,omitempty"`
	After       *state.Point           `json:"after,omitempty"`
	Changes     state.Changes          `json:"changes"`
	Commits     *state.CellCommits     `json:"commits,omitempty"`
	Started     time.Time              `json:"started,omitzero"`
	Ended       time.Time              `json:"ended,omitzero"`
	ExitCode    *int                   `json:"exit_code"`
	Signal      string                 `json:"signal,omitempty"`
	Cause       string                 `json:"cause,omitempty"`
	Error       *state.Error           `json:"error,omitempty"`
	Usage       state.Usage            `json:"usage"`
	Output      state.Outputs          `json:"output"`
	Files       map[string]cell.Digest `json:"files"` // of the run's folder
	Check       *state.Check           `json:"check,omitempty"`
	Secrets     *state.Secrets         `json:"secrets,omitempty"`
	Verdict     state.Verdict          `json:"verdict"`
	Restore     *restoreFacts          `json:"restore,omitempty"`
	Network     *state.Network         `json:"network,omitempty"` // from the event stream; its digest is in Files
	Missing     []string               `json:"missing_calls,omitempty"`
	Caches      []state.CacheUse       `json:"caches,omitempty"`
	Services    []state.ServiceUse     `json:"services,omitempty"`
	Recording   *cell.Recording        `json:"recording,omitempty"`
	Timings     state.Timings          `json:"timings_ms"`
	Parents     []string               `json:"parents,omitempty"` // receipts that the cell's state before it comes from
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
	// With are the directories of the workspace beside that at Path; Repositories are all, with what each was, where there is
	// a result.
	With         []string        `json:"with,omitempty"`
	Repositories []state.RunPart `json:"repositories,omitempty"`
}

type policyFacts struct {
	Digest string          `json:"digest"`
	Text   json.RawMessage `json:"text,omitempty"` // the canonical form
}

type restoreFacts struct {
	To    string `json:"to"` // checkpoint
	Proof string `json:"proof"`
}

// runKey makes the receipt of a run happen once.
func runKey(run *state.Run) string { return run.ID + "/run" }

// SealRun writes the receipt of a run at its end, once, and has the run name it. If an earlier
// try wrote it and could not record the run, the run says from now on what that receipt says.
func (m *Manager) SealRun(ctx context.Context, run *state.Run, c *state.Cell) error {
	entry, err := m.cfg.Ledger.Lookup(runKey(run))
	if err == nil {
		_, err = m.Adopt(run)
	} else {
		entry, err = m.newReceipt(ctx, run, c)
	}
	if err == nil {
		run.AddReceipt(entry.ID)
	}
	return err
}

func (m *Manager) newReceipt(ctx context.Context, run *state.Run, c *state.Cell) (receipt.Entry, error) {
	p, err := m.runPredicate(run, c)
	if err != nil {
		return receipt.Entry{}, err
	}
	subjects := []receipt.Subject{{Name: "policy", Digest: digest(run.Policy)}}
	if run.Before != nil {
		subjects = append(subjects, receipt.Subject{Name: "workspace before", Digest: digest(run.Before.TreeDigest)})
	}
	if run.After != nil {
		subjects = append(subjects, receipt.Subject{Name: "workspace after", Digest: digest(run.After.TreeDigest)})
	}
	if d, ok := p.Files[patchFile]; ok {
		subjects = append(subjects, receipt.Subject{Name: patchFile, Digest: d})
	}
	for _, p := range run.In.Parts {
		subjects = append(subjects, receipt.Subject{Name: p.Source + " before", Digest: p.Before}, receipt.Subject{Name: p.Source + " after", Digest: p.After})
	}
	return m.append(ctx, receipt.Request{Key: runKey(run), Type: receipt.PredicateRun, Subjects: subjects, Predicate: p})
}

// once writes a receipt, if there is none with its key.
func (m *Manager) once(ctx context.Context, req receipt.Request) (cell.Digest, error) {
	entry, err := m.cfg.Ledger.Lookup(req.Key)
	if err != nil {
		entry, err = m.append(ctx, req)
	}
	return entry.ID, err
}

func (m *Manager) append(ctx context.Context, req receipt.Request) (receipt.Entry, error) {
	entry, err := m.cfg.Ledger.Append(ctx, req)
	if err != nil {
		err = fmt.Errorf("cannot write the receipt: %w", err)
	}
	return entry, err
}

func (m *Manager) runPredicate(run *state.Run, c *state.Cell) (*runPredicate, error) {
	p := runPredicate{
		Run: run.ID, Cell: run.Cell, CellName: run.CellName, Pando: m.cfg.Version, Command: run.Command, Agent: run.Agent, Mode: run.Mode, ModeReason: run.ModeReason, Ref: run.Ref, Asked: run.Asked, Autonomy: run.Autonomy, ModelURL: run.ModelURL, ReplayOf: run.ReplayOf, Words: run.DowngradeWords, EnvNames: append([]string{}, run.In.EnvNames...), Workdir: run.In.Workdir,
		Source:    sourceFacts{Path: run.Source, Before: run.In.SourceFP, After: run.In.SourceFP2, LeftOut: run.LeftOut, With: run.Repositories, Repositories: run.In.Parts},
		Workspace: run.Provider, Image: cmp.Or(run.Image, image.KindHost), ImageID: run.ImageID, Backend: run.Backend, Isolation: isolationOf(c, run.Backend), Assurance: run.Assurance, Downgrades: run.Downgrades,
		Policy: policyFacts{Digest: run.Policy}, LimitsAsked: run.In.Asked, Before: run.Before, After: run.After, Changes: run.Changes, Commits: run.Commits,
		Started: run.Started, Ended: run.Ended, ExitCode: run.ExitCode, Signal: run.Signal, Cause: run.Cause, Error: run.Error, Usage: run.Usage, Output: run.Output, Check: run.Check, Network: run.Network, Missing: run.MissingCalls, Caches: run.Caches, Services: run.Services, Secrets: run.Secrets, Recording: run.Recording,
		Verdict: state.Verdict{Verdict: run.Verdict, Reason: run.Reason, By: run.By}, Timings: run.Timings, Files: map[string]cell.Digest{}, Parents: m.parents(run.CellID()),
	}
	p.Source.Untouched = !run.In.SourceFP.IsZero() && run.In.SourceFP == run.In.SourceFP2
	if c != nil && c.Setup.Policy.String() == run.Policy {
		p.Policy = policyOf(c)
	}
	if run.Verdict == cell.Restored && run.Before != nil {
		p.Restore = &restoreFacts{To: run.Before.Checkpoint, Proof: run.In.Proof}
	}
	p.Bound = run.Before != nil && run.Before.TreeDigest != "" && p.Policy.Text != nil
	for _, name := range SealedFiles() {
		if d, err := sumRecord(run.Folder, name); err == nil {
			p.Files[name] = d
		} else if !os.IsNotExist(err) {
			return nil, err
		}
	}
	return &p, nil
}

func policyOf(c *state.Cell) policyFacts {
	p := policyFacts{Digest: c.Setup.Policy.String()}
	if cell.Sum([]byte(c.Setup.PolicyText)) == c.Setup.Policy {
		p.Text = json.RawMessage(c.Setup.PolicyText)
	}
	return p
}

// isolationFacts is what a receipt says of the isolation that was demanded.
type isolationFacts struct {
	Isolation string `json:"isolation"`       // "isolated", "not isolated"
	Least     string `json:"least,omitempty"` // of the policy: the weakest backend it allows
	Rule      string `json:"rule,omitempty"`  // that says so, and where it stands
}

func isolationOf(c *state.Cell, backend string) isolationFacts {
	f := isolationFacts{Isolation: api.IsolationOf(backend)}
	if c == nil || c.Setup.PolicyText == "" {
		return f
	}
	var own policy.Effective
	if json.Unmarshal([]byte(c.Setup.PolicyText), &own) == nil {
		f.Least, f.Rule = own.Isolation.Least, policy.RuleIsolation+" ("+cmp.Or(c.Setup.Origins.Lines[policy.RuleIsolation], "default")+")"
	}
	return f
}
