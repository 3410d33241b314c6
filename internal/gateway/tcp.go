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
	maxOpening = 2048  // connections being opened; further ones have to retry
	maxConns   = 16384 // open ones; further ones are refused
)

// accept decides on a SYN before it is answered: a denied connection looks like a closed port.
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
	l := g.inForce.Load()
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
	// A connection that is passed through is dialled first, so that the cell sees whether the
	// port is open.
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
	if now := g.inForce.Load(); now != l {
		c.rejudge(now)
	}
	c.serve()
}

// decideConnect decides on a connection before its first byte.
func (g *Gateway) decideConnect(l *compiledPolicy, a cell.Access) cell.Decision {
	switch {
	case a.Transport == "icmp":
		return never("ping", "no pings leave a cell")
	case a.Transport != "tcp":
		return never("udp", "nothing but DNS is sent by UDP: use TCP")
	}
	if a.Host == "" {
		if _, ours := g.names.nameOf(a.Addr); ours {
			return never("link", "the address belongs to the cell's own network, and has no name")
		}
	}
	if d, over := g.overBudget(l); over {
		return d
	}
	return l.decide(a)
}

// overBudget is the decision on everything after a cell has used up its egress budget.
func (g *Gateway) overBudget(l *compiledPolicy) (cell.Decision, bool) {
	if l.egress <= 0 || g.sent.Load() < l.egress {
		return cell.Decision{}, false
	}
	return cell.Decision{Effect: cell.Deny, Rule: "egress", Origin: "budget", Reason: "the cell has sent as much as its budget allows", By: "budget"}, true
}

// account counts bytes that leave the cell. Above the budget it resets all connections.
func (g *Gateway) account(n int64) (ok bool) {
	total := g.sent.Add(n)
	l := g.inForce.Load()
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
