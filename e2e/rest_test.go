package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
)

// caller is a client of a daemon at a TCP address, with a token of scope run.
func caller(t *testing.T, h *host, flags ...string) (*client.Client, served, string) {
	t.Helper()
	s := serving(t, h, flags...)
	token := secret(t, h, "run")
	return client.New(client.Config{Host: s.URLs[0], Token: token}), s, token
}

func isKind(err error, kind api.Kind) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == kind && e.Message != ""
}

// Single files, commands and ports of a cell, from elsewhere, by the client alone.
func TestRESTReachesIntoCells(t *testing.T) {
	testenv.Python(t)
	t.Parallel()
	h := newHost(t)
	c, s, token := caller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	made, err := c.Create(ctx, api.CreateRequest{Name: "web"})
	must(t, err)
	read := func(path string) string {
		t.Helper()
		body, err := c.ReadFile(ctx, "web", path)
		must(t, err)
		defer body.Close()
		b, err := io.ReadAll(body)
		must(t, err)
		return string(b)
	}
	f, err := c.WriteFile(ctx, "web", "a b/ü%2f.txt", strings.NewReader("one"), client.Seen{None: true})
	must(t, err)
	if got := read("a b/ü%2f.txt"); got != "one" || f.Size != 3 || f.Path != "/workspace/a b/ü%2f.txt" || !strings.HasPrefix(f.Digest, "sha256:") {
		t.Errorf("%q, %+v", got, f)
	}
	if _, err := c.WriteFile(ctx, "web", "a b/ü%2f.txt", strings.NewReader("two"), client.Seen{None: true}); !isKind(err, "stale") {
		t.Errorf("it is there, and is written as new: %v", err)
	}
	if _, err := c.RemoveFile(ctx, "web", "a b/ü%2f.txt", client.Seen{Digest: "sha256:" + strings.Repeat("0", 64)}); !isKind(err, "stale") {
		t.Errorf("another file is removed: %v", err)
	}

	// Ten callers count in one file; each that was overtaken looks again.
	_, err = c.WriteFile(ctx, "web", "count", strings.NewReader("0"), client.Seen{})
	must(t, err)
	var callers sync.WaitGroup
	overtaken := make(chan bool, 1000)
	for range 10 {
		callers.Go(func() {
			for range 5 {
				for {
					f, err := c.Stat(ctx, "web", "count", true)
					if err != nil {
						t.Error(err)
						return
					}
					body, err := c.ReadFile(ctx, "web", "count")
					if err != nil {
						t.Error(err)
						return
					}
					b, _ := io.ReadAll(body)
					body.Close()
					n, _ := strconv.Atoi(string(b))
					_, err = c.WriteFile(ctx, "web", "count", strings.NewReader(strconv.Itoa(n+1)), client.Seen{Digest: f.Digest})
					if err == nil {
						break
					}
					if !isKind(err, "stale") {
						t.Error(err)
						return
					}
					overtaken <- true
				}
			}
		})
	}
	callers.Wait()
	if got := read("count"); got != "50" {
		t.Errorf("counted to %s, overtaken %d times", got, len(overtaken))
	}

	_, err = c.MakeDirectory(ctx, "web", "d/e")
	must(t, err)
	_, err = c.Rename(ctx, "web", "a b/ü%2f.txt", "d/e/f")
	must(t, err)
	list, err := c.List(ctx, "web", "d", 2)
	must(t, err)
	if len(list) != 2 || list[0].Type != "directory" || list[1].Path != "/workspace/d/e/f" {
		t.Errorf("%+v", list)
	}
	_, err = c.RemoveFile(ctx, "web", "d", client.Seen{})
	must(t, err)
	for path, kind := range map[string]api.Kind{"d/e/f": "not-found", "a b": "invalid", "a\x00b": "invalid", strings.Repeat("x/", 3000): "invalid"} {
		if _, err := c.ReadFile(ctx, "web", path); !isKind(err, kind) {
			t.Errorf("%.20q: %v", path, err)
		}
	}
	// No path leads out of the cell.
	h.writeAt(h.work+"/outside", "outside")
	h.pando("exec", "web", "--", "ln", "-s", h.work, "out")
	for _, path := range []string{"../../.." + h.work + "/outside", "out/outside", h.work + "/outside", "/proc/1/environ", "/proc/self/cwd"} {
		if body, err := c.ReadFile(ctx, "web", path); err == nil {
			b, _ := io.ReadAll(body)
			body.Close()
			t.Errorf("%s: %q", path, b)
		}
	}

	// A command that serves: it is listed, reached, and signalled.
	x, err := c.StartExec(ctx, "web", api.ExecRequest{Command: []string{"python3", "-u", "-c", echoServer}})
	must(t, err)
	var at int
	for at == 0 {
		ports, err := c.Ports(ctx, "web")
		must(t, err)
		if len(ports) == 1 && ports[0].Address == "127.0.0.1" {
			at = ports[0].Port
		}
		time.Sleep(20 * time.Millisecond)
	}
	conn, err := c.Connect(ctx, "web", at)
	must(t, err)
	big := strings.Repeat("0123456789abcdef", 100_000)
	go func() {
		io.WriteString(conn, big)
		conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if b, err := io.ReadAll(conn); err != nil || string(b) != big {
		t.Errorf("%d of %d bytes came back: %v", len(b), len(big), err)
	}
	conn.Close()
	if _, err := c.Connect(ctx, "web", 1); !isKind(err, "unavailable") {
		t.Errorf("a port without a listener: %v", err)
	}
	execs, err := c.Execs(ctx, "web")
	must(t, err)
	if len(execs) != 2 || execs[1].ID != x.ID || !execs[1].Running || execs[1].Command[0] != "python3" || execs[0].Running {
		t.Errorf("%+v", execs)
	}
	if _, err := c.SignalExec(ctx, x.ID, "SIGNONE"); !isKind(err, "invalid") {
		t.Errorf("no signal: %v", err)
	}
	_, err = c.SignalExec(ctx, x.ID, "SIGTERM")
	must(t, err)
	for x.Running = true; x.Running; time.Sleep(10 * time.Millisecond) {
		x, err = c.Exec(ctx, x.ID)
		must(t, err)
	}
	if x.Signal != "SIGTERM" {
		t.Errorf("%+v", x)
	}

	// A program in the cell that gets a forwarded request sees neither the token nor the caller;
	// and its answer does not become a page of pando's.
	_, err = c.WriteFile(ctx, "web", "show.py", strings.NewReader(showServer), client.Seen{})
	must(t, err)
	_, err = c.StartExec(ctx, "web", api.ExecRequest{Command: []string{"python3", "show.py"}})
	must(t, err)
	req, _ := http.NewRequestWithContext(ctx, "DELETE", s.URLs[0]+"/v1/cells/"+made.ID+"/ports/8000/http/a%2fb/?q=1", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Cookie", "session=1")
	var resp *http.Response
	for {
		resp, err = http.DefaultTransport.RoundTrip(req)
		must(t, err)
		if resp.StatusCode != http.StatusServiceUnavailable {
			break
		}
		resp.Body.Close()
		time.Sleep(20 * time.Millisecond)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.HasPrefix(string(b), "DELETE /a%2fb/?q=1\n") || strings.Contains(string(b), strings.TrimPrefix(token, "pando_")) || strings.Contains(string(b), "session=1") ||
		resp.Header.Get("Set-Cookie") != "" || !strings.HasPrefix(resp.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, b)
	}
}

const echoServer = `import socket
s = socket.create_server(("127.0.0.1", 0))
while True:
    c, _ = s.accept()
    data = b""
    while (d := c.recv(65536)): data += d
    c.sendall(data); c.close()`

const showServer = `from http.server import *
class H(BaseHTTPRequestHandler):
    def do_DELETE(self):
        self.send_response(200); self.send_header("Set-Cookie", "a=b"); self.end_headers()
        self.wfile.write((self.command + " " + self.path + "\n" + str(self.headers)).encode())
HTTPServer(("127.0.0.1", 8000), H).serve_forever()`

// Long work continues without its caller, can be followed and aborted; a new daemon knows which
// of it was lost.
func TestRESTOperations(t *testing.T) {
	testenv.Python(t)
	t.Parallel()
	h := newHost(t)
	c, _, _ := caller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	o, err := c.Begin(ctx, "build", "", api.TemplateRequest{Name: "py", Setup: `print("warm"); x = 6`})
	must(t, err)
	var steps, said []string
	on := client.Listener{Progress: func(p api.Progress) { steps = append(steps, p.Step) }, Stdout: func(b []byte) { said = append(said, string(b)) }}
	o, err = c.Follow(ctx, o.ID, on)
	must(t, err)
	if o.State != api.OperationDone || o.Object != "py" || !strings.Contains(string(o.Result), `"name":"py"`) || len(steps) < 3 || strings.Join(said, "") != "warm\n" {
		t.Errorf("%+v\n%q %q", o, steps, said)
	}
	o, err = c.Begin(ctx, "fork-template", "py", api.WarmForkRequest{Count: 3, Eval: "x * 7"})
	must(t, err)
	forks := 0
	o, err = c.Follow(ctx, o.ID, client.Listener{Fork: func(api.WarmFork) { forks++ }})
	must(t, err)
	if o.State != api.OperationDone || forks != 3 || strings.Count(string(o.Result), `"json":42`) != 3 {
		t.Errorf("%d forks, %s", forks, o.Result)
	}
	if o, err = c.Begin(ctx, "fork-template", "none", api.WarmForkRequest{}); err == nil {
		if o, err = c.Operation(ctx, o.ID, true); o.State != api.OperationFailed || o.Error.Kind != "not-found" {
			t.Errorf("%+v, %v", o, err)
		}
	}

	// One that is aborted leaves nothing running, and its run says why it ended.
	h.pando("run", "--cell", "web", "--", "true")
	o, err = c.Begin(ctx, "run", "", api.RunRequest{Command: []string{"sleep", "1000"}, Cell: "web"})
	must(t, err)
	for o.Progress == nil || o.Progress.Step != "running" {
		o, err = c.Operation(ctx, o.ID, false)
		must(t, err)
		time.Sleep(10 * time.Millisecond)
	}
	o, err = c.Abort(ctx, o.ID)
	must(t, err)
	run, err := c.Run(ctx, o.Object, false)
	must(t, err)
	if o.State != api.OperationAborted || run.Phase != "ended" || run.Verdict != "pending" {
		t.Errorf("%+v\n%+v", o, run)
	}

	// The events of its run, from behind the first of them on.
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://pando/v1/runs/"+run.ID+"/events?follow=1", nil)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", "1")
	resp, err := socketClient(h.socket()).Do(req)
	must(t, err)
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	must(t, err)
	if s := string(b); !strings.HasPrefix(s, "id: 2\ndata: {\"run\":\""+run.ID) || !strings.Contains(s, "process.exit") || !strings.HasSuffix(s, "data: {}\n\n") || strings.Count(s, "event: end\n") != 1 {
		t.Errorf("%s", s)
	}

	// The daemon is killed while one goes on.
	build, err := c.Begin(ctx, "build", "", api.TemplateRequest{Name: "slow", Setup: "import time; time.sleep(1000)"})
	must(t, err)
	for build.Progress == nil || build.Progress.Step != "warming" {
		build, err = c.Operation(ctx, build.ID, false)
		must(t, err)
		time.Sleep(10 * time.Millisecond)
	}
	d := decoded[api.Daemon](h, "daemon", "status", "--json")
	must(t, syscall.Kill(d.PID, syscall.SIGKILL))
	for range 500 {
		if syscall.Kill(d.PID, 0) != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.try("ls")            // may start a daemon, which pando serve then replaces
	_, err = c.Daemon(ctx) // pando serve's answers
	must(t, err)
	status, body := h.request("GET", "/v1/operations/"+build.ID+"?wait=1", "") // by the socket: the daemon's user sees the operations of all
	if status != 200 || !strings.Contains(body, `"state":"failed"`) || !strings.Contains(body, "the daemon ended first, and nothing was changed") {
		t.Errorf("%d %s", status, body)
	}
	if _, body := h.request("GET", "/v1/operations/"+o.ID, ""); !strings.Contains(body, `"state":"aborted"`) {
		t.Errorf("%s", body)
	}
	if _, body := h.request("GET", "/v1/templates", ""); strings.Contains(body, `"slow"`) && !strings.Contains(body, `"failed"`) {
		t.Errorf("what was lost is listed as whole: %s", body)
	}
	if os.Getuid() == 0 {
		h.pando("stop", "--all")
	}
}

// A verdict on an outdated version is refused, and nothing changes.
func TestRESTMindsWhatCallersSaw(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.pando("run", "--cell", "web", "--", "sh", "-c", "echo 1 >f")
	tag := func(path string) string {
		t.Helper()
		req, _ := http.NewRequest("GET", "http://pando"+path, nil)
		resp, err := socketClient(h.socket()).Do(req)
		must(t, err)
		resp.Body.Close()
		if resp.Header.Get("ETag") == "" {
			t.Fatalf("%s has no ETag: %s", path, resp.Status)
		}
		return resp.Header.Get("ETag")
	}
	post := func(path, body, match string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest("POST", "http://pando"+path, strings.NewReader(body))
		req.Header.Set("If-Match", match)
		resp, err := socketClient(h.socket()).Do(req)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(b)
	}
	oldRun, oldCell := tag("/v1/runs/web:latest"), tag("/v1/cells/web")
	if again := tag("/v1/cells/web"); again != oldCell {
		t.Errorf("the same cell has %s and %s", oldCell, again)
	}
	h.pando("run", "--cell", "web", "--", "sh", "-c", "echo 2 >f")
	for _, path := range []string{"/v1/cells/web/restore", "/v1/cells/web/undo", "/v1/cells/web/lease", "/v1/runs/web:latest/accept", "/v1/runs/web:latest/discard"} {
		match := oldCell
		if strings.Contains(path, "/runs/") {
			match = oldRun
		}
		if status, body := post(path, `{}`, match); status != http.StatusPreconditionFailed && !strings.HasSuffix(path, "restore") || !strings.Contains(body, `"kind":"stale"`) && !strings.HasSuffix(path, "restore") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := post("/v1/cells/web/restore", `{"number":1,"lose":true}`, oldCell); status != http.StatusPreconditionFailed {
		t.Errorf("restore: %d %s", status, body)
	}
	if got := h.inCell("web", "cat f"); strings.TrimSpace(got) != "2" || h.run("web:latest").Verdict != "pending" {
		t.Errorf("it was changed: %q, %s", got, h.run("web:latest").Verdict)
	}
	if status, body := post("/v1/runs/web:latest/accept", `{}`, tag("/v1/runs/web:latest")); status != http.StatusOK {
		t.Errorf("accept: %d %s", status, body)
	}
	if status, body := post("/v1/cells/web/restore", `{"number":1,"lose":true}`, tag("/v1/cells/web")); status != http.StatusOK {
		t.Errorf("restore: %d %s", status, body)
	}
	if status, body := post("/v1/cells/web/lease", `{"labels":{"a":"b"}}`, tag("/v1/cells/web")); status != http.StatusOK || !strings.Contains(body, `"a":"b"`) {
		t.Errorf("lease: %d %s", status, body)
	}
	if status, body := post("/v1/templates", `{"name":"none"}`, `"sha256:00"`); status != http.StatusPreconditionFailed {
		t.Errorf("a template that is not there is replaced: %d %s", status, body)
	}
	if status, body := post("/v1/cells/web/pause", `{}`, "*"); status != http.StatusBadRequest || !strings.Contains(body, "this route has no preconditions") {
		t.Errorf("a condition is not looked at, in silence: %d %s", status, body)
	}
}

// A token of scope run removes what was made with it, and nothing else.
func TestRunTokensRemoveTheirOwn(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	h := newHost(t)
	s := serving(t, h)
	ctx := t.Context()
	mine := client.New(client.Config{Host: s.URLs[0], Token: secret(t, h, "run")})
	theirs := client.New(client.Config{Host: s.URLs[0], Token: secret(t, h, "run")})
	c, err := mine.Create(ctx, api.CreateRequest{Name: "mine"})
	must(t, err)
	f, err := mine.Fork(ctx, "mine", api.ForkRequest{})
	must(t, err)
	for _, id := range []string{c.ID, f.Cells[0].ID} {
		if _, err := theirs.Remove(ctx, id, false); err == nil || !strings.Contains(err.Error(), "not made with this token") {
			t.Errorf("somebody else removes %s: %v", id, err)
		}
	}
	for _, id := range []string{c.ID, f.Cells[0].ID} {
		if _, err := mine.Remove(ctx, id, false); err != nil {
			t.Errorf("who made %s can't remove it: %v", id, err)
		}
	}
	c, err = mine.Create(ctx, api.CreateRequest{Lease: api.LeaseRequest{For: "1h"}})
	must(t, err)
	if _, err := theirs.Lease(ctx, c.ID, api.LeaseRequest{Then: api.LeaseRemove}); err == nil || !strings.Contains(err.Error(), "not made with this token") {
		t.Errorf("somebody else has it removed at the end of its time: %v", err)
	}
	if c, err = mine.Lease(ctx, c.ID, api.LeaseRequest{Then: api.LeaseRemove}); err != nil || c.Lease.Then != api.LeaseRemove {
		t.Errorf("its maker can't have it removed at the end of its time: %v", err)
	}

	_, err = mine.BuildTemplate(ctx, api.TemplateRequest{Name: "warm"}, client.Listener{})
	must(t, err)
	_, err = theirs.ForkTemplate(ctx, "warm", api.WarmForkRequest{}, client.Listener{})
	must(t, err)
	for who, how := range map[*client.Client]api.TemplateRemoval{theirs: {Force: true}, mine: {Cascade: true}} {
		if _, err := who.RemoveTemplate(ctx, "warm", how); err == nil || !strings.Contains(err.Error(), "not made with this token") {
			t.Errorf("what another token made goes with the template, or it: %v", err)
		}
	}
	if _, err := mine.RemoveTemplate(ctx, "warm", api.TemplateRemoval{Force: true}); err != nil {
		t.Errorf("who made the template can't remove it: %v", err)
	}
	_, err = mine.BuildTemplate(ctx, api.TemplateRequest{Name: "warm2"}, client.Listener{})
	must(t, err)
	_, err = mine.ForkTemplate(ctx, "warm2", api.WarmForkRequest{Count: 2}, client.Listener{})
	must(t, err)
	if _, err := mine.RemoveTemplate(ctx, "warm2", api.TemplateRemoval{Cascade: true}); err != nil {
		t.Errorf("who made the template and its forks can't remove them: %v", err)
	}
	if _, err := mine.Cell(ctx, "warm2-1"); err == nil {
		t.Error("a fork is left")
	}
}
