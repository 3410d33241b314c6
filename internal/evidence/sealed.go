package evidence

import (
	"bytes"
	"cmp"
	"encoding/json"

	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// Adopt makes a run's record say what its receipt says, if that is written already: the record
// could not be. It reports whether there is a receipt.
func (m *Manager) Adopt(r *state.Run) (bool, error) {
	entry, err := m.cfg.Ledger.Lookup(runKey(r))
	if err != nil {
		return false, nil
	}
	p, err := predicate[runPredicate](entry)
	if err == nil {
		err = r.Sealed(p.Verdict.Verdict, p.Verdict.Reason, p.Verdict.By)
	}
	if err != nil {
		return true, err
	}
	r.LeftOut, r.Provider, r.Assurance, r.Downgrades = p.Source.LeftOut, p.Workspace, p.Assurance, p.Downgrades
	r.Before, r.After, r.Changes, r.Error = p.Before, p.After, p.Changes, p.Error
	r.ExitCode, r.Signal, r.Cause, r.Usage, r.Output, r.Check, r.Secrets = p.ExitCode, p.Signal, p.Cause, p.Usage, p.Output, p.Check, p.Secrets
	r.MissingCalls, r.Network, r.Commits, r.Caches, r.Services = p.Missing, p.Network, p.Commits, p.Caches, p.Services
	r.Recording = p.Recording
	r.Started, r.Ended = cmp.Or(p.Started, r.Started), cmp.Or(p.Ended, r.Ended)
	return true, nil
}

// unsealed names what of a run's record is not what its own receipt says.
// Verdict and reason are compared while no later receipt has changed them.
func unsealed(r *state.Run, p *runPredicate) (names []string) {
	for _, x := range []struct {
		name             string
		record, receipts any
	}{
		{"run", r.ID, p.Run}, {"cell", r.Cell, p.Cell}, {"command", r.Command, p.Command}, {"agent", r.Agent, p.Agent}, {"mode", r.Mode, p.Mode}, {"mode_reason", r.ModeReason, p.ModeReason}, {"ref", r.Ref, p.Ref}, {"asked", r.Asked, p.Asked}, {"autonomy", r.Autonomy, p.Autonomy}, {"model_url", r.ModelURL, p.ModelURL}, {"replay_of", r.ReplayOf, p.ReplayOf}, {"downgrade_words", r.DowngradeWords, p.Words}, {"source", r.Source, p.Source.Path}, {"repositories", r.Repositories, p.Source.With}, {"trees of repositories", r.In.Parts, p.Source.Repositories},
		{"left_out", r.LeftOut, p.Source.LeftOut}, {"workspace", r.Provider, p.Workspace}, {"backend", r.Backend, p.Backend}, {"isolation", r.Isolation, p.Isolation.Isolation},
		{"assurance", r.Assurance, p.Assurance}, {"downgrades", r.Downgrades, p.Downgrades}, {"policy_digest", r.Policy, p.Policy.Digest},
		{"limits asked", r.In.Asked, p.LimitsAsked}, {"environment", r.In.EnvNames, p.EnvNames}, {"workdir", r.In.Workdir, p.Workdir}, {"before", r.Before, p.Before}, {"after", r.After, p.After},
		{"changes", r.Changes, p.Changes}, {"exit_code", r.ExitCode, p.ExitCode}, {"signal", r.Signal, p.Signal}, {"cause", r.Cause, p.Cause},
		{"error", r.Error, p.Error}, {"usage", r.Usage, p.Usage}, {"output", r.Output, p.Output}, {"check", r.Check, p.Check}, {"secrets", r.Secrets, p.Secrets},
		{"missing_calls", r.MissingCalls, p.Missing}, {"network", r.Network, p.Network}, {"commits", r.Commits, p.Commits}, {"caches", r.Caches, p.Caches}, {"services", r.Services, p.Services}, {"recording", r.Recording, p.Recording},
		{"image", cmp.Or(r.Image, image.KindHost), p.Image}, {"image_digest", r.ImageID, p.ImageID}, {"cell_name", r.CellName, p.CellName},
		{"started", r.Started.UTC(), p.Started.UTC()}, {"ended", r.Ended.UTC(), p.Ended.UTC()},
	} {
		if !alike(x.record, x.receipts) {
			names = append(names, x.name)
		}
	}
	if len(r.Receipts) == 1 && (r.Reason != p.Verdict.Reason || r.By != p.Verdict.By) {
		names = append(names, "reason")
	}
	return names
}

// alike compares what two values say on the wire; nothing and an empty list say
// the same. Both are read back first: bytes that are no UTF-8, which a command's
// files and arguments may have in their names, change once when they are written.
func alike(a, b any) bool {
	x, errX := readBack(a)
	y, errY := readBack(b)
	none := func(s []byte) bool { return string(s) == "null" || string(s) == "[]" || string(s) == "{}" }
	return errX == nil && errY == nil && (string(x) == string(y) || none(x) && none(y))
}

// readBack is the JSON of what a reader of v's JSON has.
func readBack(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var read any
	if err := d.Decode(&read); err != nil {
		return nil, err
	}
	return json.Marshal(read)
}
