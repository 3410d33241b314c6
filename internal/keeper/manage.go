package keeper

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
)

// manage serves the request about single files that takes over its connection.
func (s *Server) manage(c *reexec.Conn, req *Request) {
	raw := c.Raw()
	out := &pieces{raw, api.FrameStdout}
	if c.Send(Response{}) != nil {
		return
	}
	if req.Manage == nil {
		out.end(malformed(req.Op))
		return
	}
	root, err := s.Driver.Root(req.Cell)
	if err != nil {
		out.end(err)
		return
	}
	defer root.Close()
	stop := make(chan struct{})
	if req.Manage.Act == cell.FileWatch { // which ends when the caller does
		go func() {
			var one [1]byte
			raw.Read(one[:])
			close(stop)
		}()
	}
	out.end(archive.Manage(root, *req.Manage, &assembled{c: raw}, out, stop))
}

// Manage does something with single files of a cell. in is read for
// cell.FileWrite alone.
func (c *Client) Manage(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader, out io.Writer) error {
	k, err := c.taken(ctx, Request{Op: "manage", Cell: id, Manage: &a})
	if err != nil {
		return err
	}
	defer k.Close()
	defer context.AfterFunc(ctx, func() { k.Close() })()
	var sending sync.WaitGroup
	var serr error
	if a.Act == cell.FileWrite {
		sending.Go(func() {
			p := &pieces{k.Raw(), api.FrameStdin}
			_, serr = io.Copy(p, in)
			p.end(serr)
		})
	}
	_, err = io.Copy(out, &assembled{c: k.Raw()})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		sending.Wait()
	}
	return err
}

// taken sends a request that takes over a connection of its own.
func (c *Client) taken(ctx context.Context, req Request) (*reexec.Conn, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := roundTrip(k, req, nil)
	if err == nil && resp.Error != nil {
		err = resp.Error.err(req.Op)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// A Dialer is a driver that can connect to what listens in a cell.
type Dialer interface {
	// Dial connects to a TCP port of the cell's own loopback.
	Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error)
	// Ports lists the TCP ports on which something listens in the cell.
	Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error)
}

// dialLimit is how long it may take to connect to a port of a cell.
const dialLimit = 10 * time.Second

// dial makes the connection one to a port of the cell.
func (s *Server) dial(c *reexec.Conn, req *Request) {
	d, ok := s.Driver.(Dialer)
	if !ok {
		c.Send(Response{Error: wireError(cell.Errorf(cell.Unsupported, "keeper.dial", "", "cannot connect to a port of such a cell"))})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	to, err := d.Dial(ctx, req.Cell, req.Port)
	cancel()
	if err != nil {
		c.Send(Response{Error: wireError(err)})
		return
	}
	defer to.Close()
	if c.Send(Response{}) != nil {
		return
	}
	join(c.Raw(), to)
}

// join carries bytes both ways until both have ended.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			from.Close()
		}
		if w, ok := to.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
			to.Close()
		}
	}
	both.Go(func() { pass(b, a) })
	both.Go(func() { pass(a, b) })
	both.Wait()
}

// Dial connects to a port of a cell's loopback.
func (c *Client) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	k, err := c.taken(ctx, Request{Op: "dial", Cell: id, Port: port})
	if err != nil {
		return nil, err
	}
	return k.Raw(), nil
}
