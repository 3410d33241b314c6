package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
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
	users  int // that share it
	closed bool
}

// Dial connects to the keeper that listens at dir/name and greets it.
func Dial(ctx context.Context, dir, name string) (*Client, *proto.Response, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	c := &Client{users: 1, dir: d, path: "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name}
	resp, err := c.Do(ctx, proto.Request{Op: "hello", Version: proto.Version})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, resp, nil
}

// Share returns the client for one more user, which closes it too: the cells of a family
// share the connection to their keeper. It is nil when the last user has closed it already.
func (c *Client) Share() *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.users++
	return c
}

// Close hangs up, when its last user has closed it. The keeper goes on.
func (c *Client) Close() {
	c.open.Lock()
	defer c.open.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users > 0 || c.closed {
		return
	}
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
		return nil, cell.Errorf(cell.Unavailable, "keeper.Dial", "", "cannot reach the cell's keeper: %w", &cell.NoAnswer{Err: err})
	}
	return reexec.NewConn(nc.(*net.UnixConn)), nil
}

// Alive reports whether the keeper is known to be there: a connection that it keeps
// open says so without being asked. False is no proof that it is not.
func (c *Client) Alive(ctx context.Context) bool {
	k, err := c.conn(ctx)
	if err != nil {
		return false
	}
	raw, err := k.Raw().SyscallConn()
	there := false
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			there = err == unix.EAGAIN
		})
	}
	if err != nil || !there {
		k.Close()
		return false
	}
	c.put(k)
	return true
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
func (c *Client) Do(ctx context.Context, req proto.Request, files ...*os.File) (*proto.Response, error) {
	return c.exchange(ctx, req.Op, func(k *reexec.Conn) { k.Raw().SetDeadline(time.Unix(1, 0)) }, func(k *reexec.Conn) (*proto.Response, error) {
		return proto.Exchange(k, req, files...)
	})
}

// Stream sends a request and passes the output that comes before the answer to out. When ctx
// ends the keeper interrupts the work.
func (c *Client) Stream(ctx context.Context, req proto.Request, out func(cell.Output)) (*proto.Response, error) {
	return c.exchange(ctx, req.Op, func(k *reexec.Conn) { k.Close() }, func(k *reexec.Conn) (*proto.Response, error) {
		resp, err := proto.Exchange(k, req)
		for err == nil && resp.Output != nil {
			if out != nil {
				out(*resp.Output)
			}
			resp = &proto.Response{}
			_, err = k.Recv(resp)
		}
		return resp, err
	})
}

// exchange lets talk have a connection to itself for one request. When ctx ends
// meanwhile, cut makes it end.
func (c *Client) exchange(ctx context.Context, op string, cut func(*reexec.Conn), talk func(*reexec.Conn) (*proto.Response, error)) (*proto.Response, error) {
	k, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cut(k) })
	if proto.Changes(op) {
		failpoint.Step("ask the keeper to " + op)
	}
	resp, err := talk(k)
	if proto.Changes(op) {
		failpoint.Step("hear that the keeper did " + op)
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
		return nil, cell.Errorf(cell.Unavailable, "keeper."+op, "", "cannot talk to the cell's keeper: %w", &cell.NoAnswer{Err: err})
	}
	if resp.Error != nil {
		return nil, resp.Error.Err(op)
	}
	return resp, nil
}

// A Session is a connection of the caller's own, for several requests that belong
// together.
type Session struct{ k *reexec.Conn }

// Session opens one.
func (c *Client) Session(ctx context.Context) (*Session, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{k}, nil
}

// Do sends one request and returns its answer. After an error the session is over.
func (x *Session) Do(ctx context.Context, req proto.Request, files ...*os.File) (*proto.Response, error) {
	stop := context.AfterFunc(ctx, func() { x.k.Close() })
	defer stop()
	failpoint.Step("ask the keeper to " + req.Op)
	resp, err := proto.Exchange(x.k, req, files...)
	failpoint.Step("hear that the keeper did " + req.Op)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, cell.Errorf(cell.Unavailable, "keeper."+req.Op, "", "cannot talk to the cell's keeper: %w", err)
	}
	if resp.Error != nil {
		return nil, resp.Error.Err(req.Op)
	}
	return resp, nil
}

// Close hangs up.
func (x *Session) Close() { x.k.Close() }

// Attach turns a connection of its own into the stream of a process.
func (c *Client) Attach(ctx context.Context, proc string, req proto.AttachRequest) (net.Conn, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := proto.Exchange(k, proto.Request{Op: "attach", Proc: proc, Attach: &req})
	if err == nil && resp.Error != nil {
		err = resp.Error.Err("attach")
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
