package client

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Tokens lists the tokens by which callers from elsewhere are recognised.
func (c *Client) Tokens(ctx context.Context) (out []api.Token, err error) {
	return out, c.do(ctx, "GET", "/v1/tokens", nil, nil, &out)
}

// CreateToken makes a token. The answer alone has its secret.
func (c *Client) CreateToken(ctx context.Context, req api.TokenRequest) (out api.Token, err error) {
	return out, c.do(ctx, "POST", "/v1/tokens", nil, req, &out)
}

// RemoveToken makes a token worthless, at once, and ends what was begun with it.
func (c *Client) RemoveToken(ctx context.Context, name string) (out api.Token, err error) {
	return out, c.do(ctx, "DELETE", "/v1/tokens/"+segment(name), nil, nil, &out)
}
