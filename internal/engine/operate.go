package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/spawn"
)

// The kinds of operations in the journal.
const (
	opRemove = "remove"
	opReplay = "replay"
)

// operate does something that a restarted daemon must finish. do is
// idempotent and can be found again by kind and args (see resume).
func (e *Engine) operate(ctx context.Context, kind string, args any, do func(context.Context) error) error {
	id := operation.NewID()
	carryOut := func() error { return operation.Do(ctx, e.reg, id, kind, args, do) }
	if kind == opRemove {
		return e.gc.Freeing(carryOut)
	}
	return carryOut()
}

// resume finishes an operation that an earlier daemon began.
func (e *Engine) resume(ctx context.Context, rec operation.Redo) error {
	switch rec.Kind {
	case result.OpAccept, result.OpDiscard, result.OpRevert, result.OpSync, result.OpFetch:
		return e.results.Resume(ctx, rec)
	case opRemove:
		return operation.DoAgain(ctx, e.reg, rec, e.resumeRemove)
	case opReplay:
		return operation.DoAgain(ctx, e.reg, rec, e.resumeReplay)
	case spawn.OpBranch:
		return e.spawn.Resume(ctx, rec)
	case run.OpApply:
		return e.runs.Resume(ctx, rec)
	}
	return e.evidence.Resume(ctx, rec)
}
