package engine

import (
	"context"
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// restoring is a restore of a cell with the memory of a checkpoint. It implements result.Memory.
type restoring struct {
	e    *Engine
	c    *state.Cell
	k    *state.Checkpoint
	want terms
	at   *instant
}

// memoryOf is what a restore brings back of a checkpoint's processes; nil for its files alone.
func (e *Engine) memoryOf(req api.RestoreRequest, c *state.Cell, k *state.Checkpoint) (result.Memory, error) {
	want, err := termsOf(req.Certify, req.AtFork)
	if err != nil {
		return nil, err
	}
	if k.Memory == nil || req.Files {
		return nil, want.filesAlone(c.Selector(k))
	}
	return &restoring{e: e, c: c, k: k, want: want}, nil
}

// Load implements result.Memory.
func (r *restoring) Load(ctx context.Context) error {
	const opName, refused = "engine.Restore", "cannot restore %s with its memory, and nothing was changed: %w"
	p, err := r.e.providerOf(r.c.Provider)
	if err != nil {
		return err
	}
	name := r.c.Selector(r.k)
	if r.at, err = r.e.instantAt(ctx, p, r.k); err != nil {
		return cell.Errorf(cell.KindOf(err), opName, fmt.Sprintf("restore its files alone: pando restore %s --files", name), refused, name, err)
	}
	if r.want.strict {
		if err := r.e.tryAt(ctx, r.at, r.c, r.k, r.want); err != nil {
			return cell.Errorf(cell.KindOf(err), opName, cell.HintOf(err), refused, name, err)
		}
	}
	return nil
}

// Resume implements result.Memory.
func (r *restoring) Resume(ctx context.Context, res *api.RestoreResult) {
	res.Memory = api.MemoryRestored
	resumed, cert, err := r.e.goOnAt(ctx, r.at, r.c, r.k, r.want)
	if err != nil {
		res.Memory = err.Error()
	}
	res.Resumed, res.Inherited, res.Renewed = resumed, cert.Inherited(), cert.Renewed()
	if t, err := r.e.tree(ctx, r.k); err == nil { // it was read before
		res.Notes = r.e.unjoined(r.at.provider, t, "the cell")
	}
}

// Close implements result.Memory.
func (r *restoring) Close() {
	if r.at != nil {
		r.at.forget()
	}
}
