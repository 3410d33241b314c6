package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
)

// faced is the door for callers from elsewhere, without a listener.
func faced(t *testing.T, audit *Audit, fronts ...Front) (d *Daemon, ask func(from, path, secret string) *httptest.ResponseRecorder) {
	t.Helper()
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	d = New(Config{Log: slog.New(slog.DiscardHandler), Tokens: tokens, Engine: (&engine.Engine{}).All(), Audit: audit, Fronts: fronts})
	table := make([]Route, len(Routes))
	for i, r := range Routes {
		table[i] = r
		table[i].handle = func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return "reached", nil }
	}
	d.mux = d.routes(table)
	door := d.remote()
	return d, func(from, path, secret string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = from
		if secret != "" {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		w := httptest.NewRecorder()
		door.ServeHTTP(w, r)
		return w
	}
}

// Requests without a good token are limited by peer; one with a good token is answered.
func TestX11FailedLoginsAreLimited(t *testing.T) {
	for name, x := range map[string]struct {
		same   []string // addresses of one peer
		secret string
		other  string
	}{
		"wrong token, IPv4": {[]string{"192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.1]:3"}, "pando_wrong", "192.0.2.2:1"},
		"no token, IPv6":    {[]string{"[2001:db8:0:1::1]:1", "[2001:db8:0:1:ffff::2]:1"}, "", "[2001:db8:0:2::1]:1"},
		"no address":        {[]string{"@", "pipe"}, "pando_wrong", "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, ask := faced(t, nil)
				good := token(t, d, access.Read, time.Time{})
				n := 0
				fails := func(want int) {
					t.Helper()
					n++
					w := ask(x.same[n%len(x.same)], "/v1/cells", x.secret)
					if w.Code != want {
						t.Fatalf("attempt %d: %d %s, want %d", n, w.Code, w.Body, want)
					}
					if want == http.StatusTooManyRequests {
						if s, err := strconv.Atoi(w.Header().Get("Retry-After")); err != nil || s < 1 || s > 2 || w.Header().Get("Connection") != "close" || !strings.Contains(w.Body.String(), `"limited"`) {
							t.Errorf("%v %s", w.Header(), w.Body)
						}
					}
				}
				for range DefaultLimits.Failures {
					fails(http.StatusUnauthorized)
				}
				for range 1000 {
					fails(http.StatusTooManyRequests)
				}
				if w := ask(x.same[0], "/v1/cells", good); w.Code != http.StatusOK {
					t.Errorf("a good token of that peer: %d %s", w.Code, w.Body)
				}
				if w := ask(x.other, "/v1/cells", x.secret); w.Code != http.StatusUnauthorized {
					t.Errorf("another peer: %d %s", w.Code, w.Body)
				}
				time.Sleep(300 * time.Millisecond)
				for range DefaultLimits.Failures * 3 / 100 {
					fails(http.StatusUnauthorized)
				}
				fails(http.StatusTooManyRequests)
			})
		})
	}
}

// Peers in any number take a bounded table; those that are not told apart share a budget.
func TestX11PeersAreBounded(t *testing.T) {
	s := &authFailures{burst: 5}
	beyond := 0
	for i := range 3 * maxPeers {
		if over, _ := s.failed(peerOf(fmt.Sprintf("[2001:db8:%x:%x::1]:1", i>>16, i&0xffff))); over {
			beyond++
		}
	}
	if len(s.peers) > maxPeers+1 || beyond == 0 {
		t.Errorf("%d peers are kept, %d attempts were limited", len(s.peers), beyond)
	}
}

// What a front finds out about a key of its own counts, too.
func TestX11KeysOfFrontsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ask := faced(t, nil, Front{
			Match:   func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/front/") },
			Needs:   func(r *http.Request) access.Level { return "" },
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) }),
		})
		for range DefaultLimits.Failures {
			ask("192.0.2.1:1", "/front/x", "")
		}
		if w := ask("192.0.2.1:1", "/v1/cells", "pando_wrong"); w.Code != http.StatusTooManyRequests {
			t.Errorf("%d", w.Code)
		}
	})
}

// auditLines are the lines of a log.
func auditLines(t *testing.T, path string) (lines []auditLine) {
	t.Helper()
	for l := range strings.Lines(readAll(t, path)) {
		var x auditLine
		if err := json.Unmarshal([]byte(l), &x); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		lines = append(lines, x)
	}
	return lines
}

// Thousands of refused requests are a few lines.
func TestX11RefusedRequestsAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		a, err := OpenAudit(path)
		if err != nil {
			t.Fatal(err)
		}
		_, ask := faced(t, a)
		const n = 5000
		for i := range n {
			ask(fmt.Sprint("192.0.2.1:", i), "/v1/cells", "pando_wrong")
		}
		ask("192.0.2.9:1", "/v1/cells", "")
		time.Sleep(2 * tallyTime)
		lines, counted := auditLines(t, path), int64(0)
		for _, l := range lines {
			if strings.HasPrefix(l.From, "192.0.2.1") {
				counted += max(1, l.Times)
			}
			if l.Times > 0 && (l.Until == nil || l.From != "192.0.2.1" || l.Kind == "") {
				t.Errorf("a sum: %+v", l)
			}
		}
		if len(lines) > 5 || counted != n {
			t.Errorf("%d requests are told in %d lines, of which %d can be counted: %+v", n, len(lines), counted, lines)
		}
		ask("192.0.2.1:1", "/v1/cells", "pando_wrong") // a new minute
		ask("192.0.2.1:1", "/v1/cells", "pando_wrong")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if more := auditLines(t, path)[len(lines):]; len(more) != 2 || more[1].Times != 1 {
			t.Errorf("closed in the middle: %+v", more)
		}
	})
}

// What was refused never takes the place of what was done, also of known callers, and
// also after a restart.
func TestX11RefusedNeverPushOutWhatWasDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	overflow := filepath.Join(filepath.Dir(path), "audit-refused.jsonl")
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	d, ask := faced(t, a)
	reader := token(t, d, access.Read, time.Time{})
	refuse := func() {
		t.Helper()
		if w := ask("192.0.2.1:1", "/v1/tokens", reader); w.Code != http.StatusForbidden {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	ask("192.0.2.1:1", "/v1/cells", reader)
	refuse()
	if lines := auditLines(t, path); len(lines) != 2 || lines[1].Status != 403 {
		t.Fatalf("%+v", lines)
	}
	a.log.refused = refusedMax // its part is full
	a.overflow.refused = refusedMax
	refuse()
	refuse()
	ask("192.0.2.1:1", "/v1/cells", reader)
	if lines := auditLines(t, path); len(lines) != 3 || lines[2].Status != 200 {
		t.Errorf("what was done: %+v", lines)
	}
	if lines := auditLines(t, overflow); len(lines) != 2 {
		t.Errorf("what was refused: %+v", lines)
	}
	if files, _ := filepath.Glob(filepath.Dir(path) + "/*.1"); len(files) != 1 || files[0] != overflow+".1" {
		t.Errorf("moved away: %v", files)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	// Another daemon counts what is there.
	if a, err = OpenAudit(path); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var done, refused int64
	for l := range strings.Lines(readAll(t, path)) {
		if strings.Contains(l, `"status":403`) {
			refused += int64(len(l))
		} else {
			done += int64(len(l))
		}
	}
	if a.log.done != done || a.log.refused != refused || refused == 0 {
		t.Errorf("%d and %d bytes, not %d and %d", a.log.done, a.log.refused, done, refused)
	}
}

// from is a connection of some address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// Half of the connections are left for other peers, whatever one peer opens.
func TestX11ConnectionsAreLeftForOthers(t *testing.T) {
	f := newConnLimit(10)
	open := func(ip string) (*slot, bool) {
		a, _ := net.Pipe()
		return f.enter(from{a, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}})
	}
	var all []*slot
	for i := range 8 {
		s, ok := open("192.0.2.1")
		if ok != (i < 5) {
			t.Fatalf("connection %d: %v", i, ok)
		}
		if ok {
			all = append(all, s)
		}
	}
	if _, ok := open("192.0.2.2"); !ok {
		t.Error("another peer has no room")
	}
	all[0].known() // a good token was shown on it
	all[0].known()
	if s, ok := open("192.0.2.1"); !ok {
		t.Error("a peer with a good token has no room")
	} else {
		s.Close()
	}
	for _, s := range all {
		s.Close()
		s.Close()
	}
	if f.open != 1 || len(f.unknown) != 1 {
		t.Errorf("%d are open, of %v", f.open, f.unknown)
	}
}

// Handshakes that fail are a few lines of the daemon's log in a minute, and a number.
func TestX11BrokenConnectionsAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		x := &noise{log: slog.New(slog.NewTextHandler(&b, nil))}
		for range 1000 {
			fmt.Fprintln(x, "http: TLS handshake error")
		}
		if n := strings.Count(b.String(), "\n"); n != noiseMost {
			t.Errorf("%d lines", n)
		}
		time.Sleep(time.Minute)
		fmt.Fprintln(x, "http: TLS handshake error")
		if !strings.Contains(b.String(), fmt.Sprint("left_out=", 1000-noiseMost)) {
			t.Errorf("%s", b.String())
		}
	})
}
