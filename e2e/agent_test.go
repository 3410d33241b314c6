package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// claude is where Claude Code's program lies: E2E_CLAUDE, or on PATH.
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

// greeting is what the model does when it is asked to make the greeting
// friendlier: read, edit, try, tell.
func greeting(dir string) []turn {
	return []turn{
		{text: "I'll look at the program first.", tool: "Read", input: map[string]any{"file_path": filepath.Join(dir, "greet.sh")}},
		{text: "Now the greeting.", tool: "Edit", input: map[string]any{"file_path": filepath.Join(dir, "greet.sh"), "old_string": "Hello", "new_string": "Hello, dear friend"}},
		{text: "Does it work?", tool: "Bash", input: map[string]any{"command": "sh greet.sh; env; cat /proc/self/environ", "description": "Run the program"}},
		{text: "The greeting is friendlier now."},
	}
}

// agentEnv are the variables by which Claude Code asks nobody but the model.
var agentEnv = []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1"}

var agentArgs = []string{"-p", "Make the greeting friendlier.", "--dangerously-skip-permissions"}

// TestAgentScript shows that the scripted model and the agent understand each
// other, without a cell: what fails here is not pando's.
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
