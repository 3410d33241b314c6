package live

import (
	"context"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// silent reports whether err is of a question that was not answered, or not in time.
func silent(ctx context.Context, err error) bool {
	return err != nil && (cell.Unanswered(err) || ctx.Err() != nil)
}

// dyingFor is how long it may take until a keeper that answers no more is gone: its
// process ends one file after the other.
const dyingFor = time.Second

// deadSoon is Dead, for a keeper that has just not answered.
func deadSoon(ctx context.Context, inst backend.Instance) bool {
	for end := time.Now().Add(dyingFor); !backend.Dead(ctx, inst); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
	return true
}

// askAgain is the pause before a question that was not answered is put again.
const askAgain = 50 * time.Millisecond

// Ask puts a question to a cell's keeper until it is answered, the keeper is gone, or ctx
// ends. A connection that could not be made, or broke, says nothing about the cell.
func Ask[T any](ctx context.Context, inst backend.Instance, question func(context.Context) (T, error)) (answer T, err error) {
	for {
		if answer, err = question(ctx); !cell.Unanswered(err) || deadSoon(ctx, inst) {
			return answer, err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return answer, err
		}
	}
}

// WaitFor waits for a process; ctx ends it with ctx's cause. ErrClosing means
// that the daemon goes and the process stays.
func (m *Manager) WaitFor(ctx context.Context, inst backend.Instance, proc backend.Process) (cell.Status, error) {
	life := m.cfg.Life
	st, err := Ask(ctx, inst, proc.Wait)
	if err == nil || ctx.Err() == nil {
		return st, err
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosing) {
		return st, ErrClosing
	}
	word := "interrupted"
	if cell.KindOf(cause) == cell.Timeout {
		word = "timeout"
	}
	grace, standStill, err := m.goOn(life, inst)
	if standStill != nil {
		defer standStill()
	}
	if err != nil {
		return st, err
	}
	if err := proc.End(life, word, grace); err != nil {
		return st, err
	}
	st, err = Ask(life, inst, proc.Wait)
	if err != nil && life.Err() != nil {
		return st, ErrClosing
	}
	return st, err
}

// pausesFor is how long the end of a process waits for the lock of its cell's pauses. The end of a lease holds
// that lock while it waits for the run, so the process ends without it.
const pausesFor = 2 * time.Second

// goOn lets a paused cell go on for the end of one of its processes: in a kernel of its own, and on
// cgroups v1, nothing ends while it stands still. grace is for backend.Process.End: what was paused
// was not to do anything more. standStill, unless it is nil, freezes what is left.
func (m *Manager) goOn(life context.Context, inst backend.Instance) (grace time.Duration, standStill func(), err error) {
	id := inst.ID()
	paused := func() bool {
		c, err := m.cfg.Registry.Cell(id)
		return err == nil && c.State == cell.Paused && m.Instance(id) == inst
	}
	if !paused() {
		return 0, nil, nil
	}
	ctx, cancel := context.WithTimeout(life, pausesFor)
	defer cancel()
	release, err := m.pauses.Acquire(ctx, id, "end", nil)
	if err != nil {
		release = func() {}
	}
	return time.Millisecond, func() {
		defer release()
		if !paused() {
			return
		}
		if err := inst.Freeze(life); err != nil {
			m.cfg.Log.Warn("a paused cell goes on after the end of a process", "cell", id, "error", err)
		}
	}, inst.Thaw(life)
}
