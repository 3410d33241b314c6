package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// host is an installation of its own with a source directory, for tests that are too long or too
// complex for a script.
type host struct {
	t    *testing.T
	bin  string
	work string // everything of this test is below it
	src  string // a source directory
	env  []string
}

func newHost(t *testing.T) *host {
	t.Helper()
	return newHostOf(t, built)
}

func newHostOf(t *testing.T, bin string) *host {
	t.Helper()
	root := os.Getenv("E2E_DIR")
	work, err := os.MkdirTemp(root, "pando-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, bin: bin, work: work, src: filepath.Join(work, "src")}
	t.Cleanup(func() {
		stopAll(bin, work)
		if t.Failed() {
			if b, err := os.ReadFile(h.state("daemon.log")); err == nil {
				t.Logf("the daemon's log:\n%s", b)
			}
		}
		forceRemove(work)
	})
	for _, d := range []string{h.src, filepath.Join(work, "home")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.env = []string{
		"HOME=" + filepath.Join(work, "home"), "PANDO_HOME=" + filepath.Join(work, ".pando"), "PANDO_IDLE=10m", "NO_COLOR=1",
		"PATH=" + filepath.Dir(bin) + ":" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
	}
	for _, k := range passed {
		if v := os.Getenv(k); v != "" {
			h.env = append(h.env, k+"="+v)
		}
	}
	if v := os.Getenv("E2E_BACKEND"); v != "" { // of the soak: the same tests on another backend
		h.env = append(h.env, "PANDO_BACKEND="+v)
	}
	return h
}

// forceRemove removes a tree in which a cell may have made directories
// read-only.
func forceRemove(dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

func (h *host) state(parts ...string) string {
	return filepath.Join(append([]string{h.work, ".pando", "state"}, parts...)...)
}

type outcome struct {
	code        int
	out, stderr string
}

// cmd makes a command in the source directory.
func (h *host) cmd(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir, c.Env = h.src, h.env
	return c
}

func (h *host) exec(c *exec.Cmd) outcome {
	h.t.Helper()
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%v: %v", c.Args, err)
	}
	return outcome{c.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// try runs pando.
func (h *host) try(args ...string) outcome {
	h.t.Helper()
	return h.exec(h.cmd(h.bin, args...))
}

// pando runs pando, which must succeed, and returns its stdout.
func (h *host) pando(args ...string) string {
	h.t.Helper()
	o := h.try(args...)
	if o.code != 0 {
		h.t.Fatalf("pando %s: exit code %d\n%s%s", strings.Join(args, " "), o.code, o.out, o.stderr)
	}
	return o.out
}

// exits runs pando and compares the exit code.
func (h *host) exits(code int, args ...string) outcome {
	h.t.Helper()
	o := h.try(args...)
	if o.code != code {
		h.t.Fatalf("pando %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), o.code, code, o.out, o.stderr)
	}
	return o
}

// sh runs a shell script on the host, in the source directory.
func (h *host) sh(script string) string {
	h.t.Helper()
	o := h.exec(h.cmd("sh", "-ec", script))
	if o.code != 0 {
		h.t.Fatalf("%s: exit code %d\n%s%s", script, o.code, o.out, o.stderr)
	}
	return o.out
}

func decoded[T any](h *host, args ...string) (v T) {
	h.t.Helper()
	out := h.pando(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		h.t.Fatalf("pando %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return v
}

func (h *host) run(sel string) api.Run   { h.t.Helper(); return decoded[api.Run](h, "show", sel) }
func (h *host) runs() []api.Run          { h.t.Helper(); return decoded[[]api.Run](h, "runs") }
func (h *host) cells() []api.Cell        { h.t.Helper(); return decoded[[]api.Cell](h, "ls") }
func (h *host) cell(sel string) api.Cell { h.t.Helper(); return decoded[api.Cell](h, "show", sel) }
func (h *host) verify() api.Verification { h.t.Helper(); return h.verifySel("--all") }
func (h *host) write(name, text string)  { h.t.Helper(); h.writeAt(filepath.Join(h.src, name), text) }
func (h *host) read(name string) string  { h.t.Helper(); return h.readAt(filepath.Join(h.src, name)) }
func (h *host) inCell(c, sh string) string {
	h.t.Helper()
	return h.pando("exec", c, "--", "sh", "-c", sh)
}
func (h *host) must(err error) { h.t.Helper(); must(h.t, err) }
func (h *host) socket() string { return filepath.Join(h.work, ".pando/run/pando.sock") }
func (h *host) verifySel(sel string) (v api.Verification) {
	h.t.Helper()
	o := h.try("receipt", "verify", sel, "--json")
	if err := json.Unmarshal([]byte(o.out), &v); err != nil {
		h.t.Fatalf("receipt verify: %v\n%s%s", err, o.out, o.stderr)
	}
	if (o.code == 0) != v.OK {
		h.t.Fatalf("receipt verify: exit code %d, but ok is %v", o.code, v.OK)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *host) writeAt(path, text string) {
	h.t.Helper()
	h.must(os.MkdirAll(filepath.Dir(path), 0o755))
	h.must(os.WriteFile(path, []byte(text), 0o644))
}

func (h *host) readAt(path string) string {
	h.t.Helper()
	b, err := os.ReadFile(path)
	h.must(err)
	return string(b)
}

// request sends one request as it is and returns status and body.
func (h *host) request(method, path, body string) (int, string) {
	h.t.Helper()
	req, err := http.NewRequest(method, "http://pando/", strings.NewReader(body))
	h.must(err)
	p, query, _ := strings.Cut(path, "?")
	req.URL = &url.URL{Scheme: "http", Host: "pando", Opaque: "//pando" + p, RawQuery: query}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := socketClient(h.socket()).Do(req)
	h.must(err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	h.must(err)
	return resp.StatusCode, b.String()
}

// killKeeper ends the keeper of a cell, which must have one.
func (h *host) killKeeper(id string) {
	h.t.Helper()
	p := keeperOf(h.work, id)
	if p == 0 {
		h.t.Fatalf("cell %s has no keeper", id)
	}
	kill(p)
}

// killDaemon ends the daemon as a crash would.
func (h *host) killDaemon() {
	h.t.Helper()
	for _, p := range ours(h.work) {
		if processName(p) == "pando-daemon" {
			kill(p)
			return
		}
	}
	h.t.Fatal("no daemon to kill")
}

// leftovers lists what of the installation is left on the host.
func (h *host) leftovers() (found []string) {
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(50 * time.Millisecond) {
		if found = leftOn(h.work); len(found) == 0 || time.Now().After(end) {
			return found
		}
	}
}
