package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// ports has one port, 7, with an echo behind it.
type ports struct{ Driver }

func (ports) Dial(_ context.Context, id cell.ID, port int) (net.Conn, error) {
	if port != 7 {
		return nil, errors.New("nothing listens there")
	}
	a, b := connected()
	go func() {
		io.Copy(b, b)
		b.Close()
	}()
	return a, nil
}

func (ports) Ports(context.Context, cell.ID) ([]cell.Listening, error) { return nil, nil }

func connected() (a, b net.Conn) {
	x, y := linkEnds()
	a, _ = net.FileConn(x)
	b, _ = net.FileConn(y)
	x.Close()
	y.Close()
	return a, b
}

func linkEnds() (a, b *os.File) {
	a, b, err := reexec.Pair()
	if err != nil {
		panic(err)
	}
	return a, b
}

// A link carries connections to ports of the cell that it leads to, until that goes.
func TestLink(t *testing.T) {
	k := newKit(t)
	k.s.Driver = ports{k.s.Driver}
	here, there := linkEnds()
	ok(k, proto.ServeLink, proto.OfCell{Cell: one}, there)
	there.Close()
	l := newLinks()
	defer l.close()
	if _, err := l.dial(k.ctx, "db", 7); err == nil || err.Error() != "cannot reach service db: it does not run" {
		t.Errorf("without a link: %v", err)
	}
	if err := l.put("db", here); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c, err := l.dial(k.ctx, "db", 7)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("bytes ", 50_000)
		go func() {
			io.WriteString(c, text)
			c.(*net.UnixConn).CloseWrite()
		}()
		if got, err := io.ReadAll(c); string(got) != text || err != nil {
			t.Errorf("%d of %d bytes came back, %v", len(got), len(text), err)
		}
		c.Close()
	}
	if _, err := l.dial(k.ctx, "db", 8); err == nil || err.Error() != "cannot reach service db: nothing listens there" {
		t.Errorf("a port without a listener: %v", err)
	}
	ok(k, proto.Remove, proto.Ending{Cell: one})
	k.until("the link ends", func() bool {
		_, err := l.dial(k.ctx, "db", 7)
		return err != nil && strings.HasSuffix(err.Error(), "it does not run")
	})
}

// What comes over a link that is none is not served, and keeps nothing from being.
func TestLinkWithRubbish(t *testing.T) {
	k := newKit(t)
	fails(k, proto.ServeLink, proto.OfCell{Cell: one}, cell.Invalid)
	a, b := linkEnds()
	fails(k, proto.ServeLink, proto.OfCell{Cell: one}, cell.Unsupported, a) // its driver knows no ports
	k.s.Driver = ports{k.s.Driver}
	fails(k, proto.ServeLink, proto.OfCell{Cell: "c-none"}, cell.NotFound, a)
	ok(k, proto.ServeLink, proto.OfCell{Cell: one}, a)
	a.Close()
	c, err := net.FileConn(b)
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("it did not hang up: %v", err)
	}
	fails(k, proto.TakeLink, proto.Service{Cell: one, Name: "db"}, cell.Unsupported)
}

// A link that its gateway has hung up is kept nowhere: a service that goes on gets one with each start of its cell.
func TestLinkThatIsOver(t *testing.T) {
	k := newKit(t)
	k.s.Driver = ports{k.s.Driver}
	links := func() int {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		return len(k.s.cells[one].links)
	}
	a, b := linkEnds()
	ok(k, proto.ServeLink, proto.OfCell{Cell: one}, a)
	a.Close()
	if n := links(); n != 1 {
		t.Errorf("%d links are served", n)
	}
	b.Close()
	k.until("it is forgotten", func() bool { return links() == 0 })
}
