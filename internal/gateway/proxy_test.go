package gateway_test

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
)

// proxyAt is a proxy of the world that knows where names are; it refuses what is
// not in hosts. It returns what it was asked, with the authorization.
func proxyAt(t *testing.T, w *gatewaytest.World, at string, hosts map[string]string) (asked func() []string) {
	var mu sync.Mutex
	var list []string
	w.Raw(at, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		mu.Lock()
		list = append(list, req.Method+" "+req.RequestURI+" "+req.Header.Get("Proxy-Authorization"))
		mu.Unlock()
		to := hosts[req.RequestURI]
		if to == "" {
			io.WriteString(c, "HTTP/1.1 407 no\r\n\r\n")
			return
		}
		out, err := w.Dial(t.Context(), "tcp", to)
		if err != nil {
			io.WriteString(c, "HTTP/1.1 502 no\r\n\r\n")
			return
		}
		defer out.Close()
		// In one write with what the host says first.
		first := make([]byte, 16)
		n := 0
		if strings.HasSuffix(to, ":22") {
			n, _ = out.Read(first)
		}
		c.Write(append([]byte("HTTP/1.1 200 ok\r\n\r\n"), first[:n]...))
		go io.Copy(out, r)
		io.Copy(c, out)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// TestX41OnlyAProxy: the policy decides first, everything goes through the proxy,
// nothing directly, but for NO_PROXY and the user's own machine; flows say so.
func TestX41OnlyAProxy(t *testing.T) {
	p := gatewaytest.Allow("a.test", "down.test", "near.test")
	p.Rules = append(p.Rules, gatewaytest.Rule{Effect: cell.Allow, Host: "ssh.test", Ports: []uint16{22}},
		gatewaytest.Rule{Effect: cell.Allow, Addr: "203.0.113.0/24", Ports: []uint16{80}})
	b := gatewaytest.Join(t, gatewaytest.Stack(t), func(w *gatewaytest.World, a cell.Authority) cell.Governance {
		g := w.Governance(p)
		g.Authority = a
		g.Proxy = &cell.Proxy{HTTPS: "http://me:secret@203.0.113.99:3128", No: "near.test"}
		return g
	})
	asked := proxyAt(t, b.World, "203.0.113.99:3128", map[string]string{"a.test:80": "203.0.113.1:80", "a.test:443": "203.0.113.1:443", "ssh.test:22": "203.0.113.2:22", "203.0.113.5:80": "203.0.113.5:80"})
	answer := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello "+r.Host) })
	b.HTTP("203.0.113.1:80", answer)
	b.HTTPS("203.0.113.1:443", answer, "a.test")
	b.HTTP("203.0.113.5:80", answer)
	b.HTTP("203.0.113.6:80", answer)
	b.Record("near.test. 60 IN A 203.0.113.6")
	b.Raw("203.0.113.2:22", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); io.Copy(io.Discard, c) })

	for url, want := range map[string]string{"http://a.test/": "hello a.test", "https://a.test/": "hello a.test", "http://203.0.113.5/": "hello 203.0.113.5", "http://near.test/": "hello near.test"} {
		if res, body, err := b.Get(url); err != nil || res.StatusCode != 200 || body != want {
			t.Errorf("%s: %q, %v", url, body, err)
		}
	}
	c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "ssh.test:22")
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "SSH-2.0-x\r\n" {
		t.Errorf("a host that speaks first: %q, %v", line, err)
	}
	c.Close()
	if res, body, err := b.Get("http://down.test/"); err != nil || res.StatusCode != 502 || !strings.Contains(body, "203.0.113.99:3128") || strings.Contains(body, "secret") {
		t.Errorf("what the proxy refuses: %q, %v", body, err)
	}
	// Denied names and literals never come to the proxy.
	if res, _, err := b.Get("http://b.test/"); err != nil || res.StatusCode != 403 {
		t.Errorf("a denied name: %v, %v", res, err)
	}
	if c, err := b.Cell.Dial(b.Ctx(), "tcp", "10.0.0.1:80"); err == nil {
		c.Close()
		t.Error("a private address is dialled")
	}
	b.Gateway.Settle(time.Second)
	for _, q := range asked() {
		if !strings.HasPrefix(q, "CONNECT ") || !strings.HasSuffix(q, " Basic bWU6c2VjcmV0") || strings.Contains(q, "b.test") || strings.Contains(q, "10.0.0.1") || strings.Contains(q, "near.test") {
			t.Errorf("the proxy was asked %s", q)
		}
	}
	// The proxy for each thing asked of it, near.test, and what the proxy itself dials.
	if want := len(asked()) + 1 + 4; len(b.Dialled()) != want || !slices.Contains(b.Dialled(), "203.0.113.6:80") {
		t.Errorf("dialled %v, of which the proxy was asked for %v", b.Dialled(), asked())
	}
	through, direct := 0, 0
	for _, e := range b.Events.All(func(e gatewaytest.Event) bool { return e.Kind == "flow" && e.Flow.Host != "down.test" }) {
		switch {
		case e.Flow.Proxy == "203.0.113.99:3128" && !e.Flow.Addr.IsValid() || e.Flow.Proxy != "" && e.Flow.Host == "":
			through++
			if e.Flow.Unchecked != (e.Flow.Host != "") { // the names are unknown on this host
				t.Errorf("the flow says %+v", e.Flow)
			}
		case e.Flow.Host == "near.test" && e.Flow.Proxy == "" && e.Flow.Addr.IsValid():
			direct++
		default:
			t.Errorf("the flow says %+v", e.Flow)
		}
	}
	if through != 4 || direct != 1 {
		t.Errorf("%d flows through the proxy, %d directly:\n%s", through, direct, b.Events.Text())
	}
	if strings.Contains(b.Events.Text(), "secret") {
		t.Error("the events have the password of the proxy")
	}
}

// TestX41AProxyThatCantBeUsed is not gone round.
func TestX41AProxyThatCantBeUsed(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), func(w *gatewaytest.World, _ cell.Authority) cell.Governance {
		g := w.Governance(gatewaytest.Allow("a.test"))
		g.Proxy = &cell.Proxy{HTTP: "socks5://203.0.113.99:1080"}
		return g
	})
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was dialled directly") }))
	m := b.Ask("udp", new(dns.Msg).SetQuestion("a.test.", dns.TypeA))
	if m.Rcode != dns.RcodeServerFailure || len(b.Dialled()) > 0 {
		t.Errorf("%s, dialled %v", m, b.Dialled())
	}
}

// TestX41AddressesBeforeAProxy: where this host can look a name up, what it leads to is
// judged before the proxy hears of it, and one address that is denied is enough.
func TestX41AddressesBeforeAProxy(t *testing.T) {
	p := gatewaytest.Allow("pub.test", "in.test", "both.test", "lost.test", "named.test")
	b := gatewaytest.Join(t, gatewaytest.Stack(t), func(w *gatewaytest.World, a cell.Authority) cell.Governance {
		g := w.Governance(p)
		g.Authority = a
		g.Proxy = &cell.Proxy{HTTPS: "http://203.0.113.99:3128"}
		return g
	})
	asked := proxyAt(t, b.World, "203.0.113.99:3128", map[string]string{"pub.test:80": "203.0.113.1:80", "lost.test:80": "203.0.113.1:80"})
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello "+r.Host) }))
	for _, line := range []string{"pub.test. 60 IN A 203.0.113.1", "in.test. 60 IN A 10.9.8.7", "both.test. 60 IN A 203.0.113.1", "both.test. 60 IN A 10.9.8.7"} {
		b.Record(line)
	}
	for host, want := range map[string]int{"pub.test": 200, "lost.test": 200, "in.test": 403, "both.test": 403} {
		if res, body, err := b.Get("http://" + host + "/"); err != nil || res.StatusCode != want {
			t.Errorf("%s: %q, %v", host, body, err)
		}
	}
	for _, q := range asked() {
		if strings.Contains(q, "in.test") || strings.Contains(q, "both.test") {
			t.Errorf("the proxy was asked %s", q)
		}
	}
	b.Gateway.Settle(time.Second)
	unchecked := map[string]bool{}
	for _, e := range b.Events.All(func(e gatewaytest.Event) bool { return e.Kind == "flow" && e.Flow.Proxy != "" }) {
		unchecked[e.Flow.Host] = e.Flow.Unchecked
	}
	if want := map[string]bool{"pub.test": false, "lost.test": true}; !maps.Equal(unchecked, want) {
		t.Errorf("unchecked is %v, not %v", unchecked, want)
	}
}
