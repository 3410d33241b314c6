package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/step"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

// Each command and evaluation in a cell is a step, which begins at a checkpoint: the cell's newest, or one made for it
// when something has changed since. What can't have a checkpoint of its own begins at the newest all the same; nothing fails
// for it.

const (
	// stepQuiet is how long after another an evaluation gets a checkpoint of its own. Code that is evaluated in quick
	// succession shares one: the check alone takes as long as such an evaluation.
	stepQuiet = 250 * time.Millisecond
	// stepWait is how long a step waits for other work in its cell to end, to have a checkpoint.
	stepWait = 250 * time.Millisecond
	// maxStep bounds what a step copies, and stepRoom is the free space of the disk below which none copies, in bytes.
	maxStep  = 256 << 20
	stepRoom = 1 << 30
)

// stepAt is the number of the checkpoint at which a step of a cell begins, and why that may not be what the cell is then.
func (e *Engine) stepAt(ctx context.Context, id cell.ID, text string) (number int, why string) {
	defer e.pins.Begin().End()
	c, err := e.reg.Cell(id)
	if err != nil {
		return 0, ""
	}
	number = e.reg.HeadNumber(&c)
	if c.Serves != nil {
		return number, "its checkpoints are those of the cell that it serves"
	}
	if c.Provider == clone.Name { // each copy would be one of all
		return number, "workspaces are copies here"
	}
	over, cancel := context.WithTimeoutCause(ctx, stepWait, errStepLate)
	defer cancel()
	err = e.alive.Within(over, id, "begin a step", func(run cell.RunID) error {
		c, err := e.alive.Usable(id)
		if err != nil {
			return err
		}
		if same, err := e.unmoved(ctx, &c); same || err != nil {
			number = e.reg.HeadNumber(&c)
			return err
		}
		if free, keep, err := e.gc.Free(); err != nil || free-max(keep, gc.ReserveSize) < stepRoom {
			return errors.Join(errStepRoom, err)
		}
		k, err := e.settleWith(ctx, &c, state.Checkpoint{Kind: state.KindStep, Message: text, Expires: time.Now().Add(state.KeepResult).UTC()}, run, false)
		if err == nil {
			number = k.Number
		}
		return err
	})
	if err != nil {
		e.log.Info("a step has no checkpoint of its own", "cell", id, "error", err)
		return number, redactor.String(err.Error())
	}
	return number, ""
}

var (
	errStepLate = cell.Errorf(cell.Conflict, "engine.stepAt", "", "other work goes on in the cell")
	errStepRoom = cell.Errorf(cell.Unavailable, "engine.stepAt", "", "the disk is nearly full")
)

// unmoved reports whether the files of a cell in which something runs are those of its head. False says only that this is
// not sure. It fails where it is not known what is written through memory. The caller has the cell's lock.
func (e *Engine) unmoved(ctx context.Context, c *state.Cell) (bool, error) {
	inst := e.alive.Instance(c.ID)
	if c.Gen == nil || inst == nil {
		return false, nil
	}
	head, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return false, err
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return false, err
	}
	s, err := p.Snapshot(ctx, *c.Gen, workspace.SnapshotOptions{Mapped: inst.Mapped, Stands: func(s workspace.State) bool { return e.reg.HasState(c.ID, s) }})
	if err != nil {
		return false, err
	}
	defer s.Drop()
	at, same, err := s.Unmoved(ctx)
	return same && at.Same(head.State) && len(c.Services) == 0, err
}

// beginCommand begins the step that a command is.
func (e *Engine) beginCommand(ctx context.Context, id cell.ID, exec string, args []string) {
	text := strings.Join(redactor.Args(args), " ")
	number, why := e.stepAt(ctx, id, cell.Clip(text))
	e.noteStep(id, step.Step{ID: exec, Kind: step.Command, Number: number, Without: why, Text: text, Began: time.Now().UTC()})
}

// endCommand ends the step that a command was.
func (e *Engine) endCommand(x api.Exec) {
	s := step.Step{ID: x.ID, Ended: time.Now().UTC(), Signal: x.Signal, Cause: x.Cause}
	if x.ExitCode != nil {
		s.Exit = *x.ExitCode
	}
	e.noteStep(cell.ID(x.Cell), s)
}

// evaluation does an evaluation as a step.
func (e *Engine) evaluation(ctx context.Context, id cell.ID, code string, do func() (api.EvalResult, error)) (api.EvalResult, error) {
	text := redactor.String(code)
	head := func() cell.CheckpointID {
		c, err := e.reg.Cell(id)
		if err != nil {
			return ""
		}
		return c.Head
	}
	was, shares := e.steps.Shares(id, head(), stepQuiet)
	at, why := was.Number, was.Without
	if !shares {
		at, why = e.stepAt(ctx, id, cell.Clip(text))
	}
	s := step.Step{ID: step.NewID(), Kind: step.Evaluation, Number: at, Without: why, Text: text, Began: time.Now().UTC()}
	res, err := do()
	s.Ended, s.Head = time.Now().UTC(), head()
	switch {
	case err != nil:
		s.Exit, s.Cause = 1, string(cell.KindOf(err))
	case step.Failed(res.Result):
		s.Exit = 1
	}
	if err == nil || cell.KindOf(err) != cell.NotFound {
		e.noteStep(id, s)
	}
	return res, err
}

func (e *Engine) noteStep(id cell.ID, s step.Step) {
	if err := e.steps.Add(id, s); err != nil {
		e.log.Info("a step is not noted", "cell", id, "error", err)
	}
}
