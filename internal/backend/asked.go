package backend

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
)

// WarmerOf is the part of an instance that keeps an interpreter.
func WarmerOf(inst Instance) (Warmer, error) {
	if w, ok := inst.(Warmer); ok {
		return w, nil
	}
	return nil, cell.Errorf(cell.Unsupported, "backend.WarmerOf", cell.Isolated, "cannot keep an interpreter: this backend has none")
}

// Dead reports whether an instance's keeper is gone.
func Dead(ctx context.Context, inst Instance) bool {
	return ctx.Err() == nil && !inst.Alive(ctx)
}

// NothingRuns reports whether an instance has no processes: it says so, or its
// keeper is gone. An error alone is not emptiness: a guest with busy processors
// answers late, and its processes go on.
func NothingRuns(ctx context.Context, inst Instance) bool {
	list, err := inst.List(ctx)
	if err == nil {
		return len(list) == 0
	}
	return cell.KindOf(err) == cell.NotFound || Dead(ctx, inst)
}
