package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// A link leads from the gateway of one cell to the loopback of another, a service beside it. It is a pair of connected
// sockets, of which the daemon hands one to each keeper: the gateway can connect to ports of that cell by it, and nothing
// else, and needs no daemon for it. For each connection the gateway sends the port with a socket. The other keeper writes
// linkOpen to that once it is connected to the port, or linkRefused and the reason, and carries bytes from there on.
const (
	linkOpen    = 0
	linkRefused = 1
)

// maxRefusal bounds the reason, in bytes.
const maxRefusal = 1 << 10

// linkPort is the message for one connection.
type linkPort struct {
	Port int `json:"port"`
}

// linkedAtOnce is how many connections of one link are open at a time. Each has two descriptors, and a cell must not
// take those that the keeper needs.
func linkedAtOnce() int {
	_, limit, err := openFiles()
	if err != nil {
		limit = 1024
	}
	return int(min(4096, max(limit/8, 1)))
}

// serveLink connects what comes over a link to ports of a cell, until the other end hangs up or the cell goes.
func (s *Server) serveLink(q proto.OfCell, files []*os.File) (n proto.None, err error) {
	if len(files) != 1 {
		proto.CloseAll(files)
		return n, proto.Malformed("link")
	}
	d, ok := s.Driver.(Dialer)
	if !ok {
		proto.CloseAll(files)
		return n, cell.Errorf(cell.Unsupported, "keeper.link", "", "cannot connect to a port of such a cell")
	}
	c, err := reexec.FromFile(files[0])
	if err != nil {
		return n, cell.Errorf(cell.Internal, "keeper.link", "", "cannot serve a link: %w", err)
	}
	s.mu.Lock()
	k := s.cells[q.Cell]
	if k != nil {
		if k.links == nil {
			k.links = map[*reexec.Conn]bool{}
		}
		k.links[c] = true
	}
	s.mu.Unlock()
	if k == nil {
		c.Close()
		return n, cell.Errorf(cell.NotFound, "keeper.link", "", "no cell %s", q.Cell)
	}
	go func() {
		defer func() {
			c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(k.links, c)
		}()
		room := make(chan struct{}, linkedAtOnce())
		for {
			var m linkPort
			files, err := c.Recv(&m)
			if err != nil {
				return
			}
			if len(files) != 1 {
				proto.CloseAll(files)
				return
			}
			to, err := net.FileConn(files[0])
			files[0].Close()
			if err != nil {
				continue
			}
			select {
			case room <- struct{}{}:
				go func() {
					defer func() { <-room }()
					linked(d, q.Cell, m.Port, to)
				}()
			default:
				refuseLink(to, errors.New("too many connections are open"))
			}
		}
	}()
	return n, nil
}

// linked serves one connection of a link.
func linked(d Dialer, id cell.ID, port int, from net.Conn) {
	defer from.Close()
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	to, err := d.Dial(ctx, id, port)
	cancel()
	if err != nil {
		refuseLink(from, err)
		return
	}
	defer to.Close()
	if _, err := from.Write([]byte{linkOpen}); err == nil {
		join(from, to)
	}
}

func refuseLink(c net.Conn, why error) {
	c.Write(append([]byte{linkRefused}, why.Error()...))
	c.Close()
}

// takeLink has the gateway of a cell connect to a service by a link.
func (s *Server) takeLink(q proto.Service, files []*os.File) (n proto.None, err error) {
	t, err := s.gateway("link", q.Cell)
	if err == nil && len(files) != 1 {
		err = proto.Malformed("link")
	}
	if err != nil {
		proto.CloseAll(files)
		return n, err
	}
	return n, t.n.Link(q.Name, files[0])
}

// links are those that the gateway of a cell connects to services by.
type links struct {
	mu     sync.Mutex // guards byName, which is nil once they are closed
	byName map[string]*reexec.Conn
}

func newLinks() *links { return &links{byName: map[string]*reexec.Conn{}} }

// put gives a service its link, in the place of an earlier one.
func (l *links) put(name string, f *os.File) error {
	c, err := reexec.FromFile(f)
	if err != nil {
		return cell.Errorf(cell.Internal, "keeper.link", "", "cannot use a link: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		return c.Close()
	}
	if old := l.byName[name]; old != nil {
		old.Close()
	}
	l.byName[name] = c
	return nil
}

func (l *links) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.byName {
		c.Close()
	}
	l.byName = nil
}

// dial connects to a port of a service.
func (l *links) dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	fail := func(why string) (net.Conn, error) {
		return nil, cell.Errorf(cell.Unavailable, "keeper.link", "", "cannot reach service %s: %s", name, why)
	}
	l.mu.Lock()
	to := l.byName[name]
	l.mu.Unlock()
	if to == nil {
		return fail("it does not run")
	}
	ours, theirs, err := reexec.Pair()
	if err != nil {
		return fail(err.Error())
	}
	c, err := net.FileConn(ours)
	ours.Close()
	if err == nil {
		err = to.Send(linkPort{int(port)}, theirs)
	}
	theirs.Close()
	if err != nil {
		if c != nil {
			c.Close()
		}
		return fail("it does not run")
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	var first [1]byte
	if _, err = io.ReadFull(c, first[:]); err == nil && first[0] != linkOpen {
		why, _ := io.ReadAll(io.LimitReader(c, maxRefusal))
		err = errors.New(strings.ToValidUTF8(string(bytes.TrimSpace(why)), "\ufffd"))
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		if err == io.EOF {
			return fail("it does not run")
		}
		return fail(err.Error())
	}
	return c, nil
}
