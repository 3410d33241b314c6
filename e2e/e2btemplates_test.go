package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/need"
)

// TestE2BTemplates: E2B's package builds templates of copied files; a step's output is
// told while it runs.
func TestE2BTemplates(t *testing.T) {
	rootHasRunIt(t)
	node, npm := need.Program(t, "node"), need.Program(t, "npm")
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	t.Parallel()
	runTemplates(t, node, npmInstall(t, npm, e2bNewest...), newHost(t), "e2b/templates.mjs", nil)
}

// runTemplates runs a program that builds templates against a daemon of its own.
func runTemplates(t *testing.T, node, packages string, h *host, script string, env []string, flags ...string) {
	t.Helper()
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, node, script)
	c.Env = append(append(append(os.Environ(), serveE2B(t, h, flags...)...), "PACKAGES="+packages), env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}
