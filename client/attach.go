package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"

	"github.com/coder/websocket"

	"github.com/pando-dev/pando/api"
)

// Attachment is the stream of a run or an exec.
type Attachment struct {
	ws *websocket.Conn

	mu sync.Mutex // guards writing
}

// AttachRun attaches to a run, whose output comes from an offset on, in bytes of
// each stream: what a client had before it lost its connection. With input this is the one client that the run
// waits for: it feeds standard input, and the run is interrupted when it goes.
func (c *Client) AttachRun(ctx context.Context, sel string, input bool, stdout, stderr int64) (*Attachment, error) {
	return c.attach(ctx, "/v1/runs/"+segment(sel)+"/attach", input, stdout, stderr)
}

// AttachExec attaches to an exec, as AttachRun does to a run.
func (c *Client) AttachExec(ctx context.Context, id string, input bool, stdout, stderr int64) (*Attachment, error) {
	return c.attach(ctx, "/v1/execs/"+segment(id)+"/attach", input, stdout, stderr)
}

func (c *Client) attach(ctx context.Context, path string, input bool, stdout, stderr int64) (*Attachment, error) {
	q := url.Values{}
	flag(q, "input", input)
	number(q, "stdout", stdout)
	number(q, "stderr", stderr)
	ws, err := c.socket(ctx, path, q)
	if err != nil {
		return nil, err
	}
	return &Attachment{ws: ws}, nil
}

// socket opens a WebSocket.
func (c *Client) socket(ctx context.Context, path string, q url.Values) (*websocket.Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if c.cfg.Dir != "" {
		q.Set("dir", c.cfg.Dir)
	}
	head := http.Header{}
	c.sign(head)
	c.trace(ctx, head)
	ws, resp, err := websocket.Dial(ctx, c.url("ws", path, q), &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: head, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, readError(resp.Status, resp.Body)
		}
		return nil, unwrap(ctx, err)
	}
	ws.SetReadLimit(api.MaxFrame + 64)
	return ws, nil
}

// Recv returns the next frame.
func (a *Attachment) Recv(ctx context.Context) (api.Frame, error) {
	_, b, err := a.ws.Read(ctx)
	if err != nil {
		return api.Frame{}, unwrap(ctx, err)
	}
	if len(b) == 0 {
		return api.Frame{}, &api.Error{Kind: "internal", Message: "the daemon sent an empty frame"}
	}
	return api.Frame{Type: api.FrameType(b[0]), Payload: b[1:]}, nil
}

// Send sends a frame.
func (a *Attachment) Send(ctx context.Context, f api.Frame) error {
	b := append(append(make([]byte, 0, 1+len(f.Payload)), byte(f.Type)), f.Payload...)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ws.Write(ctx, websocket.MessageBinary, b)
}

// Close hangs up.
func (a *Attachment) Close() { a.ws.CloseNow() }

// DecodeResult reads the payload of a result or error frame.
func DecodeResult[T any](f api.Frame) (v T, err error) {
	switch f.Type {
	case api.FrameError:
		var e api.Error
		if err := json.Unmarshal(f.Payload, &e); err != nil {
			return v, fmt.Errorf("cannot read an error of the daemon: %w", err)
		}
		return v, &e
	case api.FrameResult:
		return v, json.Unmarshal(f.Payload, &v)
	}
	return v, fmt.Errorf("frame %q is no result", f.Type)
}
