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

// AttachOptions configure an attachment.
type AttachOptions struct {
	// Input allows standard input and signals. A run that was started with Attach waits for such
	// a client, and is interrupted when it disconnects, unless its command has a terminal.
	Input bool
	// Stdout and Stderr are the offsets in bytes from which to send output: what the client
	// received before it lost its connection.
	Stdout, Stderr int64
	// Screen begins with output that redraws the terminal's screen (api.FrameScreen), instead of
	// at Stdout.
	Screen bool
	// Rows and Cols are the size of the client's terminal, 0 without one. With Input it becomes
	// the size of the command's terminal; the latest client wins. With a size, output that is no
	// longer kept is replaced by the screen, too.
	Rows, Cols uint16
	// Name identifies the client across its connections; "" for none. With a name,
	// api.FrameTaken counts the input of this client.
	Name string
}

// AttachRun attaches to a run.
func (c *Client) AttachRun(ctx context.Context, sel string, o AttachOptions) (*Attachment, error) {
	return c.attach(ctx, "/v1/runs/"+segment(sel)+"/attach", o)
}

// AttachExec attaches to an exec, as AttachRun does to a run.
func (c *Client) AttachExec(ctx context.Context, id string, o AttachOptions) (*Attachment, error) {
	return c.attach(ctx, "/v1/execs/"+segment(id)+"/attach", o)
}

func (c *Client) attach(ctx context.Context, path string, o AttachOptions) (*Attachment, error) {
	q := url.Values{}
	flag(q, "input", o.Input)
	number(q, "stdout", o.Stdout)
	number(q, "stderr", o.Stderr)
	flag(q, "screen", o.Screen)
	number(q, "rows", int64(o.Rows))
	number(q, "cols", int64(o.Cols))
	if o.Name != "" {
		q.Set("client", o.Name)
	}
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
	ws, resp, err := c.upgrade(ctx, c.url("ws", path, q), head)
	for tries := 1; err != nil && hungUp(err) && tries < hangUps && ctx.Err() == nil; tries++ { // a daemon that is just ending
		ws, resp, err = c.upgrade(ctx, c.url("ws", path, q), head)
	}
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, readError(resp.Status, resp.Body)
		}
		return nil, unwrap(ctx, err)
	}
	ws.SetReadLimit(api.MaxFrame + 64)
	return ws, nil
}

func (c *Client) upgrade(ctx context.Context, url string, head http.Header) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: head, CompressionMode: websocket.CompressionDisabled})
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
