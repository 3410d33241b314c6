package client

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Tokens lists the tokens of callers over the network.
func (c *Client) Tokens(ctx context.Context) (out []api.Token, err error) {
	return out, c.do(ctx, "GET", "/v1/tokens", nil, nil, &out)
}

// CreateToken makes a token. Only its answer has the secret.
func (c *Client) CreateToken(ctx context.Context, req api.TokenRequest) (out api.Token, err error) {
	return out, c.do(ctx, "POST", "/v1/tokens", nil, req, &out)
}

// RemoveToken revokes a token at once, and ends the requests begun with it.
func (c *Client) RemoveToken(ctx context.Context, name string) (out api.Token, err error) {
	return out, c.do(ctx, "DELETE", "/v1/tokens/"+segment(name), nil, nil, &out)
}
