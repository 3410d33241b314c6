package server

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// manage serves the request about single files that takes over its connection.
func (s *Server) manage(c *reexec.Conn, req *proto.Request) {
	raw := c.Raw()
	out := proto.SendPieces(raw, api.FrameStdout)
	if c.Send(proto.Response{}) != nil {
		return
	}
	if req.Manage == nil {
		out.End(malformed(req.Op))
		return
	}
	root, err := s.Driver.Root(req.Cell)
	if err != nil {
		out.End(err)
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
	out.End(archive.Manage(root, *req.Manage, proto.ReadPieces(raw), out, stop))
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
func (s *Server) dial(c *reexec.Conn, req *proto.Request) {
	d, ok := s.Driver.(Dialer)
	if !ok {
		c.Send(proto.Response{Error: proto.Wire(cell.Errorf(cell.Unsupported, "keeper.dial", "", "cannot connect to a port of such a cell"))})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	to, err := d.Dial(ctx, req.Cell, req.Port)
	cancel()
	if err != nil {
		c.Send(proto.Response{Error: proto.Wire(err)})
		return
	}
	defer to.Close()
	if c.Send(proto.Response{}) != nil {
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

// files serves the request that takes over its connection.
func (s *Server) files(c *reexec.Conn, req *proto.Request) {
	raw := c.Raw()
	out := proto.SendPieces(raw, api.FrameStdout)
	if c.Send(proto.Response{}) != nil {
		return
	}
	if req.Files == nil {
		out.End(malformed("files"))
		return
	}
	root, err := s.Driver.Root(req.Cell)
	if err != nil {
		out.End(err)
		return
	}
	defer root.Close()
	if req.Files.Write {
		in := proto.ReadPieces(raw)
		err = archive.Take(root, req.Files.Path, req.Files.UID, req.Files.GID, in)
		if err == nil { // padding after the archive
			_, err = io.Copy(io.Discard, in)
		}
	} else {
		err = archive.Send(root, req.Files.Path, out)
	}
	out.End(err)
}
