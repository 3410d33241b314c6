package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
)

// restoring is a restore of a cell with the memory of a checkpoint. It implements result.Memory.
type restoring struct {
	e    *Engine
	c    *state.Cell
	k    *state.Checkpoint
	req  api.RestoreRequest
	back *spawn.Return
}

// memoryOf is what a restore brings back of a checkpoint's processes; nil for its files alone.
func (e *Engine) memoryOf(req api.RestoreRequest, c *state.Cell, k *state.Checkpoint) (result.Memory, error) {
	files := ""
	if k.Memory == nil || req.Files {
		files = c.Selector(k)
	}
	if err := spawn.CheckTerms(req.Certify, req.AtFork, files); err != nil || files != "" {
		return nil, err
	}
	return &restoring{e: e, c: c, k: k, req: req}, nil
}

// Load implements result.Memory.
func (r *restoring) Load(ctx context.Context) (err error) {
	r.back, err = r.e.spawn.Return(ctx, r.c, r.k, r.req.Certify, r.req.AtFork)
	return err
}

// Resume implements result.Memory.
func (r *restoring) Resume(ctx context.Context, res *api.RestoreResult) {
	res.Memory = api.MemoryRestored
	resumed, cert, err := r.back.GoOn(ctx, r.c)
	if err != nil {
		res.Memory = err.Error()
	}
	res.Resumed, res.Inherited, res.Renewed = resumed, cert.Inherited(), cert.Renewed()
	if t, err := r.e.tree(ctx, r.k); err == nil { // it was read before
		res.Notes = r.back.Apart(t)
	}
}

// Close implements result.Memory.
func (r *restoring) Close() {
	if r.back != nil {
		r.back.Forget()
	}
}
