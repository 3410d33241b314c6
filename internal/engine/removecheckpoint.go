package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// RemoveCheckpoint drops a checkpoint of a cell. What forks of it need stays, and
// the record explains old receipts. The one that the workspace is at can't go.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id cell.ID, number int) error {
	const opName = "engine.RemoveCheckpoint"
	release, err := e.alive.Lock(ctx, id, "remove a checkpoint")
	if err != nil {
		return err
	}
	defer release()
	c, err := e.usable(id)
	if err != nil {
		return err
	}
	k, err := e.reg.Numbered(id, number)
	if err != nil {
		return err
	}
	if k.Gone {
		return cell.Errorf(cell.NotFound, opName, "", "checkpoint %s@%d was removed already", c.Title(), number)
	}
	if k.ID == c.Head { // its state is the cell's: only its name goes
		if k.Message == "" {
			return cell.Errorf(cell.Conflict, opName, "remove the cell", "cannot remove checkpoint %s@%d: the cell is at it", c.Title(), number)
		}
		k.Message = ""
		return e.reg.Commit(&k)
	}
	if e.reg.HasRun(&k) {
		return cell.Errorf(cell.Conflict, opName, "discard the run", "cannot remove checkpoint %s@%d: it belongs to run %s", c.Title(), number, k.Run)
	}
	k.Gone = true
	return e.reg.Commit(&k)
}

// NameCheckpoint gives a checkpoint another message.
func (e *Engine) NameCheckpoint(ctx context.Context, id cell.ID, number int, message string) (api.Checkpoint, error) {
	release, err := e.alive.Lock(ctx, id, "name a checkpoint")
	if err != nil {
		return api.Checkpoint{}, err
	}
	defer release()
	c, err := e.usable(id)
	if err != nil {
		return api.Checkpoint{}, err
	}
	k, err := e.reg.Numbered(id, number)
	if err != nil {
		return api.Checkpoint{}, err
	}
	k.Message = redactor.String(message)
	if err := e.reg.Commit(&k); err != nil {
		return api.Checkpoint{}, err
	}
	return e.checkpointView(&k, &c), nil
}
