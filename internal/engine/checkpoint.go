package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// RemoveCheckpoint drops a checkpoint of a cell.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id cell.ID, number int) error {
	release, err := e.alive.Lock(ctx, id, "remove a checkpoint")
	if err != nil {
		return err
	}
	defer release()
	c, err := e.alive.Usable(id)
	if err != nil {
		return err
	}
	return e.gc.RemoveCheckpoint(&c, number)
}

// NameCheckpoint gives a checkpoint another message.
func (e *Engine) NameCheckpoint(ctx context.Context, id cell.ID, number int, message string) (api.Checkpoint, error) {
	release, err := e.alive.Lock(ctx, id, "name a checkpoint")
	if err != nil {
		return api.Checkpoint{}, err
	}
	defer release()
	c, err := e.alive.Usable(id)
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
