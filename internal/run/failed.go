package run

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// abandon ends a run after its command could not be started.
func (x *execution) abandon(ctx context.Context, cause error) {
	m := x.m
	if m.cfg.Life.Err() != nil && cell.KindOf(cause) == cell.Interrupted {
		return // the next daemon finds it preparing
	}
	x.Run.Started, x.Run.Assurance = time.Time{}, state.AssuranceOf(cell.Assurance{}) // nothing ran, so nothing was measured
	if x.Cell.ID != "" && x.Cell.Head == "" || x.Planned.State == cell.Creating {
		// The cell was being made for this run: it goes.
		if err := m.cfg.Cells.Deactivate(ctx, x.Cell.ID, "the run did not start"); err != nil {
			m.cfg.Log.Warn("cannot take down a cell that did not start", "cell", x.Cell.ID, "error", err)
		}
		if err := x.Cell.To(cell.Removed); err != nil {
			m.cfg.Log.Error("cannot remove a cell that did not start", "cell", x.Cell.ID, "error", err)
		}
	} else if inst := m.cfg.Cells.Instance(x.Cell.ID); inst != nil {
		if list, err := inst.List(ctx); err == nil && len(list) == 0 {
			m.cfg.Cells.Deactivate(ctx, x.Cell.ID, "the run did not start")
		}
	}
	if x.Cell.State == cell.Running && m.cfg.Cells.AtRest(x.Cell.ID) {
		if err := x.Cell.To(cell.Idle); err != nil {
			m.cfg.Log.Error("cannot put a cell to rest", "cell", x.Cell.ID, "error", err)
		}
	}
	if m.failedToStart(ctx, x.Job, cause, &x.Cell) && x.Cell.State == cell.Removed {
		m.cfg.Drops.DropCell(&x.Cell)
	}
}

// failedToStart gives a run that did nothing its verdict and receipt, and
// records what became of its cell, if anything did. It reports whether that
// worked; if not, callers that ask for the run are told why, and it is tried again.
func (m *Manager) failedToStart(ctx context.Context, j Job, cause error, cells ...any) bool {
	run := j.Run
	run.Error = m.cfg.Failure(cause)
	if !strings.HasPrefix(run.Error.Message, "cannot ") {
		run.Error.Message = "cannot start the run: " + run.Error.Message
	}
	run.Error.Message = m.cfg.Redactor.String(run.Error.Message)
	err := run.Decide(cell.Discarded, "did not start", "pando")
	if err == nil {
		err = run.To(cell.Ended)
	}
	if err != nil {
		m.cfg.Log.Error("cannot end a run that did not start", "run", run.ID, "error", err)
		return false
	}
	if cell.KindOf(cause) == cell.Interrupted {
		run.Cause = cell.CauseInterrupted
	}
	run.Ended = time.Now().UTC()
	err = m.cfg.Evidence.SealRun(ctx, run, j.Planned)
	if m.closing(err) {
		return false // the next daemon finds it preparing
	}
	if err != nil {
		m.cfg.Log.Error("cannot write a receipt", "run", run.ID, "error", err)
		run.Notes = append(run.Notes, fmt.Sprintf("there is no receipt: %v", err))
	}
	if err := m.cfg.Records.Commit(append(cells, run)...); err != nil {
		m.cfg.Log.Error("cannot record a run", "run", run.ID, "error", err)
		m.finishLater(run.RunID(), cell.Errorf(cell.KindOf(cause), "run.StartRun", run.Error.Hint, "%s", run.Error.Message).About(cell.SubjectOf(cause)))
		return false
	}
	return true
}

// failRun records that a run could not be brought to its end: its cell is
// failed, with the cause, and its checkpoints are intact.
func (m *Manager) failRun(run *state.Run, c *state.Cell, cause error) error {
	run.Error = m.cfg.Failure(cause)
	run.Error.Message = m.cfg.Redactor.String("cannot finish run " + run.ID + ": " + run.Error.Message)
	if run.Error.Hint == "" {
		run.Error.Hint = "bring the cell back with pando restore " + c.Title() + "@N"
	}
	if c.State != cell.Removed {
		if err := c.To(cell.Failed); err != nil {
			return err
		}
	}
	c.Cause = cause.Error()
	if run.Verdict == "" {
		if err := run.Decide(cell.Pending, "the run could not be finished", "pando"); err != nil {
			return err
		}
	}
	if run.Ended.IsZero() {
		run.Ended = time.Now().UTC()
	}
	if err := run.To(cell.Ended); err != nil {
		return err
	}
	// A receipt that it got on its way stands, with its verdict.
	if err := m.cfg.Evidence.SealRun(m.cfg.Life, run, c); m.closing(err) {
		return err // nothing is recorded without it: the next daemon tries again
	} else if err != nil {
		m.cfg.Log.Error("cannot write a receipt", "run", run.ID, "error", err)
		run.Notes = append(run.Notes, fmt.Sprintf("there is no receipt: %v", err))
	}
	err := m.cfg.Records.Commit(c, run)
	if err != nil {
		m.cfg.Log.Error("cannot record a failed run", "run", run.ID, "error", err)
	}
	return err
}

// again is how long a run that could not be finished waits for the next try.
const again = 3 * time.Second

// finishLater tries once more to finish a run that could not be recorded, as
// a restarted daemon would. Meanwhile why is what is known of its end.
func (m *Manager) finishLater(id cell.RunID, why *cell.Error) {
	m.mu.Lock()
	m.lost[id] = why
	m.mu.Unlock()
	m.cfg.Background(func(ctx context.Context) {
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return // the next daemon does it
		}
		if r, err := m.cfg.Records.Run(id); err == nil && r.Phase != cell.Ended {
			m.Recover(r, why)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lost[id] == why { // what asked meanwhile has been told it; now the run is live again, or has ended
			delete(m.lost, id)
		}
	})
}
