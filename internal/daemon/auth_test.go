package daemon

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/testenv"
)

// house is a daemon with routes that only report that they were reached.
func house(t *testing.T, cfg Config) (d *Daemon, remote *httptest.Server) {
	t.Helper()
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log, cfg.Tokens = slog.New(slog.DiscardHandler), tokens
	if cfg.Engine == nil {
		cfg.Engine = (&engine.Engine{}).All()
	}
	if cfg.Limits == nil { // tests fail more often than strangers may
		l := DefaultLimits
		l.Failures = 0
		cfg.Limits = &l
	}
	d = New(cfg)
	table := make([]Route, len(Routes))
	for i, r := range Routes {
		table[i] = r
		table[i].handle = func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return "reached", nil }
	}
	d.mux = d.routes(table)
	remote = httptest.NewUnstartedServer(nil)
	remote.Config = d.server(d.remote())
	remote.Start()
	t.Cleanup(remote.Close)
	return d, remote
}

func token(t *testing.T, d *Daemon, level access.Level, expires time.Time) string {
	t.Helper()
	_, secret, err := d.cfg.Tokens.Create("", level, expires)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func call(t *testing.T, srv *httptest.Server, method, path, secret string) (status int, body string, head http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, srv.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Header
}

// restricted makes a token that sees cells with labels alone.
func restricted(t *testing.T, d *Daemon, level access.Level, labels map[string]string) string {
	t.Helper()
	_, secret, err := d.cfg.Tokens.Make("", level, time.Time{}, access.Bounds{Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// ofAll are the routes that no token which is restricted to labels may use. A route
// that is new is in none of the two lists: what does it tell of others' cells, and
// do to them? That is what e2e's TestOthersCells goes through.
var ofAll = []string{
	"POST /v1/daemon/stop", "POST /v1/daemon/drain", "GET /metrics", "POST /v1/ledger/keys", "GET /v1/tokens", "POST /v1/tokens", "DELETE /v1/tokens/{token}", "GET /v1/disk", "POST /v1/gc",
	"DELETE /v1/images", "GET /v1/caches", "GET /v1/caches/{cache}/check", "DELETE /v1/caches/{cache}", "GET /v1/policies/allowed", "POST /v1/policies/allow", "POST /v1/credentials", "DELETE /v1/credentials/{credential}",
}

// Each route, for each caller: no token, a wrong one, one that has expired, one
// that was removed, one of each scope, and one of each scope that is restricted to
// labels.
func TestEveryRouteAsksWhoCalls(t *testing.T) {
	d, srv := house(t, Config{})
	old := token(t, d, Admin, time.Now().Add(1100*time.Millisecond))
	gone := token(t, d, Admin, time.Time{})
	for _, u := range d.cfg.Tokens.List() {
		if u.Expires.IsZero() {
			d.cfg.Tokens.Remove(u.ID)
		}
	}
	of, labels := map[access.Level]string{}, map[access.Level]string{}
	for _, l := range access.Levels {
		of[l], labels[l] = token(t, d, l, time.Time{}), restricted(t, d, l, map[string]string{"team": "a"})
	}
	known := len(ofAll)
	time.Sleep(1200 * time.Millisecond)
	for _, route := range Routes {
		path, _ := route.Split()
		name := route.Method + " " + path
		for _, w := range PathWords(path) {
			path = strings.Replace(path, "{"+w+"}", "x", 1)
		}
		if route.Access == "" {
			t.Errorf("%s %s needs nothing", route.Method, path)
		}
		for who, secret := range map[string]string{"nobody": "", "a wrong token": of[Admin] + "0", "an expired token": old, "a removed token": gone} {
			status, body, head := call(t, srv, route.Method, path, secret)
			var e api.Error
			if json.Unmarshal([]byte(body), &e); status != http.StatusUnauthorized || e.Kind != "unauthenticated" || e.Hint == "" || head.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s for %s: %d %s", route.Method, path, who, status, body)
			}
		}
		for _, l := range access.Levels {
			want := http.StatusForbidden
			if l.Allows(route.Access) {
				want = http.StatusOK
			}
			if status, body, _ := call(t, srv, route.Method, path, of[l]); status != want || strings.Contains(body, "reached") != (want == http.StatusOK) {
				t.Errorf("%s %s for scope %s: %d %s", route.Method, path, l, status, body)
			}
			if slices.Contains(ofAll, name) {
				want = http.StatusForbidden
			}
			if status, body, _ := call(t, srv, route.Method, path, labels[l]); status != want || strings.Contains(body, "reached") != (want == http.StatusOK) {
				t.Errorf("%s %s for scope %s and labels: %d %s", route.Method, path, l, status, body)
			}
		}
		switch {
		case route.Traits.has(labelled):
			known++
		case !slices.Contains(ofAll, name):
			t.Errorf("%s is in neither list of routes: may a token that is restricted to labels use it?", name)
		}
	}
	if known != len(Routes) {
		t.Errorf("%d routes are labelled or listed, and %d in the table", known, len(Routes))
	}
	// Unauthenticated callers do not learn which paths exist.
	if status, _, _ := call(t, srv, "GET", "/v1/nothing", ""); status != http.StatusUnauthorized {
		t.Errorf("an unknown path says %d", status)
	}
}

// Callers of a front are recognised before it is asked, and refused in its words.
func TestFrontsAreBehindTheDoor(t *testing.T) {
	front := Front{
		Match: func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/other/") },
		Needs: func(r *http.Request) access.Level {
			if strings.HasSuffix(r.URL.Path, "/signed") {
				return ""
			}
			return access.Run
		},
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "other: "+err.Error(), http.StatusTeapot)
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, ok := access.From(r.Context())
			json.NewEncoder(w).Encode([]any{p.Level, ok})
		}),
	}
	d, srv := house(t, Config{Fronts: []Front{front}})
	run, read := token(t, d, access.Run, time.Time{}), token(t, d, access.Read, time.Time{})
	for _, x := range []struct{ path, secret, want string }{
		{"/other/a", "", "other: cannot answer without a token"},
		{"/other/a", "pando_0", "other: cannot answer: the token is wrong, has expired or was removed"},
		{"/other/a", read, "is of scope read, and this needs run"},
		{"/other/a", run, `["run",true]`},
		{"/other/signed", "", `["",false]`},
		{"/other/signed", "pando_0", "other: cannot answer: the token is wrong, has expired or was removed"},
		{"/other/signed", read, `["read",true]`},
		{"/other//b/../c", run, `["run",true]`}, // paths are the front's own
	} {
		if _, body, _ := call(t, srv, "GET", x.path, x.secret); !strings.Contains(body, x.want) {
			t.Errorf("%s with %q: %s", x.path, x.secret, body)
		}
	}
}

// What was begun with a token ends when it is removed, or expires.
func TestRemovingATokenEndsWhatItBegan(t *testing.T) {
	begun, ended := make(chan bool, 1), make(chan bool, 1)
	front := Front{
		Match: func(*http.Request) bool { return true }, Needs: func(*http.Request) access.Level { return access.Read },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begun <- true
			select {
			case <-r.Context().Done():
				ended <- true
			case <-t.Context().Done(): // the test has failed
			}
		}),
	}
	d, srv := house(t, Config{Fronts: []Front{front}})
	for name, end := range map[string]func(access.Token){
		"removed": func(k access.Token) { d.cfg.Tokens.Remove(k.ID) },
		"expired": func(access.Token) {},
	} {
		k, secret, err := d.cfg.Tokens.Create(name, access.Read, time.Now().Add(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			r, _ := http.NewRequest("GET", srv.URL, nil)
			r.Header.Set("Authorization", "Bearer "+secret)
			if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
				resp.Body.Close()
			}
		}()
		testenv.Receive(t, begun, name+": the request")
		end(k)
		testenv.Receive(t, ended, name+": the end of the request")
	}
}

// A token sent on the unix socket restricts the caller to its rights.
func TestTokenOnTheSocket(t *testing.T) {
	d, _ := house(t, Config{})
	_, secret, err := d.cfg.Tokens.Create("reader", access.Read, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		secret, method string
		want           int
	}{{"", "POST", http.StatusOK}, {secret, "GET", http.StatusOK}, {secret, "POST", http.StatusForbidden}, {"pando_wrong", "GET", http.StatusUnauthorized}} {
		path := map[string]string{"GET": "/v1/cells", "POST": "/v1/daemon/stop"}[x.method]
		r := httptest.NewRequest(x.method, path, nil)
		if x.secret != "" {
			r.Header.Set("Authorization", "Bearer "+x.secret)
		}
		w := httptest.NewRecorder()
		d.local().ServeHTTP(w, r)
		if w.Code != x.want {
			t.Errorf("%s with %q: %d, not %d: %s", x.method, x.secret, w.Code, x.want, w.Body)
		}
	}
}
