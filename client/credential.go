package client

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Credentials lists the credentials, with the cells that have them.
func (c *Client) Credentials(ctx context.Context) (out []api.Credential, err error) {
	return out, c.do(ctx, "GET", "/v1/credentials", nil, nil, &out)
}

// AddCredential stores a credential.
func (c *Client) AddCredential(ctx context.Context, req api.CredentialRequest) (out api.Credential, err error) {
	return out, c.do(ctx, "POST", "/v1/credentials", nil, req, &out)
}

// RemoveCredential deletes a credential, and takes it back from all cells.
func (c *Client) RemoveCredential(ctx context.Context, name string) (out api.RevokeResult, err error) {
	return out, c.do(ctx, "DELETE", "/v1/credentials/"+segment(name), nil, nil, &out)
}

// RevokeCredential takes a credential back from cells, at once.
func (c *Client) RevokeCredential(ctx context.Context, name string, req api.RevokeRequest) (out api.RevokeResult, err error) {
	return out, c.do(ctx, "POST", "/v1/credentials/"+segment(name)+"/revoke", nil, req, &out)
}

// CheckCredential checks whether a credential can be used.
func (c *Client) CheckCredential(ctx context.Context, name string) (out api.CredentialCheck, err error) {
	return out, c.do(ctx, "POST", "/v1/credentials/"+segment(name)+"/check", nil, nil, &out)
}
