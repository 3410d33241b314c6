package gateway

import (
	"context"
	"errors"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	maxOpening = 2048  // connections being opened; what is more has to try again
	maxConns   = 16384 // open ones; what is more is refused
)

// accept decides about a SYN. Nothing has been answered yet: who is denied sees
// a port on which nobody listens.
func (g *Gateway) accept(r *tcp.ForwarderRequest) {
	done := false
	finish := func(reset bool) {
		if !done {
			done = true
			r.Complete(reset)
		}
	}
	defer finish(true)
	if !g.enter() {
		return
	}
	defer g.wg.Done()
	defer g.survive("a connection")
	id := r.ID()
	a := cell.Access{Act: cell.Connect, Port: id.LocalPort, Transport: "tcp"}
	dst := addrOf(id.LocalAddress)
	host, refused := g.hostAt(dst)
	if host != "" {
		a.Host = host
	} else {
		a.Addr = dst
	}
	l := g.law.Load()
	if refused {
		d := g.decideRefused(l, a)
		cid := connID()
		told := g.tellRefused(l, a, d, cid)
		g.refuse(r, l, a, d, cid, told, finish)
		return
	}
	d := g.decideConnect(l, a)
	c := &conn{g: g, id: connID(), access: a, decision: d, policy: l.policy, started: time.Now()}
	if d.Effect == cell.Deny {
		told := g.tell(l, a, d, c.id)
		if a.Host != "" { // its name is allowed, this port is not
			g.refuse(r, l, a, d, c.id, told, finish)
		}
		return
	}
	if !g.conns.add(c) {
		g.tell(l, a, never("limit", "the cell has too many connections open"), c.id)
		return
	}
	defer c.end()
	// What will not be looked into is dialled first: the cell sees whether
	// somebody listens there.
	if d.Effect == cell.Allow {
		if !c.opens() {
			ctx, cancel := context.WithTimeout(g.ctx, dialTimeout)
			out, deny, err := g.dial(ctx, l, a, c.id)
			cancel()
			if deny == nil {
				c.request = g.tell(l, a, d, c.id)
			}
			if err != nil {
				c.fail(err)
				if deny != nil {
					c.quiet = true
				}
				return
			}
			c.setOut(out)
		} else {
			c.request = g.tell(l, a, d, c.id)
		}
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		c.fail(errors.New("the cell gave up"))
		return
	}
	finish(false)
	ep.SocketOptions().SetKeepAlive(true)
	if g.conns.count() > crowd {
		ep.SocketOptions().SetSendBufferSize(bufferCrowd, true)
		ep.SocketOptions().SetReceiveBufferSize(bufferCrowd, true)
	}
	if !c.setIn(ep, &wq, gonet.NewTCPConn(&wq, ep)) {
		return
	}
	if now := g.law.Load(); now != l {
		c.rejudge(now)
	}
	c.serve()
}

// decideConnect is the decision about a connection, before anything of it was
// seen.
func (g *Gateway) decideConnect(l *law, a cell.Access) cell.Decision {
	switch {
	case a.Transport == "icmp":
		return never("ping", "no pings leave a cell")
	case a.Transport != "tcp":
		return never("udp", "nothing but DNS is sent by UDP: use TCP")
	}
	if a.Host == "" {
		if _, ours := g.names.nameOf(a.Addr); ours {
			return never("link", "the address belongs to the cell's own network, and nobody has it")
		}
	}
	if d, over := g.overBudget(l); over {
		return d
	}
	return l.decide(a)
}

// overBudget is the decision about everything once a cell has sent all it may.
func (g *Gateway) overBudget(l *law) (cell.Decision, bool) {
	if l.egress <= 0 || g.sent.Load() < l.egress {
		return cell.Decision{}, false
	}
	return cell.Decision{Effect: cell.Deny, Rule: "egress", Origin: "budget", Reason: "the cell has sent as much as its budget allows", By: "budget"}, true
}

// account counts bytes that leave the cell. Whatever is open is reset when
// there are too many.
func (g *Gateway) account(n int64) (ok bool) {
	total := g.sent.Add(n)
	l := g.law.Load()
	if l.egress <= 0 || total <= l.egress {
		return true
	}
	if total-n <= l.egress {
		d, _ := g.overBudget(l)
		d.Effect, d.Rule, d.Origin, d.By = cell.Deny, "egress", "budget", "budget"
		d.Reason = "the cell has sent as much as its budget allows"
		g.tell(l, cell.Access{Act: cell.Connect}, d, "")
		g.conns.resetAll()
	}
	return false
}
