package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// headStart is the delay after which the next address is tried in parallel.
const headStart = 250 * time.Millisecond

// dial opens a connection to the host of an access, resolved now, after the policy has decided
// on each address. A denial is emitted, and returned as deny.
func (g *Gateway) dial(ctx context.Context, l *compiledPolicy, a cell.Access, conn string) (out net.Conn, deny *cell.Decision, err error) {
	if l.services[a.Host] {
		out, err = g.dialService(ctx, a)
		return out, nil, err
	}
	if l.offline {
		return nil, nil, errOffline
	}
	by, err := l.proxy.through(a)
	if err != nil {
		return nil, nil, err
	}
	if by != nil { // names and literals were decided before
		checked, d, at, err := g.beforeProxy(ctx, l, a)
		if err != nil {
			return nil, nil, err
		}
		if d != nil {
			a.Addr = at
			g.tell(l, a, *d, conn)
			return nil, d, &denied{access: a, decision: *d}
		}
		out, err = g.connect(ctx, l, by, a, checked)
		return out, nil, err
	}
	list := []netip.Addr{a.Addr}
	if a.Host != "" {
		ans, err := l.resolver.lookup(ctx, a.Host)
		if err != nil {
			return nil, nil, err
		}
		if len(ans.addrs) == 0 {
			return nil, nil, fmt.Errorf("%s has no address", a.Host)
		}
		list = nil
		for _, addr := range ans.addrs {
			b := a
			b.Addr = addr
			d := l.decide(b)
			if d.Effect == cell.Deny {
				if deny == nil {
					deny = &d
				}
				a.Addr = addr
				continue
			}
			list = append(list, addr)
		}
		if len(list) == 0 {
			g.tell(l, a, *deny, conn)
			return nil, deny, &denied{access: a, decision: *deny}
		}
	}
	out, err = g.race(ctx, list, a.Port)
	return out, nil, err
}

// denied is the error of a denial.
type denied struct {
	access   cell.Access
	decision cell.Decision
}

func (e *denied) Error() string { return "denied: " + e.decision.Reason }

// race dials addresses in turn, each before a slow predecessor has failed, and returns the first
// connection.
func (g *Gateway) race(ctx context.Context, list []netip.Addr, port uint16) (net.Conn, error) {
	list = order(list)
	if len(list) > 8 {
		list = list[:8]
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		out net.Conn
		err error
	}
	results := make(chan result, len(list))
	next, running := 0, 0
	try := func() {
		addr := netip.AddrPortFrom(list[next], port)
		next++
		running++
		g.wg.Go(func() {
			out, err := g.cfg.Dial(ctx, "tcp", addr.String())
			if err == nil {
				out = &outConn{Conn: out, addr: addr}
			}
			results <- result{out, err}
		})
	}
	try()
	var first error
	timer := time.NewTimer(headStart)
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			running--
			if r.err == nil {
				if running > 0 {
					n := running
					g.wg.Go(func() {
						for range n {
							if r := <-results; r.out != nil {
								r.out.Close()
							}
						}
					})
				}
				return r.out, nil
			}
			if first == nil {
				first = r.err
			}
			if next < len(list) {
				try()
			} else if running == 0 {
				return nil, first
			}
		case <-timer.C:
			if next < len(list) {
				try()
				timer.Reset(headStart)
			}
		}
	}
}

// order puts reachable addresses first, alternating IPv6 and IPv4.
func order(list []netip.Addr) []netip.Addr {
	if len(list) < 2 {
		return list
	}
	var four, six, far, all []netip.Addr
	for _, a := range list {
		switch {
		case a.Is4():
			four = append(four, a)
		case routed(a):
			six = append(six, a)
		default:
			far = append(far, a)
		}
	}
	for len(four)+len(six) > 0 {
		if len(six) > 0 {
			all, six = append(all, six[0]), six[1:]
		}
		if len(four) > 0 {
			all, four = append(all, four[0]), four[1:]
		}
	}
	return append(all, far...)
}

// routed reports whether the host has a route to an address. It sends nothing.
func routed(a netip.Addr) bool {
	c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// outConn is a connection to the outside; its remote address is the one that the policy decided
// on.
type outConn struct {
	net.Conn
	addr netip.AddrPort
}

func (c *outConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }

func (c *outConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

func (c *outConn) SetLinger(sec int) error {
	if h, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return h.SetLinger(sec)
	}
	return nil
}
