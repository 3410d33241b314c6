package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/pando-dev/pando/api"
)

// Seen is the state that a caller expects of what it replaces (If-Match); the zero value expects
// nothing. If it has changed, the call fails with an error of kind stale.
type Seen struct {
	Digest string // of the file's bytes, or another ETag
	None   bool   // it must not exist
}

func (s Seen) head() http.Header {
	switch {
	case s.None:
		return http.Header{"If-None-Match": {"*"}}
	case s.Digest != "":
		return http.Header{"If-Match": {`"` + s.Digest + `"`}}
	}
	return nil
}

// Stat describes a file of a cell, without following a symlink; on request with its digest.
func (c *Client) Stat(ctx context.Context, sel, path string, digest bool) (out api.File, err error) {
	q := url.Values{"path": {path}}
	flag(q, "digest", digest)
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/stat", q, nil, &out)
}

// List lists a directory of a cell, down to depth levels; "" is the workspace.
func (c *Client) List(ctx context.Context, sel, path string, depth int) (out []api.File, err error) {
	q := url.Values{"path": {path}}
	number(q, "depth", int64(depth))
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/list", q, nil, &out)
}

// ReadFile reads one file of a cell.
func (c *Client) ReadFile(ctx context.Context, sel, path string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/cells/"+segment(sel)+"/file", url.Values{"path": {path}}, nil)
}

// WriteFile writes one file of a cell, and makes the directories above it.
func (c *Client) WriteFile(ctx context.Context, sel, path string, in io.Reader, seen Seen) (out api.File, err error) {
	body, err := c.ask(ctx, c.http.Do, seen.head(), "PUT", "/v1/cells/"+segment(sel)+"/file", url.Values{"path": {path}}, in, "application/octet-stream")
	if err != nil {
		return out, err
	}
	return out, readAnswer(body, &out)
}

// RemoveFile removes a file or directory of a cell with everything in it, and returns its
// description.
func (c *Client) RemoveFile(ctx context.Context, sel, path string, seen Seen) (out api.File, err error) {
	body, err := c.ask(ctx, c.direct.do, seen.head(), "DELETE", "/v1/cells/"+segment(sel)+"/file", url.Values{"path": {path}}, nil, "")
	if err != nil {
		return out, err
	}
	return out, readAnswer(body, &out)
}

func readAnswer(body io.ReadCloser, out any) error {
	defer body.Close()
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot read the daemon's answer: %v", err)}
	}
	io.Copy(io.Discard, body) // read to the end, so that the connection can be reused
	return nil
}

// MakeDirectory makes a directory in a cell, and those above it.
func (c *Client) MakeDirectory(ctx context.Context, sel, path string) (out api.File, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/mkdir", nil, api.FileRequest{Path: path}, &out)
}

// Rename moves a file of a cell to another path, and replaces a file there.
func (c *Client) Rename(ctx context.Context, sel, from, to string) (out api.File, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/rename", nil, api.FileRequest{Path: from, To: to}, &out)
}

// Ports lists the TCP ports on which processes of a cell listen.
func (c *Client) Ports(ctx context.Context, sel string) (out []api.Port, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/ports", nil, nil, &out)
}

// Execs lists the commands in a cell, outside any run, that can be attached to.
func (c *Client) Execs(ctx context.Context, sel string) (out []api.Exec, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/execs", nil, nil, &out)
}

// SignalExec sends a command in a cell a signal, such as SIGTERM.
func (c *Client) SignalExec(ctx context.Context, id, signal string) (out api.Exec, err error) {
	return out, c.do(ctx, "POST", "/v1/execs/"+segment(id)+"/signal", nil, api.SignalRequest{Signal: signal}, &out)
}

// Connect connects to a port of a cell's loopback. The connection is open until it is closed or
// ctx ends; CloseWrite ends its writing side.
func (c *Client) Connect(ctx context.Context, sel string, port int) (net.Conn, error) {
	ws, err := c.socket(ctx, "/v1/cells/"+segment(sel)+"/ports/"+strconv.Itoa(port)+"/connect", url.Values{})
	if err != nil {
		return nil, err
	}
	return &tunnel{ws: ws, ctx: ctx}, nil
}

// FetchFrom has the commits that were made in a cell taken and checked, and connects to git's upload-pack on them
// (gitprotocol-pack(5)). The connection is as that of Connect.
func (c *Client) FetchFrom(ctx context.Context, sel string) (net.Conn, error) {
	ws, err := c.socket(ctx, "/v1/cells/"+segment(sel)+"/git", url.Values{})
	if err != nil {
		return nil, err
	}
	return &tunnel{ws: ws, ctx: ctx}, nil
}

// SSHHost returns the key by which clients know the SSH servers in front of cells.
func (c *Client) SSHHost(ctx context.Context) (out api.SSHHost, err error) {
	return out, c.do(ctx, "GET", "/v1/ssh", nil, nil, &out)
}

// ConnectSSH connects to an SSH server in front of a cell, which asks for no key. The connection is as that of Connect.
func (c *Client) ConnectSSH(ctx context.Context, sel string) (net.Conn, error) {
	ws, err := c.socket(ctx, "/v1/cells/"+segment(sel)+"/ssh", url.Values{})
	if err != nil {
		return nil, err
	}
	return &tunnel{ws: ws, ctx: ctx}, nil
}

// tunnel is a connection over a WebSocket.
type tunnel struct {
	ws  *websocket.Conn
	ctx context.Context

	mu   sync.Mutex // guards the fields below; held while reading
	rest []byte
}

func (t *tunnel) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.rest) == 0 {
		_, b, err := t.ws.Read(t.ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return 0, io.EOF
		}
		if err != nil {
			return 0, unwrap(t.ctx, err)
		}
		t.rest = b
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

func (t *tunnel) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), 256<<10)]
		if err := t.ws.Write(t.ctx, websocket.MessageBinary, part); err != nil {
			return n, unwrap(t.ctx, err)
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// CloseWrite ends the writing side.
func (t *tunnel) CloseWrite() error { return t.ws.Write(t.ctx, websocket.MessageBinary, nil) }

func (t *tunnel) Close() error { return t.ws.CloseNow() }

func (t *tunnel) LocalAddr() net.Addr  { return tunnelAddr{} }
func (t *tunnel) RemoteAddr() net.Addr { return tunnelAddr{} }

// Deadlines are those of the context.
func (t *tunnel) SetDeadline(time.Time) error      { return nil }
func (t *tunnel) SetReadDeadline(time.Time) error  { return nil }
func (t *tunnel) SetWriteDeadline(time.Time) error { return nil }

type tunnelAddr struct{}

func (tunnelAddr) Network() string { return "pando" }
func (tunnelAddr) String() string  { return "a port of a cell" }
