package client

import (
	"context"
	"encoding/json"

	"github.com/pando-dev/pando/api"
)

// SignOffs shows what approvers have to sign before a run (isRun) or the state of a cell is accepted, and what they signed.
func (c *Client) SignOffs(ctx context.Context, sel string, isRun bool) (out api.SignOffs, err error) {
	return out, c.do(ctx, "GET", signOffsOf(sel, isRun), nil, nil, &out)
}

// SignOff gives a sign-off: a statement that an approver has signed.
func (c *Client) SignOff(ctx context.Context, sel string, isRun bool, envelope []byte) (out api.SignOffs, err error) {
	return out, c.do(ctx, "POST", signOffsOf(sel, isRun), nil, api.SignOffRequest{Envelope: json.RawMessage(envelope)}, &out)
}

func signOffsOf(sel string, isRun bool) string {
	if isRun {
		return "/v1/runs/" + segment(sel) + "/sign-offs"
	}
	return "/v1/cells/" + segment(sel) + "/sign-offs"
}
