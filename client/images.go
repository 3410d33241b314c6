package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// Images lists the OCI images that are unpacked on the daemon's host.
func (c *Client) Images(ctx context.Context) (out []api.Image, err error) {
	return out, c.do(ctx, "GET", "/v1/images", nil, nil, &out)
}

// PullImage fetches and unpacks an image, and passes its progress to on.
func (c *Client) PullImage(ctx context.Context, req api.ImagePullRequest, on Listener) (out api.Image, err error) {
	return out, c.stream(ctx, "POST", "/v1/images", req, on, &out)
}

// RemoveImage removes an image that no cell is made from; sel is a reference, or
// the beginning of an id or digest.
func (c *Client) RemoveImage(ctx context.Context, sel string, dryRun bool) (out api.Image, err error) {
	q := url.Values{"image": {sel}}
	flag(q, "dry_run", dryRun)
	return out, c.do(ctx, "DELETE", "/v1/images", q, nil, &out)
}
