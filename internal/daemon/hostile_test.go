package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/testenv"
)

// reachable is a daemon behind a listener of its own, with routes that report that they were
// reached after reading the body.
func reachable(t *testing.T, cfg Config, conns int, change func(*http.Server)) (d *Daemon, addr, secret string) {
	t.Helper()
	d, _ = house(t, cfg)
	table := slices.Clone(Routes)
	for i := range table {
		table[i].handle = func(_ *Daemon, _ http.ResponseWriter, r *http.Request) (any, error) {
			in := &uploadBody{Reader: r.Body}
			if _, err := io.Copy(io.Discard, in); err != nil {
				return nil, in.why(err)
			}
			return "reached", nil
		}
	}
	d.mux = d.routes(table)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = d.server(d.remote())
	if change != nil {
		change(srv.Config)
	}
	srv.Listener = newConnLimit(conns).on(srv.Listener)
	srv.Start()
	t.Cleanup(srv.Close)
	return d, srv.Listener.Addr().String(), token(t, d, access.Admin, time.Time{})
}

// Nothing that one side could read as one request and the other as two is answered
// as two; what carries a second request behind its end is cut there.
func TestSmuggledRequestsAreNotAnswered(t *testing.T) {
	_, addr, secret := reachable(t, Config{}, 0, nil)
	auth := "Authorization: Bearer " + secret + "\r\n"
	second := "POST /v1/daemon/stop HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n"
	head := "POST /v1/gc HTTP/1.1\r\nHost: x\r\n" + auth
	for name, text := range map[string]string{
		"length and chunked":          head + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"chunked and length":          head + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + second,
		"chunked twice":               head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"chunked, identity":           head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + second,
		"a blank before the colon":    head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + second,
		"folded coding":               head + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + second,
		"vertical tab":                head + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + second,
		"a length with a sign":        head + "Content-Length: +5\r\n\r\n{}   " + second,
		"a length in hexadecimal":     head + "Content-Length: 0x5\r\n\r\n{}   " + second,
		"a negative length":           head + "Content-Length: -1\r\n\r\n" + second,
		"a huge length":               head + "Content-Length: 99999999999999999999\r\n\r\n" + second,
		"a chunk of negative size":    head + "Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n" + second,
		"a chunk size that overflows": head + "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\n{}   \r\n0\r\n\r\n" + second,
		"a chunk that ends wrongly":   head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n" + second,
		"a carriage return alone":     "POST /v1/gc HTTP/1.1\r\nHost: x\r\nX: a\rContent-Length: 5\r\n" + auth + "\r\n{}   " + second,
		"HTTP/2 over plain text":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + second,
		"an older protocol":           "POST /v1/gc\r\n" + second,
	} {
		got := raw(t, addr, text, 400*time.Millisecond)
		if n := strings.Count(got, `"reached"`); n > 1 || strings.Count(got, "HTTP/1.1 200") > 1 {
			t.Errorf("%s: %d answers: %s", name, n, got)
		}
		// Either the first is refused, or it is answered and the connection is at its end.
		if strings.Contains(got, "HTTP/1.1 200") && !strings.Contains(strings.ToLower(got), "connection: close") && strings.Contains(got, "/stop") {
			t.Errorf("%s: %s", name, got)
		}
	}
	// Bare line feeds are the end of a line for this server, on both sides of it: one
	// request, and no second.
	got := raw(t, addr, "POST /v1/gc HTTP/1.1\nHost: x\nAuthorization: Bearer "+secret+"\nContent-Length: 2\n\n{}", 400*time.Millisecond)
	if strings.Count(got, "HTTP/1.1 ") != 1 {
		t.Errorf("bare line feeds: %s", got)
	}
}

// Nothing that a caller sends comes back as a header of its own.
func TestHeadersAreNotInjected(t *testing.T) {
	_, addr, secret := reachable(t, Config{}, 0, nil)
	auth := "Connection: close\r\nAuthorization: Bearer " + secret + "\r\n"
	for _, bad := range []string{"%0d%0aSet-Cookie:%20a=b", "%0aSet-Cookie:a", "%00", "x%0d%0a%0d%0aHTTP/1.1%20200%20OK", "%e2%80%a8Set-Cookie:a", strings.Repeat("x", 300)} {
		for _, text := range []string{
			"GET /v1/cells/" + bad + " HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
			"GET /v1/nothing" + bad + " HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
			"GET /v1/cells?cursor=" + bad + " HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
			"GET /v1/cells HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + bad + "\r\n" + auth + "\r\n",
			"BAD" + bad + " /v1/cells HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		} {
			got := raw(t, addr, text, 150*time.Millisecond)
			head, _, _ := strings.Cut(got, "\r\n\r\n")
			if strings.Contains(strings.ToLower(head), "set-cookie") || strings.Count(head, "HTTP/1.1 ") > 1 || strings.Contains(head, "xxxxxxxxxxxxxxxx") {
				t.Errorf("%.120q: %s", text, got)
			}
		}
	}
}

// Sending a header or a body slowly loses the connection, and does not delay other callers.
func TestSlowCallersLoseTheirConnection(t *testing.T) {
	d, addr, secret := reachable(t, Config{}, 0, func(s *http.Server) { s.ReadHeaderTimeout = 400 * time.Millisecond })
	if real := d.server(nil); real.ReadHeaderTimeout == 0 || real.ReadHeaderTimeout > 15*time.Second || real.IdleTimeout == 0 || real.MaxHeaderBytes == 0 {
		t.Errorf("a server without limits: %+v", real)
	}
	var slow []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /v1/cells HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		slow = append(slow, c)
	}
	if got := raw(t, addr, "GET /v1/cells HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer "+secret+"\r\n\r\n", testenv.Patience()); !strings.Contains(got, "reached") {
		t.Errorf("%s", got)
	}
	for _, c := range slow {
		c.SetDeadline(time.Now().Add(testenv.Patience()))
		for { // a byte now and then does not help
			_, err := c.Write([]byte("a"))
			if err == nil {
				_, err = io.Copy(io.Discard, c)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a connection outlived its slow header")
			}
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
				break
			}
		}
	}
	// A body that comes too slowly: its grace is over when it begins.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := pace(w, r.Body).(*paced)
		p.began = time.Now().Add(-bodyGrace)
		_, err := io.Copy(io.Discard, p)
		writeError(w, unread(err))
	}))
	defer srv.Close()
	got := raw(t, srv.Listener.Addr().String(), "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nab", testenv.Patience())
	if !strings.HasPrefix(got, "HTTP/1.1 504") || !strings.Contains(got, "too slowly") {
		t.Errorf("%s", got)
	}
}

// Thousands of connections on which nothing comes are bounded in number, and leave
// the daemon as it was.
func TestIdleConnectionsAreBounded(t *testing.T) {
	const most = 200
	_, addr, secret := reachable(t, Config{}, most, func(s *http.Server) { s.IdleTimeout, s.ReadHeaderTimeout = time.Second, time.Second })
	ask := "GET /v1/cells HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + secret + "\r\n\r\n"
	before := runtime.NumGoroutine()
	var idle []net.Conn
	for range 2000 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		idle = append(idle, c)
	}
	if n := runtime.NumGoroutine(); n > before+3*most {
		t.Errorf("%d goroutines for %d connections", n-before, len(idle))
	}
	// When those that are in have had their time.
	testenv.Eventually(t, func() bool { return strings.Contains(raw(t, addr, ask, time.Second), "reached") }, "an answer")
	for _, c := range idle {
		c.Close()
	}
}

// An upload that is longer than is taken is refused: at once where it says so, at the
// limit where it does not; in little memory.
func TestLongUploadsAreRefused(t *testing.T) {
	limit, size := int64(32<<20), int64(64<<20)
	if os.Getenv("E2E_SOAK") != "" {
		limit, size = 4<<30, 10<<30
	}
	_, addr, secret := reachable(t, Config{Limits: &Limits{Upload: limit}}, 0, nil)
	// The answer comes though not a byte of the body is sent.
	got := raw(t, addr, fmt.Sprintf("PUT /v1/cells/web/file?path=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", secret, int64(10<<30)), testenv.Patience())
	if !strings.HasPrefix(got, "HTTP/1.1 413") || !strings.Contains(got, `"too-large"`) {
		t.Errorf("%s", got)
	}
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	body := &counted{Reader: io.LimitReader(zeros{}, size)}
	r, err := http.NewRequest("PUT", "http://"+addr+"/v1/cells/web/file?path=x", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		var b bytes.Buffer
		b.ReadFrom(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(b.String(), `"too-large"`) {
			t.Errorf("%d %s", resp.StatusCode, b.String())
		}
	}
	if n := body.n.Load(); n < limit || n >= size {
		t.Errorf("%d of %d bytes were taken, of which %d may", n, size, limit)
	}
	runtime.ReadMemStats(&end)
	if grown := int64(end.HeapAlloc) - int64(start.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// counted counts what is read of a body.
type counted struct {
	io.Reader
	n atomic.Int64 // the transport goes on reading while an early answer is looked at
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
