package gatewaytest

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
)

// denials is how many denials about a host were told, repetitions included.
func (b *Bench) denials(host string) (n int64) {
	b.Gateway.Tell(0) // what has gathered
	for _, e := range b.Events.All(func(e Event) bool { return e.Kind == "decision" }) {
		if e.Decided.Decision.Effect == cell.Deny && e.Decided.Access.Host == host {
			n += max(e.Decided.Count, 1)
		}
	}
	return n
}

// testRefusals: a program that meets a denied name is told so at once, in a way
// that doesn't look temporary, and each attempt is one event.
func testRefusals(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	for _, kind := range []uint16{dns.TypeAAAA, dns.TypeHTTPS} { // as programs ask, with the A of each attempt below
		b.Ask("udp", question("b.test", kind))
	}
	for i, url := range []string{"http://b.test/path?secret=1", "https://b.test/path"} {
		res, body, err := b.Get(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		e := denial(t, body)
		if res.StatusCode != 403 || res.Header.Get("Content-Type") != "application/json" || e.Kind != "denied" || e.Rule != "default" || e.Permit != "--allow b.test" ||
			e.HowToAsk == "" || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %s", url, res.StatusCode, body)
		}
		if n := b.denials("b.test"); n != int64(i+1) {
			t.Errorf("%d attempts were told as %d:\n%s", i+1, n, b.Events.Text())
		}
		if len(b.Events.All(func(ev Event) bool { return ev.Decided.ID == e.RequestID })) != 1 {
			t.Errorf("no event has the id %q", e.RequestID)
		}
		if res.TLS != nil && (len(res.TLS.PeerCertificates[0].DNSNames) != 1 || res.TLS.PeerCertificates[0].DNSNames[0] != "b.test") {
			t.Errorf("the certificate is for %v", res.TLS.PeerCertificates[0].DNSNames)
		}
	}
	for _, port := range []string{"22", "5432", "8081"} {
		if c, err := DialHost(b.Ctx(), b.Cell, b.Link, "b.test:"+port); !refused(err) {
			t.Errorf("port %s: %v, %v", port, c, err)
		}
	}
	// A connection without a question before it is an attempt, too.
	at, err := Lookup(b.Ctx(), b.Cell, b.Link, "b.test")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if c, err := b.Cell.Dial(b.Ctx(), "tcp", net.JoinHostPort(at.String(), "22")); !refused(err) {
			t.Errorf("%v, %v", c, err)
		}
	}
	if n := b.denials("b.test"); n != 7 {
		t.Errorf("7 attempts were told as %d:\n%s", n, b.Events.Text())
	}
	// A name that is allowed, on a port that is not.
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "c.test", Ports: []uint16{9000}}}}
	b = Join(t, site(t), With(p))
	b.Record("c.test. 60 IN A 203.0.113.1")
	if res, body, err := b.Get("https://c.test/x"); err != nil || res.StatusCode != 403 {
		t.Errorf("another port: %v, %q, %v", res, body, err)
	}
	if n := b.denials("c.test"); n != 1 {
		t.Errorf("an attempt was told as %d", n)
	}
}

// testRefusalsForwardNothing: the refusal addresses lead nowhere, for whatever
// name and whatever the policy says later, read no bodies, and have no
// certificates but for the denied name.
func testRefusalsForwardNothing(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN A 203.0.113.2")
	b.HTTP("203.0.113.1:80", whole)
	b.HTTP("203.0.113.2:80", whole)
	at, err := Lookup(b.Ctx(), b.Cell, b.Link, "b.test")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(port string) net.Conn {
		c, err := b.Cell.Dial(b.Ctx(), "tcp", net.JoinHostPort(at.String(), port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(10 * time.Second))
		return c
	}
	for _, name := range []string{"a.test", "other.test", ""} {
		c := tls.Client(dial("443"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err := c.Handshake(); err == nil {
			t.Errorf("a certificate for %v for a client of %q", c.ConnectionState().PeerCertificates[0].DNSNames, name)
		}
	}
	// A request for another host, a proxy's, and one with a body without end.
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"} {
		c := dial("80")
		io.WriteString(c, text)
		if answer, _ := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.1 403 ") {
			t.Errorf("%q: %q", text, answer)
		}
	}
	c := dial("80")
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: b.test\r\nContent-Length: 1099511627776\r\n\r\n")
	sent, block := 0, make([]byte, 64<<10)
	for err = nil; err == nil && sent < 64<<20; {
		var n int
		n, err = c.Write(block)
		sent += n
	}
	if err == nil {
		t.Errorf("%d bytes of a body were taken", sent)
	}
	// Neither TLS nor HTTP.
	c = dial("80")
	io.WriteString(c, "\x16nothing of that\r\n\r\n")
	if answer, _ := io.ReadAll(c); len(answer) > 0 {
		t.Errorf("answered %q", answer)
	}
	// Allowed meanwhile: it has to be looked up again.
	if err := b.Gateway.Govern(With(Allow("a.test", "b.test"))(b.World, b.Authority)); err != nil {
		t.Fatal(err)
	}
	c = dial("80")
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
	if answer, _ := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.1 503 ") || !strings.Contains(string(answer), "look it up again") {
		t.Errorf("allowed meanwhile: %q", answer)
	}
	if b.Asked("b.test") > 0 || len(b.Dialled()) > 0 {
		t.Errorf("asked for %d times, dialled %v", b.Asked("b.test"), b.Dialled())
	}
	if res, body, err := b.Get("http://b.test/"); err != nil || res.StatusCode != 200 {
		t.Errorf("looked up again: %q, %v", body, err)
	}
	// Without an authority there is no TLS.
	b = Join(t, site(t), func(w *World, _ cell.Authority) cell.Governance { return w.Governance(Allow("a.test")) })
	if _, err := DialHost(b.Ctx(), b.Cell, b.Link, "b.test:443"); !refused(err) {
		t.Errorf("without an authority: %v", err)
	}
	if res, body, err := b.Get("http://b.test/"); err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("without an authority: %q, %v", body, err)
	}
}

// testDenialsShown: the cell can read what it was refused last, one entry for an
// attempt, with what is known of it.
func testDenialsShown(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "a.test", Method: "GET", Path: "/ok", Open: true}}}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	b.Gateway.ShowDenials(open("text"), open("lines"))
	b.Get("http://b.test/one%20two")
	b.Get("http://a.test/other")
	DialHost(b.Ctx(), b.Cell, b.Link, "db.test:5432")
	DialHost(b.Ctx(), b.Cell, b.Link, "169.254.169.254:80")
	b.Gateway.Close()
	text, _ := os.ReadFile(filepath.Join(dir, "text"))
	raw, _ := os.ReadFile(filepath.Join(dir, "lines"))
	var list []gateway.Denied
	for line := range strings.Lines(string(raw)) {
		var d gateway.Denied
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, d)
	}
	if len(list) != 4 || strings.Count(string(text), "\n") != 4 {
		t.Fatalf("shown:\n%s%s", text, raw)
	}
	for i, want := range []string{"GET http://b.test/one%20two", "GET http://a.test/other", "connect db.test:5432", "connect 169.254.169.254:80"} {
		if d := list[i]; d.Want != want || d.Times != 1 || d.Rule == "" || d.Time.IsZero() || !strings.Contains(strings.Split(string(text), "\n")[i], want) {
			t.Errorf("%d: %+v\n%s", i, d, text)
		}
	}
	if d := list[0]; d.Host != "b.test" || d.Port != 80 || d.Method != "GET" || d.Path != "/one%20two" || d.Grant != "--allow b.test" {
		t.Errorf("shown: %+v", d)
	}
}
