package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
)

// abandon ends a run whose command never started.
func (x *execution) abandon(ctx context.Context, cause error) {
	e := x.e
	if e.life.Err() != nil && cell.KindOf(cause) == cell.Interrupted {
		return // the next daemon finds it preparing
	}
	x.run.Started, x.run.Assurance = time.Time{}, assuranceOf(cell.Assurance{}) // nothing ran, so nothing was measured
	if x.c.ID != "" && x.c.Head == "" || x.p.cell.State == cell.Creating {
		// The cell was being made for this run: it goes.
		if err := e.alive.Deactivate(ctx, x.c.ID, "the run did not start"); err != nil {
			e.log.Warn("cannot take down a cell that did not start", "cell", x.c.ID, "error", err)
		}
		if err := x.c.To(cell.Removed); err != nil {
			e.log.Error("cannot remove a cell that did not start", "cell", x.c.ID, "error", err)
		}
	} else if inst := e.alive.Instance(x.c.ID); inst != nil {
		if list, err := inst.List(ctx); err == nil && len(list) == 0 {
			e.alive.Deactivate(ctx, x.c.ID, "the run did not start")
		}
	}
	if x.c.State == cell.Running && e.alive.AtRest(x.c.ID) {
		if err := x.c.To(cell.Idle); err != nil {
			e.log.Error("cannot put a cell to rest", "cell", x.c.ID, "error", err)
		}
	}
	if e.failedToStart(ctx, x.p, cause, &x.c) && x.c.State == cell.Removed {
		e.gc.DropCell(&x.c)
	}
}

// failedToStart gives a run that did nothing its verdict and receipt, and
// records what became of its cell, if anything did. It reports whether that
// worked; if not, whoever asks for the run is told why, and it is tried again.
func (e *Engine) failedToStart(ctx context.Context, p *runPlan, cause error, cells ...any) bool {
	run := p.run
	run.Error = e.failure(cause)
	if !strings.HasPrefix(run.Error.Message, "cannot ") {
		run.Error.Message = "cannot start the run: " + run.Error.Message
	}
	run.Error.Message = redactor.String(run.Error.Message)
	err := run.Decide(cell.Discarded, "did not start", "pando")
	if err == nil {
		err = run.To(cell.Ended)
	}
	if err != nil {
		e.log.Error("cannot end a run that did not start", "run", run.ID, "error", err)
		return false
	}
	if cell.KindOf(cause) == cell.Interrupted {
		run.Cause = "interrupted"
	}
	run.Ended = time.Now().UTC()
	err = e.evidence.SealRun(ctx, run, p.cell)
	if e.closing(err) {
		return false // the next daemon finds it preparing
	}
	if err != nil {
		e.log.Error("cannot write a receipt", "run", run.ID, "error", err)
		run.Notes = append(run.Notes, fmt.Sprintf("there is no receipt: %v", err))
	}
	if err := e.reg.Commit(append(cells, run)...); err != nil {
		e.log.Error("cannot record a run", "run", run.ID, "error", err)
		e.finishLater(run.RunID(), cell.Errorf(cell.KindOf(cause), "engine.StartRun", run.Error.Hint, "%s", run.Error.Message))
		return false
	}
	return true
}

// failRun records that a run could not be brought to its end: its cell is
// failed, with the cause, and its checkpoints are intact.
func (e *Engine) failRun(run *state.Run, c *state.Cell, cause error) error {
	run.Error = e.failure(cause)
	run.Error.Message = redactor.String("cannot finish run " + run.ID + ": " + run.Error.Message)
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
	if err := e.evidence.SealRun(e.life, run, c); e.closing(err) {
		return err // nothing is recorded without it: the next daemon tries again
	} else if err != nil {
		e.log.Error("cannot write a receipt", "run", run.ID, "error", err)
		run.Notes = append(run.Notes, fmt.Sprintf("there is no receipt: %v", err))
	}
	err := e.reg.Commit(c, run)
	if err != nil {
		e.log.Error("cannot record a failed run", "run", run.ID, "error", err)
	}
	return err
}

// full says what a full disk means to the caller that waits.
func full(err error) error {
	if durable.IsFull(err) {
		return cell.Errorf(cell.Unavailable, "engine", "free some space (`pando gc` shows what pando can free), then try again", "cannot go on: %w", err)
	}
	return err
}

// again is how long a run that could not be finished waits for the next try.
const again = 3 * time.Second

// finishLater tries once more to finish a run that could not be recorded, as
// a restarted daemon would. Meanwhile why is what is known of its end.
func (e *Engine) finishLater(id cell.RunID, why error) {
	e.mu.Lock()
	e.lost[id] = why
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return // the next daemon does it
		}
		e.mu.Lock()
		delete(e.lost, id)
		e.mu.Unlock()
		if r, err := e.reg.Run(id); err == nil && r.Phase != cell.Ended {
			e.recoverRun(r, why)
		}
	})
}
