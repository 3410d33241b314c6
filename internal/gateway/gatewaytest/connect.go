package gatewaytest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// testConnect: an allowed host is reached over whatever addresses it has, and
// the flow says how much went where.
func testConnect(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "a.test", Ports: []uint16{9000}}, {Effect: cell.Allow, Host: "six.test", Ports: []uint16{9000}}, {Effect: cell.Allow, Addr: "203.0.113.9/32", Ports: []uint16{9000}}}}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("six.test. 60 IN AAAA 2001:db8::1")
	for _, at := range []string{"203.0.113.1:9000", "[2001:db8::1]:9000", "203.0.113.9:9000"} {
		b.Raw(at, func(c net.Conn) { io.Copy(c, c); c.Write([]byte("end")) })
	}
	for _, to := range []string{"a.test:9000", "six.test:9000", "203.0.113.9:9000"} {
		c, err := DialHost(b.Ctx(), b.Cell, b.Link, to)
		if err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		fmt.Fprint(c, "hello")
		c.(interface{ CloseWrite() error }).CloseWrite()
		got, err := io.ReadAll(c)
		if string(got) != "helloend" || err != nil {
			t.Errorf("%s: %q, %v", to, got, err)
		}
		c.Close()
		host, _, _ := net.SplitHostPort(to)
		f := b.Events.Wait(t, "flow to "+to, func(e Event) bool {
			return e.Kind == "flow" && (e.Flow.Host == host || e.Flow.Host == "" && e.Flow.Addr.String() == host)
		}).Flow
		if f.Sent != 5 || f.Received != 8 || f.Error != "" || f.Port != 9000 || !f.Addr.IsValid() || f.ID == "" {
			t.Errorf("the flow says %+v", f)
		}
	}
	// Over its IPv6 address, though it has none outside.
	m := b.Ask("udp", question("a.test", dns.TypeAAAA))
	six := m.Answer[0].(*dns.AAAA).AAAA
	c, err := b.Cell.Dial(b.Ctx(), "tcp", net.JoinHostPort(six.String(), "9000"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// testConnectDenied: a denied connection looks like one to a port without a listener, at
// once; and so does one where really no process listens.
func testConnectDenied(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test", "none.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("none.test. 60 IN A 203.0.113.2")
	a, err := Lookup(b.Ctx(), b.Cell, b.Link, "a.test")
	if err != nil {
		t.Fatal(err)
	}
	unknown := netip.MustParseAddr("198.18.77.77")
	for _, addr := range []string{
		"203.0.113.1:443", "[2001:db8::1]:443", "[::ffff:203.0.113.1]:443", "169.254.169.254:80", "[fd00:ec2::254]:80", "10.0.0.1:22", "192.0.2.1:443", "1.1.1.1:53",
		b.Link.Gateway4.String() + ":22", b.Link.Gateway4.String() + ":80", "[" + b.Link.Gateway6.String() + "]:22",
		a.String() + ":22", unknown.String() + ":443",
	} {
		c, err := b.Cell.Dial(b.Ctx(), "tcp", addr)
		if err == nil {
			c.Close()
		}
		if !refused(err) {
			t.Errorf("%s: %v", addr, err)
		}
		ap := netip.MustParseAddrPort(addr)
		d := b.Decided(cell.Deny, func(x cell.Access) bool {
			return x.Act == cell.Connect && x.Port == ap.Port() && (x.Addr == ap.Addr().Unmap() || x.Host == "a.test" && ap.Addr() == a)
		})
		if d.Access.Transport != "tcp" || d.Decision.Reason == "" {
			t.Errorf("%s: the event says %+v", addr, d)
		}
	}
	if len(b.Dialled()) > 0 {
		t.Errorf("denied, and dialled: %v", b.Dialled())
	}
	if c, err := DialHost(b.Ctx(), b.Cell, b.Link, "none.test:443"); !refused(err) {
		t.Errorf("a port without a listener: %v, %v", c, err)
	}
	f := b.Events.Wait(t, "flow", func(e Event) bool { return e.Kind == "flow" && e.Flow.Host == "none.test" }).Flow
	if f.Error == "" {
		t.Errorf("the flow says %+v", f)
	}
}

// testNothingElse: pings, datagrams, QUIC and DNS of others get no further than the gateway,
// and their senders get an answer at once.
func testNothingElse(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "*", Ports: []uint16{53, 80, 443}}, {Effect: cell.Allow, Addr: "0.0.0.0/0", Ports: []uint16{53, 80, 443}}}}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	a, err := Lookup(b.Ctx(), b.Cell, b.Link, "a.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"203.0.113.1:443", a.String() + ":443", "8.8.8.8:53", "[2001:db8::1]:443", "192.0.2.1:9", b.Link.Gateway4.String() + ":123"} {
		c, err := b.Cell.Dial(b.Ctx(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(testenv.Patience()))
		c.Write([]byte("is it there?"))
		n, err := c.Read(make([]byte, 100))
		c.Close()
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %d bytes, %v", to, n, err)
		}
		ap := netip.MustParseAddrPort(to)
		b.Decided(cell.Deny, func(x cell.Access) bool {
			return x.Transport == "udp" && x.Port == ap.Port() && (x.Addr == ap.Addr() || x.Host == "a.test" && ap.Addr() == a)
		})
	}
	for _, to := range []netip.Addr{netip.MustParseAddr("203.0.113.1"), a, netip.MustParseAddr("2001:db8::1")} {
		// A kernel is told (the program ping counts it as an error); the stack in memory throws refusals away.
		if err := b.Cell.Ping(b.Ctx(), to); err == nil || strings.Contains(err.Error(), "packet loss") && !strings.Contains(err.Error(), "errors") {
			t.Errorf("ping %s: %v", to, err)
		}
		b.Decided(cell.Deny, func(x cell.Access) bool { return x.Transport == "icmp" && (x.Addr == to || x.Host == "a.test") })
	}
	if err := b.Cell.Ping(b.Ctx(), b.Link.Gateway4); err != nil {
		t.Errorf("ping the gateway: %v", err)
	}
	if len(b.Dialled()) > 0 {
		t.Errorf("something was dialled: %v", b.Dialled())
	}
}

// testPrivate: a name that leads to the host or its networks is denied unless a
// rule names that address, too.
func testPrivate(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "*", Ports: []uint16{80, 9000}}, {Effect: cell.Allow, Addr: "10.1.2.3/32", Ports: []uint16{9000}}}}
	b := Join(t, site(t), With(p))
	for name, addr := range map[string]string{"local.test": "127.0.0.1", "lan.test": "192.168.1.1", "meta.test": "169.254.169.254", "named.test": "10.1.2.3"} {
		b.Record(name + ". 60 IN A " + addr)
	}
	b.Record("six.test. 60 IN AAAA ::1")
	b.Record("mixed.test. 60 IN A 127.0.0.1")
	b.Record("mixed.test. 60 IN A 203.0.113.1")
	for _, at := range []string{"127.0.0.1:9000", "192.168.1.1:9000", "169.254.169.254:9000", "10.1.2.3:9000", "[::1]:9000", "203.0.113.1:9000"} {
		b.Raw(at, func(c net.Conn) { fmt.Fprintln(c, at) })
	}
	b.HTTP("127.0.0.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "the host") }))
	for _, name := range []string{"local.test", "lan.test", "meta.test", "six.test"} {
		if c, err := DialHost(b.Ctx(), b.Cell, b.Link, name+":9000"); !refused(err) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		b.Decided(cell.Deny, func(x cell.Access) bool { return x.Host == name && x.Addr.IsValid() })
	}
	for name, want := range map[string]string{"named.test": "10.1.2.3:9000", "mixed.test": "203.0.113.1:9000"} {
		c, err := DialHost(b.Ctx(), b.Cell, b.Link, name+":9000")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if line, _ := bufio.NewReader(c).ReadString('\n'); line != want+"\n" {
			t.Errorf("%s is %q", name, line)
		}
		c.Close()
	}
	// HTTP is told why.
	res, body, err := b.Get("http://local.test/")
	if err != nil || res.StatusCode != http.StatusForbidden || !strings.Contains(body, "127.0.0.1, which is private") {
		t.Errorf("%v, %q, %v", res, body, err)
	}
}

// testFlood: what is tried a thousand times makes few events, which count it.
func testFlood(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	const n = 1000
	c, err := b.Cell.Dial(b.Ctx(), "udp", "203.0.113.1:9999")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := 0
	for range n {
		if _, err := c.Write([]byte("x")); err == nil { // or the refusal of an earlier one
			sent++
		}
		time.Sleep(20 * time.Microsecond)
	}
	var count int64
	var events int
	for end := time.Now().Add(testenv.Patience()); time.Now().Before(end) && count < int64(sent)*9/10; time.Sleep(10 * time.Millisecond) {
		count, events = 0, 0
		for _, e := range b.Events.All(func(e Event) bool { return e.Decided.Access.Port == 9999 }) {
			events++
			count += max(e.Decided.Count, 1)
		}
	}
	if count < int64(sent)*9/10 || count > n || events > 10 {
		t.Errorf("%d datagrams: %d events that count %d", sent, events, count)
	}
}

// testServices: a service is reached by its name, at the ports that the policy allows, without any server or proxy being
// asked; HTTP with it is decided on as with any host.
func testServices(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "db-7", Ports: []uint16{5432, 5433}}, {Effect: cell.Allow, Host: "web-8", Ports: []uint16{80}}}}
	b := Join(t, site(t), func(w *World, a cell.Authority) cell.Governance {
		g := With(p)(w, a)
		g.Services, g.Proxy = []string{"db-7", "web-8"}, &cell.Proxy{HTTP: "http://192.0.2.99:3128"}
		return g
	})
	b.Raw("192.0.2.7:5432", func(c net.Conn) { io.Copy(c, c); c.Write([]byte("end")) })
	c, err := DialHost(b.Ctx(), b.Cell, b.Link, "db-7:5432")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "hello")
	c.(interface{ CloseWrite() error }).CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "helloend" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	c.Close()
	f := b.Events.Wait(t, "the flow", func(e Event) bool { return e.Kind == "flow" && e.Flow.Host == "db-7" }).Flow
	if f.Sent != 5 || f.Received != 8 || f.Error != "" || f.Proxy != "" || f.Addr.IsValid() {
		t.Errorf("the flow says %+v", f)
	}
	for _, to := range []string{"db-7:5433", "db-7:22"} { // nothing is there, and denied
		if c, err := DialHost(b.Ctx(), b.Cell, b.Link, to); !refused(err) {
			t.Errorf("%s: %v, %v", to, c, err)
		}
	}
	b.HTTP("192.0.2.8:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page of "+r.Host) }))
	if _, body, err := b.Get("http://web-8/"); body != "page of web-8" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	if n := b.Asked("db-7.") + b.Asked("db-7"); n > 0 {
		t.Errorf("servers were asked for a service, %d times", n)
	}
	if len(b.Dialled()) > 0 {
		t.Errorf("dialled: %v", b.Dialled())
	}
}
