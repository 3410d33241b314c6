package gateway

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/pando-dev/pando/internal/cell"
)

// conn is one TCP connection of the cell.
type conn struct {
	g        *Gateway
	id       string
	request  string // id of the decision that allowed it
	access   cell.Access
	decision cell.Decision
	policy   cell.Digest // the policy of the decision
	refused  *refusal    // of a connection to a denied name: the gateway answers it itself
	started  time.Time

	ep tcpip.Endpoint
	wq *waiter.Queue
	in net.Conn // to the cell

	sent, received atomic.Int64
	hungUp         atomic.Bool // the cell has ended its direction

	mu     sync.Mutex // guards the fields below
	out    net.Conn   // dialled ahead or passed through
	addr   netip.Addr // the dialled address
	proxy  proxyAddr  // the proxy that the connection goes through
	scheme string     // "https", "http", "" for neither
	opened bool
	told   bool // its requests have reported its outcome
	quiet  bool // a decision has reported its outcome
	cause  string
	over   bool
	uses   map[*exchange]bool // requests in progress
	done   chan struct{}      // closed when HTTP in it has ended
}

// opens reports whether the gateway, and not the cell itself, speaks to the outside on this
// connection.
func (c *conn) opens() bool {
	return c.decision.Open || c.access.Port == 80 || c.g.inForce.Load().answers(c.access.Host)
}

// host returns the name that the connection is to; for an address, the address.
func (c *conn) host() string {
	if c.access.Host != "" {
		return c.access.Host
	}
	return c.access.Addr.String()
}

// setIn sets the accepted connection. It is false when the connection was reset before.
func (c *conn) setIn(ep tcpip.Endpoint, wq *waiter.Queue, in net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ep, c.wq, c.in = ep, wq, in
	if c.over {
		ep.Abort()
	}
	return !c.over
}

func (c *conn) setOut(out net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = out
	c.addr, c.proxy = passed(out)
	if c.over {
		out.Close()
	}
}

// takeOut returns the connection that was dialled ahead, if any, and gives up its ownership.
func (c *conn) takeOut() (out net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, c.out = c.out, nil
	return out
}

func (c *conn) speaks(scheme string, opened bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scheme, c.opened = scheme, opened
}

// speaksHTTP reports whether its requests are decided one by one.
func (c *conn) speaksHTTP() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done != nil
}

// fail records the first error.
func (c *conn) fail(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == "" {
		c.cause = err.Error()
	}
}

// reset ends it at once, with a reset on both sides.
func (c *conn) reset(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if c.cause == "" {
		c.cause = why
	}
	for x := range c.uses {
		x.cancel()
	}
	if c.ep != nil {
		c.ep.Abort()
	}
	abort(c.out)
}

// abort resets a connection to the outside.
func abort(out net.Conn) {
	if out == nil {
		return
	}
	if l, ok := out.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	out.Close()
}

// end closes what is open, and emits the flow event.
func (c *conn) end() {
	defer c.g.conns.remove(c) // after the event: see Settle
	c.mu.Lock()
	c.over = true
	in, out := c.in, c.out
	f := cell.Flow{Conn: c.id, ID: c.request, Host: c.access.Host, Addr: c.addr, Proxy: c.proxy.at, Unchecked: c.proxy.unchecked(), Port: c.access.Port, Scheme: c.scheme, Opened: c.opened,
		Sent: c.sent.Load(), Received: c.received.Load(), MS: ms(c.started), Error: c.cause}
	quiet := c.quiet || c.told || c.request == ""
	c.mu.Unlock()
	if in != nil {
		in.Close()
	}
	if out != nil {
		out.Close()
	}
	if !f.Addr.IsValid() {
		f.Addr = c.access.Addr
	}
	if !quiet {
		c.g.events.flow(f)
	}
}

func ms(since time.Time) float64 {
	return float64(time.Since(since).Microseconds()) / 1000
}

// rejudge resets the connection, with its requests, unless the new policy allows it.
func (c *conn) rejudge(l *compiledPolicy) {
	d := c.g.decideConnect(l, c.access)
	ok := d.Effect != cell.Deny && d.Open == c.decision.Open && !c.unseen(l)
	if d.Effect == cell.Ask && (c.decision.Effect != cell.Ask || c.policy != l.policy) && !c.speaksHTTP() {
		ok = false
	}
	c.mu.Lock()
	addr := c.addr
	uses := make([]*exchange, 0, len(c.uses))
	for x := range c.uses {
		uses = append(uses, x)
	}
	c.mu.Unlock()
	a := c.access
	asks := d.Effect == cell.Ask
	if ok && a.Host != "" && addr.IsValid() {
		a.Addr = addr
		d = l.decide(a)
		ok = d.Effect != cell.Deny
	}
	for _, x := range uses {
		if !ok {
			break
		}
		a = x.access
		d = l.decide(a)
		if x.pinned == "" && len(x.hide) == 0 && l.looksInto(c.host()) {
			ok = false // it was not opened as the new policy requires
			break
		}
		ok = d.Effect == cell.Allow && !asks || d.Effect != cell.Deny && x.asked && x.l.policy == l.policy
		if x.secret != nil {
			if s, _ := l.lentAs(x.secret.Handle, a, x.c.host()); d.Credential != x.secret.Handle || s == nil || s.Secret != x.secret.Secret && (s.Login == "" || s.Login != x.secret.Login) {
				ok = false // a login that was renewed ends nothing, see cell.Lent
			}
		}
	}
	if ok {
		return
	}
	if d.Effect != cell.Deny {
		d = cell.Decision{Effect: cell.Deny, Rule: d.Rule, Origin: d.Origin, Reason: "the policy has changed, and the connection has to be made again", By: d.By}
	}
	c.g.tell(l, a, d, c.id)
	c.reset("denied by the policy that is in force now")
}

// unseen reports whether TLS was passed through to a host with connections that must be opened
// now.
func (c *conn) unseen(l *compiledPolicy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scheme == "https" && !c.opened && l.looksInto(c.host())
}

// conns are the open connections.
type conns struct {
	max int // at once; constant

	mu   sync.Mutex
	open map[*conn]bool
}

func (s *conns) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= s.max {
		return false
	}
	if s.open == nil {
		s.open = map[*conn]bool{}
	}
	s.open[c] = true
	return true
}

func (s *conns) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

func (s *conns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

func (s *conns) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.open))
	for c := range s.open {
		list = append(list, c)
	}
	return list
}

func (s *conns) resetAll() {
	for _, c := range s.all() {
		c.reset("the cell's network has ended")
	}
}

// Settle is for a cell after the end of all its processes: it waits up to d for their
// connections to end, ends the others, and emits the remaining events.
func (g *Gateway) Settle(d time.Duration) {
	everything := func(*conn) bool { return true }
	for _, c := range g.await(d, everything) {
		c.reset("its process has ended")
	}
	g.await(d, everything)
	g.events.flush()
}

// Tell is Settle for a cell that continues: it ends no connection, since a half-closed one may
// still have a reader.
func (g *Gateway) Tell(d time.Duration) {
	g.await(d, func(c *conn) bool { return c.hungUp.Load() })
	g.events.flush()
}

// await waits up to d until none of the selected connections is left, and returns those that
// are.
func (g *Gateway) await(d time.Duration, meant func(*conn) bool) (left []*conn) {
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		left = nil
		for _, c := range g.conns.all() {
			if meant(c) {
				left = append(left, c)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}
