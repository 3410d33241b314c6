package gatewaytest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// whole serves its protocol and the name that it was asked for.
var whole = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s", r.Proto, r.Host, r.URL.RequestURI())
})

// testPassThrough: TLS to an allowed host is the host's own, whatever the size
// and the pieces of the first message.
func testPassThrough(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test", "b.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTPS("203.0.113.1:443", whole, "a.test")
	c := Client(b.Cell, b.Link, b.Roots()) // trusts the world, not the cell's authority
	res, err := c.Get("https://a.test/")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.Proto != "HTTP/2.0" {
		t.Errorf("spoke %s", res.Proto)
	}
	c.CloseIdleConnections()
	f := b.Events.Wait(t, "flow", func(e Event) bool { return e.Kind == "flow" && e.Flow.Host == "a.test" }).Flow
	if f.Scheme != "https" || f.Opened || f.Sent == 0 || f.Received == 0 || f.Addr.String() != "203.0.113.1" {
		t.Errorf("the flow says %+v", f)
	}
	for _, size := range []int{1, 7, 500} {
		nc, err := DialHost(b.Ctx(), b.Cell, b.Link, "a.test:443")
		if err != nil {
			t.Fatal(err)
		}
		// A session ticket makes it long, as post-quantum keys do.
		tc := tls.Client(&slow{Conn: nc, size: size}, &tls.Config{RootCAs: b.Roots(), ServerName: "a.test", NextProtos: []string{strings.Repeat("x", 255), strings.Repeat("y", 255), "http/1.1"}})
		if err := tc.HandshakeContext(b.Ctx()); err != nil {
			t.Errorf("in pieces of %d bytes: %v", size, err)
		}
		tc.Close()
	}
}

// slow sends what is written first in small pieces.
type slow struct {
	net.Conn
	size int
	sent bool
}

func (s *slow) Write(b []byte) (n int, err error) {
	if s.sent {
		return s.Conn.Write(b)
	}
	s.sent = true
	for n < len(b) {
		k, err := s.Conn.Write(b[n:min(n+s.size, len(b))])
		if n += k; err != nil {
			return n, err
		}
		if s.size > 1 || n%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return n, nil
}

// testTLSNames: the name in TLS must be there, must be readable, and must be that
// of the connection.
func testTLSNames(t *testing.T, site joins) {
	p := Allow("a.test", "b.test")
	p.Rules = append(p.Rules, Rule{Effect: cell.Allow, Host: "a.test", Ports: []uint16{8443}})
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN A 203.0.113.1")
	b.HTTPS("203.0.113.1:443", whole, "a.test", "b.test", "evil.test")
	b.HTTPS("203.0.113.1:8443", whole, "a.test", "evil.test")
	ech := &tls.Config{ServerName: "a.test", RootCAs: b.Roots(), MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echList("a.test")}
	for _, c := range []struct {
		name, to, alert, reason string
		config                  *tls.Config
	}{
		{"none", "a.test:443", "unrecognized name", "without a server name", &tls.Config{InsecureSkipVerify: true}},
		{"none elsewhere", "a.test:8443", "unrecognized name", "without a server name", &tls.Config{InsecureSkipVerify: true}},
		{"another", "a.test:443", "unrecognized name", `"evil.test" on a connection to a.test`, &tls.Config{InsecureSkipVerify: true, ServerName: "evil.test"}},
		{"another that is allowed", "a.test:443", "unrecognized name", `"b.test" on a connection to a.test`, &tls.Config{InsecureSkipVerify: true, ServerName: "b.test"}},
		{"another elsewhere", "a.test:8443", "unrecognized name", `"evil.test" on a connection to a.test`, &tls.Config{InsecureSkipVerify: true, ServerName: "evil.test"}},
		{"encrypted", "a.test:443", "access denied", "encrypted server name", ech},
	} {
		nc, err := DialHost(b.Ctx(), b.Cell, b.Link, c.to)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(testenv.Patience()))
		err = tls.Client(nc, c.config).Handshake()
		if err == nil || !strings.Contains(err.Error(), c.alert) {
			t.Errorf("%s: %v", c.name, err)
		}
		nc.Close()
		b.Events.Wait(t, c.name, func(e Event) bool {
			return e.Decided.Decision.Effect == cell.Deny && strings.Contains(e.Decided.Decision.Reason, c.reason) && e.Decided.Conn != ""
		})
	}
	// What is no TLS at all doesn't get out at 443, and no TLS at 80.
	for _, to := range []string{"a.test:443", "a.test:80"} {
		b.Raw("203.0.113.1:80", func(c net.Conn) { io.Copy(io.Discard, c); t.Error("something came through") })
		nc, err := DialHost(b.Ctx(), b.Cell, b.Link, to)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(5 * time.Second))
		if to == "a.test:443" {
			fmt.Fprint(nc, "SSH-2.0-OpenSSH_9.6\r\n")
		} else {
			fmt.Fprint(nc, "\x16\x03\x01\x00\x05hello")
		}
		if b, err := io.ReadAll(nc); err == nil || errors.Is(err, io.EOF) || len(b) > 0 {
			t.Errorf("%s: %q, %v", to, b, err)
		}
		nc.Close()
	}
}

// echList is a list of keys for encrypted names, which no server has.
func echList(name string) []byte {
	key := make([]byte, 32)
	key[0] = 9
	body := []byte{1, 0, 0x20, 0, 32}
	body = append(body, key...)
	body = append(body, 0, 4, 0, 1, 0, 1) // HKDF-SHA256, AES-128-GCM
	body = append(body, 64, byte(len(name)))
	body = append(body, name...)
	body = append(body, 0, 0)
	config := append([]byte{0xfe, 0x0d, 0, byte(len(body))}, body...)
	return append([]byte{0, byte(len(config))}, config...)
}

// testOpened: where a rule looks inside, the cell meets its own authority, and
// the host is verified by the gateway.
func testOpened(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{
		{Effect: cell.Allow, Host: "a.test", Method: "GET", Open: true},
		{Effect: cell.Allow, Host: "wrong.test", Open: true},
		{Effect: cell.Allow, Host: "self.test", Open: true},
		{Effect: cell.Allow, Addr: "203.0.113.0/24", Open: true},
	}}
	b := Join(t, site(t), With(p))
	for _, n := range []string{"a", "wrong", "self"} {
		b.Record(n + ".test. 60 IN A 203.0.113." + map[string]string{"a": "1", "wrong": "2", "self": "3"}[n])
	}
	b.HTTPS("203.0.113.1:443", whole, "a.test")
	b.HTTPS("203.0.113.2:443", whole, "another.test")
	b.HTTPS("203.0.113.4:443", whole, "203.0.113.4")
	other := NewWorld(t)
	ln := other.Listen("203.0.113.3:443")
	s := &http.Server{Handler: whole, TLSConfig: other.TLS("self.test"), ErrorLog: quiet}
	go s.ServeTLS(ln, "", "")
	defer s.Close()
	b.Serve("203.0.113.3:443", ln)

	for _, h1 := range []bool{false, true} {
		c := Client(b.Cell, b.Link, b.Trust)
		if h1 {
			c.Transport.(*http.Transport).ForceAttemptHTTP2 = false
			c.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
		}
		res, err := c.Get("https://a.test/x?y=1;z")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if want := "HTTP/2.0 a.test /x?y=1;z"; string(body) != want || (res.ProtoMajor == 1) != h1 {
			t.Errorf("%s over %s", body, res.Proto)
		}
		leaf := res.TLS.PeerCertificates[0]
		if leaf.Issuer.Organization[0] != "pando" || leaf.DNSNames[0] != "a.test" || leaf.NotAfter.Sub(leaf.NotBefore) > 24*time.Hour || leaf.NotBefore.After(time.Now()) {
			t.Errorf("the certificate is %+v", leaf)
		}
		c.CloseIdleConnections()
	}
	// A client that trusts only the public roots is not fooled.
	if _, err := Client(b.Cell, b.Link, b.Roots()).Get("https://a.test/"); err == nil {
		t.Error("a client that doesn't trust the cell's authority took its certificate")
	} else if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Error(err)
	}
	f := b.Events.Wait(t, "flow", func(e Event) bool { return e.Kind == "flow" && e.Flow.Host == "a.test" && e.Flow.Path == "/x" }).Flow
	if !f.Opened || f.Scheme != "https" || f.Method != "GET" || f.Status != 200 || f.Addr.String() != "203.0.113.1" || f.Received == 0 || f.Sent == 0 {
		t.Errorf("the flow says %+v", f)
	}
	for _, host := range []string{"wrong.test", "self.test"} {
		res, body, err := b.Get("https://" + host + "/")
		if err != nil || res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "certificate") {
			t.Errorf("%s: %v, %q, %v", host, res, body, err)
		}
	}
	if res, body, err := b.Get("https://203.0.113.4/"); err != nil || res.StatusCode != 200 {
		t.Errorf("an address: %q, %v", body, err)
	}
}
