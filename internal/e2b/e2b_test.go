package e2b

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

const someID = "c-0123456789abcdef"

func TestAddress(t *testing.T) {
	for _, x := range []struct {
		host, id, port string
		want           cell.ID
		at             int
		ok             bool
	}{
		{"127.0.0.1:7070", someID, "", someID, portEnvd, true},
		{"127.0.0.1:7070", someID, "49999", someID, portInterpreter, true},
		{"3000-" + someID + ".localhost:7070", "", "", someID, 3000, true},
		{"49983-" + someID + ".sb.test", "", "", someID, portEnvd, true},
		{someID + ".localhost", "", "", "", 0, false},
		{"x-" + someID + ".localhost", "", "", "", 0, false},
		{"3000-" + someID, "", "", "", 0, false},
		{"3000-c-0123.localhost", "", "", "", 0, false},
		{"127.0.0.1:7070", "", "", "", 0, false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = x.host
		if x.id != "" {
			r.Header.Set("E2b-Sandbox-Id", x.id)
		}
		if x.port != "" {
			r.Header.Set("E2b-Sandbox-Port", x.port)
		}
		id, port, ok := address(r)
		if id != x.want || ok != x.ok || ok && port != x.at {
			t.Errorf("%+v: %s %d %v", x, id, port, ok)
		}
	}
}

// A name that JSON cannot hold is refused, and no other is taken for it.
func TestNamesThatAreNoText(t *testing.T) {
	for body, want := range map[string]bool{`{"metadata":{"a":"caf\udce9"}}`: false, "{\"metadata\":{\"a\":\"caf\xe9\"}}": false, `{"metadata":{"a":"café"}}`: true} {
		w, to := httptest.NewRecorder(), composeRequest{}
		if got := decode(w, httptest.NewRequest("POST", "/sandboxes", strings.NewReader(body)), &to); got != want || !want && (w.Code != 400 || !strings.Contains(w.Body.String(), "not UTF-8")) {
			t.Errorf("%q: %v, %d %s", body, got, w.Code, w.Body)
		}
	}
	w, to := httptest.NewRecorder(), composeRequest{}
	if decode(w, httptest.NewRequest("POST", "/sandboxes", strings.NewReader(`{"metadata":{"a":"1","a":"2"}}`)), &to) || w.Code != 400 || !strings.Contains(w.Body.String(), "in one object twice") {
		t.Errorf("a key twice: %d %s", w.Code, w.Body)
	}
	f := New(Config{Key: []byte("k")})
	if err := f.asked(httptest.NewRequest("GET", "/files", nil), "caf\xe9"); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a path that is not UTF-8: %v", err)
	}
}

// A sandbox is on a backend with an isolation, and the error for another names them.
func TestBackendsOfSandboxes(t *testing.T) {
	for _, b := range isolating {
		if labels, err := labelsOf(&createRequest{Metadata: map[string]string{metaBackend: b}}); err != nil || labels[metaBackend] != b {
			t.Errorf("%s: %q, %v", b, labels[metaBackend], err)
		}
	}
	for _, b := range []string{"none", "docker", ""} {
		_, err := labelsOf(&createRequest{Metadata: map[string]string{metaBackend: b}})
		if hint := cell.HintOf(err); cell.KindOf(err) != cell.Invalid || !strings.Contains(hint, "namespace") || !strings.Contains(hint, "gvisor") || !strings.Contains(hint, "microvm") {
			t.Errorf("%q: %v (%s)", b, err, hint)
		}
	}
}

func TestMatch(t *testing.T) {
	f := New(Config{Key: []byte("k")})
	for path, want := range map[string]bool{
		"/v2/sandboxes": true, "/sandboxes/x": true, "/templates": true, "/templates/aliases/x": true, "/snapshots": true, "/volumes": true,
		"/v1/cells": false, "/": false, "/files": false, "/files?path=a&signature=v1_x": true, "/metrics": false, "/v1/templates": false, "/healthz": false,
	} {
		if got := f.Match(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// A signature counts for one sandbox, file, act and user, until it expires, and
// for nothing once any of that is changed.
func TestSignature(t *testing.T) {
	f := New(Config{Key: []byte("k")})
	sign := func(path, act, user, token string, until int64) string {
		text := path + ":" + act + ":" + user + ":" + token
		if until != 0 {
			text += fmt.Sprintf(":%d", until)
		}
		sum := sha256.Sum256([]byte(text))
		return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	}
	later, before := time.Now().Unix()+60, time.Now().Unix()-1
	token := f.token(someID, useEnvd)
	ask := func(method, path string, until int64, sig string) bool {
		q := url.Values{"path": {path}, "signature": {sig}}
		if until != 0 {
			q.Set("signature_expiration", fmt.Sprint(until))
		}
		return f.validSignature(httptest.NewRequest(method, "/files?"+q.Encode(), nil), someID)
	}
	if !ask("GET", "a", later, sign("a", "read", "", token, later)) || !ask("POST", "a", 0, sign("a", "write", "", token, 0)) {
		t.Error("a right signature is refused")
	}
	for name, ok := range map[string]bool{
		"another file":    ask("GET", "b", later, sign("a", "read", "", token, later)),
		"another act":     ask("POST", "a", later, sign("a", "read", "", token, later)),
		"DELETE":          ask("DELETE", "a", later, sign("a", "read", "", token, later)),
		"expired":         ask("GET", "a", before, sign("a", "read", "", token, before)),
		"expiry changed":  ask("GET", "a", later+1, sign("a", "read", "", token, later)),
		"expiry left out": ask("GET", "a", 0, sign("a", "read", "", token, later)),
		"another sandbox": ask("GET", "a", later, sign("a", "read", "", f.token("c-fedcba9876543210", useEnvd), later)),
		"none":            ask("GET", "a", later, ""),
	} {
		if ok {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestUnknownMembersAreNamed(t *testing.T) {
	got := unknown("", []byte(`{"templateID":"base","hat":1,"network":{"shoes":2,"allowOut":[]},"b\r\nad":0}`), reflect.TypeFor[createRequest]())
	if want := []string{"b??ad", "hat", "network.shoes"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestNetworkPolicy(t *testing.T) {
	yes := true
	for _, x := range []struct {
		body     string
		internet *bool
		want     string // in the policy
		not      string
		bad      bool
	}{
		{"null", nil, "", "allow", false},
		{"null", &yes, `"host":"*"`, "", false},
		{`{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}`, &yes, `"host":"a.example"`, `"*"`, false},
		{`{"denyOut":["10.0.0.0/8"]}`, nil, `"deny":[{"host":"10.0.0.0/8"}]`, "", false},
		{`{"allowOut":["10.1.0.0/16"],"denyOut":["10.0.0.0/8"]}`, nil, "", "", true},
		{`{"egressProxy":{"address":"x:1"}}`, nil, "", "", true},
		{`{"httpsPorts":[1]}`, nil, "", "", true},
		{`{"maskRequestHost":"x"}`, nil, "", "", true},
	} {
		var n *network
		if err := json.Unmarshal([]byte(x.body), &n); err != nil {
			t.Fatal(err)
		}
		var to api.CreateRequest
		err := n.policy(&to, x.internet, nil)
		if (err != nil) != x.bad || !strings.Contains(to.Policy, x.want) || x.not != "" && strings.Contains(to.Policy, x.not) {
			t.Errorf("%s: %s, %v", x.body, to.Policy, err)
		}
	}
}

func TestRunesComeWhole(t *testing.T) {
	text := "aä€😀z"
	for cut := range len(text) + 1 {
		var r runes
		if got := r.add([]byte(text[:cut])) + r.add([]byte(text[cut:])); got != text {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

// Ports of a cell that was not made through this front need a token.
func TestPortsOfOtherCells(t *testing.T) {
	f := New(Config{Key: []byte("k")})
	other, sandbox, private := api.Cell{ID: someID}, api.Cell{ID: someID, Labels: map[string]string{labelTemplate: "base"}}, api.Cell{ID: someID, Labels: map[string]string{labelTemplate: "base", labelPrivate: "1"}}
	for _, x := range []struct {
		who  access.Level
		cell *api.Cell
		want bool
	}{
		{"", &other, false}, {access.Read, &other, false}, {access.Run, &other, true}, {access.Admin, &other, true},
		{"", &sandbox, true}, {"", &private, false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if x.who != "" {
			r = r.WithContext(access.With(r.Context(), access.Principal{Name: "x", Level: x.who}))
		}
		if got := f.mayTraffic(r, x.cell); got != x.want {
			t.Errorf("scope %q, labels %v: %v", x.who, x.cell.Labels, got)
		}
	}
}

// Rules that can't be done as E2B does them are refused by what they say; those
// that are done are told without values.
func TestNetworkRules(t *testing.T) {
	for body, want := range map[string]string{
		`{"A.example":[{"transform":{"headers":{"X-A":"secret"}}}],"b.example":[]}`:                                               "",
		`{"a.example":[{"transform":{"headers":{"A":"1","B":"2"}}}]}`:                                                             "2 headers for a.example",
		`{"a.example":[{"transform":{"headers":{"A":"1"}}},{"transform":{"headers":{"B":"2"}}}]}`:                                 "2 headers for a.example",
		`{"a.example":[{"rewrite":1}]}`:                                                                                           "rewrite",
		`{"a.example":[{"transform":{"headers":{"A":"${e2b.secrets.x}"}}}]}`:                                                      "that E2B keeps",
		`{"*.a.example":[{"transform":{"headers":{"A":"1"}}}],"x.a.example":[{"transform":{"headers":{"A":"1"}}}]}`:               "overlap",
		`{"A.example":[{"transform":{"headers":{"A":"1"}}}],"a.example":[{"transform":{"headers":{"A":"2"}}}]}`:                   "overlap",
		`{"*.a.example":[{"transform":{"headers":{"A":"1"}}}],"a.example":[{"transform":{"headers":{"A":"2"}}}],"xa.example":[]}`: "",
		`[1]`: "cannot use network.rules",
	} {
		n := &network{Rules: json.RawMessage(body)}
		_, err := n.rules()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		if told := string(n.mask()); strings.Contains(told, "secret") || err == nil && !strings.Contains(told, masked) {
			t.Errorf("%s is told as %s", body, told)
		}
	}
}

func BenchmarkTrySandbox(b *testing.B) {
	f := New(Config{Key: []byte("k")})
	s, _ := signatureOf(httptest.NewRequest("GET", "/files?path=a&signature=v1_x", nil))
	for b.Loop() {
		s.of(f.token(someID, useEnvd))
	}
}

// A request writes no more than it may, however small it was packed.
func TestUploadsAreBounded(t *testing.T) {
	for size, fits := range map[int]bool{99: true, 100: true, 101: false, 100000: false} {
		b := &bounded{strings.NewReader(strings.Repeat("x", size)), 100, 100}
		n, err := io.Copy(io.Discard, b)
		if fits != (err == nil) || fits != (n == int64(size)) || !fits && cell.KindOf(err) != cell.TooLarge {
			t.Errorf("%d bytes: %d were read, %v", size, n, err)
		}
	}
}
