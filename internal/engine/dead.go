package engine

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// causeKeeperLost is why a cell whose keeper died has no processes.
const causeKeeperLost = "its processes ended with their keeper"

// dead reports whether an instance's keeper is gone.
func dead(ctx context.Context, inst backend.Instance) bool {
	return ctx.Err() == nil && !inst.Alive(ctx)
}

// nothingRuns reports whether an instance has no processes: it says so, or its
// keeper is gone. An error alone is not emptiness: a guest whose processors are
// busy answers late, and its processes go on.
func nothingRuns(ctx context.Context, inst backend.Instance) bool {
	list, err := inst.List(ctx)
	if err == nil {
		return len(list) == 0
	}
	return cell.KindOf(err) == cell.NotFound || dead(ctx, inst)
}

// dyingFor is how long it may take until a keeper that answers no more is gone: its
// process ends one file after the other.
const dyingFor = time.Second

// deadSoon is dead, for a keeper that has just not answered.
func deadSoon(ctx context.Context, inst backend.Instance) bool {
	for end := time.Now().Add(dyingFor); !dead(ctx, inst); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
	return true
}

// askAgain is the pause before a question that was not answered is put again.
const askAgain = 50 * time.Millisecond

// hear puts a question to a cell's keeper until it is answered, the keeper is gone, or ctx
// ends. A connection that could not be made, or broke, says nothing about the cell.
func hear[T any](ctx context.Context, inst backend.Instance, ask func(context.Context) (T, error)) (out T, err error) {
	for {
		if out, err = ask(ctx); !cell.Unanswered(err) || deadSoon(ctx, inst) {
			return out, err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return out, err
		}
	}
}

// living returns a cell's instance, nil when it is at rest. One whose keeper
// died is taken away, and c, which is changed and committed, says so. The
// caller holds the cell's lock.
func (e *Engine) living(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	inst := e.instance(c.ID)
	if inst == nil && e.isUnreached(c.ID) {
		return e.reach(ctx, c)
	}
	if inst == nil || !dead(ctx, inst) {
		return inst, nil
	}
	e.endInterp(c.ID, causeKeeperLost)
	if err := e.deactivate(ctx, c.ID, "keeper lost"); err != nil {
		return nil, err
	}
	if c.State != cell.Running && c.State != cell.Paused {
		return nil, nil // it is being made, or fails
	}
	if err := c.To(cell.Idle); err != nil {
		return nil, err
	}
	c.Cause = causeKeeperLost
	return nil, e.reg.Commit(c)
}

// bury takes an instance away whose keeper died, for whoever does not hold the
// cell's lock.
func (e *Engine) bury(ctx context.Context, id cell.ID) error {
	release, err := e.locks.Acquire(ctx, id, "clean up", nil)
	if err != nil {
		return err
	}
	defer release()
	c, err := e.reg.Cell(id)
	if err != nil {
		return err
	}
	_, err = e.living(ctx, &c)
	return err
}
