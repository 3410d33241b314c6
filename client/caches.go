package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// Caches lists the caches that are kept for sources; source: for this one alone, unless it is empty.
func (c *Client) Caches(ctx context.Context, source string) (out []api.Cache, err error) {
	q := url.Values{}
	if source != "" {
		q.Set("source", source)
	}
	return out, c.do(ctx, "GET", "/v1/caches", q, nil, &out)
}

// CheckCache compares the files of a cache that are named by what they hold with their names.
func (c *Client) CheckCache(ctx context.Context, id string) (out api.CacheCheck, err error) {
	return out, c.do(ctx, "GET", "/v1/caches/"+url.PathEscape(id)+"/check", nil, nil, &out)
}

// RemoveCache removes a cache.
func (c *Client) RemoveCache(ctx context.Context, id string) (out api.Cache, err error) {
	return out, c.do(ctx, "DELETE", "/v1/caches/"+url.PathEscape(id), nil, nil, &out)
}
