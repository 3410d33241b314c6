package client

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Eval evaluates code in a cell's interpreter, which keeps its state between evaluations. It
// passes the output of the code to on. An exception of the code is in the result and not an
// error of the call. When ctx ends, the evaluation is interrupted, and the interpreter can be
// used again.
func (c *Client) Eval(ctx context.Context, sel string, req api.EvalRequest, on Listener) (out api.EvalResult, err error) {
	return out, c.stream(ctx, "POST", "/v1/cells/"+segment(sel)+"/eval", req, on, &out)
}

// Branch forks a running cell with its interpreter: variables, modules and files of one instant.
// The cell continues.
func (c *Client) Branch(ctx context.Context, sel string, req api.BranchRequest) (out api.BranchResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/branch", nil, req, &out)
}
