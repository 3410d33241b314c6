package engine

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

func budgetsOf(l policy.Limits) state.Budgets { return state.Budgets{Forks: l.Forks, Execs: l.Execs} }

// mayFork refuses when count more children are more than a cell may have, and
// when nothing may be started on its backend. The caller holds its lock.
func (e *Engine) mayFork(c *state.Cell, count int) error {
	if err := e.mayStart(c); err != nil {
		return err
	}
	limit := c.Setup.Budgets.Forks
	if limit == 0 {
		return nil
	}
	had := int64(0)
	if t, err := e.reg.Template(c.Template); err == nil {
		had = t.Forks
	}
	if c.Template == "" {
		had += int64(e.reg.Forked(c.ID)) // those that are gone count, too
	}
	if had+int64(count) > limit {
		return cell.Errorf(cell.Denied, "engine.Fork", "ask for fewer, or raise limits.forks in the policy",
			"cannot fork %s %d times: its policy allows %d forks, and it had %d", c.Title(), count, limit, had)
	}
	return nil
}

// mayRun refuses a run when a cell has run as many commands as the run's policy
// allows. c is nil for one that is to be made.
func (e *Engine) mayRun(c *state.Cell, b state.Budgets) error {
	if b.Execs == 0 || c == nil {
		return nil
	}
	e.spending.Lock()
	defer e.spending.Unlock()
	return overExecs(c, b.Execs, int64(c.Runs)+e.reg.Spent(c.ID))
}

// spendExec counts a command outside of any run, and refuses it when it would
// be one too many.
func (e *Engine) spendExec(c *state.Cell) error {
	limit := c.Setup.Budgets.Execs
	if limit == 0 {
		return nil
	}
	e.spending.Lock()
	defer e.spending.Unlock()
	n := e.reg.Spent(c.ID)
	if err := overExecs(c, limit, int64(c.Runs)+n); err != nil {
		return err
	}
	return e.reg.Commit(&state.Spent{Cell: c.ID, Execs: n + 1})
}

func overExecs(c *state.Cell, limit, had int64) error {
	if had < limit {
		return nil
	}
	return cell.Errorf(cell.Denied, "engine.exec", "raise limits.executions in the policy, or use another cell",
		"cannot run another command in %s: its policy allows %d, and it had %d", c.Title(), limit, had)
}
