package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
	"github.com/pando-dev/pando/internal/testenv"
)

// settled waits until no more goroutines run than there were.
func settled(t *testing.T, before int) {
	t.Helper()
	defer func() {
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			t.Logf("%d goroutines, and %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
	}()
	testenv.Eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "the end of the goroutines")
}

// TestCloseLeavesNothing closes a gateway in which something of everything goes
// on.
func TestCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("busy", func(t *testing.T) {
		p := gatewaytest.Policy{Rules: []gatewaytest.Rule{
			{Effect: cell.Allow, Host: "a.test", Ports: []uint16{80, 443, 9000}},
			{Effect: cell.Ask, Host: "b.test", Ports: []uint16{80, 9000}},
			{Effect: cell.Allow, Host: "slow.test"},
		}}
		b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(p))
		for _, n := range []string{"a", "b"} {
			b.Record(n + ".test. 60 IN A 203.0.113.1")
		}
		for _, at := range []string{"203.0.113.1:9000", "203.0.113.1:443"} {
			b.Raw(at, func(c net.Conn) { io.Copy(c, c) })
		}
		b.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		for _, send := range []struct{ to, text string }{
			{"a.test:9000", "hello"}, {"a.test:9000", ""}, {"b.test:9000", "hello"}, {"a.test:443", "\x16\x03\x01"}, {"a.test:443", ""}, {"a.test:80", "GET / HT"},
			{"a.test:80", "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"}, {"b.test:80", "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"},
		} {
			c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, send.to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, send.text)
		}
		testenv.Eventually(t, func() bool { list, _ := b.Gateway.Asked(); return len(list) == 2 }, "two questions")
		closed := make(chan struct{})
		go func() { b.Gateway.Close(); close(closed) }()
		testenv.Receive(t, closed, "the end of the gateway")
	})
	settled(t, before)
}

// TestManyConnections: thousands of connections that say hardly anything cost
// little, and are gone when the cell lets go of them.
func TestManyConnections(t *testing.T) {
	n := 2_000
	if os.Getenv("E2E_SOAK") != "" {
		n = 10_000
	}
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }))
	addr, err := gatewaytest.Lookup(b.Ctx(), b.Cell, b.Link, "a.test")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	open := make([]net.Conn, n)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < n; i += 16 {
				c, err := b.Cell.Dial(b.Ctx(), "tcp", addr.String()+":80")
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Slow: ")
				open[i] = c
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapInuse) + int64(after.StackInuse) - int64(before.HeapInuse) - int64(before.StackInuse)) / int64(n)
	t.Logf("%d connections, %d KiB each, for both ends", n, each>>10)
	if each > 80<<10 {
		t.Errorf("a connection that says nothing costs %d KiB", each>>10)
	}
	// They are still served.
	io.WriteString(open[n/2], "x\r\nConnection: close\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(open[n/2]), nil); err != nil || res.StatusCode != 200 {
		t.Errorf("%v, %v", res, err)
	}
	for _, c := range open {
		c.Close()
	}
}

// TestACrowdStaysSmall: a cell that takes thousands of streams and reads none of
// them doesn't fill the host's memory.
func TestACrowdStaysSmall(t *testing.T) {
	p := gatewaytest.Policy{Rules: []gatewaytest.Rule{{Effect: cell.Allow, Host: "a.test", Ports: []uint16{9000}}}}
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(p))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Raw("203.0.113.1:9000", func(c net.Conn) { io.Copy(io.Discard, c) })
	addr, err := gatewaytest.Lookup(b.Ctx(), b.Cell, b.Link, "a.test")
	if err != nil {
		t.Fatal(err)
	}
	for i := range gateway.Crowd + 64 {
		c, err := b.Cell.Dial(b.Ctx(), "tcp", addr.String()+":9000")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
	}
	testenv.Eventually(t, func() bool {
		small := 0
		for _, n := range b.Gateway.Buffers() {
			if n <= 512<<10 {
				small++
			}
		}
		return small >= 64
	}, fmt.Sprintf("that of %d connections 64 are small", gateway.Crowd+64))
}

// TestQuestionsAreFew: a cell that asks and gives up repeatedly floods neither the person nor
// the records.
func TestQuestionsAreFew(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Policy{Rules: []gatewaytest.Rule{{Effect: cell.Ask, Host: "a.test"}}}))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTP("203.0.113.1:80", http.NotFoundHandler())
	addr, err := gatewaytest.Lookup(b.Ctx(), b.Cell, b.Link, "a.test")
	if err != nil {
		t.Fatal(err)
	}
	for i := range gateway.MaxNew + 10 {
		c, err := b.Cell.Dial(b.Ctx(), "tcp", addr.String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		path := fmt.Sprint("/", i)
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n", path)
		e := b.Events.Wait(t, path, func(e gatewaytest.Event) bool { return e.Decided.Access.Path == path })
		c.Close()
		if over := strings.Contains(e.Decided.Decision.Reason, "within a minute"); over != (i >= gateway.MaxNew) {
			t.Fatalf("question %d: %+v", i, e.Decided.Decision)
		}
		b.Events.Wait(t, path+" in vain", func(e gatewaytest.Event) bool {
			return e.Decided.Access.Path == path && e.Decided.Decision.Effect == cell.Deny
		})
	}
}

// TestAHostThatNeverEnds: what a host can make the gateway keep of the head of an
// answer is bounded.
func TestAHostThatNeverEnds(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Raw("203.0.113.1:80", func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		line := "X-Header: " + strings.Repeat("x", 64<<10) + "\r\n"
		for range (3 << 20) / len(line) {
			io.WriteString(c, line)
		}
		io.WriteString(c, "Content-Length: 0\r\n\r\n")
		io.Copy(io.Discard, c)
	})
	res, _, err := b.Get("http://a.test/")
	if err != nil || res.StatusCode != http.StatusBadGateway {
		t.Errorf("3 MiB of headers: %v, %v", res, err)
	}
}

// TestFilesAreLeft: a keeper that may have few files open has some left, whatever
// its cell does.
func TestFilesAreLeft(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = 1024
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	if conns, requests := b.Gateway.Most(); conns != 512 || requests != 128 {
		t.Errorf("of 1024 files, %d are for connections and %d for requests", conns, requests)
	}
}

// TestSlowAndLong: what a cell can make the gateway keep is bounded.
func TestSlowAndLong(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.HTTP("203.0.113.1:80", http.NotFoundHandler())
	b.Raw("203.0.113.1:443", func(c net.Conn) { io.Copy(io.Discard, c) })
	send := func(to, head, more string, n int) (sent int, answer string) {
		c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, head)
		for sent < n {
			k, err := io.WriteString(c, more)
			if sent += k; err != nil {
				break
			}
		}
		out, _ := io.ReadAll(io.LimitReader(c, 1<<16))
		return sent, string(out)
	}
	if n, _ := send("a.test:80", "GET /", strings.Repeat("x", 1<<10), 64<<20); n >= 64<<20 {
		t.Error("a request line without end was read")
	}
	if n, _ := send("a.test:80", "GET / HTTP/1.1\r\nHost: a.test\r\n", strings.Repeat("X-Header: "+strings.Repeat("x", 1000)+"\r\n", 10), 64<<20); n >= 64<<20 {
		t.Error("headers without end were read")
	}
	if n, _ := send("a.test:443", "\x16\x03\x01\x3f\xff\x01\x00\xff\xff", strings.Repeat("x", 1<<10), 64<<20); n >= 64<<20 {
		t.Error("a ClientHello without end was read")
	}
}

// broken is a policy that panics.
type broken struct{}

func (broken) Digest() cell.Digest { return cell.Sum([]byte("broken")) }
func (broken) Decide(a cell.Access) cell.Decision {
	if a.Host == "bad.test" {
		panic("no")
	}
	return cell.Decision{Effect: cell.Allow}
}

// TestAPolicyThatPanicsDenies, and the next is judged as if nothing had been.
func TestAPolicyThatPanicsDenies(t *testing.T) {
	site := gatewaytest.Stack(t)
	w := gatewaytest.NewWorld(t)
	w.Record("a.test. 60 IN A 203.0.113.1")
	var ev gatewaytest.Events
	g, err := gateway.Open(gateway.Config{Cell: "c-1", Link: site.Link, Endpoint: site.Endpoint, Governance: w.Governance(gatewaytest.Policy{}), Emit: ev.Emit,
		Compile: func(cell.Governance) (gateway.Decider, error) { return broken{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	b := &gatewaytest.Bench{TB: t}
	if at, err := gatewaytest.Lookup(b.Ctx(), site.Cell, site.Link, "bad.test"); err != nil || !site.Link.Refusals().Contains(at) {
		t.Errorf("a policy that panics has allowed something: %s, %v", at, err)
	}
	if _, err := gatewaytest.Lookup(b.Ctx(), site.Cell, site.Link, "a.test"); err != nil {
		t.Error(err)
	}
	ev.Wait(t, "the denial", func(e gatewaytest.Event) bool {
		return e.Decided.Access.Host == "bad.test" && strings.Contains(e.Decided.Decision.Reason, "can't be evaluated")
	})
}

// TestOpenThatFailsLeavesNothing, whatever is wrong.
func TestOpenThatFailsLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	compile := func(cell.Governance) (gateway.Decider, error) { return broken{}, nil }
	authority, err := gateway.NewAuthority("x")
	if err != nil {
		t.Fatal(err)
	}
	other, _ := gateway.NewAuthority("y")
	for name, c := range map[string]gateway.Config{
		"policy":     {Compile: func(cell.Governance) (gateway.Decider, error) { return nil, errors.New("no") }},
		"link":       {Compile: compile, Link: cell.NetworkLink{Kind: "pigeon"}},
		"authority":  {Compile: compile, Governance: cell.Governance{Authority: cell.Authority{Cert: authority.Cert, Key: other.Key}}},
		"roots":      {Compile: compile, Governance: cell.Governance{Roots: "x"}},
		"resolver":   {Compile: compile, Governance: cell.Governance{Resolvers: []string{"localhost"}}},
		"credential": {Compile: compile, Governance: cell.Governance{Credentials: []cell.Lent{{Handle: "x", Secret: "y", Placeholder: "placeholder", For: []string{"https://a"}, As: "no header"}}}},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.File = r
		if g, err := gateway.Open(c); err == nil {
			g.Close()
			t.Errorf("%s: it was opened", name)
		} else if name != "policy" && cell.KindOf(err) != cell.Invalid && cell.KindOf(err) != cell.Unsupported {
			t.Errorf("%s: %v is of kind %s", name, err, cell.KindOf(err))
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Errorf("%s: the link was left open", name)
		}
		w.Close()
	}
	settled(t, before)
}
