package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Eval evaluates code in a cell's interpreter, which is started if the cell
// never had one. Like a command beside a run it has no receipt: what it changed
// is in the next checkpoint, and its network requests are in the gateway's
// decisions.
func (e *Engine) Eval(ctx context.Context, id cell.ID, req api.EvalRequest, out func(api.StreamLine)) (res api.EvalResult, err error) {
	ctx, a := e.act(ctx, "eval", id)
	defer a.over(&err)
	return e.evaluation(ctx, id, req.Code, func() (api.EvalResult, error) { return e.alive.Eval(ctx, id, req, out) })
}

// MayEval: see live.Manager.
func (v *View) MayEval(id cell.ID, kind string) error {
	if err := v.Enter(id); err != nil {
		return err
	}
	return v.e.alive.MayEval(id, kind)
}

// Eval: see Engine.
func (v *View) Eval(ctx context.Context, id cell.ID, req api.EvalRequest, out func(api.StreamLine)) (api.EvalResult, error) {
	return entered(v, id, func() (api.EvalResult, error) { return v.e.Eval(ctx, id, req, out) })
}
