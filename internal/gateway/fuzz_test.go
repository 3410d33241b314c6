package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// helloOf is what a client says first.
func helloOf(t testing.TB, c *tls.Config) []byte {
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		tls.Client(a, c).Handshake()
		a.Close()
	}()
	b.SetReadDeadline(time.Now().Add(5 * time.Second))
	head := make([]byte, recordHeaderLength)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// FuzzClientHello: whatever arrives, in whatever pieces, is understood in one
// way.
func FuzzClientHello(f *testing.F) {
	f.Add(helloOf(f, &tls.Config{ServerName: "a.test"}))
	f.Add(helloOf(f, &tls.Config{ServerName: "a.test", MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}))
	f.Add(helloOf(f, &tls.Config{InsecureSkipVerify: true}))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte{22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h *hello
		var err error
		boundtest.Allocates(t, len(b), func() { h, err = parseHello(b) })
		if err == nil {
			longer, err := parseHello(append(bytes.Clone(b), "more"...))
			if err != nil || !cmp.Equal(h, longer, cmp.AllowUnexported(hello{})) {
				t.Fatalf("with more behind it: %+v, %v, not %+v", longer, err, h)
			}
			if !strings.EqualFold(h.name, hostOf(h.name)) {
				t.Fatalf("the name %q is not as names are", h.name)
			}
		}
		for i := range min(len(b), 600) {
			part, perr := parseHello(b[:i])
			if perr == nil && (err != nil || !cmp.Equal(part, h, cmp.AllowUnexported(hello{}))) {
				t.Fatalf("%d bytes: %+v; all: %+v, %v", i, part, h, err)
			}
			if perr != nil && !errors.Is(perr, errShort) && err == nil {
				t.Fatalf("%d bytes: %v; all: %+v", i, perr, h)
			}
		}
	})
}

// TestClientHello compares with what crypto/tls has said.
func TestClientHello(t *testing.T) {
	h, err := parseHello(helloOf(t, &tls.Config{ServerName: "A.test", NextProtos: []string{"h2", "http/1.1"}}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&hello{name: "a.test", proto: []string{"h2", "http/1.1"}}, h, cmp.AllowUnexported(hello{})); diff != "" {
		t.Error(diff)
	}
	// The same over many records.
	b := helloOf(t, &tls.Config{ServerName: "a.test"})
	var split []byte
	for _, c := range b[recordHeaderLength:] {
		split = append(split, 22, 3, 1, 0, 1, c)
	}
	if h, err := parseHello(split); err != nil || h.name != "a.test" {
		t.Errorf("over records of one byte: %+v, %v", h, err)
	}
	if _, err := parseHello(split[:len(split)-1]); !errors.Is(err, errShort) {
		t.Errorf("without its last byte: %v", err)
	}
}

// only allows one host, and there nothing below /admin.
type only struct{}

func (only) Digest() cell.Digest { return cell.Sum([]byte("only")) }

func (only) Decide(a cell.Access) cell.Decision {
	d := cell.Decision{Effect: cell.Deny, Rule: "default", Reason: "no"}
	if a.Host == "a.test" && !(a.Act == cell.Request && (a.Path == "/admin" || strings.HasPrefix(a.Path, "/admin/"))) {
		d.Effect, d.Rule = cell.Allow, "allow 1"
	}
	return d
}

// bare is a gateway without a link.
func bare(t testing.TB, dial func() net.Conn) *Gateway {
	g := &Gateway{names: newNames(cell.DefaultLink()), cfg: Config{
		Link: cell.DefaultLink(), Compile: func(cell.Governance) (Decider, error) { return only{}, nil },
		Dial: func(context.Context, string, string) (net.Conn, error) { return dial(), nil },
	}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.refused = newRefusals(cell.DefaultLink())
	g.refusing.max, g.refuseFor = maxRefusing, refusalLife
	g.events = newEvents(func(string, any) {}, g.denials.note)
	g.asks = newAsks(g)
	g.dns.busy = make(chan struct{}, maxQueries)
	l, err := g.compile(cell.Governance{Resolvers: []string{"127.0.0.1:9"}})
	if err != nil {
		t.Fatal(err)
	}
	l.resolver.keep("a.test", answer{addrs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, until: time.Now().Add(24 * time.Hour)})
	g.inForce.Store(l)
	g.web = newWeb(g)
	t.Cleanup(func() { g.Close() })
	return g
}

// FuzzDNS: every message is answered by one that can be packed, and what is not
// allowed is not resolved: its address is one of those at which it is refused.
func FuzzDNS(f *testing.F) {
	g := bare(f, nil)
	for _, m := range []*dns.Msg{
		new(dns.Msg).SetQuestion("a.test.", dns.TypeA),
		new(dns.Msg).SetQuestion("A.tEst.", dns.TypeAAAA),
		new(dns.Msg).SetQuestion("evil.test.", dns.TypeTXT),
		new(dns.Msg).SetQuestion("evil.test.", dns.TypeA),
		new(dns.Msg).SetQuestion("a.test.", dns.TypeANY).SetEdns0(4096, true),
	} {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			q := new(dns.Msg)
			if q.Unpack(b) != nil {
				return
			}
			m := g.reply(q)
			out, err := m.Pack()
			if err != nil {
				// The question is given back as it was, and one that can't be packed
				// again is dropped by the server.
				if _, again := q.Pack(); again == nil {
					t.Fatalf("%v in the answer to %v", err, q)
				}
				return
			}
			if m.Id != q.Id || !m.Response || len(out) > maxQuery+512 {
				t.Fatalf("%d bytes: %v", len(out), m)
			}
			for _, rr := range m.Answer {
				host, _ := serviceOf(hostOf(rr.Header().Name))
				refused := false
				if a, ok := rr.(*dns.A); ok {
					at, _ := netip.AddrFromSlice(a.A.To4())
					refused = cell.DefaultLink().Refusals().Contains(at)
				}
				if refused == (host == "a.test") || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
					t.Fatalf("%v for %v", rr, q)
				}
			}
		})
	})
}

// FuzzHTTP: whatever a cell sends on a connection to a host, what goes out are
// requests to that host that were judged.
func FuzzHTTP(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabcGET /%61dmin HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\nConnection: Upgrade, Host\r\n\r\n",
		"GET /x/..;/admin?y HTTP/1.1\r\nHost: a.test:80\r\nX: y\r\n z\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	var mu sync.Mutex
	var out []*outside1
	g := bare(f, func() net.Conn {
		mu.Lock()
		defer mu.Unlock()
		o := &outside1{}
		o.Conn, o.far = net.Pipe()
		o.done.Go(o.serve)
		out = append(out, o)
		return o.Conn
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.HasPrefix(b, []byte("PRI ")) {
			return // HTTP/2 takes its time to say goodbye
		}
		l := g.inForce.Load() // connections of its own for each input
		fresh := *l
		fresh.outside = newOutside(g, &fresh)
		g.inForce.Store(&fresh)
		near, far := net.Pipe()
		c := &conn{g: g, id: "n-1", access: cell.Access{Act: cell.Connect, Host: "a.test", Port: 80, Transport: "tcp"}, decision: cell.Decision{Effect: cell.Allow}, in: near, started: time.Now()}
		go func() {
			far.SetDeadline(time.Now().Add(100 * time.Millisecond))
			go io.Copy(io.Discard, far)
			far.Write(b)
			time.Sleep(time.Millisecond)
			far.Close()
		}()
		// Beside the input: both ends' buffers, and a transport for each connection.
		boundtest.AllocatesBeside(t, len(b), 4<<20, func() {
			c.speaks("http", false)
			c.web(&prefixed{Conn: near, c: c})
			c.end()
			fresh.retire()
		})
		mu.Lock()
		list := out
		out = nil
		mu.Unlock()
		for _, o := range list {
			o.Conn.Close()
			o.far.Close()
			o.done.Wait()
			for _, r := range o.seen {
				host, _, _ := strings.Cut(r.Host, ":")
				forms, ok := pathForms(r.URL.EscapedPath())
				if hostOf(host) != "a.test" || !ok {
					t.Fatalf("this went out: %s %s of %s", r.Method, r.RequestURI, r.Host)
				}
				for _, p := range forms {
					if p == "/admin" || strings.HasPrefix(p, "/admin/") {
						t.Fatalf("this went out: %s", r.RequestURI)
					}
				}
			}
		}
	})
}

// outside1 is a host that remembers what it was asked.
type outside1 struct {
	net.Conn
	far  net.Conn
	seen []*http.Request
	done sync.WaitGroup
}

func (o *outside1) serve() {
	defer o.far.Close()
	br := bufio.NewReader(o.far)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		o.seen = append(o.seen, r)
		io.Copy(io.Discard, r.Body)
		if _, err := io.WriteString(o.far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}
