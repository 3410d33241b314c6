package client

import (
	"context"
	"iter"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// StartRace starts a race, which the daemon carries out. It goes on when the client is gone.
func (c *Client) StartRace(ctx context.Context, req api.RaceRequest) (out api.Race, err error) {
	return out, c.do(ctx, "POST", "/v1/races", nil, req, &out)
}

// Races lists races, newest first.
func (c *Client) Races(ctx context.Context) (out []api.Race, err error) {
	return out, c.do(ctx, "GET", "/v1/races", nil, nil, &out)
}

// Race shows a race, by its id or a prefix of that; with wait, when it has ended.
func (c *Client) Race(ctx context.Context, id string, wait bool) (out api.Race, err error) {
	q := url.Values{}
	flag(q, "wait", wait)
	return out, c.do(ctx, "GET", "/v1/races/"+segment(id), q, nil, &out)
}

// InterruptRace ends a race with its attempts, and returns it at its end.
func (c *Client) InterruptRace(ctx context.Context, id string) (out api.Race, err error) {
	return out, c.do(ctx, "POST", "/v1/races/"+segment(id)+"/interrupt", nil, nil, &out)
}

// FollowRace yields a race as it is, and again whenever that has changed, until it has ended.
func (c *Client) FollowRace(ctx context.Context, id string) iter.Seq2[api.Race, error] {
	return follow[api.Race](ctx, c, "/v1/races/"+segment(id)+"/events", nil)
}
