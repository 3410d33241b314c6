package govern

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// BudgetsOf are the budgets among limits.
func BudgetsOf(l policy.Limits) state.Budgets { return state.Budgets{Forks: l.Forks, Execs: l.Execs} }

// MayFork refuses when count more children are more than a cell may have, and
// when nothing may be started on its backend. The caller holds its lock.
func (m *Manager) MayFork(c *state.Cell, count int) error {
	if err := m.MayStart(c); err != nil {
		return err
	}
	limit := c.Setup.Budgets.Forks
	if limit == 0 {
		return nil
	}
	had := int64(0)
	if t, err := m.cfg.Records.Template(c.Template); err == nil {
		had = t.Forks
	}
	if c.Template == "" {
		had += int64(m.cfg.Records.Forked(c.ID)) // those that are gone count, too
	}
	if had+int64(count) > limit {
		return cell.Errorf(cell.Denied, "govern.Fork", "ask for fewer, or raise limits.forks in the policy",
			"cannot fork %s %d times: its policy allows %d forks, and it had %d", c.Title(), count, limit, had)
	}
	return nil
}

// MayRun refuses a run when a cell has run as many commands as the run's policy
// allows, or when its budget is used up and the run comes with no other. c is nil for one that is to
// be made.
func (m *Manager) MayRun(c *state.Cell, l policy.Limits) error {
	if c == nil {
		return nil
	}
	if b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of); ok && b.Asked == l.Budget {
		if err := m.withinBudget(c); err != nil {
			return err
		}
	}
	return m.Count(c, l, nil)
}

// Count has commit record the start of a run, unless its cell has run as many commands as the run's policy allows.
// c is as it was before. Nothing else is counted meanwhile.
func (m *Manager) Count(c *state.Cell, l policy.Limits, commit func() error) error {
	if l.Execs > 0 {
		m.spending.Lock()
		defer m.spending.Unlock()
		if err := overExecs(c, l.Execs, int64(c.Runs)+m.cfg.Records.Spent(c.ID)); err != nil {
			return err
		}
	}
	if commit == nil {
		return nil
	}
	return commit()
}

// Spend counts a command outside of any run, and refuses it when it would
// be one too many.
func (m *Manager) Spend(c *state.Cell) error {
	limit := c.Setup.Budgets.Execs
	if limit == 0 {
		return nil
	}
	m.spending.Lock()
	defer m.spending.Unlock()
	n, runs := m.cfg.Records.Spent(c.ID), c.Runs
	if now, err := m.cfg.Records.Cell(c.ID); err == nil { // one may have begun meanwhile
		runs = now.Runs
	}
	if err := overExecs(c, limit, int64(runs)+n); err != nil {
		return err
	}
	return m.cfg.Records.Commit(&state.Spent{Cell: c.ID, Execs: n + 1})
}

func overExecs(c *state.Cell, limit, had int64) error {
	if had < limit {
		return nil
	}
	return cell.Errorf(cell.Denied, "govern.exec", "raise limits.executions in the policy, or use another cell",
		"cannot run another command in %s: its policy allows %d, and it had %d", c.Title(), limit, had)
}
