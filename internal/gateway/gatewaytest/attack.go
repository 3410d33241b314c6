package gatewaytest

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
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

// testDisguised: a request is judged as what a host may make of it.
func testDisguised(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{
		{Effect: cell.Deny, Host: "a.test", Path: "/secret"},
		{Effect: cell.Deny, Host: "a.test", Method: "DELETE"},
		{Effect: cell.Allow, Host: "a.test"},
		{Effect: cell.Allow, Host: "b.test", Path: "/"},
	}}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	var arrived []string
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived = append(arrived, r.Method+" "+r.RequestURI)
	}))
	// What is no path is one to a host that adds the slash.
	b.Record("b.test. 60 IN A 203.0.113.2")
	b.Raw("203.0.113.2:80", func(c net.Conn) {
		line, _ := bufio.NewReader(c).ReadString('\n')
		t.Errorf("arrived: %q", line)
	})
	if out := b.exchange("b.test:80", "GET http:secret/x HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(out, "HTTP/1.1 400") {
		t.Errorf("%.60q", out)
	}
	for _, c := range []struct{ line, header, status string }{
		{"delete /x HTTP/1.1", "", "400"},
		{"Delete /x HTTP/1.1", "", "400"},
		{"GET /secret;a=b/x HTTP/1.1", "", "403"},
		{"GET /;a/secret HTTP/1.1", "", "400"},
		{"GET /x;/../secret HTTP/1.1", "", "400"},
		{"GET /%3Ba/secret HTTP/1.1", "", "400"},
		{"GET /x;a=b HTTP/1.1", "", "200"},
		{"POST /x HTTP/1.1", "X-HTTP-Method-Override: delete\r\n", "400"},
		{"POST /x HTTP/1.1", "X-Http-Method: DELETE\r\n", "400"},
		{"POST /x HTTP/1.1", "X-Method-Override: PATCH\r\nX-Method-Override: DELETE\r\n", "400"},
		{"POST /x HTTP/1.1", "X-HTTP-Method-Override: PATCH\r\n", "200"},
		{"GET /x HTTP/1.1", "X-Original-URL: /secret\r\n", "400"},
		{"GET /x HTTP/1.1", "X-Rewrite-Url: /%73ecret?q\r\n", "400"},
		{"GET /x HTTP/1.1", "X-Rewrite-Url: secret\r\n", "400"},
		{"GET /x HTTP/1.1", "X-Original-Url: /y\r\n", "200"},
	} {
		arrived = nil
		out := b.exchange("a.test:80", c.line+"\r\nHost: a.test\r\n"+c.header+"Connection: close\r\n\r\n")
		if _, rest, _ := strings.Cut(out, " "); !strings.HasPrefix(rest, c.status) || (c.status == "200") != (len(arrived) == 1) {
			t.Errorf("%q with %q: %.60q, want %s; arrived %q", c.line, c.header, out, c.status, arrived)
		}
	}
}

// testLongRequests: no request is so long, and no host's answer, that nothing is
// told of it: an event has at most a megabyte.
func testLongRequests(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test", "b.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN A 203.0.113.2")
	b.HTTP("203.0.113.1:80", whole)
	b.Raw("203.0.113.2:80", func(c net.Conn) {
		bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, strings.Repeat("\x01", 1<<20)+"\r\n\r\n")
	})
	amps := strings.Repeat("&", 200<<10) // each is six bytes in JSON
	for _, r := range []struct{ host, line, status string }{
		{"a.test", "GET /" + amps, "400"},
		{"a.test", strings.Repeat("M", 200<<10) + " /", "400"},
		{"a.test", "GET /" + amps[:8000] + "?" + amps, "200"},
		{"b.test", "GET /", "502"},
	} {
		send := r.line + " HTTP/1.1\r\nHost: " + r.host + "\r\nConnection: close\r\n\r\n"
		if r.host == "a.test" { // as the second in its connection
			send = "HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n" + send
		}
		out := b.exchange(r.host+":80", send)
		if i := strings.LastIndex("\n"+out, "\nHTTP/1.1 "); i < 0 || !strings.HasPrefix(out[i+9:], r.status) && !strings.HasPrefix(out[i+9:], "a.test ") {
			t.Errorf("%.40q: %.300q, want %s", r.line, out, r.status)
		}
	}
	b.Events.Wait(t, "the last flow", func(e Event) bool { return e.Flow.Host == "b.test" && e.Flow.Method == "GET" })
	for _, e := range b.Events.All(func(Event) bool { return true }) {
		for _, fields := range []any{e.Decided, e.Flow} {
			if j, err := json.Marshal(fields); err != nil || len(j) > 512<<10 {
				t.Errorf("an event has %d bytes (%v): %.300s", len(j), err, j)
			}
		}
	}
}

// testCredentialsStayInPlace: a value goes where it was stored for, whatever
// the policy's rules say, and only into headers that are for such things.
func testCredentialsStayInPlace(t *testing.T, site joins) {
	const value, held = "s3cr3t-value/0123456789", "placeholder-of-github"
	p := Policy{Rules: []Rule{
		{Effect: cell.Allow, Host: "api.test", Path: "/free", Open: true},
		{Effect: cell.Allow, Host: "api.test", Credential: "github"},
		{Effect: cell.Allow, Host: "git.test", Path: "/free", Open: true},
		{Effect: cell.Allow, Host: "git.test", Credential: "github"},
	}}
	lent := cell.Lent{Handle: "github", Placeholder: held, Secret: value, For: []string{"https://api.test/repos/**", "GET https://api.test/user"}, As: "Authorization: Bearer {secret}"}
	also := lent
	also.For, also.As = []string{"https://git.test"}, "Authorization: Basic {basic:x-access-token}"
	b := Join(t, site(t), With(p, lent, also))
	b.Record("api.test. 60 IN A 203.0.113.1")
	b.Record("git.test. 60 IN A 203.0.113.1")
	var got http.Header
	b.HTTPS("203.0.113.1:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		_, pass, _ := r.BasicAuth()
		if r.Header.Get("Upgrade") != "" {
			nc, _, _ := http.NewResponseController(w).Hijack()
			fmt.Fprintf(nc, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %s\r\n\r\n%s", value, value, value)
			nc.Close()
			return
		}
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "%s %s %s %s", r.Header.Get("Authorization"), pass, value, strings.ReplaceAll(value, "/", "%2F"))
	}), "api.test", "git.test")
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, x := range []struct {
		request, header, arrives string
		status                   int
	}{
		{"GET https://api.test/repos/x", "", "Bearer " + value, 200},
		{"GET https://api.test/user", "", "Bearer " + value, 200},
		{"POST https://api.test/user", "", "", 403},
		{"GET https://api.test/gists", "", "", 403}, // a rule names the credential there, and it is for elsewhere
		{"GET https://api.test/repos/../gists", "", "", 403},
		{"GET https://api.test/free", "", "", 200}, // the host may know it all the same
		{"GET https://git.test/r", "", basic("x-access-token:" + value), 200},
		{"GET https://git.test/r", "Authorization: " + basic("me:"+held), basic("me:" + value), 200},
		{"GET https://git.test/free", "", "", 200},
		{"GET https://api.test/repos/x", "X-Amz-Meta-Note: " + held, "", 403},
		{"GET https://api.test/repos/x", "User-Agent: " + held, "", 403},
		{"GET https://api.test/repos/x", "Cookie: a=" + held, "", 403},
	} {
		method, url, _ := strings.Cut(x.request, " ")
		req, _ := http.NewRequestWithContext(b.Ctx(), method, url, nil)
		if name, v, ok := strings.Cut(x.header, ": "); ok {
			req.Header.Set(name, v)
		}
		got = nil
		res, err := Client(b.Cell, b.Link, b.Trust).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != x.status || got.Get("Authorization") != x.arrives {
			t.Errorf("%s with %q: %d %s, arrived %v", x.request, x.header, res.StatusCode, body, got)
		}
		all := fmt.Sprint(res.Header, string(body))
		for _, v := range []string{value, strings.ReplaceAll(value, "/", "%2F"), basic("me:" + value)[6:], basic("x-access-token:" + value)[6:]} {
			if strings.Contains(all, v) {
				t.Errorf("%s with %q: the cell got the value: %s", x.request, x.header, all)
			}
		}
	}
	nc, err := DialHost(b.Ctx(), b.Cell, b.Link, "api.test:443")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(5 * time.Second))
	tc := tls.Client(nc, &tls.Config{ServerName: "api.test", RootCAs: b.Trust})
	io.WriteString(tc, "GET /repos/ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if out, _ := io.ReadAll(tc); !strings.HasPrefix(string(out), "HTTP/1.1 101") || strings.Contains(string(out), value) {
		t.Errorf("an upgrade: %q", out)
	}
}

// testTrailersCount: what comes after a body leaves the cell, too.
func testTrailersCount(t *testing.T, site joins) {
	p := Allow("a.test")
	p.Budget = 64 << 10
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	arrived := 0
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for _, v := range r.Trailer {
			arrived += len(v[0])
		}
	}))
	c := Client(b.Cell, b.Link, nil)
	var two http.Protocols
	two.SetUnencryptedHTTP2(true)
	c.Transport.(*http.Transport).Protocols = &two
	for range 4 {
		req, _ := http.NewRequestWithContext(b.Ctx(), "POST", "http://a.test/", io.NopCloser(strings.NewReader("x")))
		req.Trailer = http.Header{"X-Much": {strings.Repeat("x", 40<<10)}}
		if res, err := c.Do(req); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	if arrived == 0 || arrived > int(p.Budget) {
		t.Errorf("%d bytes arrived, and %d may leave", arrived, p.Budget)
	}
}

// testSlowHello: a ClientHello that comes slowly is one.
func testSlowHello(t *testing.T, site joins) {
	b := Join(t, site(t), With(Policy{Rules: []Rule{{Effect: cell.Allow, Host: "a.test", Ports: []uint16{8443}}}}))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTPS("203.0.113.1:8443", whole, "evil.test")
	nc, err := DialHost(b.Ctx(), b.Cell, b.Link, "a.test:8443")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(testenv.Patience()))
	err = tls.Client(&hesitant{Conn: nc}, &tls.Config{InsecureSkipVerify: true, ServerName: "evil.test"}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("another name got through: %v", err)
	}
}

// hesitant waits in the midst of the first thing that it says.
type hesitant struct {
	net.Conn
	said bool
}

func (h *hesitant) Write(b []byte) (int, error) {
	if h.said {
		return h.Conn.Write(b)
	}
	h.said = true
	if _, err := h.Conn.Write(b[:3]); err != nil {
		return 0, err
	}
	time.Sleep(700 * time.Millisecond)
	n, err := h.Conn.Write(b[3:])
	return n + 3, err
}
