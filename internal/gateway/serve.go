package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	maxLine      = 8 << 10                // the first line of possible HTTP
	lineTimeout  = 300 * time.Millisecond // for the rest of a line
	alertTimeout = time.Second
)

// prefixed is a connection of which some bytes were already read.
type prefixed struct {
	net.Conn
	c   *conn
	pre []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.pre) > 0 {
		n := copy(b, p.pre)
		p.pre = p.pre[n:]
		return n, nil
	}
	n, err := p.Conn.Read(b)
	if err == io.EOF {
		p.c.hungUp.Store(true)
	}
	return n, err
}

// serve handles a connection from its first bytes to its end.
func (c *conn) serve() {
	// Whether the port determines the protocol.
	wantTLS, wantHTTP := c.access.Port == 443, c.access.Port == 80
	first := &first{c: c}
	if wantTLS || wantHTTP || c.decision.Open {
		c.in.SetReadDeadline(time.Now().Add(firstTimeout))
	} else if c.takesTurns(first) {
		c.raw(first.b)
		return
	}
	known := c.g.inForce.Load().looksInto(c.host())
	what, err := first.see(wantTLS || wantHTTP || c.decision.Open || known)
	c.in.SetReadDeadline(time.Time{})
	switch {
	case what == saidNothing:
		if err != io.EOF {
			c.fail(err)
		}
	case what == saidTLS && !wantHTTP:
		c.tls(first.b, first.hello)
	case what == saidHTTP && !wantTLS:
		c.speaks("http", false)
		c.web(&prefixed{Conn: c.in, c: c, pre: first.b})
	case what == saidBad:
		c.deny("https", never("tls", "the TLS can't be parsed: "+err.Error()), alertAccessDenied)
	case wantTLS:
		c.deny("", never("protocol", "port 443 is for TLS"), 0)
	case wantHTTP:
		c.deny("", never("protocol", "port 80 is for HTTP"), 0)
	case c.decision.Open:
		c.deny("", never("protocol", "a rule for this host needs its requests, and this is neither HTTP nor TLS"), 0)
	default:
		c.raw(first.b)
	}
}

// The protocols of the first bytes.
type said int

const (
	saidNothing said = iota
	saidTLS
	saidHTTP
	saidBad // begins like TLS and is invalid
	saidOther
)

// first reads the first bytes.
type first struct {
	c     *conn
	b     []byte
	hello *hello
}

// see reads until the protocol is known. With must, it waits until the deadline; without, an
// incomplete line that pauses is no HTTP. A ClientHello that has begun stays one, however slowly
// it comes: waiting does not bypass the check of its server name.
func (f *first) see(must bool) (said, error) {
	buf := make([]byte, 4<<10)
	hello := false
	for {
		if len(f.b) > 0 {
			switch what, err := f.look(); {
			case what != saidNothing:
				return what, err
			case errors.Is(err, errShort):
				if !must && !hello {
					f.c.in.SetReadDeadline(time.Now().Add(firstTimeout))
				}
				hello = true
			case !must:
				f.c.in.SetReadDeadline(time.Now().Add(lineTimeout))
			}
		}
		n, err := f.c.in.Read(buf)
		f.b = append(f.b, buf[:n]...)
		if n > 0 {
			continue
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		switch {
		case hello && len(f.b) > 1:
			return saidBad, errors.New("the ClientHello has no end")
		case len(f.b) > 0:
			return saidOther, err
		}
		return saidNothing, err
	}
}

// look returns the protocol of the bytes so far; saidNothing while it is undecided.
func (f *first) look() (said, error) {
	h, err := parseHello(f.b)
	switch {
	case err == nil:
		f.hello = h
		return saidTLS, nil
	case errors.Is(err, errShort):
		if len(f.b) > maxHello+maxHello/8 {
			return saidBad, errors.New("the ClientHello is too long")
		}
		return saidNothing, errShort
	case !errors.Is(err, errNotTLS):
		return saidBad, err
	}
	line, _, whole := bytes.Cut(f.b, []byte("\n"))
	if !httpLine(line) || len(line) > maxLine {
		return saidOther, nil
	}
	if !whole {
		return saidNothing, nil
	}
	line = bytes.TrimSuffix(line, []byte("\r"))
	if i := bytes.LastIndexByte(line, ' '); i > 0 && (bytes.HasPrefix(line[i+1:], []byte("HTTP/1.")) || string(line) == "PRI * HTTP/2.0") {
		return saidHTTP, nil
	}
	return saidOther, nil
}

// httpLine reports whether a line may begin a request: with a token and a space.
func httpLine(line []byte) bool {
	for i, b := range line {
		switch {
		case b == ' ':
			return i > 0
		case i > 32 || !(b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z' || b == '-' || b == '_'):
			return false
		}
	}
	return true
}

// takesTurns waits until either side of a connection that was dialled ahead speaks, without
// blocking either. It is true for the server: then it is neither TLS nor HTTP.
func (c *conn) takesTurns(f *first) (server bool) {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil {
		return false
	}
	early := make(chan []byte, 1)
	c.g.wg.Go(func() {
		b := make([]byte, 16<<10)
		n, err := out.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			c.in.SetReadDeadline(time.Now()) // it spoke, or has hung up
		}
		early <- b[:n]
	})
	buf := make([]byte, 4<<10)
	n, err := c.in.Read(buf)
	f.b = append(f.b, buf[:n]...)
	if err == io.EOF {
		c.hungUp.Store(true)
	}
	out.SetReadDeadline(time.Unix(1, 0))
	b := <-early
	out.SetReadDeadline(time.Time{})
	c.in.SetReadDeadline(time.Time{})
	if len(b) > 0 {
		c.received.Add(int64(len(b)))
		c.in.Write(b)
		return true
	}
	if n == 0 {
		return true // one side has closed before the first byte
	}
	return false
}

// deny ends a connection that turned out to be denied. code is its TLS alert, 0 for none.
func (c *conn) deny(scheme string, d cell.Decision, code byte) {
	a := c.access
	a.Scheme = scheme
	l := c.g.inForce.Load()
	c.g.tell(l, a, d, c.id)
	c.mu.Lock()
	c.quiet = true
	c.mu.Unlock()
	if code == 0 {
		c.reset("denied: " + d.Reason)
		return
	}
	c.fail(errors.New("denied: " + d.Reason))
	c.in.SetDeadline(time.Now().Add(alertTimeout))
	c.in.Write(alert(code))
	if h, ok := c.in.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
	}
	io.Copy(io.Discard, io.LimitReader(c.in, maxHello)) // or the alert is lost with a reset
}

// tls continues a connection that has begun with a ClientHello.
func (c *conn) tls(pre []byte, h *hello) {
	c.speaks("https", false)
	want := c.access.Host
	switch {
	case want == "" && h.name == "": // an address was allowed, and it is one
	case h.name == "":
		c.deny("https", never("tls", "TLS without a server name (SNI) hides its destination"), alertUnrecognized)
		return
	case h.name != want:
		d := never("tls", fmt.Sprintf("TLS for %q on a connection to %s", printable(h.name), c.host()))
		c.deny("https", d, alertUnrecognized)
		return
	}
	l := c.g.inForce.Load()
	open := c.decision.Open || l.looksInto(c.host()) || l.answers(want) || c.recorder() != nil
	if h.ech && !open {
		c.deny("https", never("tls", "TLS with an encrypted server name (ECH) hides its destination: turn it off in the client"), alertAccessDenied)
		return
	}
	if open {
		c.openTLS(&prefixed{Conn: c.in, c: c, pre: pre})
		return
	}
	c.raw(pre)
}

// raw passes a connection through. pre are bytes that the cell has sent.
func (c *conn) raw(pre []byte) {
	if c.g.inForce.Load().answers(c.access.Host) {
		c.unanswerable()
		return
	}
	c.recorder().missed(cell.NotHTTP)
	if c.decision.Effect == cell.Ask && !c.askConnect() {
		return
	}
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil {
		ctx, cancel := context.WithTimeout(c.g.ctx, dialTimeout)
		defer cancel()
		l := c.g.inForce.Load()
		var err error
		if out, _, err = c.g.dial(ctx, l, c.access, c.id); err != nil {
			c.reset(err.Error())
			return
		}
		c.setOut(out)
		if now := c.g.inForce.Load(); now != l {
			c.rejudge(now)
		}
	}
	c.splice(out, pre)
}

// askConnect blocks the connection until a person has decided.
func (c *conn) askConnect() bool {
	gone := make(chan struct{})
	e, hup := waiter.NewChannelEntry(waiter.EventHUp | waiter.EventErr)
	c.wq.EventRegister(&e)
	defer c.wq.EventUnregister(&e)
	ctx, cancel := context.WithCancelCause(c.g.ctx)
	defer cancel(nil)
	c.g.wg.Go(func() {
		select {
		case <-hup:
			cancel(errors.New("the cell gave up"))
		case <-gone:
		}
	})
	defer close(gone)
	l := c.g.inForce.Load()
	id, d := c.g.asks.ask(ctx, l, c.access, c.decision, c.id)
	if d.Effect != cell.Allow {
		c.mu.Lock()
		c.quiet = true
		c.mu.Unlock()
		c.reset("denied: " + d.Reason)
		return false
	}
	c.request = id
	return true
}

// printable makes a name from the cell safe to print.
func printable(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return s
}
