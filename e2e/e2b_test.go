package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// e2bPage shows the results of TestE2B.
const e2bPage = "../docs/howto/e2b.md"

// e2bNewest are E2B's packages as they are now.
var e2bNewest = []string{"e2b@2.51.0", "@e2b/code-interpreter@2.8.0"}

// E2B's official packages run against a daemon. PANDO_UPDATE updates the page with the tables of
// calls. An ordinary user makes the most important calls only, and so do all users on gVisor,
// except in the soak.
func TestE2B(t *testing.T) {
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Python(t)
	var page sync.Mutex // held while the page is read and written
	soak := os.Getenv("E2E_SOAK") != ""
	for _, x := range []struct {
		name     string
		packages []string
		script   []string // its environment
		daemon   []string
		short    bool
	}{
		{"newest", e2bNewest, []string{"INTERPRETER=1"}, nil, os.Getuid() != 0 && !soak},
		{"2.20", []string{"e2b@2.20.0"}, nil, nil, false},
		{"gvisor", e2bNewest, []string{"INTERPRETER=1", "GVISOR=1"}, []string{"PANDO_BACKEND=gvisor"}, !soak},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.name == "2.20" {
				rootHasRunIt(t)
			}
			if x.name == "gvisor" && !hasGvisor() {
				t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
			}
			reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
			t.Parallel()
			packages := npmInstall(t, npm, x.packages...)
			h := newHost(t)
			h.env = append(h.env, x.daemon...)
			script, err := filepath.Abs("e2b/matrix.mjs")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, node, script)
			c.Env = append(append(os.Environ(), serveE2B(t, h)...), append(x.script, "PACKAGES="+packages)...)
			if x.short {
				c.Env = append(c.Env, "SHORT=1")
			}
			var stderr bytes.Buffer
			c.Stderr = &stderr
			table, err := c.Output()
			if err != nil {
				t.Errorf("%v\n%s%s", err, table, stderr.Bytes())
			}
			if x.short != (x.name == "gvisor") { // not what the page shows
				return
			}
			page.Lock()
			defer page.Unlock()
			showsE2B(t, x.name, table)
		})
	}
}

// showsE2B checks that the page has a table with these results.
func showsE2B(t *testing.T, name string, table []byte) {
	t.Helper()
	page, err := os.ReadFile(e2bPage)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := []byte("<!-- "+name+" -->\n"), []byte("<!-- end of "+name+" -->")
	before, rest, ok := bytes.Cut(page, begin)
	shown, after, ok2 := bytes.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Errorf("%s has no place for the table of %s", e2bPage, name)
	case bytes.Equal(shown, table):
	case os.Getenv("PANDO_UPDATE") != "":
		if err := os.WriteFile(e2bPage, bytes.Join([][]byte{before, begin, table, end, after}, nil), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not show what was seen; PANDO_UPDATE=1 go test ./e2e -run TestE2B\n%s", e2bPage, table)
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

// serveE2B starts a daemon as a user would, and returns the variables that it prints.
func serveE2B(t *testing.T, h *host, flags ...string) (env []string) {
	t.Helper()
	c := exec.Command(h.bin, append([]string{"serve", "--listen", "127.0.0.1:0", "--first-token", "run"}, flags...)...)
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

// A sandbox keeps its state when the daemon is killed while clients read from it.
func TestE2BOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Python(t)
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	h := newHost(t)
	env := serveE2B(t, h)
	script, err := filepath.Abs("e2b/restart.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, node, script)
	c.Env = append(append(os.Environ(), env...), "PACKAGES="+npmInstall(t, npm, e2bNewest...))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	if !sc.Scan() || sc.Text() != "now" {
		c.Wait()
		t.Fatalf("%q\n%s", sc.Text(), stderr.Bytes())
	}
	h.killDaemon() // pando serve starts the next
	fmt.Fprintln(in, "go on")
	sc.Scan()
	if err := c.Wait(); err != nil || sc.Text() != "done" {
		t.Errorf("%v: %q\n%s", err, sc.Text(), stderr.Bytes())
	}
}

// After concurrent actions on a sandbox it is usable, with everything that was written; and
// nothing hangs.
func TestE2BRaces(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	packages := npmInstall(t, npm, e2bNewest...)
	rounds := "10"
	if os.Getenv("E2E_SOAK") != "" {
		rounds = "200"
	}
	for _, backend := range []string{"namespace", "gvisor"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "gvisor" && !hasGvisor() {
				t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
			}
			t.Parallel()
			h := newHost(t)
			h.env = append(h.env, "PANDO_BACKEND="+backend)
			script, err := filepath.Abs("e2b/races.mjs")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, node, script)
			c.Env = append(append(os.Environ(), serveE2B(t, h)...), "PACKAGES="+packages, "ROUNDS="+rounds)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
