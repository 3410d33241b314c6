package gatewaytest

import (
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/testenv"
)

// testCredentials: the value is put in where it may go, and nowhere else; the
// cell never sees it.
func testCredentials(t *testing.T, site joins) {
	const value, held = "s3cr3t-value-0123456789", "placeholder-of-github"
	p := Policy{Rules: []Rule{
		{Effect: cell.Allow, Host: "api.test", Path: "/repos/", Credential: "github"},
		{Effect: cell.Allow, Host: "api.test", Open: true},
		{Effect: cell.Allow, Host: "other.test", Open: true},
	}}
	b := Join(t, site(t), With(p, cell.Lent{Handle: "github", Placeholder: held, Secret: value, For: []string{"https://api.test/repos/**"}, As: "Authorization: Bearer {secret}"}))
	b.Record("api.test. 60 IN A 203.0.113.1")
	b.Record("other.test. 60 IN A 203.0.113.1")
	var got http.Header
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.Header().Set("Trailer", "X-Late")
		w.Header().Set("Content-Encoding", r.URL.Query().Get("coding"))
		if r.URL.Query().Get("coding") == "gzip" {
			z := gzip.NewWriter(w)
			io.WriteString(z, "packed "+value)
			z.Close()
			return
		}
		for i, c := range []byte("you are <" + value + "> and " + value + " it is") { // in pieces
			w.Write([]byte{c})
			if i%5 == 0 {
				w.(http.Flusher).Flush()
			}
		}
		w.Header().Set("X-Late", value)
	})
	b.HTTPS("203.0.113.1:443", h, "api.test", "other.test")
	b.HTTP("203.0.113.1:80", h)
	c := Client(b.Cell, b.Link, b.Trust)
	do := func(url, header, v string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(b.Ctx(), "GET", url, nil)
		if header != "" {
			req.Header.Set(header, v)
		}
		got = nil
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		all := fmt.Sprint(res.Header, res.Trailer, string(body))
		if strings.Contains(all, value) {
			t.Errorf("the cell got the value: %s", all)
		}
		return res, string(body)
	}
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, x := range []struct{ header, sent, want string }{
		{"", "", "Bearer " + value},
		{"Authorization", "Bearer " + held, "Bearer " + value},
		{"Authorization", "token " + held, "token " + value},
		{"Authorization", basic("x-access-token:" + held), basic("x-access-token:" + value)},
	} {
		res, body := do("https://api.test/repos/me", x.header, x.sent)
		if res.StatusCode != 200 || got.Get("Authorization") != x.want {
			t.Errorf("sent %q: %d, arrived %q", x.sent, res.StatusCode, got.Get("Authorization"))
		}
		if want := "you are <" + held + "**> and " + held + "** it is"; body != want {
			t.Errorf("the body is %q", body)
		}
	}
	// In another header the value goes there, and as it is meant to, too.
	do("https://api.test/repos/me", "X-Api-Key", held)
	if got.Get("X-Api-Key") != value {
		t.Errorf("X-Api-Key arrived as %q", got.Get("X-Api-Key"))
	}
	f := b.Events.Wait(t, "flow", func(e Event) bool { return e.Kind == "flow" && e.Flow.Secret == "github" }).Flow
	if f.Path != "/repos/me" {
		t.Errorf("the flow says %+v", f)
	}
	// Elsewhere it is denied, however it is sent.
	for _, x := range [][3]string{
		{"https://other.test/", "Authorization", "Bearer " + held},
		{"https://other.test/", "Authorization", basic("u:" + held)},
		{"https://other.test/?k=" + held, "", ""},
		{"https://other.test/" + held, "", ""},
		{"https://api.test/gists", "Authorization", "Bearer " + held},
		{"http://api.test/repos/me", "Authorization", "Bearer " + held},
	} {
		res, body := do(x[0], x[1], x[2])
		if res.StatusCode != 403 || denial(t, body).Rule != "credential" || got != nil {
			t.Errorf("%v: %d %s, arrived %v", x, res.StatusCode, body, got)
		}
	}
	// What can't be looked at doesn't come back.
	if res, _ := do("https://api.test/repos/me?coding=br", "", ""); res.StatusCode != 502 {
		t.Errorf("an encoded answer: %d", res.StatusCode)
	}
	if res, body := do("https://api.test/repos/me?coding=gzip", "", ""); res.StatusCode != 200 || body != "packed "+held+"**" {
		t.Errorf("a packed answer: %d %q", res.StatusCode, body)
	}
	if s := b.Events.Text(); strings.Contains(s, value) {
		t.Error("the value is in the events")
	}
	// Revoked, it works no more at once.
	if err := b.Gateway.Govern(With(p)(b.World, b.Authority)); err != nil {
		t.Fatal(err)
	}
	if res, body := do("https://api.test/repos/me", "Authorization", "Bearer "+held); res.StatusCode != 403 {
		t.Errorf("revoked: %d %s, arrived %v", res.StatusCode, body, got)
	}
}

// question waits for one.
func (b *Bench) question(n int) []cell.Asked {
	b.Helper()
	deadline := time.After(testenv.Patience())
	for {
		list, changed := b.Gateway.Asked()
		list = slices.DeleteFunc(list, func(a cell.Asked) bool { return a.Used != nil })
		if len(list) == n {
			return list
		}
		select {
		case <-changed:
		case <-deadline:
			b.Fatalf("%d questions wait, not %d: %+v", len(list), n, list)
		}
	}
}

// testAsked: what is asked waits; an answer is good for exactly that, as long as
// it says, and once when it says so.
func testAsked(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Ask, Host: "a.test", Open: true}, {Effect: cell.Ask, Host: "raw.test", Ports: []uint16{9000}}}}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("raw.test. 60 IN A 203.0.113.1")
	b.HTTPS("203.0.113.1:443", whole, "a.test")
	b.Raw("203.0.113.1:9000", func(c net.Conn) { io.Copy(c, c) })
	type result struct {
		status int
		body   string
		err    error
	}
	get := func(path string) chan result {
		out := make(chan result, 1)
		go func() {
			res, body, err := b.Get("https://a.test" + path)
			if err != nil {
				out <- result{err: err}
				return
			}
			out <- result{res.StatusCode, body, nil}
		}()
		return out
	}
	answer := func(a cell.Asked, e cell.Effect, scope string, more func(*cell.Answered)) error {
		ans := cell.Answered{Ask: a, Effect: e, Scope: scope, By: "alice"}
		if scope == "time" {
			ans.Expires = time.Now().Add(time.Minute)
		}
		if more != nil {
			more(&ans)
		}
		return b.Gateway.Answer(ans)
	}
	// Once: the next is asked again.
	r := get("/once")
	q := b.question(1)[0]
	if q.Access.Path != "/once" || q.Access.Act != cell.Request || q.Cell != "c-test" || q.Digest != gateway.Bind(q.Access, q.Policy) || q.Expires.IsZero() {
		t.Errorf("asked: %+v", q)
	}
	for name, more := range map[string]func(*cell.Answered){
		"another access": func(a *cell.Answered) { a.Ask.Access.Path = "/other" },
		"another policy": func(a *cell.Answered) { a.Ask.Policy = cell.Sum([]byte("x")) },
		"another digest": func(a *cell.Answered) { a.Ask.Digest = cell.Sum([]byte("x")) },
		"expired":        func(a *cell.Answered) { a.Expires = time.Now().Add(-time.Second) },
		"no effect":      func(a *cell.Answered) { a.Effect = cell.Ask },
		"no scope":       func(a *cell.Answered) { a.Scope = "" },
		"unknown":        func(a *cell.Answered) { a.Ask.ID = "q-0" },
	} {
		if err := answer(q, cell.Allow, "once", more); err == nil {
			t.Errorf("an answer was taken: %s", name)
		}
	}
	if err := answer(q, cell.Allow, "once", nil); err != nil {
		t.Fatal(err)
	}
	if x := <-r; x.status != 200 {
		t.Fatalf("%+v", x)
	}
	if err := answer(q, cell.Allow, "once", nil); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the same answer again: %v", err)
	}
	d := b.Decided(cell.Allow, func(a cell.Access) bool { return a.Path == "/once" })
	if d.Decision.By != "person" || d.ID != q.ID || !strings.Contains(d.Decision.Reason, "alice") {
		t.Errorf("the decision is %+v", d)
	}
	r = get("/once")
	q = b.question(1)[0]
	answer(q, cell.Deny, "once", nil)
	if x := <-r; x.status != 403 || !strings.Contains(x.body, "denied by alice") {
		t.Errorf("%+v", x)
	}
	// For a time: the next passes, another doesn't.
	r = get("/time")
	if err := answer(b.question(1)[0], cell.Allow, "time", nil); err != nil {
		t.Fatal(err)
	}
	<-r
	if x := <-get("/time"); x.status != 200 {
		t.Errorf("%+v", x)
	}
	r = get("/other")
	kept := b.question(1)[0]
	// It survives a restart, and another policy doesn't take it.
	ans := cell.Answered{Ask: kept, Effect: cell.Allow, Scope: "once", By: "alice"}
	g := With(p)(b.World, b.Authority)
	g.Answers = []cell.Answered{ans}
	if err := answer(kept, cell.Deny, "once", nil); err != nil {
		t.Fatal(err)
	}
	<-r
	if err := b.Gateway.Govern(g); err != nil {
		t.Fatal(err)
	}
	// That one was used: a governance doesn't bring it back.
	r = get("/other")
	q = b.question(1)[0]
	ans.Ask = q
	g.Answers = []cell.Answered{ans}
	answer(q, cell.Deny, "once", func(a *cell.Answered) {})
	<-r
	fresh := kept
	fresh.ID = "q-fresh"
	g.Answers = []cell.Answered{{Ask: fresh, Effect: cell.Allow, Scope: "once", By: "alice"}}
	b.Gateway.Govern(g)
	if x := <-get("/other"); x.status != 200 {
		t.Errorf("restored: %+v", x)
	}
	r = get("/other") // and used up
	answer(b.question(1)[0], cell.Deny, "once", nil)
	<-r
	// Connections of other protocols wait, too.
	c, err := DialHost(b.Ctx(), b.Cell, b.Link, "raw.test:9000")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "hi")
	answer(b.question(1)[0], cell.Allow, "run", nil)
	buf := make([]byte, 2)
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Errorf("raw: %v", err)
	}
	c.Close()
	// Another policy takes no answer of the old one, and a waiting request is denied.
	r = get("/late")
	q = b.question(1)[0]
	p.Rules = append(p.Rules, Rule{Effect: cell.Allow, Host: "new.test"})
	g = With(p)(b.World, b.Authority)
	g.Answers = []cell.Answered{{Ask: q, Effect: cell.Allow, Scope: "run", By: "alice"}}
	if err := b.Gateway.Govern(g); err != nil {
		t.Fatal(err)
	}
	if x := <-r; x.err == nil && x.status == 200 {
		t.Errorf("%+v", x)
	}
	b.question(0)
	if err := answer(q, cell.Allow, "once", nil); cell.KindOf(err) != cell.Conflict {
		t.Errorf("an answer under another policy: %v", err)
	}
	// No answer comes.
	p.Wait = 50 * time.Millisecond
	b.Gateway.Govern(With(p)(b.World, b.Authority))
	if x := <-get("/slow"); x.status != 403 || !strings.Contains(x.body, "no decision in time") {
		t.Errorf("%+v", x)
	}
}

// testGovern: another policy holds for connections that are open, at once, and
// those that it still allows don't notice.
func testGovern(t *testing.T, site joins) {
	ports := []uint16{80, 443, 9000}
	both := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "a.test", Ports: ports}, {Effect: cell.Allow, Host: "b.test", Ports: ports}}}
	b := Join(t, site(t), With(both))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN A 203.0.113.1")
	b.Raw("203.0.113.1:9000", func(c net.Conn) { io.Copy(c, c) })
	started := make(chan bool, 2)
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		started <- true
		select {
		case <-r.Context().Done():
		case <-time.After(testenv.Patience()):
		}
	}))
	dial := func(name string) net.Conn {
		c, err := DialHost(b.Ctx(), b.Cell, b.Link, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(testenv.Patience()))
		return c
	}
	echo := func(c net.Conn) error {
		fmt.Fprint(c, "echo")
		_, err := io.ReadFull(c, make([]byte, 4))
		return err
	}
	a, x := dial("a.test:9000"), dial("b.test:9000")
	for _, c := range []net.Conn{a, x} {
		if err := echo(c); err != nil {
			t.Fatal(err)
		}
	}
	held := make(chan error, 1)
	go func() {
		_, _, err := b.Get("http://b.test/hang")
		held <- err
	}()
	<-started
	if err := b.Gateway.Govern(cell.Governance{Policy: []byte("{")}); err == nil {
		t.Error("a policy that can't be compiled was taken")
	}
	if err := echo(x); err != nil {
		t.Errorf("a policy that was refused did something: %v", err)
	}
	if err := b.Gateway.Govern(With(Policy{Rules: both.Rules[:1]})(b.World, b.Authority)); err != nil {
		t.Fatal(err)
	}
	if err := echo(a); err != nil {
		t.Errorf("a connection that is still allowed: %v", err)
	}
	if err := echo(x); err == nil || errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "EOF") {
		t.Errorf("a connection that is denied now: %v", err)
	}
	select {
	case err := <-held:
		if err == nil {
			t.Error("a request that is denied now came to its end")
		}
	case <-time.After(testenv.Patience()):
		t.Error("a request that is denied now goes on")
	}
	if c, err := DialHost(b.Ctx(), b.Cell, b.Link, "b.test:9000"); err == nil {
		t.Errorf("a new connection to a host that is denied: %v", c)
	}
	b.Decided(cell.Deny, func(y cell.Access) bool { return y.Act == cell.Connect && y.Host == "b.test" && y.Port == 9000 })
	// A rule that looks inside now ends what was not opened.
	opened := both
	opened.Rules = []Rule{{Effect: cell.Allow, Host: "a.test", Ports: ports, Open: true}}
	if err := b.Gateway.Govern(With(opened)(b.World, b.Authority)); err != nil {
		t.Fatal(err)
	}
	if err := echo(a); err == nil {
		t.Error("a connection goes on unseen though a rule must look into it now")
	}
}

// testBudget: beyond it nothing leaves the cell.
func testBudget(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "a.test", Ports: []uint16{80, 9000}}}, Budget: 100 << 10}
	b := Join(t, site(t), With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	var got int64
	done := make(chan bool, 1)
	b.Raw("203.0.113.1:9000", func(c net.Conn) { got, _ = io.Copy(io.Discard, c); done <- true })
	c, err := DialHost(b.Ctx(), b.Cell, b.Link, "a.test:9000")
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(testenv.Patience()))
	sent := 0
	for sent < 50<<20 {
		n, err := c.Write(make([]byte, 64<<10))
		if sent += n; err != nil {
			break
		}
	}
	<-done
	if got > p.Budget || sent >= 50<<20 {
		t.Errorf("%d bytes arrived of %d", got, sent)
	}
	if d := b.Decided(cell.Deny, func(cell.Access) bool { return true }); d.Decision.By != "budget" {
		t.Errorf("%+v", d)
	}
	if _, err := b.Cell.Dial(b.Ctx(), "tcp", "198.18.1.0:9000"); !refused(err) {
		t.Errorf("after the budget: %v", err)
	}
}

// testTrial: what canaries try is seen, and makes no events.
func testTrial(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	addr := netip.MustParseAddr("192.0.2.1")
	tries := []cell.Access{
		{Act: cell.Resolve, Host: "nonce.invalid"},
		{Act: cell.Connect, Addr: addr, Port: 443, Transport: "tcp"},
		{Act: cell.Connect, Addr: addr, Port: 443, Transport: "udp"},
		{Act: cell.Connect, Addr: netip.MustParseAddr("2001:db8::1"), Port: 443, Transport: "tcp"},
		{Act: cell.Resolve, Host: "a.test"},
		{Act: cell.Connect, Addr: addr, Port: 1, Transport: "tcp"},
	}
	trial, err := b.Gateway.Try(tries)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(trial.Denied()); got != "[true true true true false true]" {
		t.Errorf("denied: %s", got)
	}
	if got := fmt.Sprint(trial.Seen()); strings.Contains(got, "true") {
		t.Errorf("seen before: %s", got)
	}
	Lookup(b.Ctx(), b.Cell, b.Link, "nonce.invalid")
	b.Cell.Dial(b.Ctx(), "tcp", "192.0.2.1:443")
	b.Cell.Dial(b.Ctx(), "tcp", "[2001:db8::1]:443")
	if c, err := b.Cell.Dial(b.Ctx(), "udp", "192.0.2.1:443"); err == nil {
		c.Write([]byte("x"))
		c.SetDeadline(time.Now().Add(time.Second))
		c.Read(make([]byte, 1))
		c.Close()
	}
	if got := fmt.Sprint(trial.Seen()); got != "[true true true true false false]" {
		t.Errorf("seen: %s", got)
	}
	if s := b.Events.Text(); s != "" {
		t.Errorf("events: %s", s)
	}
	// An equal connection of a program meanwhile is not hidden by a canary.
	b.Cell.Dial(b.Ctx(), "tcp", "192.0.2.1:443")
	b.Decided(cell.Deny, func(a cell.Access) bool { return a.Addr == addr })
	trial.End()
	b.Cell.Dial(b.Ctx(), "tcp", "192.0.2.1:444")
	b.Decided(cell.Deny, func(a cell.Access) bool { return a.Addr == addr && a.Port == 444 })
}
