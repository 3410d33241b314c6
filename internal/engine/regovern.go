package engine

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/state"
)

// Regovern gives a cell another policy, as text: what is decided at its gateway
// changes at once, also for connections that are open. What was made with the
// cell can't change: its mounts, and whether it has a gateway.
func (e *Engine) Regovern(ctx context.Context, id cell.ID, text string) error {
	const opName = "engine.Regovern"
	release, err := e.locks.Acquire(ctx, id, "govern", nil)
	if err != nil {
		return err
	}
	defer release()
	c, err := e.alive.Usable(id)
	if err != nil {
		return err
	}
	eff, err := e.govern.Effective(api.RunRequest{Policy: text, PolicyName: policyOfCell + c.Title()}, "")
	if err != nil {
		return err
	}
	pol, s := eff.Result, &c.Setup
	if err := pol.Isolation.Refuse(pol.Origins, "govern cell "+c.Title(), c.Backend); err != nil {
		return err
	}
	if err := pol.Secrets.Refuse(pol.Origins, "govern cell "+c.Title(), govern.Tracked(&c)); err != nil {
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
	keeps := state.Kept{PolicyName: policyOfCell + c.Title(), Limits: s.Kept.Limits}
	if keeps.Policy, keeps.NoVariables, err = keepablePolicy(text); err != nil {
		return err
	}
	c.Shared = cell.Digest{}
	s.Budgets, s.Kept = govern.BudgetsOf(pol.Limits), keeps
	s.Policy, s.PolicyText, s.Origins, s.Handles = pol.Digest(), string(pol.Canonical()), pol.Origins, pol.Handles()
	if _, _, err := e.lend(&c, s.Handles); err != nil {
		return err
	}
	if inst := e.alive.Instance(id); inst != nil {
		g, err := e.governance(&c, "")
		if err == nil && g != nil {
			err = inst.Govern(ctx, *g)
		}
		if err != nil {
			return err
		}
	}
	return e.reg.Commit(&c)
}
