package server

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/sftpd"
)

// takeOver answers a request that takes over its connection, and opens the cell's root for it. Root is
// nil when that failed; the caller was told.
func takeOver[Q any](s *Server, c *reexec.Conn, v proto.Verb[Q, proto.None], id cell.ID) (raw net.Conn, out *proto.Pieces, root *os.File) {
	raw = c.Raw()
	out = proto.SendPieces(raw, api.FrameStdout)
	if v.Reply(c, proto.None{}, nil) != nil {
		return nil, nil, nil
	}
	root, err := s.Driver.Root(id)
	if err != nil {
		out.End(err)
		return nil, nil, nil
	}
	return raw, out, root
}

// manage serves the request about single files that takes over its connection.
func (s *Server) manage(c *reexec.Conn, q proto.FileAct) bool {
	raw, out, root := takeOver(s, c, proto.Manage, q.Cell)
	if root == nil {
		return false
	}
	defer root.Close()
	stop := make(chan struct{})
	if q.Act.Act == cell.FileWatch { // which ends when the caller does
		go func() {
			var one [1]byte
			raw.Read(one[:])
			close(stop)
		}()
	}
	err := archive.Manage(root, q.Act, proto.ReadPieces(raw), out, stop)
	if slices.Contains([]string{cell.FileMkdir, cell.FileMove, cell.FileRemove, cell.FileWrite}, q.Act.Act) {
		s.refresh(q.Cell)
	}
	out.End(err)
	return false
}

// mostSessions bounds the sessions of SFTP at once, each of which can have many files open: descriptors are for all cells of
// this keeper.
const mostSessions = 16

// sftp serves a session over the connection of its request.
func (s *Server) sftp(c *reexec.Conn, q proto.Session) bool {
	defer s.sessions.Add(-1)
	if s.sessions.Add(1) > mostSessions {
		return proto.Refuse(c, cell.Errorf(cell.Unavailable, "keeper.sftp", "end one of them", "there are %d sessions of SFTP already", mostSessions)) == nil
	}
	root, err := s.Driver.Root(q.Cell)
	if err != nil {
		return proto.Refuse(c, err) == nil
	}
	defer root.Close()
	if proto.SFTP.Reply(c, proto.None{}, nil) != nil {
		return false
	}
	if err := sftpd.Serve(c.Raw(), sftpd.Request{Root: root, Start: q.Start, UID: q.UID, GID: q.GID, Changed: func() { s.refresh(q.Cell) }}); err != nil {
		s.Log.Info("a session of SFTP ended", "cell", q.Cell, "error", err)
	}
	return false
}

// refresh has the kernel of a cell know of what was changed in its files. When it does not answer
// it sees that a little later.
func (s *Server) refresh(id cell.ID) {
	if r, ok := s.Driver.(Refresher); ok {
		if err := r.Refresh(id); err != nil {
			s.Log.Warn("cannot tell a cell's kernel of changed files", "cell", id, "error", err)
		}
	}
}

// A Dialer is a driver that can connect to what listens in a cell.
type Dialer interface {
	// Dial connects to a TCP port of the cell's own loopback.
	Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error)
	// Ports lists the TCP ports on which something listens in the cell.
	Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error)
}

// A Mapper is a driver that knows which files are written through memory.
type Mapper interface {
	// Mapped lists them as in backend.Instance.
	Mapped(id cell.ID) ([]cell.MappedFile, error)
}

// dialLimit is how long it may take to connect to a port of a cell.
const dialLimit = 10 * time.Second

// dial makes the connection one to a port of the cell.
func (s *Server) dial(c *reexec.Conn, q proto.Port) bool {
	d, ok := s.Driver.(Dialer)
	if !ok {
		return proto.Refuse(c, cell.Errorf(cell.Unsupported, "keeper.dial", "", "cannot connect to a port of such a cell")) == nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	to, err := d.Dial(ctx, q.Cell, q.Port)
	cancel()
	if err != nil {
		return proto.Refuse(c, err) == nil
	}
	defer to.Close()
	if proto.Dial.Reply(c, proto.None{}, nil) == nil {
		join(c.Raw(), to)
	}
	return false
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
func (s *Server) files(c *reexec.Conn, q proto.Archive) bool {
	raw, out, root := takeOver(s, c, proto.Files, q.Cell)
	if root == nil {
		return false
	}
	defer root.Close()
	if q.Write {
		in := proto.ReadPieces(raw)
		err := archive.Take(root, q.Path, q.UID, q.GID, in)
		if err == nil { // padding after the archive
			_, err = io.Copy(io.Discard, in)
		}
		s.refresh(q.Cell)
		out.End(err)
	} else {
		out.End(archive.Send(root, q.Path, out))
	}
	return false
}
