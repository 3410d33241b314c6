//go:build linux

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// When its daemon is killed, pando serve starts another at once, at the same address: requests
// meanwhile wait, and a session of MCP's continues.
func TestX58KilledDaemonIsReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := serving(t, h)
	h.pando("run", "--cell", "web", "--", "true")
	token := secret(t, h, "run")
	session := ""
	call := func(method string, params any) string {
		t.Helper()
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.URLs[0]+"/mcp", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true // a connection of the daemon before is none of the next
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", method, resp.Status, b, err)
		}
		if session == "" {
			session = resp.Header.Get("Mcp-Session-Id")
		}
		return string(b)
	}
	call("initialize", map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]string{"name": "e2e", "version": "1"}})
	if session == "" {
		t.Fatal("there is no session")
	}
	exec := map[string]any{"name": "exec", "arguments": map[string]any{"cell": "web", "shell": "echo it goes on $((40+2))"}}
	for range 2 {
		if out := call("tools/call", exec); !strings.Contains(out, "it goes on 42") {
			t.Fatalf("exec answers %s", out)
		}
		before := decodedJSON[api.Daemon](t, h.pando("daemon", "status", "--json"))
		if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, func() bool { return syscall.Kill(before.PID, 0) != nil }, "the end of the killed daemon")
		if out := call("tools/call", exec); !strings.Contains(out, "it goes on 42") {
			t.Errorf("after the kill exec answers %s", out)
		}
		if after := decodedJSON[api.Daemon](t, h.pando("daemon", "status", "--json")); after.PID == before.PID || len(after.Listen) != 1 || after.Listen[0] != before.Listen[0] {
			t.Errorf("after %+v comes %+v", before, after)
		}
	}
}
