package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// e2bClients are the frameworks and tools that are tried with the E2B API, by the
// part of e2e/e2b that tries them. The first packages of each name its table.
var e2bClients = map[string][]string{
	"mastra":     {"@mastra/e2b@0.8.0", "@mastra/core@1.71.0", "zod@4.6.7", "e2b@2.51.0"},
	"computesdk": {"@computesdk/e2b@1.7.52", "computesdk@4.1.4", "e2b@2.51.0"},
	"cli":        {"@e2b/cli@2.19.0"},
	"ai":         {"ai@7.0.173", "zod@4.6.7", "@e2b/code-interpreter@2.8.0", "e2b@2.51.0"},
}

// TestE2BClients: packages that are built on E2B run as they come from npm, in the
// versions that docs/howto/e2b.md shows and in the newest. PANDO_UPDATE brings the
// tables of the page along.
func TestE2BClients(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Python(t)
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	var page sync.Mutex // held while the page is read and written
	for name, pinned := range e2bClients {
		for _, newest := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/newest"}[newest], func(t *testing.T) {
				packages := pinned
				if newest {
					packages = newestOf(t, npm, pinned)
				}
				table, err := runE2BClient(t, node, name, npmInstall(t, npm, packages...))
				if err != nil {
					t.Fatalf("%s: %v\n%s", strings.Join(packages, " "), err, table)
				}
				if newest {
					return
				}
				page.Lock()
				defer page.Unlock()
				showsE2B(t, name, table)
			})
		}
	}
}

// runE2BClient runs the calls of a client against a daemon of its own.
func runE2BClient(t *testing.T, node, name, packages string) ([]byte, error) {
	script, err := filepath.Abs("e2b/clients.mjs")
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, node, script)
	c.Env = append(append(os.Environ(), serveE2B(t, h)...), "PACKAGES="+packages, "CLIENT="+name)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	table, err := c.Output()
	if err != nil {
		return append(table, stderr.Bytes()...), err
	}
	return table, nil
}

// newestOf are the packages in the versions that npm has now.
func newestOf(t *testing.T, npm string, packages []string) (newest []string) {
	for _, p := range packages {
		name := p[:strings.LastIndex(p, "@")]
		out, err := exec.CommandContext(t.Context(), npm, "view", name, "version").Output()
		if err != nil {
			t.Fatalf("npm view %s version: %v", name, err)
		}
		newest = append(newest, name+"@"+strings.TrimSpace(string(out)))
	}
	return newest
}

// TestE2BOldInterpreter: versions of @e2b/code-interpreter that know sandboxes by names
// alone work without a resolver that knows these, as docs/howto/e2b.md shows.
func TestE2BOldInterpreter(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Python(t)
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	t.Parallel()
	page, err := os.ReadFile(e2bPage)
	if err != nil {
		t.Fatal(err)
	}
	preload, err := filepath.Abs("e2b/old.cjs")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile(preload)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, append([]byte("```js\n"), shown...)) {
		t.Errorf("%s does not show %s", e2bPage, preload)
	}
	for version, contexts := range map[string]string{"2.0.0": "", "2.6.1": "1"} {
		runE2BProgram(t, node, npmInstall(t, npm, "@e2b/code-interpreter@"+version, "e2b@2.51.0"), newHost(t), "e2b/old.mjs",
			[]string{"NODE_OPTIONS=--require=" + preload, "CONTEXTS=" + contexts})
	}
}
