package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// TestX45TemplateBuilds: the steps of a template that E2B's package builds reach what
// the operator allows; a build that fails says why, with its output, and leaves
// nothing; working directory and tags are as E2B has them.
func TestX45TemplateBuilds(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Program(t, "curl")
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	t.Parallel()
	packages := npmInstall(t, npm, e2bNewest...)
	script, err := filepath.Abs("e2b/builds.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []bool{false, true} {
		h := newHost(t)
		u, err := startUpstream(h.work, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(u.Close)
		h.env = append(h.env, u.Env()...)
		var flags []string
		if allowed {
			flags = []string{"--build-allow", fmt.Sprintf("a.test:%d,127.0.0.1:%[1]d", u.Ports["http"])}
		}
		env := serveE2B(t, h, flags...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, node, script)
		c.Env = append(append(os.Environ(), env...), "PACKAGES="+packages, fmt.Sprintf("HTTP_PORT=%d", u.Ports["http"]))
		if allowed {
			c.Env = append(c.Env, "ALLOWED=1")
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("builds may go to a.test: %v: %v\n%s", allowed, err, out)
		}
	}
}
