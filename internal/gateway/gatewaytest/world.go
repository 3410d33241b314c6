package gatewaytest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/testenv"
)

// World is what is outside: a DNS with names of its own, and hosts that are
// servers on loopback. Addresses of 203.0.113.0/24 and 2001:db8::/32 stand for
// them.
type World struct {
	t        testing.TB
	Resolver string

	mu      sync.Mutex
	records map[string][]dns.RR
	rcodes  map[string]int
	servers map[netip.AddrPort]string // where a host's port really is
	asked   map[string]int
	dialled []string

	ca   cell.Authority
	pool *x509.CertPool
}

// NewWorld starts the DNS.
func NewWorld(t testing.TB) *World {
	t.Helper()
	w := &World{t: t, records: map[string][]dns.RR{}, rcodes: map[string]int{}, servers: map[netip.AddrPort]string{}, asked: map[string]int{}}
	var pc net.PacketConn
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	for range 20 { // until a port is free for both
		if err != nil {
			t.Fatal(err)
		}
		if pc, err = net.ListenPacket("udp", ln.Addr().String()); err == nil {
			break
		}
		ln.Close()
		ln, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if pc == nil {
		t.Fatal("no port is free for both UDP and TCP")
	}
	w.Resolver = pc.LocalAddr().String()
	h := dns.HandlerFunc(w.answer)
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: ln, Handler: h}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	if w.ca, err = gateway.NewAuthority("the world"); err != nil {
		t.Fatal(err)
	}
	w.pool = x509.NewCertPool()
	w.pool.AppendCertsFromPEM([]byte(w.ca.Cert))
	return w
}

func (w *World) answer(rw dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := strings.ToLower(q.Question[0].Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[strings.TrimSuffix(name, ".")]++
	if rc, ok := w.rcodes[name]; ok {
		m.Rcode = rc
	} else if _, ok := w.records[name]; !ok {
		m.Rcode = dns.RcodeNameError
	}
	for range 8 {
		next := ""
		for _, rr := range w.records[name] {
			if rr.Header().Rrtype == q.Question[0].Qtype {
				m.Answer = append(m.Answer, rr)
			} else if c, ok := rr.(*dns.CNAME); ok {
				m.Answer = append(m.Answer, c)
				next = c.Target
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	if _, ok := rw.RemoteAddr().(*net.UDPAddr); ok {
		size := dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = int(o.UDPSize())
		}
		if m.Truncate(size); m.Truncated {
			m.Answer = nil // as many servers do: it has to be asked for by TCP
		}
	}
	rw.WriteMsg(m)
}

// Record adds a line of a zone file to the DNS.
func (w *World) Record(line string) {
	rr, err := dns.NewRR(line)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name := strings.ToLower(rr.Header().Name)
	w.records[name] = append(w.records[name], rr)
}

// Answers makes the DNS answer for a name with an error.
func (w *World) Answers(name string, rcode int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rcodes[dns.Fqdn(name)] = rcode
}

// Asked is how often the DNS was asked for a name.
func (w *World) Asked(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[name]
}

// Dialled are the addresses that were dialled.
func (w *World) Dialled() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.dialled...)
}

// Serve says where an address and port really are.
func (w *World) Serve(at string, ln net.Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[netip.MustParseAddrPort(at)] = ln.Addr().String()
}

// Service connects to a service beside the cell: what Serve says of the port at 192.0.2.NUMBER, by the number in its name ("db-7").
func (w *World) Service(ctx context.Context, name string, port uint16) (net.Conn, error) {
	_, number, _ := strings.Cut(name, "-")
	w.mu.Lock()
	at, ok := w.servers[netip.AddrPortFrom(netip.MustParseAddr("192.0.2."+number), port)]
	w.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("service %s does not run", name)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", at)
}

// Listen opens a port of an address of the world.
func (w *World) Listen(at string) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	w.Serve(at, ln)
	return ln
}

// Raw serves a port with a function per connection.
func (w *World) Raw(at string, f func(net.Conn)) {
	ln := w.Listen(at)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
}

// HTTP serves HTTP/1 and HTTP/2 at a port.
func (w *World) HTTP(at string, h http.Handler) {
	ln := w.Listen(at)
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: &p}
	go s.Serve(ln)
	w.t.Cleanup(func() { s.Close() })
}

// HTTPS serves HTTP over TLS at a port, for some names.
func (w *World) HTTPS(at string, h http.Handler, names ...string) {
	ln := w.Listen(at)
	s := &http.Server{Handler: h, TLSConfig: w.TLS(names...), ErrorLog: quiet}
	go s.ServeTLS(ln, "", "")
	w.t.Cleanup(func() { s.Close() })
}

// TLS is the configuration of a server with some names.
func (w *World) TLS(names ...string) *tls.Config {
	cert, err := Leaf(w.ca, names...)
	if err != nil {
		w.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// Roots are the authorities of the world.
func (w *World) Roots() *x509.CertPool { return w.pool }

// Dial connects to a host of the world.
func (w *World) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, address)
	real, ok := w.servers[netip.MustParseAddrPort(address)]
	w.mu.Unlock()
	if !ok { // no host listens there
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	var d net.Dialer
	return d.DialContext(ctx, network, real)
}

// Governance makes one of a policy.
func (w *World) Governance(p Policy) cell.Governance {
	return cell.Governance{Policy: p.JSON(), Resolvers: []string{w.Resolver}, Roots: w.ca.Cert}
}

// Events collects what a gateway tells.
type Events struct {
	mu   sync.Mutex
	list []Event
	text bytes.Buffer
}

// Event is one of them.
type Event struct {
	Kind    string
	Decided cell.Decided
	Flow    cell.Flow
	Failed  cell.Unresolved
	Budget  cell.BudgetNote
}

// Emit takes one.
func (e *Events) Emit(kind string, fields any) {
	ev := Event{Kind: kind}
	switch f := fields.(type) {
	case cell.Decided:
		ev.Decided = f
	case cell.Flow:
		ev.Flow = f
	case cell.Unresolved:
		ev.Failed = f
	case cell.BudgetNote:
		ev.Budget = f
	default:
		panic(fmt.Sprintf("an event of type %T", fields))
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
	e.text.Write(append(b, '\n'))
}

// Text is all of them as they would be recorded.
func (e *Events) Text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// All are those for which f is true.
func (e *Events) All(f func(Event) bool) (list []Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if f(ev) {
			list = append(list, ev)
		}
	}
	return list
}

// Wait waits until there is one for which f is true.
func (e *Events) Wait(t testing.TB, what string, f func(Event) bool) Event {
	t.Helper()
	for end := time.Now().Add(testenv.Patience()); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if list := e.All(f); len(list) > 0 {
			return list[0]
		}
	}
	t.Fatalf("no event: %s; there were:\n%s", what, e.Text())
	return Event{}
}
