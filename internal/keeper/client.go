package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/reexec"
)

// Client is the daemon's end of a keeper. It is safe for concurrent use; each
// request has a connection to itself while it lasts.
type Client struct {
	path string
	dir  *os.File // of the socket: its path may be longer than a socket address can be

	open sync.RWMutex // held for writing to close

	mu     sync.Mutex // guards what follows; closed is written under both
	idle   []*reexec.Conn
	closed bool
}

// Dial connects to the keeper that listens at dir/name and greets it.
func Dial(ctx context.Context, dir, name string) (*Client, *Response, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	c := &Client{dir: d, path: "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name}
	resp, err := c.Do(ctx, Request{Op: "hello", Version: Version})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, resp, nil
}

// Close hangs up. The keeper goes on.
func (c *Client) Close() {
	c.open.Lock()
	defer c.open.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.idle {
		i.Close()
	}
	c.idle, c.closed = nil, true
	c.dir.Close()
}

func (c *Client) conn(ctx context.Context) (*reexec.Conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return k, nil
	}
	c.mu.Unlock()
	return c.fresh(ctx)
}

func (c *Client) fresh(ctx context.Context) (*reexec.Conn, error) {
	c.open.RLock() // the path is of dir's number
	defer c.open.RUnlock()
	if c.closed {
		return nil, cell.Errorf(cell.Unavailable, "keeper.Dial", "", "cannot reach the cell's keeper: the connection was closed")
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "keeper.Dial", "", "cannot reach the cell's keeper: %w", err)
	}
	return reexec.NewConn(nc.(*net.UnixConn)), nil
}

func (c *Client) put(k *reexec.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) < 4 && !c.closed {
		c.idle = append(c.idle, k)
		return
	}
	k.Close()
}

// Do sends one request with files and returns its answer. A keeper that is
// gone is an Unavailable error.
func (c *Client) Do(ctx context.Context, req Request, files ...*os.File) (*Response, error) {
	k, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { k.Raw().SetDeadline(time.Unix(1, 0)) })
	if changes(req.Op) {
		fault.Step("ask the keeper to " + req.Op)
	}
	resp, err := roundTrip(k, req, files)
	if changes(req.Op) {
		fault.Step("hear that the keeper did " + req.Op)
	}
	if !stop() || err != nil {
		k.Close()
	} else {
		c.put(k)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, cell.Errorf(cell.Unavailable, "keeper."+req.Op, "", "cannot talk to the cell's keeper: %w", err)
	}
	if resp.Error != nil {
		return nil, resp.Error.err(req.Op)
	}
	return resp, nil
}

// changes reports whether a request does something that can be half done.
func changes(op string) bool {
	switch op {
	case "hello", "status", "wait", "note", "list", "stats", "asked":
		return false
	}
	return true
}

func roundTrip(k *reexec.Conn, req Request, files []*os.File) (*Response, error) {
	if err := k.Send(req, files...); err != nil {
		return nil, err
	}
	var resp Response
	got, err := k.Recv(&resp)
	for _, f := range got {
		f.Close()
	}
	return &resp, err
}

// Attach turns a connection of its own into the stream of a process.
func (c *Client) Attach(ctx context.Context, proc string, req AttachRequest) (net.Conn, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := roundTrip(k, Request{Op: "attach", Proc: proc, Attach: &req}, nil)
	if err == nil && resp.Error != nil {
		err = resp.Error.err("attach")
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k.Raw(), nil
}

// DecodeStatus reads the payload of an exit frame.
func DecodeStatus(b []byte) (*cell.Status, error) {
	var st cell.Status
	if err := json.Unmarshal(b, &st); err != nil {
		return nil, fmt.Errorf("cannot read the end of a process: %w", err)
	}
	return &st, nil
}
