package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	dnsPort    = 53
	dnsTTL     = 30 // seconds
	maxQueries = 512
	maxQuery   = 1232 // bytes: enough for any of our clients
	maxStreams = 64   // DNS over TCP
)

// nameServer answers DNS on the gateway's addresses.
type nameServer struct {
	servers []*dns.Server
	busy    chan struct{}
	shapes  shapes
}

// startDNS starts the name servers, over UDP and TCP, on both addresses.
func (g *Gateway) startDNS() error {
	g.dns.busy = make(chan struct{}, maxQueries)
	for _, a := range []netip.Addr{g.cfg.Link.Gateway4, g.cfg.Link.Gateway6} {
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		at := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: dnsPort}
		pc, err := gonet.DialUDP(g.stack, &at, nil, proto)
		if err != nil {
			return err
		}
		g.serveDNS(&dns.Server{PacketConn: pc, UDPSize: maxQuery})
		ln, err := gonet.ListenTCP(g.stack, at, proto)
		if err != nil {
			return err
		}
		g.serveDNS(&dns.Server{Listener: &limited{Listener: ln, free: make(chan struct{}, maxStreams)}, MaxTCPQueries: 256,
			ReadTimeout: 5 * time.Second, IdleTimeout: func() time.Duration { return 10 * time.Second }})
	}
	return nil
}

func (g *Gateway) serveDNS(s *dns.Server) {
	s.Handler = dns.HandlerFunc(g.answerDNS)
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	s.MsgAcceptFunc = acceptQuery
	g.dns.servers = append(g.dns.servers, s)
	g.wg.Go(func() {
		if err := s.ActivateAndServe(); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Error("cannot answer DNS", "err", err)
		}
	})
	<-started
}

// acceptQuery drops messages that are no queries before they are unpacked.
func acceptQuery(h dns.Header) dns.MsgAcceptAction {
	const response = 1 << 15
	switch {
	case h.Bits&response != 0:
		return dns.MsgIgnore
	case h.Bits>>11&0xf != dns.OpcodeQuery:
		return dns.MsgRejectNotImplemented
	case h.Qdcount != 1 || h.Ancount > 0 || h.Nscount > 0 || h.Arcount > 2:
		return dns.MsgReject
	}
	return dns.MsgAccept
}

func (g *Gateway) stopDNS() {
	for _, s := range g.dns.servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s.ShutdownContext(ctx)
		cancel()
	}
}

// limited is a listener with a bounded number of connections.
type limited struct {
	net.Listener
	free chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &counted{Conn: c, done: func() { <-l.free }}, nil
		default:
			c.Close()
		}
	}
}

// Close also wakes callers of Accept.
func (l *limited) Close() error {
	if s, ok := l.Listener.(interface{ Shutdown() }); ok {
		s.Shutdown()
	}
	return l.Listener.Close()
}

// answerDNS answers one query.
func (g *Gateway) answerDNS(w dns.ResponseWriter, q *dns.Msg) {
	defer g.survive("a DNS query")
	w.WriteMsg(g.reply(q))
}

// reply returns the answer to any query.
func (g *Gateway) reply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	edns := q.IsEdns0() != nil
	if edns {
		m.SetEdns0(maxQuery, false)
	}
	explain := func(code uint16, text string) {
		if o := m.IsEdns0(); o != nil {
			o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
		}
	}
	select {
	case g.dns.busy <- struct{}{}:
		defer func() { <-g.dns.busy }()
	default:
		m.Rcode = dns.RcodeServerFailure
		explain(dns.ExtendedErrorCodeOther, "too many questions at once")
		return m
	}
	if len(q.Question) != 1 {
		m.Rcode = dns.RcodeFormatError
		return m
	}
	question := q.Question[0]
	l := g.inForce.Load()
	host, service := serviceOf(hostOf(question.Name))
	a := cell.Access{Act: cell.Resolve, Host: host}
	d, name := g.decideQuery(l, a, q)
	if d.Effect == cell.Deny {
		switch {
		case name:
			g.answerRefused(m, host, l, a, d)
		case question.Qclass == dns.ClassINET && (question.Qtype == dns.TypePTR || !validHost(a.Host)):
			// getaddrinfo and getnameinfo ask for these. musl takes REFUSED for no answer, waits
			// five seconds for another one, and says "try again".
			g.tell(l, a, d, "")
			m.Rcode = dns.RcodeNameError
		default:
			g.tell(l, a, d, "")
			m.Rcode = dns.RcodeRefused
		}
		code := uint16(dns.ExtendedErrorCodeProhibited)
		if d.By == "gateway" {
			code = dns.ExtendedErrorCodeFiltered
		}
		explain(code, sentence(d))
		return m
	}
	g.tell(l, a, d, "")
	if service {
		return m // no answer: no server is asked, and the client tries the host itself next
	}
	ctx, cancel := context.WithTimeout(g.ctx, resolveAll)
	defer cancel()
	var ans answer
	by, err := l.proxy.through(a)
	switch {
	case l.services[a.Host]: // it has no address outside of the cell
		ans.addrs, err = []netip.Addr{netip.IPv4Unspecified()}, nil
	case l.offline:
		ans, err = g.resolvedThen(a.Host), nil
	case err != nil:
	case by != nil: // it looks the name up, and reports a missing one
		ans.addrs = []netip.Addr{netip.IPv4Unspecified()}
	default:
		ans, err = l.resolver.lookup(ctx, a.Host)
	}
	g.recordName(l, a.Host, ans, err)
	if err != nil {
		g.events.unresolved(a.Host, err)
		m.Rcode = dns.RcodeServerFailure
		explain(dns.ExtendedErrorCodeNetworkError, err.Error())
		return m
	}
	m.Rcode = ans.rcode
	if len(ans.addrs) == 0 {
		return m
	}
	four, six, ok := g.names.give(a.Host)
	if !ok {
		m.Rcode = dns.RcodeNameError // final, as above
		explain(dns.ExtendedErrorCodeProhibited, "the cell has looked up more names than it can have")
		return m
	}
	h := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: dnsTTL}
	switch question.Qtype {
	case dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: h, A: four.AsSlice()}}
	case dns.TypeAAAA:
		m.Answer = []dns.RR{&dns.AAAA{Hdr: h, AAAA: six.AsSlice()}}
	}
	return m
}

// decideQuery decides on a query. name is set when the name is denied, and not the type or class
// of the query.
func (g *Gateway) decideQuery(l *compiledPolicy, a cell.Access, q *dns.Msg) (d cell.Decision, name bool) {
	question := q.Question[0]
	if question.Qclass != dns.ClassINET {
		return never("dns", "nothing but the class IN is answered"), false
	}
	d = g.decideName(l, a, true)
	if d.Effect == cell.Deny {
		return d, validHost(a.Host)
	}
	switch question.Qtype {
	case dns.TypeANY, dns.TypeNULL, dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB, dns.TypePTR, dns.TypeKEY, dns.TypeNone:
		return never("dns", "no such questions are answered"), false
	}
	return d, false
}

// decideName decides on a name. With count the lookup is real, and counts among the new names of
// its domain.
func (g *Gateway) decideName(l *compiledPolicy, a cell.Access, count bool) cell.Decision {
	if !validHost(a.Host) {
		return never("dns", "it is not a valid host name")
	}
	if d, over := g.overBudget(l); over {
		return d
	}
	d := l.decide(a)
	if d.Effect == cell.Deny {
		return d
	}
	if reason := g.dns.shapes.judge(l, a.Host, count); reason != "" {
		return never("dns tunnel", reason)
	}
	return d
}

// serviceOf returns the host in a name such as _http._tcp.deb.debian.org, by which programs
// (apt, git, mail) look up the servers of a service (RFC 2782). The policy decides on that host,
// so that one rule is enough and a denial names it.
func serviceOf(name string) (host string, service bool) {
	first, rest, _ := strings.Cut(name, ".")
	second, host, ok := strings.Cut(rest, ".")
	if ok && strings.HasPrefix(first, "_") && (second == "_tcp" || second == "_udp") {
		return host, true
	}
	return name, false
}

// hostOf normalises the name of a query: lower case, no final dot.
func hostOf(name string) string {
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// validHost reports whether a name can be that of a host. Underscores are in use.
func validHost(host string) bool {
	if host == "" || len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, b := range []byte(label) {
			if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' || b == '_') {
				return false
			}
		}
	}
	return true
}

// sentence is a denial in one line: the reason, and the grant that would allow it.
func sentence(d cell.Decision) string {
	if d.Permit == "" {
		return d.Reason
	}
	return d.Reason + " (would be allowed by " + d.Permit + ")"
}
