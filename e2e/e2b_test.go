package e2e

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/need"
)

// e2bPage shows what TestE2B has seen.
const e2bPage = "../docs/howto/e2b.md"

// E2B's official packages run against a daemon. PANDO_UPDATE brings the page with
// the table of calls along.
func TestE2B(t *testing.T) {
	rootHasRunIt(t)
	node, npm := need.Program(t, "node"), need.Program(t, "npm")
	need.Python(t)
	page, err := os.ReadFile(e2bPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name     string
		packages []string
		env      []string
	}{
		{"newest", []string{"e2b@2.51.0", "@e2b/code-interpreter@2.8.0"}, []string{"INTERPRETER=1"}},
		{"2.20", []string{"e2b@2.20.0"}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
			packages := npmInstall(t, npm, x.packages...)
			h := newHost(t)
			script, err := filepath.Abs("e2b/matrix.mjs")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, node, script)
			c.Env = append(append(os.Environ(), serveE2B(t, h)...), append(x.env, "PACKAGES="+packages)...)
			var stderr bytes.Buffer
			c.Stderr = &stderr
			table, err := c.Output()
			if err != nil {
				t.Errorf("%v\n%s%s", err, table, stderr.Bytes())
			}
			begin, end := []byte("<!-- "+x.name+" -->\n"), []byte("<!-- end of "+x.name+" -->")
			before, rest, ok := bytes.Cut(page, begin)
			shown, after, ok2 := bytes.Cut(rest, end)
			switch {
			case !ok || !ok2:
				t.Errorf("%s has no place for the table of %s", e2bPage, x.name)
			case bytes.Equal(shown, table):
			case os.Getenv("PANDO_UPDATE") != "":
				page = bytes.Join([][]byte{before, begin, table, end, after}, nil)
				if err := os.WriteFile(e2bPage, page, 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s does not show what was seen; PANDO_UPDATE=1 go test ./e2e -run TestE2B\n%s", e2bPage, table)
			}
		})
	}
}

// npmInstall puts packages into a directory that stays from one test to the next.
func npmInstall(t *testing.T, npm string, packages ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	dir := filepath.Join(cache, "pando-test", strings.Map(func(r rune) rune {
		if r == '/' || r == '@' {
			return '_'
		}
		return r
	}, strings.Join(packages, "+")))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return dir
	}
	c := exec.CommandContext(t.Context(), npm, append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

var e2bExport = regexp.MustCompile(`^\s*export (E2B_[A-Z_]+)='?([^']+)'?$`)

// serveE2B starts a daemon as its user would, and returns the variables that it
// says are to be set.
func serveE2B(t *testing.T, h *host) (env []string) {
	t.Helper()
	c := exec.Command(h.bin, "serve", "--listen", "127.0.0.1:0", "--first-token", "run")
	c.Env, c.Dir, c.Stderr = h.env, h.src, os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
	})
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		if m := e2bExport.FindStringSubmatch(sc.Text()); m != nil {
			env = append(env, m[1]+"="+m[2])
		}
		if len(env) == 3 {
			go func() {
				for sc.Scan() {
				}
			}()
			return env
		}
	}
	t.Fatalf("the daemon says nothing of E2B: %s", env)
	return nil
}
