package client

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Warm implements backend.Warmer.
func (i *Instance) Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error) {
	a, _, err := ask(ctx, i.Client, proto.Warm, proto.Warming{Cell: i.Cell, Warm: w}, out)
	return a, err
}

// Warmth implements backend.Warmer.
func (i *Instance) Warmth(ctx context.Context) (cell.Warmth, error) {
	return Ask(ctx, i.Client, proto.Warmth, i.of())
}

// ForksLeft implements backend.Warmer.
func (i *Instance) ForksLeft(ctx context.Context, talk bool) (int64, error) {
	n, err := Ask(ctx, i.Client, proto.Room, proto.Forks{Talk: talk})
	return int64(n.Count), err
}

// Dismiss implements backend.Warmer.
func (i *Instance) Dismiss(ctx context.Context) error {
	_, err := Ask(ctx, i.Client, proto.Dismiss, i.of())
	return err
}

// Eval implements backend.Warmer.
func (i *Instance) Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error) {
	a, _, err := ask(ctx, i.Client, proto.Eval, proto.Evaluation{Cell: i.Cell, Eval: ev}, out)
	return a, err
}
