package client

import (
	"context"
	"io"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// Daemon describes the daemon that answers.
func (c *Client) Daemon(ctx context.Context) (out api.Daemon, err error) {
	return out, c.do(ctx, "GET", "/v1/daemon", nil, nil, &out)
}

// StopDaemon ends the daemon; cells survive.
func (c *Client) StopDaemon(ctx context.Context) (out api.Daemon, err error) {
	return out, c.do(ctx, "POST", "/v1/daemon/stop", nil, nil, &out)
}

// DrainDaemon makes the daemon refuse new work, or with undo accept it again.
func (c *Client) DrainDaemon(ctx context.Context, undo bool) (out api.Daemon, err error) {
	return out, c.do(ctx, "POST", "/v1/daemon/drain", nil, api.DrainRequest{Undo: undo}, &out)
}

// Metrics returns metrics in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	body, err := c.raw(ctx, "GET", "/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// Doctor checks the daemon's host.
func (c *Client) Doctor(ctx context.Context) (out api.Diagnosis, err error) {
	return out, c.do(ctx, "GET", "/v1/doctor", nil, nil, &out)
}

// Disk returns pando's disk usage, its budget, and what is removed next; with objects, each
// object with the command that frees it.
func (c *Client) Disk(ctx context.Context, objects bool) (out api.Disk, err error) {
	q := url.Values{}
	flag(q, "objects", objects)
	return out, c.do(ctx, "GET", "/v1/disk", q, nil, &out)
}

// GC frees unneeded disk space.
func (c *Client) GC(ctx context.Context, req api.GCRequest) (out api.GCResult, err error) {
	return out, c.do(ctx, "POST", "/v1/gc", nil, req, &out)
}

// Receipts lists receipts, newest first; limit 0 means all.
func (c *Client) Receipts(ctx context.Context, limit int) (out []api.Receipt, err error) {
	q := url.Values{}
	number(q, "limit", int64(limit))
	return out, c.do(ctx, "GET", "/v1/receipts", q, nil, &out)
}

// Receipt shows a receipt: by digest, or that of a run.
func (c *Client) Receipt(ctx context.Context, sel string) (out api.Receipt, err error) {
	return out, c.do(ctx, "GET", "/v1/receipts/"+segment(sel), nil, nil, &out)
}

// ExportReceipts exports receipts with the proofs that verify them; "all" for all.
func (c *Client) ExportReceipts(ctx context.Context, sel string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/receipts/"+segment(sel)+"/bundle", nil, nil)
}

// Bundle exports receipts of runs and cells with what leads to them and the files that they name; "all" for all.
func (c *Client) Bundle(ctx context.Context, of []string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/bundle", url.Values{"of": of}, nil)
}

// BundleFrom exports all receipts with indexes from up to, but not including, to.
func (c *Client) BundleFrom(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	q := url.Values{}
	number(q, "first", from)
	number(q, "end", to)
	return c.raw(ctx, "GET", "/v1/bundle", q, nil)
}

// Ledger shows the newest signed head of the ledger, and that it goes on from the one of size since, if that is not 0.
func (c *Client) Ledger(ctx context.Context, since int64) (out api.Ledger, err error) {
	q := url.Values{}
	number(q, "since", since)
	return out, c.do(ctx, "GET", "/v1/ledger", q, nil, &out)
}

// ChangeKey has another key sign receipts from now on, or revokes one.
func (c *Client) ChangeKey(ctx context.Context, req api.KeyChangeRequest) (out api.Ledger, err error) {
	return out, c.do(ctx, "POST", "/v1/ledger/keys", nil, req, &out)
}

// VerifyReceipts verifies receipts and the files they name; "all" for all.
func (c *Client) VerifyReceipts(ctx context.Context, sel string) (out api.Verification, err error) {
	return out, c.do(ctx, "POST", "/v1/receipts/"+segment(sel)+"/verify", nil, nil, &out)
}

// PublicKey gives the installation's public key, PEM.
func (c *Client) PublicKey(ctx context.Context) ([]byte, error) {
	body, err := c.raw(ctx, "GET", "/v1/key", nil, nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, 1<<20))
}
