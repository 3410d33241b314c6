package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// RemoveCheckpoint drops a checkpoint of a cell.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id cell.ID, number int) error {
	return e.alive.Within(ctx, id, "remove a checkpoint", func(cell.RunID) error {
		c, err := e.alive.Usable(id)
		if err != nil {
			return err
		}
		return e.gc.RemoveCheckpoint(&c, number)
	})
}

// NameCheckpoint gives a checkpoint another message.
func (e *Engine) NameCheckpoint(ctx context.Context, id cell.ID, number int, message string) (out api.Checkpoint, err error) {
	err = e.alive.Within(ctx, id, "name a checkpoint", func(cell.RunID) error {
		c, err := e.alive.Usable(id)
		if err != nil {
			return err
		}
		k, err := e.reg.Numbered(id, number)
		if err != nil {
			return err
		}
		k.Message = redactor.String(message)
		if err := e.reg.Commit(&k); err != nil {
			return err
		}
		out = e.checkpointView(&k, &c)
		return nil
	})
	return out, err
}

// Checkpoint makes the present state of a cell a checkpoint, with a message. While the command of a run goes
// on, memory is not kept: the command is the run's.
func (e *Engine) Checkpoint(ctx context.Context, id cell.ID, req api.CheckpointRequest) (out api.Checkpoint, err error) {
	ctx, a := e.act(ctx, "checkpoint", id)
	defer a.over(&err)
	err = e.alive.Within(ctx, id, "checkpoint", func(run cell.RunID) (err error) {
		out, err = e.checkpointNow(ctx, id, req, run)
		return err
	})
	return out, err
}

// checkpointNow is Checkpoint for a caller with the cell's lock: a run, or "".
func (e *Engine) checkpointNow(ctx context.Context, id cell.ID, req api.CheckpointRequest, within cell.RunID) (api.Checkpoint, error) {
	defer e.pins.Begin().End()
	c, err := e.alive.Usable(id)
	if err != nil {
		return api.Checkpoint{}, err
	}
	req.Message = redactor.String(req.Message)
	if e.reg.Built(id) && image.RootOf(c.Setup.Mounts) != "/" { // its forks stand on that
		if err := e.keepRoot(id); err != nil {
			return api.Checkpoint{}, err
		}
	}
	k, err := e.settleAll(ctx, &c, state.Checkpoint{Kind: state.KindManual, Message: req.Message}, within, within == "", true)
	if err != nil {
		return api.Checkpoint{}, err
	}
	kept := k // the last one, if nothing has changed since: it is kept, with this message
	kept.Expires = time.Time{}
	if kept.Kind == state.KindLooked || kept.Kind == state.KindStep {
		kept.Kind, kept.Message = state.KindManual, ""
	}
	kept.Message = cmp.Or(req.Message, kept.Message)
	if kept.Kind != k.Kind || kept.Message != k.Message || !k.Expires.IsZero() {
		k = kept
		if err := e.reg.Commit(&k); err != nil {
			return api.Checkpoint{}, err
		}
	}
	return e.checkpointView(&k, &c), nil
}
