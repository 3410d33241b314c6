package client

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Warm implements backend.Warmer.
func (i *Instance) Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error) {
	resp, err := i.Client.Stream(ctx, proto.Request{Op: "warm", Cell: i.Cell, Warm: &w}, out)
	if err != nil {
		return cell.Warmth{}, err
	}
	return warmthOf(resp), nil
}

// Warmth implements backend.Warmer.
func (i *Instance) Warmth(ctx context.Context) (cell.Warmth, error) {
	resp, err := i.do(ctx, proto.Request{Op: "warmth"})
	if err != nil {
		return cell.Warmth{}, err
	}
	return warmthOf(resp), nil
}

// ForksLeft implements backend.Roomy.
func (i *Instance) ForksLeft(ctx context.Context, talk bool) (int64, error) {
	resp, err := i.do(ctx, proto.Request{Op: "room", Talk: talk})
	if err != nil {
		return 0, err
	}
	return int64(resp.Count), nil
}

func warmthOf(resp *proto.Response) cell.Warmth {
	if resp.Warmth == nil {
		return cell.Warmth{}
	}
	return *resp.Warmth
}

// Dismiss implements backend.Warmer.
func (i *Instance) Dismiss(ctx context.Context) error {
	_, err := i.do(ctx, proto.Request{Op: "dismiss"})
	return err
}

// Eval implements backend.Warmer.
func (i *Instance) Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error) {
	resp, err := i.Client.Stream(ctx, proto.Request{Op: "eval", Cell: i.Cell, Eval: &ev}, out)
	if err != nil {
		return cell.Evaluated{}, err
	}
	if resp.Evaluated == nil {
		return cell.Evaluated{}, cell.Errorf(cell.Internal, "keeper.Eval", "", "cannot read the result of the evaluation")
	}
	return *resp.Evaluated, nil
}
