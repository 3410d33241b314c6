package client

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Hold puts a legal hold on a run (isRun) or a cell, or releases it.
func (c *Client) Hold(ctx context.Context, sel string, isRun bool, req api.HoldRequest) (out api.OnHold, err error) {
	of := "/v1/cells/"
	if isRun {
		of = "/v1/runs/"
	}
	return out, c.do(ctx, "POST", of+segment(sel)+"/hold", nil, req, &out)
}

// Holds lists the runs and cells on hold.
func (c *Client) Holds(ctx context.Context) (out []api.OnHold, err error) {
	return out, c.do(ctx, "GET", "/v1/holds", nil, nil, &out)
}

// Erase erases contents of a run's evidence for good.
func (c *Client) Erase(ctx context.Context, run string, req api.EraseRequest) (out api.Erasure, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(run)+"/erase", nil, req, &out)
}
