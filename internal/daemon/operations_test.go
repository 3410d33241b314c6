package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
)

// worker is a daemon with evaluations that the test controls.
func worker(t *testing.T, dir string, do operation.Work) (*Daemon, *httptest.Server) {
	t.Helper()
	ops, err := operation.Open(durable.Disk(dir), "operations.log", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := operation.OpenKeys(durable.Disk(dir), "keys.log")
	if err != nil {
		t.Fatal(err)
	}
	d, srv := house(t, Config{Operations: ops, Keys: keys})
	t.Cleanup(func() {
		for _, o := range ops.List(access.Local) {
			if op, err := ops.Get(access.Local, o.ID); err == nil {
				ops.Abort(op)
			}
		}
		ops.Wait()
		ops.Close()
		keys.Close()
	})
	table := slices.Clone(Routes)
	for i := range table {
		if table[i].Operation() == "eval" {
			table[i].handle = func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
				if _, err := decode[api.EvalRequest](w, r); err != nil {
					return nil, err
				}
				return d.stream(w, r, "", do)
			}
		}
	}
	d.mux = d.routes(table)
	return d, srv
}

// put asks for something with headers, "Name: value" each.
func put(t *testing.T, srv *httptest.Server, method, path, secret, body string, head ...string) (status int, answer string, h http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	for _, l := range head {
		k, v, _ := strings.Cut(l, ": ")
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Header
}

func operationIn(t *testing.T, text string) (o api.Operation) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &o); err != nil || o.ID == "" {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

const evalPath, async = "/v1/cells/web/eval", "Prefer: respond-async"

// An operation without waiting callers continues, reports its progress from any line on, and
// keeps its result.
func TestOperation(t *testing.T) {
	step := make(chan string)
	d, srv := worker(t, t.TempDir(), func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		for s := range step {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			out(api.StreamLine{Progress: &api.Progress{Step: s}})
		}
		return api.EvalResult{Cell: "web"}, nil
	})
	secret := token(t, d, access.Run, time.Time{})
	status, body, h := put(t, srv, "POST", evalPath, secret, "{}", async)
	o := operationIn(t, body)
	if status != http.StatusAccepted || h.Get("Location") != "/v1/operations/"+o.ID || h.Get("Preference-Applied") != "respond-async" ||
		o.State != api.OperationRunning || o.Kind != "eval" || o.Object != "web" {
		t.Fatalf("%d %s %v", status, body, h)
	}
	if status, body, _ := put(t, srv, "POST", evalPath, secret, `{"cod":1}`, async); status != 400 {
		t.Errorf("what is wrong is not said at once: %d %s", status, body)
	}
	step <- "one"
	step <- "two"
	_, body, _ = put(t, srv, "GET", "/v1/operations/"+o.ID, secret, "")
	if o := operationIn(t, body); o.State != api.OperationRunning {
		t.Errorf("%s", body)
	}
	// A client follows from the beginning, hangs up, and reconnects for the rest.
	ctx, hangUp := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/operations/"+o.ID+"/events", nil)
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(resp.Body)
	var first string
	for !strings.Contains(first, "two") {
		l, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(first, err)
		}
		first += l
	}
	hangUp()
	resp.Body.Close()
	if want := "id: 1\ndata: {\"progress\":{\"step\":\"one\"}}\n\nid: 2\ndata: {\"progress\":{\"step\":\"two\"}}\n"; first != want || resp.Header.Get("Content-Type") != eventStream {
		t.Errorf("%q", first)
	}
	step <- "three"
	close(step)
	_, body, _ = put(t, srv, "GET", "/v1/operations/"+o.ID+"?wait=1", secret, "")
	if o := operationIn(t, body); o.State != api.OperationDone || !strings.Contains(string(o.Result), `"web"`) || o.Ended.IsZero() || o.Lines != 3 || o.Progress.Step != "three" {
		t.Errorf("%s", body)
	}
	for _, how := range []string{"Last-Event-ID: 2", "X: y"} {
		_, rest, _ := put(t, srv, "GET", "/v1/operations/"+o.ID+"/events?after=2", secret, "", how)
		if !strings.HasPrefix(rest, "id: 3\ndata: {\"progress\":{\"step\":\"three\"}}\n\nevent: end\nid: 3\ndata: {\"operation\":\""+o.ID) {
			t.Errorf("%q", rest)
		}
	}
	// A client that has seen more lines than there are has seen those of an earlier daemon.
	if _, all, _ := put(t, srv, "GET", "/v1/operations/"+o.ID+"/events?after=57", secret, ""); !strings.HasPrefix(all, first) || !strings.Contains(all, `"three"`) {
		t.Errorf("%q", all)
	}
	for _, bad := range []string{"-1", "x", "99999999999999999999", "1e3"} {
		if status, body, _ := put(t, srv, "GET", "/v1/operations/"+o.ID+"/events?after="+bad, secret, ""); status != 400 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
}

// The caller that began an operation sees it, and scope admin; for others it does not exist.
func TestOperationsAreTheirOwners(t *testing.T) {
	d, srv := worker(t, t.TempDir(), func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	a, b, admin := token(t, d, access.Run, time.Time{}), token(t, d, access.Run, time.Time{}), token(t, d, access.Admin, time.Time{})
	_, body, _ := put(t, srv, "POST", evalPath, a, "{}", async)
	o := operationIn(t, body)
	for _, path := range []string{"", "/events", "/abort"} {
		method := map[bool]string{true: "POST", false: "GET"}[path == "/abort"]
		if status, body, _ := put(t, srv, method, "/v1/operations/"+o.ID+path, b, ""); status != 404 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for secret, want := range map[string]int{a: 1, b: 0, admin: 1} {
		_, body, _ := put(t, srv, "GET", "/v1/operations", secret, "")
		var list []api.Operation
		if json.Unmarshal([]byte(body), &list); len(list) != want {
			t.Errorf("%d are seen: %s", len(list), body)
		}
	}
	_, body, _ = put(t, srv, "POST", "/v1/operations/"+o.ID+"/abort", admin, "")
	if o := operationIn(t, body); o.State != api.OperationAborted || o.Error == nil || o.Error.Kind != "interrupted" || !strings.HasPrefix(o.Error.Message, "cannot ") {
		t.Errorf("%s", body)
	}
}

// Work begun with a token ends with it, also without waiting callers.
func TestOperationEndsWithItsToken(t *testing.T) {
	d, srv := worker(t, t.TempDir(), func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	admin := token(t, d, access.Admin, time.Time{})
	for how, end := range map[string]func(access.Token){"removed": func(k access.Token) { d.cfg.Tokens.Remove(k.ID) }, "expired": func(access.Token) {}} {
		k, secret, err := d.cfg.Tokens.Create(how, access.Run, time.Now().Add(1200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := put(t, srv, "POST", evalPath, secret, "{}", async)
		o := operationIn(t, body)
		end(k)
		_, body, _ = put(t, srv, "GET", "/v1/operations/"+o.ID+"?wait=1", admin, "")
		if o := operationIn(t, body); o.State != api.OperationFailed || o.Error.Kind != "unauthenticated" {
			t.Errorf("%s: %s", how, body)
		}
	}
}

// A new daemon knows what the old one had under way, and how the rest ended; what
// came of it is in no file.
func TestC28OperationsAfterARestart(t *testing.T) {
	dir := t.TempDir()
	begun := make(chan bool, 3)
	d, srv := worker(t, dir, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		out(api.StreamLine{Stdout: []byte("a secret on its way")})
		begun <- true
		p, _ := access.From(ctx)
		switch p.Name {
		case "fails":
			return nil, cell.Errorf(cell.Conflict, "", "", "cannot: a secret in the way")
		case "hangs":
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return map[string]string{"is": "a secret result"}, nil
	})
	ids := map[string]string{}
	for _, name := range []string{"fails", "hangs", "works"} {
		_, secret, err := d.cfg.Tokens.Create(name, access.Run, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := put(t, srv, "POST", evalPath, secret, "{}", async)
		ids[name] = operationIn(t, body).ID
		<-begun
		if name != "hangs" {
			put(t, srv, "GET", "/v1/operations/"+ids[name]+"?wait=1", secret, "")
		}
	}
	if text := readAll(t, filepath.Join(dir, "operations.log")); strings.Contains(text, "secret") {
		t.Errorf("the journal has it: %q", text)
	}
	// What the next daemons find that begin now, while the old one has no time to say more.
	disk := durable.Disk(copyOf(t, dir))
	ops, err := operation.Open(disk, "operations.log", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ops.Close()
	if ops, err = operation.Open(disk, "operations.log", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	for name, want := range map[string]string{"fails": api.OperationFailed, "hangs": api.OperationLost, "works": api.OperationDone} {
		op, err := ops.Get(access.Local, ids[name])
		if err != nil {
			t.Fatal(err)
		}
		v := ops.Look(op)
		if v.State != want || v.Ended.IsZero() || v.Error == nil != (want == api.OperationDone) || v.Note == "" != (want != api.OperationDone) || v.By != name {
			t.Errorf("%s: %+v", name, v)
		}
		if name == "hangs" && !strings.Contains(v.Error.Message, "the daemon ended") {
			t.Errorf("%s: %s", name, v.Error.Message)
		}
		if _, _, more := ops.After(op, 0); more != nil {
			t.Errorf("%s: it seems to go on", name)
		}
	}
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	b := readAll(t, filepath.Join(dir, "operations.log"))
	if err := durable.WriteFile(durable.Disk(to), "operations.log", []byte(b), 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// A request that comes again with its key begins nothing twice.
func TestC32OperationsBeginOnce(t *testing.T) {
	d, srv := worker(t, t.TempDir(), func(context.Context, func(api.StreamLine)) (any, error) { return nil, nil })
	secret := token(t, d, access.Run, time.Time{})
	var ids []string
	for range 2 {
		status, body, h := put(t, srv, "POST", evalPath, secret, "{}", async, "Idempotency-Key: k")
		if status != http.StatusAccepted || h.Get("Location") == "" {
			t.Errorf("%d %v", status, h)
		}
		ids = append(ids, operationIn(t, body).ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("%v", ids)
	}
	if status, _, _ := put(t, srv, "POST", evalPath, secret, "{}", "Idempotency-Key: k"); status != http.StatusConflict {
		t.Errorf("the same key for an answer at once: %d", status)
	}
}

// What answers in lines can be asked for as an operation, and a run.
func TestLongWorkIsAnOperation(t *testing.T) {
	kinds := map[string]bool{}
	for _, r := range Routes {
		k := r.Operation()
		if (r.Gives == Lines || r.Path == "/v1/runs" && r.Method == "POST") != (k != "") {
			t.Errorf("%s %s answers %q and is operation %q", r.Method, r.Path, r.Gives, k)
		}
		if k != "" {
			kinds[k] = true
		}
	}
	if len(kinds) != len(api.OperationKinds) {
		t.Error(fmt.Sprint(kinds))
	}
}

// F54: the audit log has the caller of an operation and, at its end, its outcome.
func TestF54OperationsAreInTheAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	audit, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	d, srv := worker(t, t.TempDir(), func(context.Context, func(api.StreamLine)) (any, error) {
		return nil, cell.Errorf(cell.Denied, "", "", "cannot: it is not allowed")
	})
	d.cfg.Audit = audit
	secret := token(t, d, access.Run, time.Time{})
	_, body, _ := put(t, srv, "POST", evalPath, secret, "{}", async)
	o := operationIn(t, body)
	d.cfg.Operations.Wait()
	var lines []auditLine
	for l := range strings.Lines(readAll(t, path)) {
		var x auditLine
		if err := json.Unmarshal([]byte(l), &x); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		lines = append(lines, x)
	}
	slices.SortFunc(lines, func(a, b auditLine) int { return strings.Compare(a.Operation, b.Operation) })
	if len(lines) != 2 || lines[0].Status != 202 || lines[0].Request != lines[1].Request || lines[1].Operation != o.ID || lines[1].Status != 403 || lines[1].Kind != "denied" ||
		lines[1].Who != lines[0].Who || lines[1].Who == "" || lines[1].Object != "web" || lines[1].From == "" {
		t.Errorf("%+v", lines)
	}
}
