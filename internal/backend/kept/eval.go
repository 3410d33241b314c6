package kept

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Warm implements backend.Warmer.
func (i *Instance) Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error) {
	resp, err := i.Client.Stream(ctx, keeper.Request{Op: "warm", Cell: i.Cell, Warm: &w}, out)
	if err != nil {
		return cell.Warmth{}, err
	}
	return warmthOf(resp), nil
}

// Warmth implements backend.Warmer.
func (i *Instance) Warmth(ctx context.Context) (cell.Warmth, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "warmth"})
	if err != nil {
		return cell.Warmth{}, err
	}
	return warmthOf(resp), nil
}

// ForksLeft implements backend.Roomy.
func (i *Instance) ForksLeft(ctx context.Context, talk bool) (int64, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "room"})
	if err != nil {
		return 0, err
	}
	return keeper.ForksIn(int64(resp.Count), talk), nil
}

func warmthOf(resp *keeper.Response) cell.Warmth {
	if resp.Warmth == nil {
		return cell.Warmth{}
	}
	return *resp.Warmth
}

// Dismiss implements backend.Warmer.
func (i *Instance) Dismiss(ctx context.Context) error {
	_, err := i.do(ctx, keeper.Request{Op: "dismiss"})
	return err
}

// Eval implements backend.Warmer.
func (i *Instance) Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error) {
	resp, err := i.Client.Stream(ctx, keeper.Request{Op: "eval", Cell: i.Cell, Eval: &ev}, out)
	if err != nil {
		return cell.Evaluated{}, err
	}
	if resp.Evaluated == nil {
		return cell.Evaluated{}, cell.Errorf(cell.Internal, "kept.Eval", "", "cannot read the result of the evaluation")
	}
	return *resp.Evaluated, nil
}
