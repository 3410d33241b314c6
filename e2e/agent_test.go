package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

// claude is the path of Claude Code: E2E_CLAUDE, or on PATH.
func claude(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("E2E_CLAUDE"); p != "" {
		return p
	}
	p, err := exec.LookPath("claude")
	if err != nil {
		t.Skip("needs Claude Code: E2E_CLAUDE, or claude on PATH")
	}
	if p, err = filepath.EvalSymlinks(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// greeting is the scripted model's reaction to the task of making the greeting friendlier: read,
// edit, try, tell.
func greeting(dir string) []turn {
	return []turn{
		{text: "I'll look at the program first.", tool: "Read", input: map[string]any{"file_path": filepath.Join(dir, "greet.sh")}},
		{text: "Now the greeting.", tool: "Edit", input: map[string]any{"file_path": filepath.Join(dir, "greet.sh"), "old_string": "Hello", "new_string": "Hello, dear friend"}},
		{text: "Does it work?", tool: "Bash", input: map[string]any{"command": "sh greet.sh; env; cat /proc/self/environ", "description": "Run the program"}},
		{text: "The greeting is friendlier now."},
	}
}

// agentEnv are the variables by which Claude Code contacts only the model.
var agentEnv = []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1"}

var agentArgs = []string{"-p", "Make the greeting friendlier.", "--dangerously-skip-permissions"}

// TestAgentScript runs the scripted model and the agent together without a cell: a failure here
// is not pando's.
func TestAgentScript(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	world(t)
	h := newHost(t)
	m := &model{turns: greeting(h.src), key: "sk-ant-api03-not-a-real-key"}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	h.must(err)
	s := &http.Server{Handler: m}
	go s.Serve(ln)
	defer s.Close()
	h.write("greet.sh", "echo Hello\n")
	c := h.cmd(prog, agentArgs...)
	c.Env = append(append(h.env, agentEnv...), "ANTHROPIC_BASE_URL=http://"+ln.Addr().String(), "ANTHROPIC_API_KEY="+m.key)
	o := h.exec(c)
	for _, r := range m.requests() {
		t.Logf("%s %s %s: %d bytes, %d results", r.method, r.path, r.proto, len(r.body), len(r.results))
	}
	if o.code != 0 || o.out != "The greeting is friendlier now.\n" {
		t.Errorf("exit code %d\n%s%s", o.code, o.out, o.stderr)
	}
	if got := h.read("greet.sh"); got != "echo Hello, dear friend\n" {
		t.Errorf("the file is %q", got)
	}
}

// newAgentKey makes a key in the form of Anthropic's, and a pattern that matches it and not
// itself.
func newAgentKey() (key, pattern string) {
	var b [32]byte
	rand.Read(b[:])
	text := hex.EncodeToString(b[:])
	return "sk-ant-api03-" + text + "-AA", "[" + text[:1] + "]" + text[1:40]
}

// agentHost is an installation in a world in which m poses as Anthropic, with Claude Code on its
// PATH.
func agentHost(t *testing.T, prog string, key string) (*host, *model) {
	t.Helper()
	world(t, inside4, "192.0.2.8")
	h := newHost(t)
	m := &model{turns: greeting(h.src), key: key}
	ca := newAuthority(t)
	ca.serveTLS(inside4+":443", m, "api.anthropic.com", "platform.claude.com")
	zone := newNames(t, "127.0.0.1:5300")
	zone.set("api.anthropic.com", inside4)
	zone.set("platform.claude.com", inside4)
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr, "PANDO_ROOTS="+ca.file(h))
	for i, kv := range h.env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			h.env[i] = "PATH=" + filepath.Dir(prog) + ":" + path
		}
	}
	h.write("greet.sh", "echo Hello\n")
	return h, m
}

// lend stores a credential without leaving its value in the environment.
func (h *host) lend(name, value string) {
	h.t.Helper()
	c := h.cmd(h.bin, "credential", "add", name, "--from-env", "KEY")
	c.Env = append(slices.Clone(h.env), "KEY="+value)
	if o := h.exec(c); o.code != 0 {
		h.t.Fatalf("credential add: exit code %d\n%s", o.code, o.stderr)
	}
}

// askAgent are the arguments of a run of the agent with some flags.
func askAgent(flags ...string) []string {
	args := append([]string{"run"}, flags...)
	for _, kv := range agentEnv {
		args = append(args, "--env", kv)
	}
	return append(append(args, "--", "claude"), agentArgs...)
}

// TestAgentSubscription is the same with the token of a subscription, which is sent in another
// header, and in a fork, which has a placeholder of its own.
func TestAgentSubscription(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	key = "sk-ant-oat01-" + strings.TrimPrefix(key, "sk-ant-api03-")
	h, m := agentHost(t, prog, key)
	h.lend("anthropic", key)
	flags := []string{"--allow", "@anthropic", "--credential", "anthropic"}
	placeholder := func(cell string) string {
		t.Helper()
		o := h.exits(0, append(append([]string{"run", "--cell", cell}, flags...), "--", "sh", "-c", "echo $CLAUDE_CODE_OAUTH_TOKEN $ANTHROPIC_API_KEY")...)
		p := strings.TrimSpace(o.out)
		if !strings.HasPrefix(p, "sk-ant-oat01-") || strings.Contains(p, key) {
			t.Errorf("cell %s has for a token: %q", cell, p)
		}
		return p
	}
	first := placeholder("one")
	h.pando("fork", "one", "--name", "two")
	second := placeholder("two")
	if second == first {
		t.Error("the fork has its parent's placeholder")
	}
	for _, name := range []string{"one", "two"} {
		before := len(m.requests())
		if o := h.exits(0, askAgent(append([]string{"--cell", name}, flags...)...)...); o.out != "The greeting is friendlier now.\n" {
			t.Errorf("in cell %s it said:\n%s%s", name, o.out, o.stderr)
		}
		for _, r := range m.requests()[before:] {
			if got := r.header.Get("Authorization"); r.path == "/v1/messages?beta=true" && got != "Bearer "+key {
				t.Errorf("in cell %s: %s %s came with %q", name, r.method, r.path, got)
			}
		}
		if got := h.inCell(name, "cat greet.sh"); got != "echo Hello, dear friend\n" {
			t.Errorf("the file in cell %s is %q", name, got)
		}
	}

	// Revoked, it is worth nothing at once, in all of them.
	works := func(name, placeholder string) bool {
		t.Helper()
		before := len(m.requests())
		h.try("exec", name, "--", "curl", "-s", "-m", "5", "-H", "Authorization: Bearer "+placeholder, "https://api.anthropic.com/v1/messages", "-d", "{}")
		for _, r := range m.requests()[before:] {
			if strings.Contains(r.header.Get("Authorization"), key) {
				return true
			}
		}
		return false
	}
	if !works("one", first) || !works("two", second) {
		t.Error("a placeholder does not work before it is revoked")
	}
	if works("two", first) {
		t.Error("a fork can use its parent's placeholder")
	}
	h.pando("credential", "revoke", "anthropic", "--all")
	if works("one", first) || works("two", second) {
		t.Error("a placeholder works after it was revoked")
	}
	h.pando("rm", "one", "two", "--yes")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}

// TestRealAgent runs Claude Code, as it comes from npm, in a cell: it talks to a model that
// poses as api.anthropic.com, over TLS that the gateway opens, with a key that it does not have.
func TestRealAgent(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	agentKey, pattern := newAgentKey()
	h, m := agentHost(t, prog, agentKey)
	h.lend("anthropic", agentKey)
	o := h.exits(0, askAgent("--cell", "agent", "--allow", "@anthropic", "--credential", "anthropic")...)
	if o.out != "The greeting is friendlier now.\n" {
		t.Errorf("it said:\n%s%s", o.out, o.stderr)
	}
	run := h.run("agent:latest")

	// It edited the file, in the cell, and only what it was asked to.
	if got := h.inCell("agent", "cat greet.sh"); got != "echo Hello, dear friend\n" {
		t.Errorf("the file in the cell is %q", got)
	}
	if got := h.read("greet.sh"); got != "echo Hello\n" {
		t.Errorf("the source became %q", got)
	}
	if run.Changes.Files != 1 {
		t.Errorf("%d files changed", run.Changes.Files)
	}

	// The model got the key, the agent had something else.
	requests := m.requests()
	if len(requests) < len(m.turns) {
		t.Fatalf("the model was asked %d times", len(requests))
	}
	for _, r := range requests {
		if r.header.Get("X-Api-Key") != agentKey {
			t.Errorf("%s %s came with the key %q", r.method, r.path, r.header.Get("X-Api-Key"))
		}
		if strings.Contains(string(r.body), agentKey) {
			t.Errorf("%s %s has the key in its body", r.method, r.path)
		}
	}
	env := strings.Join(requests[len(requests)-1].results, "\n")
	had := regexp.MustCompile(`ANTHROPIC_API_KEY=(sk-ant-api03-[\w-]+)`).FindStringSubmatch(env)
	if had == nil || had[1] == agentKey {
		t.Errorf("what the agent had for a key: %q\n%s", had, env)
	}

	// Each request is in the record, with what was put in and by which rule.
	asked, answered := map[string]int{}, map[string]int{}
	for _, d := range decisions(h, run.ID) {
		if d.Access.Act != cell.Request {
			continue
		}
		asked[d.Access.Method+" "+d.Access.Path]++
		if !d.Decision.Allowed() || d.Access.Host != "api.anthropic.com" || d.Decision.Credential != "anthropic" || d.Decision.Origin != "--allow @anthropic" {
			t.Errorf("a decision: %+v", d)
		}
	}
	for _, f := range flows(h, run.ID) {
		if f.Method == "" {
			continue
		}
		answered[f.Method+" "+f.Path]++
		if f.Host != "api.anthropic.com" || !f.Opened || (f.Status == 200) != (f.Path == "/v1/messages") || f.Secret != "anthropic" || f.Sent == 0 || f.Received == 0 || f.Addr.String() != inside4 {
			t.Errorf("a flow: %+v", f)
		}
	}
	came := map[string]int{}
	for _, r := range requests {
		path, _, _ := strings.Cut(r.path, "?")
		came[r.method+" "+path]++
	}
	if d := cmp.Diff(came, asked) + cmp.Diff(came, answered); d != "" || came["POST /v1/messages"] < len(m.turns) {
		t.Errorf("the requests that came are not those that were decided on and recorded:\n%s", d)
	}
	if v := h.verify(); !v.OK {
		t.Errorf("the receipts do not verify: %+v", v)
	}

	// The key is nowhere: not in the cell (its files, its processes' environments), and not in
	// any record.
	found := h.inCell("agent", `echo tried; grep -rIslE '`+pattern+`' . "$HOME" /tmp /run /etc /var/tmp /dev/shm; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -aoE '`+pattern+`'; true`)
	if found != "tried\n" {
		t.Errorf("the key is in the cell: %s", found)
	}
	for _, at := range holding(h, filepath.Join(h.work, ".pando"), agentKey) {
		t.Errorf("the key is in %s", at)
	}

	// Another cell, which may not reach the model: the denial names the missing host.
	h.pando("run", "--cell", "mute", "--allow", "other.example", "--", "true")
	before := len(m.requests())
	o = h.try(append([]string{"run", "--cell", "mute", "--allow", "other.example", "--env", "ANTHROPIC_API_KEY=" + had[1], "--env", agentEnv[0], "--env", agentEnv[1], "--", "timeout", "6", "claude"}, agentArgs...)...)
	if o.code == 0 || !strings.Contains(o.stderr, "api.anthropic.com") || !strings.Contains(o.stderr, "--allow") {
		t.Errorf("without the host: exit code %d\n%s%s", o.code, o.out, o.stderr)
	}
	if n := len(m.requests()); n != before {
		t.Errorf("without the host it was reached %d times", n-before)
	}

	h.pando("accept", "agent", "--apply")
	if got := h.read("greet.sh"); got != "echo Hello, dear friend\n" {
		t.Errorf("the source became %q", got)
	}
	h.pando("rm", "agent", "mute", "--yes")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}

// flows reads the connections and requests from a run's record.
func flows(h *host, run string) (list []cell.Flow) {
	h.t.Helper()
	for _, raw := range eventsOf(h, run, "flow") {
		var f cell.Flow
		h.must(json.Unmarshal(raw, &f))
		list = append(list, f)
	}
	return list
}

// holding lists the files below a directory that contain a value, plain or in one of the usual
// encodings.
func holding(h *host, dir, value string) (found []string) {
	h.t.Helper()
	needles := [][]byte{[]byte(value), []byte(hex.EncodeToString([]byte(value)))}
	for shift := range 3 { // at each alignment in base64
		enc := base64.RawStdEncoding.EncodeToString([]byte(value)[shift:])
		needles = append(needles, []byte(enc[:len(enc)/4*4-4]))
	}
	h.must(filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return nil
		}
		for _, n := range needles {
			if bytes.Contains(b, n) {
				found = append(found, p)
				break
			}
		}
		return nil
	}))
	return found
}
