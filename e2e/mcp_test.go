package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The official TypeScript SDK of the Model Context Protocol.
const mcpClient = "@modelcontextprotocol/sdk@1.32.2"

// An agent with the official TypeScript client makes cells and works in them, by
// both ways to it and in both generations of the protocol.
func TestMCP(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	modules := nodePackages(t, mcpClient)
	t.Run("stdio", func(t *testing.T) {
		h := newHost(t)
		h.write("greeting", "hello\n")
		h.pando("template", "build", "pyagent")
		agent(t, h, modules, "stdio", h.bin)
		if o := h.try("mcp", "--credential", "nobody"); o.code != 3 || !strings.Contains(o.stderr, "cannot lend credential nobody") {
			t.Errorf("a credential that there is not ends it with %d: %s", o.code, o.stderr)
		}
		h.sh("printf ghp_%036d 7 | pando credential add github")
		call := agentOver(t, h.cmd(h.bin, "mcp", "--credential", "github"))
		call("create", map[string]any{"name": "lent", "from": h.src})
		if got := call("exec", map[string]any{"cell": "lent", "shell": "env | grep TOKEN"}); !strings.Contains(got, "GITHUB_TOKEN=") || strings.Contains(got, "00007") {
			t.Errorf("a cell that was lent a credential has %s", got)
		}
		call("run", map[string]any{"shell": "test -n \"$GITHUB_TOKEN\"", "on_failure": "pending"})
	})
	t.Run("http", func(t *testing.T) {
		h := newHost(t)
		h.write("greeting", "hello\n")
		url := serving(t, h).URLs[0]
		h.pando("template", "build", "pyagent")
		agent(t, h, modules, "http", url+"/mcp", secret(t, h, "admin"))
		for scope, tools := range map[string]int{"read": 8, "run": 18} {
			if n := toolsOf(t, url, secret(t, h, scope)); n != tools {
				t.Errorf("a token of scope %s finds %d tools, not %d", scope, n, tools)
			}
		}
		// No tool has more rights than its caller.
		h.pando("run", "--cell", "kept", "--", "true")
		for tool, args := range map[string]map[string]any{"create": {"from": h.src}, "kill": {"cell": "kept"}} {
			var said struct {
				IsError bool
				Content []struct{ Text string }
			}
			asked(t, url, secret(t, h, "run"), "tools/call", tool, map[string]any{"name": tool, "arguments": args}, &said)
			if !said.IsError || !strings.Contains(said.Content[0].Text, "scope run") {
				t.Errorf("%s with a token of scope run: %+v", tool, said)
			}
		}
		// One caller can't read what was returned to another.
		var mine, theirs struct {
			IsError           bool
			StructuredContent struct{ Stdout struct{ Rest string } }
		}
		one, other := secret(t, h, "admin"), secret(t, h, "admin")
		asked(t, url, one, "tools/call", "exec", map[string]any{"name": "exec", "arguments": map[string]any{"cell": "kept", "shell": "seq 100000"}}, &mine)
		rest := map[string]any{"name": "read", "arguments": map[string]any{"uri": mine.StructuredContent.Stdout.Rest}}
		asked(t, url, other, "tools/call", "read", rest, &theirs)
		if asked(t, url, one, "tools/call", "read", rest, &mine); mine.IsError || !theirs.IsError {
			t.Errorf("the rest of an output is read by who was told of it: %v, and by another: %v", !mine.IsError, !theirs.IsError)
		}
		if resp, err := http.Post(url+"/mcp", "application/json", strings.NewReader("{}")); err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("without a token: %v, %v", resp, err)
		}
	})
}

// agentOver starts a server on standard input and output; what it returns calls its
// tools, which must succeed.
func agentOver(t *testing.T, c *exec.Cmd) func(tool string, args map[string]any) string {
	t.Helper()
	c.Stderr = os.Stderr
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return func(tool string, args map[string]any) string {
		t.Helper()
		r, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r.Content)
		if err != nil || r.IsError || strings.Contains(string(b), "exit code") {
			t.Fatalf("%s %v: %v %s", tool, args, err, b)
		}
		return string(b)
	}
}

// served is where pando serve answers.
type served struct {
	URLs        []string
	Token       string // the first
	Fingerprint string // of its own certificate

	pid int // of serve itself
}

// serving has pando serve answer at a port of this host until the test ends.
func serving(t *testing.T, h *host, flags ...string) (s served) {
	t.Helper()
	c := h.cmd(h.bin, append([]string{"serve", "--listen", "127.0.0.1:0", "--json"}, flags...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	})
	if err := json.NewDecoder(out).Decode(&s); err != nil || len(s.URLs) == 0 {
		t.Fatalf("pando serve says %v, %v", s, err)
	}
	s.pid = c.Process.Pid
	return s
}

// secret makes a token.
func secret(t *testing.T, h *host, scope string) string {
	t.Helper()
	var token struct{ Secret string }
	if err := json.Unmarshal([]byte(h.pando("token", "create", "--scope", scope, "--json")), &token); err != nil || token.Secret == "" {
		t.Fatalf("%v, %v", token, err)
	}
	return token.Secret
}

// toolsOf counts the tools that a token finds.
func toolsOf(t *testing.T, url, token string) int {
	t.Helper()
	var found struct{ Tools []any }
	asked(t, url, token, "tools/list", "", map[string]any{}, &found)
	return len(found.Tools)
}

// asked makes a request of the generation without sessions.
func asked(t *testing.T, url, token, method, tool string, params map[string]any, out any) {
	t.Helper()
	params["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": map[string]string{"name": "e2e", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{}}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("POST", url+"/mcp", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": tool} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, data, ok := strings.Cut(string(b), "data: "); ok {
		b = []byte(data)
	}
	var answer struct{ Result json.RawMessage }
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&answer); err != nil || answer.Result == nil {
		t.Fatalf("%s: %v: %s", method, err, b)
	}
	if err := json.Unmarshal(answer.Result, out); err != nil {
		t.Fatalf("%s: %v: %s", method, err, answer.Result)
	}
}

// agent runs the script of an agent in the source directory.
func agent(t *testing.T, h *host, modules string, args ...string) {
	t.Helper()
	script, err := filepath.Abs("mcp/agent.mjs")
	if err != nil {
		t.Fatal(err)
	}
	c := h.cmd("node", append(append([]string{script}, args...), h.src)...)
	c.Env = append(c.Env, "NODE_PATH="+modules)
	out, err := c.CombinedOutput()
	if err != nil || os.Getenv("E2E_SHOW") != "" {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Error(err)
	}
}
