package gateway

import (
	"encoding/binary"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	// maxRefused bounds the denied names with a refusal address; a new one takes the address of
	// the oldest.
	maxRefused = 1 << 10 // as cell.NetworkLink.Refusals has
	// maxRefusing bounds the connections of the refusal service; further ones are reset.
	maxRefusing = 128
	// refusalLife is the longest life of such a connection.
	refusalLife = 15 * time.Second
	// oneAttempt is the time within which queries of several types for a name count as one
	// attempt.
	oneAttempt = 5 * time.Second
	// maxTypes bounds the query types of one attempt: programs use three or four, and there are
	// 65,536.
	maxTypes = 8
)

// refusals are the addresses of denied names: REFUSED looks like a temporary fault, which
// programs retry for minutes. An address belongs to one name, so a connection shows which name
// was meant. Connections to such an address are never forwarded, whatever the policy is by then.
type refusals struct {
	base uint32

	mu     sync.Mutex // guards the fields below
	byName map[string]*refusedName
	ring   [maxRefused]*refusedName
	next   int
}

// refusedName is a denied name with an address.
type refusedName struct {
	host  string
	at    uint32
	since time.Time
	// types are the query types of one attempt, which is one event, with the id of the query: musl
	// sends one query to every server.
	types map[uint16]uint16
	// event is the event of the lookup, for the first connection afterwards, which is the same
	// attempt; then "".
	event string
}

func newRefusals(link cell.NetworkLink) *refusals {
	b := link.Refusals().Addr().As16() // of an IPv4 address, the last four
	return &refusals{base: binary.BigEndian.Uint32(b[12:]), byName: map[string]*refusedName{}}
}

// asked gives a denied name its address. tell is false when a query of another type was just
// reported for the same attempt.
func (f *refusals) asked(host string, kind, id uint16, now time.Time) (at netip.Addr, tell bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.byName[host]
	if n == nil {
		n = &refusedName{host: host, at: uint32(f.next)}
		if old := f.ring[f.next]; old != nil {
			delete(f.byName, old.host)
		}
		f.ring[f.next], f.byName[host] = n, n
		f.next = (f.next + 1) % maxRefused
	}
	first, again := n.types[kind]
	if n.types == nil || again && first != id || len(n.types) == maxTypes || now.Sub(n.since) > oneAttempt {
		n.types, n.since, n.event, tell = map[uint16]uint16{}, now, "", true
	}
	n.types[kind] = id
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], f.base+n.at)
	return netip.AddrFrom4(b), tell
}

// nameOf returns the denied name that has an address; "" for none.
func (f *refusals) nameOf(a netip.Addr) string {
	if !a.Is4() {
		return ""
	}
	b := a.As4()
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := binary.BigEndian.Uint32(b[:]) - f.base; i < maxRefused && f.ring[i] != nil {
		return f.ring[i].host
	}
	return ""
}

// tells records the event of a lookup.
func (f *refusals) tells(host, event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.byName[host]; n != nil {
		n.event = event
	}
}

// told returns and clears the event of the attempt that a connection to a denied name belongs
// to: the next connection is an attempt of its own. It is "" when there is none.
func (f *refusals) told(host string) (event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.byName[host]
	if n == nil || n.event == "" {
		return ""
	}
	event, n.event, n.types = n.event, "", nil
	return event
}

// answerRefused answers a query for a denied name: the refusal address for IPv4, no address for
// others.
func (g *Gateway) answerRefused(m *dns.Msg, host string, l *compiledPolicy, a cell.Access, d cell.Decision) {
	q := m.Question[0]
	at, tell := g.refused.asked(host, q.Qtype, m.Id, time.Now())
	if tell {
		g.refused.tells(host, g.tell(l, a, d, ""))
	}
	if q.Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: at.AsSlice()}}
	}
}

// hostAt returns the name of one of the cell's own addresses; denied is set when it is a refusal
// address.
func (g *Gateway) hostAt(a netip.Addr) (host string, denied bool) {
	if host = g.refused.nameOf(a); host != "" {
		return host, true
	}
	host, _ = g.names.nameOf(a)
	return host, false
}

// tellRefused emits a denial unless the attempt has an event already, and returns the id of the
// event.
func (g *Gateway) tellRefused(l *compiledPolicy, a cell.Access, d cell.Decision, conn string) string {
	if d.Effect == cell.Deny {
		if id := g.refused.told(a.Host); id != "" {
			g.denials.note(a, d)
			return id
		}
	}
	return g.tell(l, a, d, conn)
}

// decideRefused decides on a connection to a refusal address.
func (g *Gateway) decideRefused(l *compiledPolicy, a cell.Access) cell.Decision {
	if a.Transport != "tcp" {
		return g.decideConnect(l, a)
	}
	d := g.decideName(l, cell.Access{Act: cell.Resolve, Host: a.Host}, false)
	if d.Effect != cell.Deny {
		return outdated(a.Host)
	}
	// The port makes the proposed grant exact.
	if e := l.decide(a); e.Effect == cell.Deny && e.Rule == d.Rule && e.Origin == d.Origin {
		return e
	}
	return d
}

// outdated is the decision for a refusal address of a name that is allowed by now.
func outdated(host string) cell.Decision {
	return never("refusal", host+" was denied when it was looked up and is not now: look it up again")
}

// webPorts are ports on which clients speak first, HTTP or TLS. A client that waits for the
// server on another port is reset at once.
func webPort(port uint16) bool {
	return port == 80 || port == 443 || port == 8080 || port == 8443
}

// refuse answers a connection to a denied name with a reset. HTTP, and TLS of a cell with an
// authority, get an explanation.
func (g *Gateway) refuse(r *tcp.ForwarderRequest, l *compiledPolicy, a cell.Access, d cell.Decision, id, told string, finish func(reset bool)) {
	if !webPort(a.Port) || a.Port == 443 && l.signer == nil {
		return
	}
	c := &conn{g: g, id: id, access: a, decision: d, policy: l.policy, started: time.Now(), quiet: true, refused: &refusal{event: told}}
	if !g.refusing.add(c) {
		return
	}
	defer g.refusing.remove(c)
	defer c.end()
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		return
	}
	finish(false)
	ep.SocketOptions().SetSendBufferSize(bufferCrowd, true)
	ep.SocketOptions().SetReceiveBufferSize(bufferCrowd, true)
	if !c.setIn(ep, &wq, gonet.NewTCPConn(&wq, ep)) {
		return
	}
	late := time.AfterFunc(c.g.refuseFor, func() { c.reset("it took too long to be refused") })
	defer late.Stop()
	c.in.SetReadDeadline(time.Now().Add(c.g.refuseFor))
	first := &first{c: c}
	what, _ := first.see(true)
	c.in.SetReadDeadline(time.Time{})
	in := &prefixed{Conn: c.in, c: c, pre: first.b}
	switch {
	case what == saidHTTP && a.Port != 443:
		c.speaks("http", false)
		c.web(in)
	case what == saidTLS && a.Port != 80 && l.signer != nil && first.hello.name == a.Host:
		c.openTLS(in)
	default:
		c.reset("denied: " + d.Reason)
	}
}

// refusal is the refusal service's state for a connection.
type refusal struct {
	mu    sync.Mutex
	event string // the event of the connection
}

// first returns the event of the connection for its first request, which it covers, and "" for
// the others.
func (f *refusal) first() (event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	event, f.event = f.event, ""
	return event
}

// refusal answers a request to a denied name. It does not read the body.
func (w *web) refusal(rw http.ResponseWriter, r *http.Request, x *exchange) {
	rw = lastAnswer{rw}
	c := x.c
	if len(x.access.Method) > maxMethod {
		x.access.Method = printable(x.access.Method)
	}
	if forms, ok := pathForms(r.URL.EscapedPath()); ok {
		x.access.Path = forms[0][:min(len(forms[0]), maxPath)]
	}
	d := c.decision
	if d.Rule == "refusal" && d.By == "gateway" {
		w.g.denials.note(x.access, d)
		respond(rw, http.StatusServiceUnavailable, Denial{Kind: "unavailable", Reason: d.Reason})
		return
	}
	// The request makes the proposed grant narrower.
	if e := x.l.decide(x.access); e.Effect == cell.Deny && e.Rule == d.Rule && e.Origin == d.Origin {
		d.Line, d.Narrower = e.Line, e.Narrower
	}
	if x.id = c.refused.first(); x.id != "" {
		w.g.denials.note(x.access, d)
	} else {
		x.id = w.g.tell(x.l, x.access, d, c.id)
	}
	x.deny(rw, d, http.StatusForbidden)
}

// lastAnswer ends the connection after this answer.
type lastAnswer struct{ http.ResponseWriter }

func (a lastAnswer) WriteHeader(code int) {
	a.Header().Set("Connection", "close")
	a.ResponseWriter.WriteHeader(code)
}
