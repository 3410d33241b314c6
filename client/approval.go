package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// Approvals lists what waits for a person, newest first; with all, what was
// decided, too.
func (c *Client) Approvals(ctx context.Context, all bool) (out []api.Approval, err error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	}
	return out, c.do(ctx, "GET", "/v1/approvals", q, nil, &out)
}

// Approve allows what an approval asks for.
func (c *Client) Approve(ctx context.Context, id string, req api.ApprovalRequest) (out api.Approval, err error) {
	return out, c.do(ctx, "POST", "/v1/approvals/"+segment(id)+"/approve", nil, req, &out)
}

// Deny refuses it.
func (c *Client) Deny(ctx context.Context, id string) (out api.Approval, err error) {
	return out, c.do(ctx, "POST", "/v1/approvals/"+segment(id)+"/deny", nil, nil, &out)
}
