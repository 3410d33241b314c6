package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// The official TypeScript SDK of the Model Context Protocol.
const mcpClient = "@modelcontextprotocol/sdk@1.32.2"

// An agent with the official TypeScript client makes cells and works in them.
func TestMCP(t *testing.T) {
	modules := nodePackages(t, mcpClient)
	h := newHost(t)
	h.write("greeting", "hello\n")
	agent(t, h, modules, "stdio", h.bin)
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
