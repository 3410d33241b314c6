package govern

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// SetPolicy gives a cell another policy, as text: what is decided at its gateway
// changes at once, also for connections that are open. What was made with the
// cell can't change: its mounts, and whether it has a gateway. A policy that is of
// a guest may not reach the daemon's machine.
func (m *Manager) SetPolicy(ctx context.Context, id cell.ID, text string, guest bool) error {
	const opName = "govern.SetPolicy"
	if guest { // refused at once, also while a run holds the lock
		eff, err := m.Effective(api.RunRequest{Policy: text, PolicyName: "policy"}, "", nil)
		if err == nil {
			err = RefuseHost(&eff.Result)
		}
		if err != nil {
			return err
		}
	}
	release, err := m.cfg.Lock(ctx, id, "give another policy to")
	if err != nil {
		return err
	}
	defer release()
	c, err := m.cfg.Usable(id)
	if err != nil {
		return err
	}
	eff, err := m.Effective(api.RunRequest{Policy: text, PolicyName: PolicyOfCell + c.Title(), Limits: api.Limits{Budget: c.Setup.Kept.Limits.Budget}}, "", nil)
	if err != nil {
		return err
	}
	pol, s := eff.Result, &c.Setup
	if guest {
		if err := RefuseHost(&pol); err != nil {
			return err
		}
	}
	if err := pol.Isolation.Refuse(pol.Origins, "govern cell "+c.Title(), c.Backend); err != nil {
		return err
	}
	if err := pol.Secrets.Refuse(pol.Origins, "govern cell "+c.Title(), Tracked(&c)); err != nil {
		return err
	}
	if pol.Digest() == s.Policy {
		return nil
	}
	if !s.Talks && !pol.Talks() {
		return nil // it reaches nothing, before and after
	}
	if !s.Talks || len(pol.Files.Mounts) > 0 || !slices.Equal(pol.Files.Hidden, s.Hidden) || !slices.Equal(pol.Files.ReadOnly, s.ReadOnly) || !slices.Equal(pol.Processes.Deny, s.Programs) {
		what := "its mounts cannot change"
		if !s.Talks {
			what = "it was made without a network"
		}
		return cell.Errorf(cell.Unsupported, opName, "give the policy when the cell is made", "cannot give cell %s another policy: %s", c.Title(), what)
	}
	keeps := state.Kept{PolicyName: PolicyOfCell + c.Title(), Limits: s.Kept.Limits}
	if keeps.Policy, keeps.NoVariables, err = Keepable(m.cfg.Redactor, text); err != nil {
		return err
	}
	recorded, err := m.Change(ctx, &c, m.cfg.Instances().Instance(id), &pol, keeps, "")
	if err != nil {
		return err
	}
	defer recorded()
	return m.cfg.Records.Commit(&c)
}

// Change gives a cell another policy, without a commit: c has it, and the gateway of its
// instance, if that is not nil, goes by it. run is the run that goes on in it, "" for none. The
// caller calls recorded after the commit, also when that failed: until then Refresh waits.
func (m *Manager) Change(ctx context.Context, c *state.Cell, inst backend.Instance, pol *policy.Result, keeps state.Kept, run cell.RunID) (recorded func(), err error) {
	unlock, err := m.lockRules(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	c.Shared = cell.Digest{}
	s := &c.Setup
	b, err := m.Budgets(c, pol)
	if err != nil {
		return nil, err
	}
	s.Budgets, s.Kept = b, keeps
	s.Policy, s.PolicyText, s.Origins, s.Handles = pol.Digest(), string(pol.Canonical()), pol.Origins, pol.Handles()
	if _, _, err = m.Lend(c, s.Handles); err == nil && inst != nil {
		err = m.putInForce(ctx, c, inst, run)
	}
	return unlock, err
}

// PolicyOfCell begins the name of a policy that was given with a cell, and not as a file.
const PolicyOfCell = "the policy of cell "

// Keepable is the text of a policy file as it may be written down: as it is, unless it has
// variables, which it reports, or what looks like a secret; then its rules alone.
func Keepable(r *receipt.Redactor, text string) (kept string, variables bool, err error) {
	if text == "" {
		return "", false, nil
	}
	rules, variables, err := policy.Bare([]byte(text))
	if err == nil && !variables && r.String(text) == text {
		return text, false, nil
	}
	return string(rules), variables, err
}
