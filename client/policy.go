package client

import (
	"context"
	"io"

	"github.com/pando-dev/pando/api"
)

// CheckPolicy checks a policy file and returns remarks about it.
func (c *Client) CheckPolicy(ctx context.Context, req api.PolicyCheckRequest) (out api.PolicyCheck, err error) {
	return out, c.do(ctx, "POST", "/v1/policies/check", nil, req, &out)
}

// ShowPolicy returns an effective policy, line by line.
func (c *Client) ShowPolicy(ctx context.Context, req api.PolicyRequest) (out api.Policy, err error) {
	return out, c.do(ctx, "POST", "/v1/policies/show", nil, req, &out)
}

// WhyPolicy returns a policy's decision on a request.
func (c *Client) WhyPolicy(ctx context.Context, req api.PolicyRequest) (out api.PolicyAnswer, err error) {
	return out, c.do(ctx, "POST", "/v1/policies/why", nil, req, &out)
}

// DiffPolicies lists the differences between two policies.
func (c *Client) DiffPolicies(ctx context.Context, req api.PolicyDiffRequest) (out api.PolicyDiff, err error) {
	return out, c.do(ctx, "POST", "/v1/policies/diff", nil, req, &out)
}

// ReplayPolicy repeats the decisions of a run with another policy.
func (c *Client) ReplayPolicy(ctx context.Context, run string, req api.PolicyReplayRequest) (out api.PolicyReplay, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(run)+"/policy/replay", nil, req, &out)
}

// AllowPolicy allows a project's policy file, or withdraws that.
func (c *Client) AllowPolicy(ctx context.Context, req api.PolicyAllowRequest) (out api.PolicyAllowed, err error) {
	return out, c.do(ctx, "POST", "/v1/policies/allow", nil, req, &out)
}

// AllowedPolicies lists the allowed policy files of projects.
func (c *Client) AllowedPolicies(ctx context.Context) (out []api.PolicyAllowed, err error) {
	return out, c.do(ctx, "GET", "/v1/policies/allowed", nil, nil, &out)
}

// PolicySchema is the JSON Schema of policy files.
func (c *Client) PolicySchema(ctx context.Context) ([]byte, error) {
	body, err := c.raw(ctx, "GET", "/v1/policies/schema", nil, nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, 1<<20))
}
