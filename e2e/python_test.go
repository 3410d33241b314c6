package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// The Python SDK's own tests, against a daemon that it starts.
func TestPython(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t)
	h := newHost(t)
	h.write("greeting", "hello\n")
	sdk, err := filepath.Abs("../sdk/python")
	if err != nil {
		t.Fatal(err)
	}
	h.env = append(h.env, "PYTHONPATH="+sdk, "PYTHONDONTWRITEBYTECODE=1", "PANDO_TEST_DIR="+h.src)
	h.pando("template", "build", "pyagent")
	h.pando("daemon", "stop")
	o := h.exec(h.cmd(python, "-c", `import pando; t = pando.template("pyagent"); print([c.eval("6*7") for c in t.fork(3)])`))
	if o.code != 0 || o.out != "[42, 42, 42]\n" {
		t.Errorf("the README's line ends with %d, and says %s%s", o.code, o.out, o.stderr)
	}
	documented(t, h, python, "../docs/howto/python.md")
	tests := []string{"-W", "error", "-m", "unittest", "discover", "-s", filepath.Join(sdk, "tests")}
	if o := h.exec(h.cmd(python, tests...)); o.code != 0 {
		t.Errorf("%s%s", o.out, o.stderr)
	}
	// From elsewhere.
	served := serving(t, h, "--tls", "--first-token", "admin")
	h.env = append(h.env, "PANDO_HOST="+served.URLs[0]+"#sha256="+served.Fingerprint, "PANDO_TOKEN="+served.Token)
	if o := h.exec(h.cmd(python, "-c", `import pando; t = pando.template("pyagent"); print([c.eval("6*7") for c in t.fork(3)])`)); o.code != 0 || o.out != "[42, 42, 42]\n" {
		t.Errorf("from elsewhere the README's line ends with %d, and says %s%s", o.code, o.out, o.stderr)
	}
	if os.Getenv("E2E_SOAK") != "" {
		if o := h.exec(h.cmd(python, append(tests, "-p", "test_[ad]*.py")...)); o.code != 0 { // all that ask a daemon
			t.Errorf("from elsewhere: %s%s", o.out, o.stderr)
		}
	}
	h.env = append(h.env, "PANDO_HOST="+served.URLs[0]+"#sha256="+strings.Repeat("0", 64))
	if o := h.exec(h.cmd(python, "-c", "import pando; pando.cells()")); o.code == 0 || !strings.Contains(o.stderr, "cannot trust the daemon") {
		t.Errorf("another certificate is trusted: %s%s", o.out, o.stderr)
	}
}

// documented runs the blocks of Python of a document, in a directory of its own, and
// compares what they print with what the document says they do: "# prints TEXT".
func documented(t *testing.T, h *host, python, name string) {
	t.Helper()
	doc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for part := range strings.SplitSeq("\n"+string(doc), "\n```python\n") {
		code, _, ok := strings.Cut(part, "\n```")
		if blocks++; blocks == 1 || !ok {
			continue
		}
		var want []string
		for line := range strings.SplitSeq(code, "\n") {
			if _, says, ok := strings.Cut(line, "# prints "); ok {
				want = append(want, says)
			}
		}
		o := h.exec(h.cmd(python, "-W", "error", "-c", code))
		if got := strings.Split(strings.TrimSuffix(o.out, "\n"), "\n"); o.code != 0 || !slices.Equal(got, want) {
			t.Errorf("%s, block %d ends with %d and prints\n%s\nnot\n%s\n%s", name, blocks-1, o.code, strings.Join(got, "\n"), strings.Join(want, "\n"), o.stderr)
		}
	}
	if blocks < 3 {
		t.Errorf("%s has no Python", name)
	}
}
