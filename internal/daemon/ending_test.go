package daemon

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
)

// A daemon that ends does nothing of a request that changes something, and says so.
func TestX58EndingDaemonRefusesUnbegun(t *testing.T) {
	d, addr, secret := reachable(t, Config{}, 10, nil)
	ask := func(method, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	for _, ending := range []bool{false, true} {
		if ending {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			d.mu.Lock()
			d.life = ctx
			d.mu.Unlock()
		}
		for _, c := range []struct {
			method, path string
			refused      bool
		}{
			{"POST", "/v1/cells/web/execs", true}, {"DELETE", "/v1/cells/web", true},
			{"GET", "/v1/cells/web", false}, {"POST", "/v1/daemon/stop", false},
		} {
			resp, err := ask(c.method, c.path)
			if err != nil {
				t.Fatal(err)
			}
			told := resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(api.EndingHeader) == "true" && resp.Close
			if told != (ending && c.refused) {
				t.Errorf("ending %v: %s %s answers %s, %v", ending, c.method, c.path, resp.Status, resp.Header)
			}
		}
	}
}

// The end waits for connections that have just answered, and for no others.
func TestX58EndWaitsForFreshConnections(t *testing.T) {
	const since, limit = 200 * time.Millisecond, 400 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			do   func(c *connections, conn net.Conn)
			want time.Duration
		}{
			{"none", func(*connections, net.Conn) {}, 0},
			{"new", func(c *connections, conn net.Conn) { c.note(conn, http.StateNew) }, 0},
			{"answered", func(c *connections, conn net.Conn) { c.note(conn, http.StateIdle) }, since},
			{"answered long ago", func(c *connections, conn net.Conn) {
				c.note(conn, http.StateIdle)
				time.Sleep(since)
			}, 0},
			{"closes meanwhile", func(c *connections, conn net.Conn) {
				c.note(conn, http.StateIdle)
				time.AfterFunc(since/4, func() { c.note(conn, http.StateClosed) })
			}, since / 4},
			{"never rests", func(c *connections, conn net.Conn) {
				c.note(conn, http.StateIdle)
				for i := range 20 {
					time.AfterFunc(time.Duration(i)*since/4, func() { c.note(conn, http.StateIdle) })
				}
			}, limit},
		} {
			conn, other := net.Pipe()
			all := newConnections()
			c.do(all, conn)
			began := time.Now()
			all.quiet(since, limit)
			if took := time.Since(began); took != c.want {
				t.Errorf("%s: it waits %v instead of %v", c.name, took, c.want)
			}
			conn.Close()
			other.Close()
		}
	})
}
