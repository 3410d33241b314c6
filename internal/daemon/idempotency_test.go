package daemon

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/testenv"
)

// maker is a daemon with one route, which makes something each time.
func maker(t *testing.T, dir string, do func(n int64) (any, error)) (d *Daemon, srv *httptest.Server, made *atomic.Int64) {
	t.Helper()
	keys, err := operation.OpenKeys(durable.Disk(dir), "keys.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	made = &atomic.Int64{}
	d, srv = house(t, Config{Keys: keys})
	d.mux = d.routes([]Route{{Method: "POST", Path: "/v1/cells/{cell}/fork", Access: Act, Out: api.Cell{}, cannot: "fork", handle: func(_ *Daemon, _ http.ResponseWriter, r *http.Request) (any, error) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		n := made.Add(1)
		out, err := do(n)
		if err != nil {
			return nil, err
		}
		return []any{out, string(b)}, nil
	}}})
	return d, srv, made
}

func post(t *testing.T, srv *httptest.Server, secret, key, body string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequest("POST", srv.URL+"/v1/cells/web/fork", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Header
}

// C32: the same key and request make one thing, also when they come at once, and
// after a restart; the same key with another request is a conflict.
func TestC32RepeatedRequestsMakeNothingTwice(t *testing.T) {
	dir := t.TempDir()
	d, srv, made := maker(t, dir, func(n int64) (any, error) {
		time.Sleep(50 * time.Millisecond)
		return n, nil
	})
	secret := token(t, d, access.Run, time.Time{})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if status, body, _ := post(t, srv, secret, "k", "{}"); status != 200 || body != "[1,\"{}\"]\n" {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	wg.Wait()
	if _, _, h := post(t, srv, secret, "k", "{}"); h.Get("Idempotent-Replayed") != "true" || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers: %v", h)
	}
	if made.Load() != 1 {
		t.Errorf("made %d", made.Load())
	}
	if status, body, _ := post(t, srv, secret, "k", `{"count":2}`); status != http.StatusConflict || !strings.Contains(body, "conflict") {
		t.Errorf("another body: %d %s", status, body)
	}
	if status, body, _ := post(t, srv, secret, "k2", "{}"); status != 200 || !strings.HasPrefix(body, "[2") {
		t.Errorf("another key: %d %s", status, body)
	}
	if status, body, _ := post(t, srv, token(t, d, access.Run, time.Time{}), "k", "{}"); status != 200 || !strings.HasPrefix(body, "[3") {
		t.Errorf("another caller's key: %d %s", status, body)
	}
	// What is known survives: the same names and ids stand for the same caller.
	d.cfg.Keys.Close()
	d2, srv2, made2 := maker(t, dir, func(n int64) (any, error) { return n, nil })
	d2.cfg.Tokens = d.cfg.Tokens
	if status, body, _ := post(t, srv2, secret, "k", "{}"); status != 200 || body != "[1,\"{}\"]\n" || made2.Load() != 0 {
		t.Errorf("after a restart: %d %s", status, body)
	}
}

// A key that is empty, or one of two, is no promise that something is done once.
func TestIdempotencyKeysAreOne(t *testing.T) {
	d, srv, made := maker(t, t.TempDir(), func(n int64) (any, error) { return n, nil })
	secret := token(t, d, access.Run, time.Time{})
	for _, keys := range [][]string{{""}, {"a", "b"}, {"", "b"}} {
		r, err := http.NewRequest("POST", srv.URL+"/v1/cells/web/fork", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer " + secret}, "Idempotency-Key": keys}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || made.Load() != 0 {
			t.Errorf("keys %q: %d, made %d", keys, resp.StatusCode, made.Load())
		}
	}
}

// What failed has made nothing, and is done when it comes again.
func TestC32FailedRequestsMayBeRepeated(t *testing.T) {
	d, srv, made := maker(t, t.TempDir(), func(n int64) (any, error) {
		if n == 1 {
			return nil, cell.Errorf(cell.Unavailable, "", "", "cannot fork: the disk is full")
		}
		return n, nil
	})
	secret := token(t, d, access.Run, time.Time{})
	if status, _, _ := post(t, srv, secret, "k", "{}"); status != http.StatusServiceUnavailable {
		t.Errorf("first: %d", status)
	}
	if status, body, _ := post(t, srv, secret, "k", "{}"); status != 200 || made.Load() != 2 {
		t.Errorf("again: %d %s", status, body)
	}
}

// A caller that hangs up, while its work succeeds, gets the result of that when it asks again; work
// that ended with its caller is done anew.
func TestC32HungUpStreamsAreKept(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"done", nil, `{"result":1}` + "\n"},
		{"ended", cell.Errorf(cell.Interrupted, "", "", "interrupted"), `{"result":2}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, srv, made := maker(t, t.TempDir(), nil)
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan bool, 2)
			d.mux = d.routes([]Route{{Method: "POST", Path: "/v1/cells/{cell}/fork", Access: Act, Gives: Lines, cannot: "fork", handle: func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
				defer func() { ended <- true }()
				return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
					n := made.Add(1)
					if n == 1 {
						hangUp()
						<-ctx.Done()
						return n, c.err
					}
					return n, nil
				})
			}}})
			secret := token(t, d, access.Run, time.Time{})
			r, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/cells/web/fork", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = http.Header{"Authorization": {"Bearer " + secret}, "Idempotency-Key": {"k"}, "Accept": {jsonLines}}
			if _, err := http.DefaultTransport.RoundTrip(r); err == nil {
				t.Fatal("it answered")
			}
			testenv.Receive(t, ended, "the end of the work")
			if status, body, _ := put(t, srv, "POST", "/v1/cells/web/fork", secret, "{}", "Idempotency-Key: k", "Accept: "+jsonLines); status != 200 || body != c.want {
				t.Errorf("%d %q, made %d", status, body, made.Load())
			}
		})
	}
}

// What records say of a request is forgotten when the journal has the request's end, and not before:
// the next daemon needs it otherwise.
func TestOutcomesAreKeptUntilTheEndIs(t *testing.T) {
	for _, how := range []string{"Accept: */*", async} {
		for _, full := range []bool{false, true} { // the disk
			var d *Daemon
			d, srv := worker(t, t.TempDir(), func(context.Context, func(api.StreamLine)) (any, error) {
				if full {
					d.cfg.Keys.Close()
					d.cfg.Operations.Close()
				}
				return 1, nil
			})
			settled := make(chan string, 2)
			d.cfg.Settle = func(request string) { settled <- request }
			secret := token(t, d, access.Run, time.Time{})
			status, body, _ := put(t, srv, "POST", evalPath, secret, "{}", how, "Idempotency-Key: k")
			d.cfg.Operations.Wait()
			if status != 200 && status != 202 || len(settled) > 0 == full {
				t.Errorf("%s, full: %v: %d %s; %d forgotten", how, full, status, body, len(settled))
			}
		}
	}
}

// The secret of a token is in no journal.
func TestC32SecretsAreNotKept(t *testing.T) {
	dir := t.TempDir()
	d, srv, _ := maker(t, dir, nil)
	table := d.routes([]Route{{Method: "POST", Path: "/v1/cells/{cell}/fork", Access: Act, Out: api.Token{}, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) {
		return api.Token{Secret: "pando_secret"}, nil
	}}})
	d.mux = table
	secret := token(t, d, access.Run, time.Time{})
	if _, body, _ := post(t, srv, secret, "k", "{}"); !strings.Contains(body, "pando_secret") {
		t.Errorf("it is not told: %s", body)
	}
	if status, body, _ := post(t, srv, secret, "k", "{}"); status != http.StatusConflict || strings.Contains(body, "pando_secret") {
		t.Errorf("it is told twice: %d %s", status, body)
	}
	if b := readAll(t, filepath.Join(dir, "keys.log")); strings.Contains(b, "pando_secret") || strings.Contains(b, "cGFuZG9fc2VjcmV0") {
		t.Errorf("it is in the journal")
	}
}

// A request that a killed daemon left, and of which nothing is recorded, is a conflict as often as
// it comes, and never run again; one that may be done twice is.
func TestC32WhatIsInNoRecord(t *testing.T) {
	dir, left := t.TempDir(), t.TempDir()
	d, srv, _ := maker(t, dir, func(n int64) (any, error) {
		b := readAll(t, filepath.Join(dir, "keys.log"))
		return n, durable.WriteFile(durable.Disk(left), "keys.log", []byte(b), 0o600)
	})
	secret := token(t, d, access.Run, time.Time{})
	if status, body, _ := post(t, srv, secret, "k", "{}"); status != 200 {
		t.Fatal(status, body)
	}
	next, srv, made := maker(t, left, func(n int64) (any, error) { return n, nil })
	next.cfg.Tokens = d.cfg.Tokens
	for range 2 {
		if status, body, _ := post(t, srv, secret, "k", "{}"); status != http.StatusConflict || !strings.Contains(body, "in no record") || made.Load() != 0 {
			t.Errorf("%d %s; made %d", status, body, made.Load())
		}
	}
	next.mux = next.routes([]Route{{Method: "POST", Path: "/v1/cells/{cell}/fork", Access: Act, Traits: repeats, cannot: "fork", handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) {
		return made.Add(1), nil
	}}})
	for range 2 {
		if status, body, _ := post(t, srv, secret, "k", "{}"); status != 200 || body != "1\n" {
			t.Errorf("%d %s", status, body)
		}
	}
}
