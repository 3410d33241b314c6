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
	if err := proc.End(life, word, 0); err != nil {
		return st, err
	}
	st, err = Ask(life, inst, proc.Wait)
	if err != nil && life.Err() != nil {
		return st, ErrClosing
	}
	return st, err
}
