package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/testenv"
)

// knocker sends requests to a daemon with a token.
type knocker struct {
	t          *testing.T
	url, token string
	by         http.RoundTripper
}

// at makes a request. body may be a string, or what becomes JSON.
func (k knocker) at(method, path string, body any, head ...string) (status int, said string) {
	k.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			k.t.Fatal(err)
		}
		in = bytes.NewReader(j)
	}
	r, err := http.NewRequest(method, k.url+path, in)
	if err != nil {
		k.t.Fatal(err)
	}
	if k.token != "" {
		r.Header.Set("Authorization", "Bearer "+k.token)
	}
	for i := 0; i+1 < len(head); i += 2 {
		if r.Header.Set(head[i], head[i+1]); head[i] == "Host" {
			r.Host = head[i+1]
		}
	}
	resp, err := k.by.RoundTrip(r)
	if err != nil {
		k.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// must is at, for what has to succeed; it reads the answer into out.
func (k knocker) must(method, path string, body, out any) {
	k.t.Helper()
	status, said := k.at(method, path, body)
	if status >= 300 || out != nil && json.Unmarshal([]byte(said), out) != nil {
		k.t.Fatalf("%s %s: %d %s", method, path, status, said)
	}
}

// labelledToken makes a token of scope admin that is restricted to a team.
func labelledToken(t *testing.T, h *host, team string) string {
	t.Helper()
	var token struct{ Secret string }
	if err := json.Unmarshal([]byte(h.pando("token", "create", "--scope", "admin", "--label", "team="+team, "--json")), &token); err != nil {
		t.Fatal(err)
	}
	return token.Secret
}

// A token that is restricted to labels gets the same answer about what carries
// others as about what there is not: at each route of the table, at each of E2B's
// paths, by each tool and resource of MCP. Nothing that it asks changes anything of
// the others', and no answer has a word of it. A route that is new is tried, too,
// with an empty body.
func TestOthersCells(t *testing.T) {
	t.Parallel()
	testenv.Python(t)
	h := newHost(t)
	url := serving(t, h, "--max-rate", "1000000").URLs[0]
	them, us := knocker{t, url, labelledToken(t, h, "b"), http.DefaultTransport}, knocker{t, url, labelledToken(t, h, "a"), http.DefaultTransport}

	// What there is of theirs.
	type object struct {
		Cell, Run, Exec, Operation, SandboxID, EnvdAccessToken string
		Receipts                                               []string
	}
	var c, run, x, box, op object
	them.must("POST", "/v1/cells", map[string]any{"name": "theirs"}, &c)
	us.must("POST", "/v1/cells", map[string]any{"name": "ours"}, nil)
	them.must("POST", "/v1/runs", map[string]any{"cell": "theirs", "command": []string{"sh", "-c", "echo sesame | tee hidden"}}, &run)
	them.must("GET", "/v1/runs/"+run.Run+"?wait=1", nil, &run)
	them.must("POST", "/v1/cells/theirs/execs", map[string]any{"command": []string{"sleep", "300"}}, &x)
	them.must("POST", "/v1/cells/theirs/checkpoints", map[string]any{"message": "sesame"}, nil)
	them.must("POST", "/v1/templates", map[string]any{"name": "theirwarm", "setup": "sesame = 1"}, nil)
	them.must("POST", "/sandboxes", map[string]any{"templateID": "base", "metadata": map[string]string{"k": "sesame"}}, &box)
	them.must("POST", "/sandboxes/"+box.SandboxID+"/snapshots", map[string]any{"name": "sesame"}, nil)
	_, said := them.at("POST", "/v1/cells/theirs/eval", map[string]any{"code": "'sesame'"}, "Prefer", "respond-async")
	if json.Unmarshal([]byte(said), &op) != nil || op.Operation == "" || len(run.Receipts) == 0 {
		t.Fatalf("%+v, %s", run, said)
	}
	them.must("GET", "/v1/operations/"+op.Operation+"?wait=1", nil, nil)
	digest := strings.TrimPrefix(run.Receipts[0], "sha256:")
	// What is resident of an interpreter that does nothing changes by itself.
	measured := regexp.MustCompile(`"memory":\d+`)
	state := func() string {
		_, cells := them.at("GET", "/v1/cells/theirs", nil)
		cells = measured.ReplaceAllString(cells, `"memory":0`)
		_, runs := them.at("GET", "/v1/runs", nil)
		_, k := them.at("GET", "/v1/cells/theirs/history", nil)
		_, boxes := them.at("GET", "/v2/sandboxes", nil)
		var warm struct {
			Digest string
			Forks  int
		}
		them.must("GET", "/v1/templates/theirwarm", nil, &warm)
		return fmt.Sprint(cells, runs, k, boxes, warm)
	}
	before := state()
	// pairs are words for what is theirs, each with one for what there is not.
	pairs := []string{
		c.Cell, "c-00000000000000aa", run.Run, "r-00000000000000aa", x.Exec, strings.Repeat("0", len(x.Exec)), op.Operation, "o-00000000000000aa", "theirwarm", "nothwarm", "theirs", "nothing",
		box.SandboxID, "c-00000000000000bb", digest, strings.Repeat("abcdef01", len(digest)/8), c.Cell[:8], "c-0000aa",
	}
	other, same := strings.NewReplacer(pairs...), []string{}
	for i, w := range pairs {
		if len(w) > 6 || w == "theirs" {
			same = append(same, w, fmt.Sprintf("<%d>", i/2))
		}
	}
	plain := strings.NewReplacer(same...)
	secrets := []string{"sesame", c.Cell, run.Run, x.Exec, "theirwarm", "theirs", box.SandboxID, digest, op.Operation}
	compare := func(method, path string, body any, head ...string) {
		t.Helper()
		status, said := us.at(method, path, body, head...)
		absent := body
		if body != nil {
			j, _ := json.Marshal(body)
			absent = other.Replace(string(j))
		}
		var heads []string
		for _, v := range head {
			heads = append(heads, other.Replace(v))
		}
		status0, said0 := us.at(method, other.Replace(path), absent, heads...)
		if status != status0 || plain.Replace(said) != plain.Replace(said0) {
			t.Errorf("%s %s of others: %d %s\nof what there is not: %d %s", method, path, status, said, status0, said0)
		}
		for _, s := range secrets {
			if strings.Contains(said, s) && !strings.Contains(path+fmt.Sprint(body, head), s) {
				t.Errorf("%s %s says %s: %s", method, path, s, said)
			}
		}
	}

	bodies := map[string]any{
		"POST /v1/cells":                           map[string]any{"name": "ours2", "labels": map[string]string{"team": "b"}},
		"POST /v1/cells/{cell}/execs":              map[string]any{"command": []string{"cat", "hidden"}, "wait": true},
		"POST /v1/cells/{cell}/eval":               map[string]any{"code": "1"},
		"POST /v1/cells/{cell}/restore":            map[string]any{"number": 1},
		"POST /v1/cells/{cell}/lease":              map[string]any{"labels": map[string]string{"team": "a"}},
		"POST /v1/cells/{cell}/branch":             map[string]any{"count": 1},
		"POST /v1/templates":                       map[string]any{"name": "x/y"},
		"POST /v1/templates/{template}/fork":       map[string]any{"count": 2},
		"POST /v1/runs/{run}/accept":               map[string]any{"apply": true},
		"POST /v1/policies/show":                   map[string]any{"of": "theirs"},
		"POST /v1/policies/why":                    map[string]any{"of": run.Run, "request": "GET https://example.com/"},
		"POST /v1/policies/diff":                   map[string]any{"a": map[string]any{"of": "theirs"}, "b": map[string]any{"of": run.Run}},
		"POST /v1/credentials/{credential}/revoke": map[string]any{"cell": "theirs"},
		"POST /v1/runs/{run}/policy/replay":        map[string]any{"text": "version: 1\n"},
		"POST /v1/cells/{cell}/mkdir":              map[string]any{"path": "d"},
		"POST /v1/cells/{cell}/rename":             map[string]any{"from": "hidden", "to": "d"},
		"POST /v1/execs/{exec}/signal":             map[string]any{"signal": "SIGKILL"},
		"POST /v1/images":                          map[string]any{},
	}
	for _, route := range daemon.Routes {
		path, _ := route.Split()
		name := route.Method + " " + path
		words := daemon.PathWords(path)
		of := map[string][]string{"cell": {"theirs", c.Cell, c.Cell[:8], run.Run, box.SandboxID}, "run": {run.Run, run.Run[:9], "theirs", "theirs:latest", c.Cell}, "exec": {x.Exec}, "operation": {op.Operation},
			"template": {"theirwarm"}, "receipt": {run.Run, digest, digest[:12], "theirs"}, "name": {"stdout", "patch"}, "port": {"8000"}}
		method := strings.Replace(route.Method, "ANY", "GET", 1)
		paths := []string{strings.Replace(path, "{rest...}", "x", 1)}
		for _, w := range words {
			var next []string
			for _, p := range paths {
				list := of[w]
				if list == nil {
					list = []string{"x"}
				}
				for _, v := range list {
					next = append(next, strings.Replace(p, "{"+w+"}", v, 1))
				}
			}
			paths = next
		}
		for _, p := range paths {
			if p == "/v1/doctor" || p == "/v1/stats" || p == "/v1/uploads" { // the host is not the same twice, nor is an upload
				continue
			}
			compare(method, p, bodies[name])
			if strings.HasSuffix(name, "{cell}/file") || strings.HasSuffix(name, "/stat") || strings.HasSuffix(name, "/list") || strings.HasSuffix(name, "/watch") {
				compare(method, p+"?path=hidden", bodies[name])
			}
			compare(method, p, bodies[name], "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
		}
	}
	var used struct {
		Templates, Stats []any
		Cells            map[string]int
		Host             struct{ Pooled int }
	}
	us.must("GET", "/v1/stats", nil, &used)
	if len(used.Templates)+len(used.Stats) > 0 || len(used.Cells) != 1 || used.Cells["idle"] != 1 || used.Host.Pooled > 0 {
		t.Errorf("what is used is %+v", used)
	}
	for _, q := range []string{"/v1/runs?cell=theirs", "/v1/cells/ours/diff?from=1&to=2", "/v1/receipts?limit=100", "/v1/receipts/all/bundle", "/v1/approvals?all=1", "/v1/runs?cell=" + c.Cell} {
		compare("GET", q, nil)
	}
	compare("POST", "/v1/receipts/all/verify", nil)
	compare("POST", "/v1/runs", map[string]any{"cell": c.Cell, "command": []string{"cat", "hidden"}})
	compare("POST", "/v1/runs", map[string]any{"cell": "theirs", "command": []string{"cat", "hidden"}})
	compare("POST", "/v1/cells/theirs@1/fork", map[string]any{})

	// Names are the installation's: one that is taken can't be had, and that is all
	// that is said of it.
	for path, body := range map[string]any{"/v1/cells": map[string]any{"name": "theirs"}, "/v1/templates": map[string]any{"name": "theirwarm"}, "/v1/cells/ours/fork": map[string]any{"name": "theirs"}} {
		if status, said := us.at("POST", path, body); status != http.StatusConflict {
			t.Errorf("%s of a name that is taken: %d %s", path, status, said)
		}
	}

	// E2B: its paths, what runs in sandboxes, and their ports.
	for _, id := range []string{box.SandboxID, c.Cell} {
		for _, p := range []string{"GET /sandboxes/ID", "DELETE /sandboxes/ID", "GET /sandboxes/ID/logs", "GET /v2/sandboxes/ID/logs", "GET /sandboxes/ID/metrics", "GET /sandboxes/metrics?sandbox_ids=ID",
			"POST /sandboxes/ID/connect", "POST /v2/sandboxes/ID/connect", "POST /sandboxes/ID/resume", "POST /sandboxes/ID/timeout", "POST /sandboxes/ID/refreshes", "POST /sandboxes/ID/pause",
			"POST /sandboxes/ID/fork", "POST /sandboxes/ID/snapshots", "PUT /sandboxes/ID/network", "GET /snapshots?sandboxID=ID", "GET /snapshots", "GET /v2/sandboxes", "GET /sandboxes", "GET /templates",
			"GET /templates/ID", "GET /templates/aliases/theirwarm", "DELETE /templates/ID", "DELETE /templates/theirwarm"} {
			method, path, _ := strings.Cut(p, " ")
			compare(method, strings.ReplaceAll(path, "ID", id), map[string]any{"timeout": 10})
		}
		for _, port := range []string{"49983", "49999", "8000"} {
			for _, path := range []string{"GET /files?path=hidden", "GET /envs", "GET /metrics", "GET /contexts", "POST /process.Process/List", "GET /health"} {
				method, path, _ := strings.Cut(path, " ")
				compare(method, path, nil, "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", port)
				compare(method, path, nil, "Host", port+"-"+id+".localhost")
			}
		}
	}
	compare("POST", "/sandboxes", map[string]any{"templateID": "theirwarm"})
	compare("POST", "/sandboxes", map[string]any{"templateID": box.SandboxID})
	if status, said := us.at("POST", "/sandboxes", map[string]any{"templateID": "base", "metadata": map[string]string{"team": "b"}}); status != http.StatusForbidden {
		t.Errorf("a sandbox of the others: %d %s", status, said)
	}
	for _, k := range []knocker{us, {t, url, "", http.DefaultTransport}} { // the sandbox's own token is not the caller's: it does not help another caller
		want := map[string]int{us.token: http.StatusNotFound, "": http.StatusOK}[k.token]
		if status, said := k.at("GET", "/envs", nil, "E2b-Sandbox-Id", box.SandboxID, "X-Access-Token", box.EnvdAccessToken); status != want && !(want == 404 && status == 502) {
			t.Errorf("with the sandbox's own token, and %d characters of another: %d %s", len(k.token), status, said)
		}
	}

	// MCP: what its tools and resources say.
	tool := func(name string, args map[string]any) string {
		var said json.RawMessage
		asked(t, url, us.token, "tools/call", name, map[string]any{"name": name, "arguments": args}, &said)
		return string(said)
	}
	for name, args := range map[string]map[string]any{
		"exec": {"cell": "theirs", "command": []string{"cat", "hidden"}}, "eval": {"cell": "theirs", "code": "1"}, "read_file": {"cell": "theirs", "path": "hidden"}, "list_files": {"cell": "theirs", "path": "."},
		"fork": {"of": "theirs"}, "branch": {"cell": "theirs"}, "kill": {"cell": "theirs"}, "show": {"of": "theirs"}, "diff": {"of": "theirs"}, "restore": {"cell": "theirs", "checkpoint": 1}, "receipt": {"of": run.Run}, "list": {},
		"write_file": {"cell": "theirs", "path": "x", "content": "x"}, "checkpoint": {"cell": "theirs"}, "run": {"cell": "theirs", "command": []string{"true"}}, "policy_why": {"of": "theirs", "request": "GET https://example.com/"},
		"read": {"uri": "pando://cells/theirs/files/hidden"},
	} {
		said, absent := tool(name, args), ""
		j, _ := json.Marshal(args)
		var none map[string]any
		json.Unmarshal([]byte(other.Replace(string(j))), &none)
		absent = tool(name, none)
		if plain.Replace(said) != plain.Replace(absent) || strings.Contains(said, "sesame") {
			t.Errorf("tool %s of others: %s\nof what there is not: %s", name, said, absent)
		}
	}
	var list json.RawMessage
	asked(t, url, us.token, "resources/list", "", map[string]any{}, &list)
	for _, s := range secrets {
		if bytes.Contains(list, []byte(s)) {
			t.Errorf("resources are %s", list)
		}
	}

	// The restriction also holds for names with a colon, a host's directory, a name of another
	// door, and requests on the socket.
	for path, body := range map[string]any{"/v1/cells": map[string]any{"from": h.src}, "/v1/runs": map[string]any{"from": h.src, "command": []string{"true"}}, "/v1/plans": map[string]any{"from": h.src, "command": []string{"true"}}} {
		if status, said := us.at("POST", path, body); status != http.StatusForbidden || !strings.Contains(said, "team=a") {
			t.Errorf("%s of the host: %d %s", path, status, said)
		}
	}
	if now := state(); now != before {
		t.Errorf("what was\n%s\nis\n%s", before, now)
	}
	// Theirs goes on, and ours is as it was.
	them.must("GET", "/v1/execs/"+x.Exec, nil, nil)
	us.must("GET", "/v1/cells/ours", nil, nil)
	var cells []struct{ Name string }
	us.must("GET", "/v1/cells", nil, &cells)
	if len(cells) != 1 {
		t.Errorf("the cells of who asked are %v", cells)
	}
}

// The bounds of a token, and of the daemon, hold at the callers' address: the number of cells,
// their time, the rate, bodies. On a signal new connections get a new certificate.
func TestBoundsAtTheDoor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, flags := range [][]string{{"--max-cells", "0"}, {"--max-rate", "NaN"}, {"--max-body", "-1"}, {"--max-archive", "none"}, {"--min-free", "99999999999999T"}} {
		if o := h.try(append([]string{"serve"}, flags...)...); o.code != 2 || !strings.Contains(o.stderr, "it takes a") {
			t.Errorf("serve %v: %d %s", flags, o.code, o.stderr)
		}
	}
	cert, key := h.state("..", "..", "cert.pem"), h.state("..", "..", "key.pem")
	renew := func() {
		t.Helper()
		leaf := newAuthority(t).leaf("localhost")
		der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
		if err == nil {
			err = os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), 0o600)
		}
		if err == nil {
			err = os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	renew()
	url := serving(t, h, "--max-cells", "4", "--max-body", "2K", "--tls-cert", cert, "--tls-key", key).URLs[0]
	made := h.pando("token", "create", "few", "--label", "team=a", "--max-cells", "2", "--ttl", "90m", "--json")
	var few struct{ Secret string }
	if err := json.Unmarshal([]byte(made), &few); err != nil {
		t.Fatal(err)
	}
	if o := h.pando("token", "ls"); !strings.Contains(o, "team=a, 0 of 2 cells, 1h30m each") {
		t.Errorf("token ls says %s", o)
	}
	for flag, v := range map[string][]string{"--max-cells": {"0", "-1", "99999999999"}, "--ttl": {"0s", "-1h", "soon", "999999999d"}, "--rate": {"0", "-1", "NaN", "Inf"}, "--label": {"team", "=a", "team=", "e2b:template=x"}} {
		for _, v := range v {
			if o := h.try("token", "create", "x", flag+"="+v); o.code != 2 {
				t.Errorf("token create %s=%s: %d %s", flag, v, o.code, o.stderr)
			}
		}
	}
	h.exits(2, "token", "create", "x", "--label", "team=a", "--label", "team=b")

	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	k := knocker{t, url, few.Secret, transport}
	var c struct {
		Cell   string
		Labels map[string]string
		Lease  struct {
			Until time.Time
			Then  string
		}
	}
	k.must("POST", "/v1/cells", map[string]any{"name": "one"}, &c)
	if left := time.Until(c.Lease.Until); c.Labels["team"] != "a" || left < 89*time.Minute || left > 90*time.Minute || c.Lease.Then != "pause" {
		t.Errorf("a cell is %+v", c)
	}
	k.must("POST", "/v1/cells/one/lease", map[string]any{"for": "100h"}, &c)
	if left := time.Until(c.Lease.Until); left > 90*time.Minute {
		t.Errorf("with more time it is %+v", c)
	}
	k.must("POST", "/sandboxes", map[string]any{"templateID": "base", "timeout": 100000}, nil)
	for path, body := range map[string]any{"/v1/cells": map[string]any{}, "/v1/cells/one/fork": map[string]any{}, "/sandboxes": map[string]any{"templateID": "base"}} {
		if status, said := k.at("POST", path, body); status != http.StatusTooManyRequests || !strings.Contains(said, "may have 2 at a time, and has 2") {
			t.Errorf("%s beyond the number: %d %s", path, status, said)
		}
	}
	if status, said := k.at("POST", "/v1/cells", map[string]any{"name": strings.Repeat("x", 3000)}); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body: %d %s", status, said)
	}
	h.pando("run", "--cell", "host1", "--", "true")
	h.pando("run", "--cell", "host2", "--", "true")
	if o := h.try("run", "--cell", "host3", "--", "true"); !strings.Contains(o.stderr, "there may be 4 in all") || !strings.Contains(o.stderr, "hint: remove cells") {
		t.Errorf("a fifth cell: %d %s", o.code, o.stderr)
	}
	var slow struct{ Secret string }
	if err := json.Unmarshal([]byte(h.pando("token", "create", "slow", "--rate", "0.5", "--json")), &slow); err != nil {
		t.Fatal(err)
	}
	k.token = slow.Secret
	k.must("GET", "/v1/cells", nil, nil)
	if status, said := k.at("GET", "/v1/cells", nil); status != http.StatusTooManyRequests || !strings.Contains(said, "its limit is 0.5 per second") {
		t.Errorf("at once again: %d %s", status, said)
	}

	// Another certificate, and files that are none.
	k.token = few.Secret
	first := k.peer()
	var d struct{ PID int }
	if err := json.Unmarshal([]byte(h.pando("daemon", "status", "--json")), &d); err != nil {
		t.Fatal(err)
	}
	hangUp := func() {
		t.Helper()
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID))
		_, rest, _ := strings.Cut(string(b), "PPid:\t")
		serve, err2 := strconv.Atoi(strings.SplitN(rest, "\n", 2)[0])
		if err != nil || err2 != nil || syscall.Kill(serve, syscall.SIGHUP) != nil {
			t.Fatalf("%v, %v", err, err2)
		}
	}
	logged := func(what string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if b, _ := os.ReadFile(h.state("daemon.log")); strings.Contains(string(b), what) {
				return
			}
			if time.Since(began) > testenv.Patience() {
				t.Fatalf("the log never says %q", what)
			}
		}
	}
	os.WriteFile(cert, []byte("nothing"), 0o600)
	hangUp()
	logged("the certificate is unchanged")
	if !bytes.Equal(k.peer(), first) {
		t.Error("it has another certificate")
	}
	renew()
	os.Rename(h.state("audit.jsonl"), h.state("audit.old"))
	hangUp()
	logged("the certificate was replaced")
	if bytes.Equal(k.peer(), first) {
		t.Error("it has the old certificate")
	}
	k.must("GET", "/v1/cells", nil, nil) // by the connection of before
	if _, err := os.Stat(h.state("audit.jsonl")); err != nil {
		t.Error(err)
	}
}

// peer is the certificate that a new connection gets.
func (k knocker) peer() []byte {
	k.t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(k.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		k.t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Raw
}

// The doors outside the table of routes: the answer of each to each caller. Routes are in
// internal/daemon's TestEveryRouteAsksWhoCalls.
func TestWhoMayCallOtherDoors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	url := serving(t, h, "--first-token", "none").URLs[0]
	make := func(args ...string) string {
		t.Helper()
		var token struct{ Secret string }
		if err := json.Unmarshal([]byte(h.pando(append([]string{"token", "create", "--json"}, args...)...)), &token); err != nil {
			t.Fatal(err)
		}
		return token.Secret
	}
	old := make("--scope", "admin", "--expires", "3s")
	gone := make("gone", "--scope", "admin")
	h.pando("token", "rm", "gone")
	run := make("--scope", "run")
	callers := []struct{ who, token string }{
		{"nobody", ""}, {"a wrong token", "pando_" + strings.Repeat("0", 40)}, {"an expired one", old}, {"a removed one", gone},
		{"scope read", make("--scope", "read")}, {"scope run", run}, {"scope admin", make("--scope", "admin")},
		{"other labels", make("--scope", "run", "--label", "team=a")}, {"the right labels", make("--scope", "run", "--label", "team=b")},
	}
	by := http.DefaultTransport
	var plain, box struct{ SandboxID, Cell, EnvdAccessToken string }
	knocker{t, url, run, by}.must("POST", "/v1/cells", map[string]any{"name": "plain", "labels": map[string]string{"team": "b"}}, &plain)
	knocker{t, url, callers[8].token, by}.must("POST", "/sandboxes", map[string]any{"templateID": "base", "timeout": 300}, &box)
	time.Sleep(3100 * time.Millisecond) // old is old
	const no = http.StatusUnauthorized
	bodies := map[string]any{"/mcp": map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": map[string]any{"_meta": map[string]any{"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo": map[string]string{"name": "e2e", "version": "1"}, "io.modelcontextprotocol/clientCapabilities": map[string]any{}}}}}
	for _, x := range []struct {
		method, path string
		want         [9]int // in the order of callers
		head         []string
	}{
		{"GET", "/healthz", [9]int{200, 200, 200, 200, 200, 200, 200, 200, 200}, nil},
		{"GET", "/readyz", [9]int{200, 200, 200, 200, 200, 200, 200, 200, 200}, nil},
		{"GET", "/metrics", [9]int{no, no, no, no, 200, 200, 200, 403, 403}, nil},
		{"GET", "/v1/nothing", [9]int{no, no, no, no, 404, 404, 404, 404, 404}, nil},
		{"GET", "/v2/sandboxes", [9]int{no, no, no, no, 200, 200, 200, 200, 200}, nil},
		{"GET", "/sandboxes/BOX", [9]int{no, no, no, no, 200, 200, 200, 404, 200}, nil},
		{"GET", "/sandboxes/BOX/metrics", [9]int{no, no, no, no, 200, 200, 200, 404, 200}, nil},
		{"POST", "/sandboxes/BOX/timeout", [9]int{no, no, no, no, 403, 204, 204, 404, 204}, nil},
		{"DELETE", "/sandboxes/PLAIN", [9]int{no, no, no, no, 403, 403, 0, 404, 403}, nil}, // 0: it would be done
		{"GET", "/templates", [9]int{no, no, no, no, 200, 200, 200, 200, 200}, nil},
		{"GET", "/envs", [9]int{no, no, no, no, no, no, no, 502, no}, []string{"E2b-Sandbox-Id", "BOX"}},
		{"GET", "/envs", [9]int{200, no, no, no, 200, 200, 200, 502, 200}, []string{"E2b-Sandbox-Id", "BOX", "X-Access-Token", "ENVD"}},
		{"GET", "/", [9]int{403, no, no, no, 403, 502, 502, 502, 502}, []string{"E2b-Sandbox-Id", "PLAIN", "E2b-Sandbox-Port", "8000"}}, // a port of a cell that is no sandbox; nothing listens
		{"POST", "/mcp", [9]int{no, no, no, no, 200, 200, 200, 200, 200}, []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"}},
	} {
		words := strings.NewReplacer("BOX", box.SandboxID, "PLAIN", plain.Cell, "ENVD", box.EnvdAccessToken)
		var head []string
		for _, w := range x.head {
			head = append(head, words.Replace(w))
		}
		for i, c := range callers {
			body := bodies[x.path]
			if body == nil && x.method == "POST" {
				body = map[string]any{"timeout": 300}
			}
			if x.want[i] == 0 {
				continue
			}
			status, said := knocker{t, url, c.token, by}.at(x.method, words.Replace(x.path), body, head...)
			if status != x.want[i] {
				t.Errorf("%s %s %v for %s: %d, not %d: %s", x.method, x.path, x.head, c.who, status, x.want[i], said)
			}
		}
	}
}
