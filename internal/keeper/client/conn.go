package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

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
	pid  int      // of the keeper
	dir  *os.File // of the socket: its path may be longer than a socket address can be

	open sync.RWMutex // held for writing to close

	mu     sync.Mutex // guards what follows; closed is written under both
	idle   []*reexec.Conn
	users  int // that share it
	closed bool
}

// Dial connects to the keeper that listens at dir/name and greets it.
func Dial(ctx context.Context, dir, name string) (*Client, error) {
	c, err := reach(dir, name, 0)
	if err != nil {
		return nil, err
	}
	w, err := Ask(ctx, c, proto.Hello, proto.Greeting{Version: proto.Version})
	if err != nil {
		c.Close()
		return nil, err
	}
	c.pid = w.PID
	return c, nil
}

// reach is the client of a keeper with a known PID, which is not greeted.
func reach(dir, name string, pid int) (*Client, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &Client{users: 1, dir: d, pid: pid, path: "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name}, nil
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

// There reports whether the keeper is known to be there: a connection that it keeps open says so without being asked. Else refused
// says that nothing listens at its socket, at which a keeper listens as long as it lives.
func (c *Client) There(ctx context.Context) (there, refused bool) {
	for {
		k, err := c.conn(ctx)
		if err != nil {
			return false, errors.Is(err, unix.ECONNREFUSED)
		}
		raw, err := k.Raw().SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
				there = err == unix.EAGAIN
			})
		}
		if err == nil && there {
			c.put(k)
			return true, false
		}
		k.Close() // the next one is another, or new
		if err != nil || ctx.Err() != nil {
			return false, false
		}
	}
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

// A Connection is a Client, or one of its Sessions.
type Connection interface {
	// over lets talk have a connection to itself for one request. When ctx ends meanwhile,
	// the connection breaks.
	over(ctx context.Context, op string, reads bool, talk func(k *reexec.Conn) error) error
}

// Ask sends a request with files and returns its answer. A keeper that is gone is an
// Unavailable error.
func Ask[Q, A any](ctx context.Context, via Connection, v proto.Verb[Q, A], q Q, files ...*os.File) (A, error) {
	a, given, err := ask(ctx, via, v, q, nil, files...)
	proto.CloseAll(given)
	return a, err
}

// ask is Ask. out gets the output that comes before the answer; the files that come with the
// answer are the caller's.
func ask[Q, A any](ctx context.Context, via Connection, v proto.Verb[Q, A], q Q, out func(cell.Output), files ...*os.File) (A, []*os.File, error) {
	var a proto.Answer[A]
	err := via.over(ctx, v.Name, v.Reads, func(k *reexec.Conn) (err error) {
		if err = v.Ask(k, q, files...); err == nil {
			a, err = v.Hear(k, out)
		}
		return err
	})
	if err == nil && a.Refused != nil {
		err = a.Refused.Err(v.Name)
	}
	return a.Value, a.Files, err
}

// over implements Connection.
func (c *Client) over(ctx context.Context, op string, reads bool, talk func(*reexec.Conn) error) error {
	k, err := c.conn(ctx)
	if err != nil {
		return err
	}
	ok, err := during(ctx, k, op, reads, talk)
	if ok {
		c.put(k)
	} else {
		k.Close()
	}
	return err
}

// during does what belongs to one request. It reports whether the connection can be used again.
func during(ctx context.Context, k *reexec.Conn, op string, reads bool, talk func(*reexec.Conn) error) (ok bool, err error) {
	stop := context.AfterFunc(ctx, func() { k.Close() })
	if !reads {
		failpoint.Step("ask the keeper to " + op)
	}
	err = talk(k)
	if !reads {
		failpoint.Step("hear that the keeper did " + op)
	}
	ok = stop() && err == nil
	if err != nil {
		if ctx.Err() != nil {
			return ok, context.Cause(ctx)
		}
		return ok, cell.Errorf(cell.Unavailable, "keeper."+op, "", "cannot talk to the cell's keeper: %w", &cell.NoAnswer{Err: err})
	}
	return ok, nil
}

// A Session is a connection of the caller's own, for several requests that belong together.
// After an error it is over.
type Session struct{ k *reexec.Conn }

// Session opens one.
func (c *Client) Session(ctx context.Context) (*Session, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{k}, nil
}

// over implements Connection.
func (x *Session) over(ctx context.Context, op string, reads bool, talk func(*reexec.Conn) error) error {
	_, err := during(ctx, x.k, op, reads, talk)
	return err
}

// Close hangs up.
func (x *Session) Close() { x.k.Close() }

// taken sends a request that takes over a connection of its own.
func taken[Q, A any](ctx context.Context, c *Client, v proto.Verb[Q, A], q Q) (*reexec.Conn, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := Ask(ctx, &Session{k}, v, q); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// Attach turns a connection of its own into the stream of a process.
func (c *Client) Attach(ctx context.Context, a proto.Attachment) (net.Conn, error) {
	k, err := taken(ctx, c, proto.Attach, a)
	if err != nil {
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
