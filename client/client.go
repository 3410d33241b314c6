// Package client is the Go SDK of pando's HTTP API. The command line uses nothing else, so any
// program can do what it does.
//
// A Client talks to the daemon of this user on its unix socket, or to one on another host
// (Config.Host). It starts a daemon when none answers (see Config.Start).
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/pando-dev/pando/api"
)

// Config says how to reach the daemon.
type Config struct {
	Socket string // path of its unix socket
	// Host is the address of a daemon that is reached by TCP, "" for Socket: http://HOST:PORT
	// (this host alone) or https://HOST:PORT, with
	// #sha256=FINGERPRINT for a self-signed certificate.
	Host string
	// Token identifies the caller: pando_…. Socket needs none; a token sent there restricts the
	// caller to its rights.
	Token string
	// Start starts a daemon and returns when it is expected to answer soon; with nil, requests
	// fail when no daemon answers.
	Start func(ctx context.Context) error
	// Trace is the W3C traceparent of the trace for requests without one in their context; ""
	// for none.
	Trace string
	// Door names, on Socket, the kind of callers that the client asks for, so that the
	// operator's ceilings for them apply: "mcp"; "" for none.
	Door string
	// Dir is the directory that empty selectors are resolved from.
	Dir string
}

// Client calls the API. It is safe for concurrent use.
type Client struct {
	cfg    Config
	direct direct
	remote *remote      // nil for the socket
	http   *http.Client // for streamed bodies, and for upgraded connections

	answered atomic.Int64 // when the daemon last answered, in nanoseconds
}

// New returns a client. It contacts nothing yet.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg}
	if cfg.Host != "" {
		c.remote = parseHost(cfg.Host)
		c.cfg.Start = nil
	}
	c.direct.dial, c.direct.local = c.dial, c.remote == nil
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		// One caller and one socket: idle connections are kept only briefly.
		MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute, DisableCompression: true,
	}}
	return c
}

// dialTries is how often dial starts a daemon: a daemon that answers Start may end before it
// accepts a connection.
const dialTries = 3

// dial connects to the socket, starting a daemon when there is none.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	for try := 0; ; try++ {
		conn, err := c.connect(ctx)
		if err == nil || c.cfg.Start == nil || ctx.Err() != nil || try == dialTries {
			return conn, err
		}
		if serr := c.cfg.Start(ctx); serr != nil {
			return nil, serr
		}
	}
}

func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	if c.remote != nil {
		return c.remote.connect(ctx)
	}
	dir, err := os.Open(filepath.Dir(c.cfg.Socket))
	if err != nil {
		return nil, &api.Error{Kind: "unavailable", Message: "cannot reach the daemon: " + err.Error()}
	}
	defer dir.Close()
	var d net.Dialer
	// By descriptor: the path may be longer than a socket address can be.
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(c.cfg.Socket)))
	if err != nil {
		return nil, &api.Error{Kind: "unavailable", Message: "cannot reach the daemon at " + c.cfg.Socket}
	}
	return conn, nil
}

// Alive reports whether a daemon answers, without starting one.
func (c *Client) Alive(ctx context.Context) bool {
	conn, err := c.connect(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// do sends a request and decodes its JSON answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, method, path string, q url.Values, in, out any) error {
	body, err := c.raw(ctx, method, path, q, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, body)
		return err
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot read the daemon's answer to %s %s: %v", method, path, err)}
	}
	io.Copy(io.Discard, body) // read to the end, so that the connection can be reused
	return nil
}

// raw sends a request and returns the body of its answer.
func (c *Client) raw(ctx context.Context, method, path string, q url.Values, in any) (io.ReadCloser, error) {
	return c.accept(ctx, "", method, path, q, in)
}

// accept is raw with a media type for the answer.
func (c *Client) accept(ctx context.Context, media, method, path string, q url.Values, in any) (io.ReadCloser, error) {
	var body io.Reader
	kind, send := "application/json", sender(c.direct.do)
	switch v := in.(type) {
	case nil:
	case io.Reader:
		body, kind, send = v, "application/x-tar", c.http.Do
	default:
		b, err := encode(v)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	var head http.Header
	if media != "" {
		head = http.Header{"Accept": {media}}
	}
	return c.ask(ctx, send, head, method, path, q, body, kind)
}

// A sender sends a request and reads the head of its answer.
type sender func(*http.Request) (*http.Response, error)

// ask sends a request through send, with head and a body of type kind, and returns the body of
// the answer.
func (c *Client) ask(ctx context.Context, send sender, head http.Header, method, path string, q url.Values, body io.Reader, kind string) (io.ReadCloser, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if q == nil {
		q = url.Values{}
	}
	if c.cfg.Dir != "" {
		q.Set("dir", c.cfg.Dir)
	}
	_, again := body.(*bytes.Reader)
	again = again || body == nil
	if (c.remote != nil || !again) && method != http.MethodGet && time.Since(time.Unix(0, c.answered.Load())) > api.AnsweredLately {
		// What changes something is sent once. So that it isn't sent to a daemon that is
		// just ending, one that answers is looked for first. Over the unix socket this is
		// for bodies that can't be sent again: a daemon that ends reads nothing there, or
		// answers that nothing was done.
		if err := c.greet(ctx, send); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url("http", path, q), body)
	if err != nil {
		return nil, err
	}
	c.sign(req.Header)
	c.trace(ctx, req.Header)
	c.encoding(req.Header)
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	for name, values := range head {
		req.Header[name] = values
	}
	resp, err := c.send(req, send)
	if err != nil {
		return nil, unwrap(ctx, err)
	}
	c.answered.Store(time.Now().UnixNano())
	decoded(resp)
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, readError(resp.Status, resp.Body)
}

// url is the URL of a request. Connections do not depend on it: see dial.
func (c *Client) url(scheme, path string, q url.Values) string {
	host := "pando"
	if c.remote != nil && c.remote.err == nil {
		host = c.remote.addr
	}
	return scheme + "://" + host + path + "?" + q.Encode()
}

// For returns a client of the same daemon that asks for other callers: see Config.Door.
func (c *Client) For(door string) *Client {
	cfg := c.cfg
	cfg.Door = door
	return New(cfg)
}

// sign adds the token to a request.
func (c *Client) sign(h http.Header) {
	if c.cfg.Token != "" {
		h.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	if c.cfg.Door != "" {
		h.Set("Pando-Door", c.cfg.Door)
	}
}

// trace adds the trace of a request.
func (c *Client) trace(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	if c.cfg.Trace != "" && h.Get("Traceparent") == "" {
		h.Set("Traceparent", c.cfg.Trace)
	}
}

// asAPI returns the API error in err, if any.
func asAPI(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return nil
}

// greet makes sure that a daemon answers that is not ending, and leaves a connection to
// it behind for the request that follows.
func (c *Client) greet(ctx context.Context, send sender) error {
	for began := time.Now(); ; {
		body, err := c.ask(ctx, send, nil, http.MethodGet, "/v1/daemon", nil, nil, "")
		if err != nil {
			return err
		}
		var d api.Daemon
		err = json.NewDecoder(body).Decode(&d)
		io.Copy(io.Discard, body)
		body.Close()
		if err != nil || !d.Ending || time.Since(began) > patience {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return unwrap(ctx, err)
		}
	}
}

// hungUp reports whether the other end closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// readError makes an error of an unsuccessful answer.
func readError(status string, body io.Reader) error {
	b, _ := io.ReadAll(io.LimitReader(body, 1<<20))
	var e api.Error
	if json.Unmarshal(b, &e) != nil || e.Message == "" {
		return &api.Error{Kind: "internal", Message: "the daemon answered " + status + ": " + strings.TrimSpace(string(b))}
	}
	return &e
}

// unwrap removes the text of net/http from an error.
func unwrap(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &api.Error{Kind: "interrupted", Message: "interrupted"}
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return &api.Error{Kind: "unavailable", Message: "lost the daemon: " + err.Error(), Hint: "read its log, then try again: pando daemon status"}
}

// segment makes a selector a path segment; "" becomes "-".
func segment(s string) string {
	if s == "" {
		return "-"
	}
	return url.PathEscape(s)
}

// checkPath refuses segments that a server would resolve as "." or "..".
func checkPath(path string) error {
	for _, s := range strings.Split(path, "/") {
		if s == "." || s == ".." {
			return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot use %q as a name", s),
				Hint: "use letters, digits, '.', '_' and '-', at most 64, starting with a letter, a digit or '_'"}
		}
	}
	return nil
}

func flag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "1")
	}
}

func number(q url.Values, name string, n int64) {
	if n != 0 {
		q.Set(name, strconv.FormatInt(n, 10))
	}
}
