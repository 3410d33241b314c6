package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// unaffordable is why a cell's present files can't become a checkpoint.
type unaffordable struct{ claims, limit int64 }

func (u *unaffordable) Error() string {
	return fmt.Sprintf("its new files claim %s, and its disk limit is %s", policy.FormatSize(u.claims), policy.FormatSize(u.limit))
}

// affordable refuses a cell whose files claim more than twice its disk limit:
// holes cost a cell nothing and us, who digest them, a lifetime. Twice, because
// a limit that is only accounted for may be overrun by the last thing written.
func affordable(ctx context.Context, p workspace.Provider, c *state.Cell) error {
	limit := c.Limits().Disk
	if limit <= 0 {
		return nil
	}
	n, err := p.Claims(ctx, *c.Gen)
	if err != nil || n/2 <= limit {
		return err
	}
	return cell.Errorf(cell.Conflict, "engine.settle", "remove the file, or allow more with --disk", "cannot keep the files of cell %s: %w",
		c.Title(), &unaffordable{n, limit})
}

// letGo ends a run whose result can't be kept: the cell is where it was before.
func (x *execution) letGo(ctx context.Context, err error) (state.Checkpoint, error) {
	why, ok := errors.AsType[*unaffordable](err)
	if !ok {
		return x.before, fmt.Errorf("cannot keep the result: %w", err)
	}
	if err := x.e.alive.Deactivate(ctx, x.c.ID, why.Error()); err != nil {
		return x.before, err
	}
	layer := x.c.Gen.Layer
	x.c.Head, x.c.Gen = x.before.ID, nil
	x.run.Cause, x.run.In.LetGo = api.CauseDiskLimit, why.Error()
	if err := x.e.reg.Commit(&x.c, x.run); err != nil {
		return x.before, err
	}
	x.e.background(func(context.Context) { x.e.gc.DropLayer(x.c.Provider, layer) })
	return x.before, nil
}
