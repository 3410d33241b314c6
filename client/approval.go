package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// Approvals lists pending approvals, newest first; with all, also decided ones.
func (c *Client) Approvals(ctx context.Context, all bool) (out []api.Approval, err error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	}
	return out, c.do(ctx, "GET", "/v1/approvals", q, nil, &out)
}

// Approve allows the request of an approval.
func (c *Client) Approve(ctx context.Context, id string, req api.ApprovalRequest) (out api.Approval, err error) {
	return out, c.do(ctx, "POST", "/v1/approvals/"+segment(id)+"/approve", nil, req, &out)
}

// Deny denies the request of an approval.
func (c *Client) Deny(ctx context.Context, id string) (out api.Approval, err error) {
	return out, c.do(ctx, "POST", "/v1/approvals/"+segment(id)+"/deny", nil, nil, &out)
}
