package daemon

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/testenv"
)

// multiplexed is a daemon at a TCP address, with TLS or without, and a client that speaks
// HTTP/2 alone.
func multiplexed(t *testing.T, cfg Config, conns int, tls bool, routes []Route) (d *Daemon, srv *httptest.Server, l *few, c *http.Client) {
	t.Helper()
	d, _ = house(t, cfg)
	if routes != nil {
		d.mux = d.routes(routes)
	}
	srv = httptest.NewUnstartedServer(nil)
	srv.Config = d.server(d.remote())
	l = newConnLimit(conns).on(srv.Listener).(*few)
	srv.Listener = l
	if tls {
		srv.EnableHTTP2 = true
		srv.StartTLS()
		c = srv.Client()
	} else {
		srv.Start()
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		c = &http.Client{Transport: tr}
		t.Cleanup(tr.CloseIdleConnections)
	}
	t.Cleanup(srv.Close)
	return d, srv, l, c
}

// ask2 sends a request over HTTP/2.
func ask2(t *testing.T, ctx context.Context, c *http.Client, method, url, secret string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.ProtoMajor != 2 {
		t.Fatalf("%s is answered over %s", url, resp.Proto)
	}
	return resp
}

// HTTP/2 carries answers, lines as they come, and the end of a request that its caller has
// given up: no failure for the log, and an interruption for the audit log.
func TestHTTP2(t *testing.T) {
	for name, tls := range map[string]bool{"over TLS": true, "with prior knowledge": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			audit, err := OpenAudit(path)
			if err != nil {
				t.Fatal(err)
			}
			defer audit.Close()
			var mu sync.Mutex
			var log bytes.Buffer
			ended := make(chan error, 1)
			next := make(chan bool)
			d, srv, _, c := multiplexed(t, Config{Audit: audit}, 10, tls, []Route{
				{Method: "GET", Path: "/v1/daemon", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return "reached", nil }},
				{Method: "GET", Path: "/v1/cells", Access: Read, cannot: "list cells", Gives: jsonLines, handle: func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
					w.Header().Set("Content-Type", jsonLines)
					for {
						if _, err := io.WriteString(w, "a line\n"); err != nil {
							ended <- err
							d.brokenOff(r, "cannot finish", err)
						}
						http.NewResponseController(w).Flush()
						select {
						case <-next:
						case <-r.Context().Done():
							ended <- context.Cause(r.Context())
							return nil, r.Context().Err()
						}
					}
				}},
				{Method: "GET", Path: "/v1/runs/{run}/attach", Access: Read, Gives: WebSocket, cannot: "attach", handle: func(_ *Daemon, _ http.ResponseWriter, r *http.Request) (any, error) { return nil, noWebSocket(r) }},
			})
			d.cfg.Log = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil))
			secret := token(t, d, Read, time.Time{})
			resp := ask2(t, t.Context(), c, "GET", srv.URL+"/v1/daemon", secret)
			if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), "reached") {
				t.Errorf("%s", b)
			}
			resp = ask2(t, t.Context(), c, "GET", srv.URL+"/v1/runs/a/attach", secret)
			if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(b), "HTTP/1.1") {
				t.Errorf("a WebSocket over HTTP/2: %d %s", resp.StatusCode, b)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp = ask2(t, ctx, c, "GET", srv.URL+"/v1/cells", secret)
			lines := bufio.NewScanner(resp.Body)
			for range 3 {
				if !lines.Scan() || lines.Text() != "a line" {
					t.Fatalf("%q %v", lines.Text(), lines.Err())
				}
				next <- true // which the daemon waits for before it writes more
			}
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			cancel()
			testenv.Receive(t, ended, "the end of the request")
			testenv.Eventually(t, func() bool { return strings.Contains(readAll(t, path), "/v1/cells") }, "a line of the audit log")
			lines2 := auditLines(t, path)
			if l := lines2[len(lines2)-1]; l.Kind != "interrupted" || l.Status != 200 {
				t.Errorf("%+v", l)
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(log.String(), "ERROR") {
				t.Errorf("the log has a failure: %s", log.String())
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// frames is a client of HTTP/2 that does what no good one does.
type frames struct {
	t *testing.T
	c net.Conn
	*http2.Framer
	block bytes.Buffer
	head  *hpack.Encoder
	next  uint32
}

func framed(t *testing.T, addr string, settings ...http2.Setting) *frames {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testenv.Patience()))
	io.WriteString(c, http2.ClientPreface)
	f := &frames{t: t, c: c, Framer: http2.NewFramer(c, c), next: 1}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.head = hpack.NewEncoder(&f.block)
	if err := f.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	for acked := 0; acked < 2; { // theirs and ours
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := fr.(*http2.SettingsFrame); ok {
			acked++
			if !s.IsAck() {
				f.WriteSettingsAck()
			}
		}
	}
	return f
}

// open sends the headers of a request, and returns its stream.
func (f *frames) open(method, path, secret string, more ...string) (id uint32, err error) {
	f.block.Reset()
	head := append([]string{":method", method, ":authority", "x"}, more...)
	if method != "CONNECT" || len(more) > 0 {
		head = append(head[:4:4], append([]string{":scheme", "http", ":path", path}, more...)...)
	}
	if secret != "" {
		head = append(head, "authorization", "Bearer "+secret)
	}
	for i := 0; i < len(head); i += 2 {
		f.head.WriteField(hpack.HeaderField{Name: head[i], Value: head[i+1]})
	}
	id = f.next
	f.next += 2
	return id, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndStream: true, EndHeaders: true})
}

// busy is a route on which requests stay until they are let go, whatever their callers do.
type busy struct {
	running, most atomic.Int64
	let           chan struct{}
}

func (b *busy) stay() {
	n := b.running.Add(1)
	defer b.running.Add(-1)
	for m := b.most.Load(); n > m && !b.most.CompareAndSwap(m, n); m = b.most.Load() {
	}
	<-b.let
}

func (b *busy) routes() []Route {
	return []Route{{Method: "GET", Path: "/v1/cells", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) {
		b.stay()
		return "reached", nil
	}}, {Method: "GET", Path: "/v1/daemon", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return "reached", nil }}}
}

// One connection with a thousand requests has as many answered at a time as there may be on
// one, of which it is told; the others are refused.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	b := &busy{let: make(chan struct{})}
	d, srv, _, _ := multiplexed(t, Config{}, 10, false, b.routes())
	defer close(b.let)
	secret := token(t, d, Read, time.Time{})
	f := framed(t, srv.Listener.Addr().String())
	const n = 1000
	sent := make(chan error, 1)
	go func() {
		for range n {
			if _, err := f.open("GET", "/v1/cells", secret); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for refused := 0; refused < n-maxStreams; {
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("after %d refusals: %v", refused, err)
		}
		if r, ok := fr.(*http2.RSTStreamFrame); ok {
			if r.ErrCode != http2.ErrCodeProtocol { // net/http has told the client how many there may be
				t.Fatalf("%v", r)
			}
			refused++
		}
	}
	if err, _ := testenv.Receive(t, sent, "the requests"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return b.running.Load() == maxStreams }, "as many requests as there may be")
	if m := b.most.Load(); m > maxStreams {
		t.Errorf("%d at a time", m)
	}
}

// Requests under way of a token are counted also when one connection carries them all.
func TestRequestsOfATokenAreCountedOnOneConnection(t *testing.T) {
	b := &busy{let: make(chan struct{})}
	d, srv, _, _ := multiplexed(t, Config{Limits: &Limits{Flight: 5}}, 10, false, b.routes())
	defer close(b.let)
	secret, other := token(t, d, Read, time.Time{}), token(t, d, Read, time.Time{})
	f := framed(t, srv.Listener.Addr().String())
	for range 20 {
		f.open("GET", "/v1/cells", secret)
	}
	for limited := 0; limited < 15; {
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("%d are limited: %v", limited, err)
		}
		if h, ok := fr.(*http2.MetaHeadersFrame); ok {
			if h.PseudoValue("status") != "429" {
				t.Fatalf("%v", h)
			}
			limited++
		}
	}
	testenv.Eventually(t, func() bool { return b.running.Load() == 5 }, "five requests")
	id, _ := f.open("GET", "/v1/daemon", other)
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := fr.(*http2.MetaHeadersFrame); ok && h.StreamID == id {
			if h.PseudoValue("status") != "200" {
				t.Errorf("another token on the same connection: %v", h)
			}
			break
		}
	}
}

// Requests without a good token are counted by peer, and those beyond are refused with
// nothing that would have to be waited for. One with a good token is answered.
func TestStrangersStreamsAreBounded(t *testing.T) {
	b := &busy{let: make(chan struct{})}
	const most = 20
	d, srv, l, _ := multiplexed(t, Config{Fronts: []Front{{
		Match: func(r *http.Request) bool { return r.URL.Path == "/signed" }, Needs: func(*http.Request) access.Level { return "" },
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { b.stay() }),
	}}}, most, false, b.routes())
	let := sync.OnceFunc(func() { close(b.let) })
	defer let()
	secret := token(t, d, Read, time.Time{})
	addr := srv.Listener.Addr().String()
	f := framed(t, addr)
	for range most / 2 {
		f.open("GET", "/signed", "")
	}
	testenv.Eventually(t, func() bool { return b.running.Load() == most/2 }, "as many requests as there may be")
	for _, wrong := range []string{"", "pando_wrong"} {
		g := framed(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) // takes no body
		id, _ := g.open("GET", "/signed", wrong)
		for {
			fr, err := g.ReadFrame()
			if err != nil {
				t.Fatalf("%q: %v", wrong, err)
			}
			if h, ok := fr.(*http2.MetaHeadersFrame); ok && h.StreamID == id {
				if h.PseudoValue("status") != "429" || !h.StreamEnded() {
					t.Errorf("one more: %v", h)
				}
				break
			}
		}
	}
	g := framed(t, addr)
	id, _ := g.open("GET", "/v1/daemon", secret)
	for {
		fr, err := g.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := fr.(*http2.MetaHeadersFrame); ok && h.StreamID == id {
			if h.PseudoValue("status") != "200" {
				t.Errorf("with a good token: %v", h)
			}
			break
		}
	}
	let()
	open := func() int { l.mu.Lock(); defer l.mu.Unlock(); return l.streams.open + len(l.streams.of) }
	testenv.Eventually(t, func() bool { return open() == 0 }, "the end of all of them")
	if m := b.most.Load(); m > most/2 {
		t.Errorf("%d at a time", m)
	}
	// A refusal that is not taken does not stay.
	z := framed(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for range 5 {
		z.open("GET", "/v1/daemon", "pando_wrong")
	}
	testenv.Eventually(t, func() bool { return open() > 0 }, "a refusal that is not taken")
	for {
		fr, err := z.ReadFrame()
		if err != nil {
			break // the connection has ended
		}
		if r, ok := fr.(*http2.RSTStreamFrame); ok && r.ErrCode == http2.ErrCodeInternal {
			break
		}
	}
	testenv.Eventually(t, func() bool { return open() == 0 }, "the end of the refusals")
}

// Requests that are reset at once do not let more of them run than there may be: net/http
// ends the connection (CVE-2023-39325 and its like).
func TestRapidResetIsBounded(t *testing.T) {
	b := &busy{let: make(chan struct{})}
	l := DefaultLimits
	l.Rate, l.Flight = 0, 0 // what stops it is none of these
	d, srv, _, c := multiplexed(t, Config{Limits: &l}, 10, false, b.routes())
	defer close(b.let)
	secret := token(t, d, Read, time.Time{})
	f := framed(t, srv.Listener.Addr().String())
	go func() {
		for range 100 * maxStreams {
			id, err := f.open("GET", "/v1/cells", secret)
			if err != nil || f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	calm := false
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			break
		}
		if g, ok := fr.(*http2.GoAwayFrame); ok {
			if calm = g.ErrCode == http2.ErrCodeEnhanceYourCalm; calm {
				break
			}
		}
	}
	if m := b.most.Load(); !calm || m > maxStreams {
		t.Errorf("told to be calm: %v; %d requests at a time", calm, m)
	}
	resp := ask2(t, t.Context(), c, "GET", srv.URL+"/v1/daemon", secret)
	if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), "reached") {
		t.Errorf("another client: %s", b)
	}
}

// A connection that carries good requests stays when one on it has no good token, or too
// long a body; a stranger's ends. Nothing becomes another protocol.
func TestRefusalsOnASharedConnection(t *testing.T) {
	b := &busy{let: make(chan struct{})}
	close(b.let)
	d, srv, _, _ := multiplexed(t, Config{}, 10, false, b.routes())
	secret := token(t, d, Read, time.Time{})
	f := framed(t, srv.Listener.Addr().String())
	for _, x := range []struct {
		secret, status string
		method         string
		more           []string
	}{
		{secret, "200", "GET", nil}, {"pando_wrong", "401", "GET", nil}, {secret, "200", "GET", nil}, {"", "401", "GET", nil},
		{secret, "400", "GET", []string{"upgrade", "websocket"}},
		{secret, "", "CONNECT", []string{":protocol", "websocket"}},
		{secret, "400", "CONNECT", nil},
		{secret, "200", "GET", nil},
	} {
		id, err := f.open(x.method, "/v1/daemon", x.secret, x.more...)
		for {
			var fr http2.Frame
			if err == nil {
				fr, err = f.ReadFrame()
			}
			if err != nil {
				t.Fatalf("%+v: %v", x, err)
			}
			if fr.Header().StreamID != id {
				if _, ok := fr.(*http2.GoAwayFrame); ok {
					t.Fatalf("%+v: %v", x, fr)
				}
				continue
			}
			if _, ok := fr.(*http2.RSTStreamFrame); ok && x.status == "" {
				break
			}
			if h, ok := fr.(*http2.MetaHeadersFrame); ok {
				if got := h.PseudoValue("status"); got != x.status {
					t.Errorf("%+v: %s", x, got)
				}
				break
			}
		}
	}
	g := framed(t, srv.Listener.Addr().String())
	g.open("GET", "/v1/daemon", "pando_wrong")
	for {
		fr, err := g.ReadFrame()
		if err != nil {
			t.Fatalf("a stranger's connection is not told to end: %v", err)
		}
		if _, ok := fr.(*http2.GoAwayFrame); ok {
			break
		}
	}
}
