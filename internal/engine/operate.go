package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/op"
)

// The kinds of operations in the journal.
const (
	opAccept = "accept"
	opRemove = "remove"
	opRevert = "revert"
	opBranch = "branch"
)

// operate does something that a restarted daemon must finish. do is
// idempotent and can be found again by kind and args (see resume).
func (e *Engine) operate(ctx context.Context, kind string, args any, do func(context.Context) error) error {
	id := op.NewID()
	carryOut := func() error { return op.RunOne(ctx, e.reg, id, kind, args, do) }
	if kind == opRemove {
		return e.gc.Freeing(carryOut)
	}
	return carryOut()
}

// resume finishes an operation that an earlier daemon began.
func (e *Engine) resume(ctx context.Context, rec op.Record) error {
	switch rec.Kind {
	case opAccept:
		return op.ResumeOne(ctx, e.reg, rec, e.resumeAccept)
	case opRevert:
		return op.ResumeOne(ctx, e.reg, rec, e.resumeRevert)
	case opRemove:
		return op.ResumeOne(ctx, e.reg, rec, e.resumeRemove)
	case opBranch:
		return op.ResumeOne(ctx, e.reg, rec, e.resumeBranch)
	}
	return e.evidence.Resume(ctx, rec)
}
