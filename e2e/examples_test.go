package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/testenv"
)

// Every example does what its page says.
func TestExamples(t *testing.T) {
	rootHasRunIt(t)
	python := testenv.Python(t)
	for name, try := range map[string]func(*testing.T, *host, string){
		"interpreter": exampleInterpreter, "shards": exampleShards, "best-of-three": exampleBestOfThree, "react": exampleReact, "postgres": examplePostgres,
		"python-tour": examplePythonTour, "rest-node": exampleRESTNode,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if err := os.CopyFS(h.src, os.DirFS(filepath.Join("..", "examples", name))); err != nil {
				t.Fatal(err)
			}
			sdk, err := filepath.Abs("../sdk/python")
			if err != nil {
				t.Fatal(err)
			}
			// With Debian's pytest, which cells see.
			h.env = append(h.env, "PATH="+filepath.Dir(h.bin)+":/usr/bin:/bin", "PYTHONPATH="+sdk, "PYTHONDONTWRITEBYTECODE=1")
			try(t, h, python)
			var cells []any
			if err := json.Unmarshal([]byte(h.pando("ls", "--json")), &cells); err != nil || len(cells) > 0 {
				t.Errorf("cells are left: %v, %v", cells, err)
			}
		})
	}
}

// prints runs an example, and compares what it prints with a pattern.
func prints(t *testing.T, h *host, pattern string, args ...string) {
	t.Helper()
	o := h.exec(h.cmd(args[0], args[1:]...))
	if o.code != 0 || !regexp.MustCompile(`\A`+pattern+`\z`).MatchString(o.out) {
		t.Errorf("%s ends with %d:\n%s%s", strings.Join(args, " "), o.code, o.out, o.stderr)
	}
}

func exampleShards(t *testing.T, h *host, python string) {
	if h.exec(h.cmd(python, "-c", "import pytest")).code != 0 {
		t.Skip("needs Debian's python3-pytest")
	}
	h.sh("sed -i 's/settle=0.05/settle=0.02/' ledger/tests/test_ledger.py")
	prints(t, h, `20 of 20 passed, in 8 forks: [0-9.]+ s; in a row: [0-9.]+ s: [0-9.]+ times as fast\n`, python, "shards.py", "ledger", "8")
	h.sh("sed -i 's/settle=0.02/settle=0/' ledger/tests/test_ledger.py; sed -i 's/self.accounts\\[to\\] += amount/pass/' ledger/ledger.py")
	if o := h.exec(h.cmd(python, "shards.py", "ledger", "3")); o.code != 1 || !strings.Contains(o.out, "8 of 20 passed") || !strings.Contains(o.out, "assert (27, 0) == (27, 73)") {
		t.Errorf("of a ledger that loses money, it ends with %d:\n%s%s", o.code, o.out, o.stderr)
	}
}

func exampleBestOfThree(t *testing.T, h *host, python string) {
	prints(t, h, `idea          tests     lines  20,000 primes  verdict\n`+
		`sieve         pass      \+6 -1  +[0-9.]+ ms  pending\n`+
		`square root   pass      \+1 -1  +[0-9.]+ ms  pending\n`+
		`odd numbers   fail      \+1 -1                 restored\n`+
		`sieve is in project now; the receipts of all three are verified\n`, python, "race.py", "project")
	if got := h.read("project/primes.py"); !strings.Contains(got, "bytearray") {
		t.Errorf("the winner is not in the project:\n%s", got)
	}
}

// printsExpected runs an example, and compares what it prints with its file expected.
func printsExpected(t *testing.T, h *host, env []string, args ...string) {
	t.Helper()
	c := h.cmd(args[0], args[1:]...)
	c.Env = append(c.Env, env...)
	o := h.exec(c)
	if diff := cmp.Diff(h.read("expected"), o.out); o.code != 0 || diff != "" {
		t.Errorf("%s ends with %d (-expected +printed):\n%s\n%s", strings.Join(args, " "), o.code, diff, o.stderr)
	}
}

func examplePythonTour(t *testing.T, h *host, python string) {
	printsExpected(t, h, nil, python, "-W", "error", "tour.py")
}

func exampleRESTNode(t *testing.T, h *host, _ string) {
	node := testenv.Program(t, "node")
	s := serving(t, h, "--first-token", "admin")
	printsExpected(t, h, []string{"PANDO_HOST=" + s.URLs[0], "PANDO_TOKEN=" + s.Token}, node, "tour.mjs")
}

func exampleReact(t *testing.T, h *host, python string) {
	prints(t, h, `thought: I load what was measured.\n(?s:.*)    thinker-b2 goes on\n(?s:.*)    thinker-b2: coefficients.*\n        \(3.0, 1.5\)\nanswer: y = 3.0 x\^1.5\n`, python, "agent.py")
}

func examplePostgres(t *testing.T, h *host, python string) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) == 0 {
		t.Skip("needs PostgreSQL")
	}
	prints(t, h, `(?s).*6 passed.*`, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
}

func exampleInterpreter(t *testing.T, h *host, python string) {
	c := h.cmd(python, "service.py")
	c.Env = append(c.Env, "PORT=0")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	at, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	at = strings.TrimSpace(at)

	type answer struct {
		Context string
		OK      bool
		Results []map[string]string
		Stdout  string
		Error   any
	}
	ask := func(status int, method, url, code string) (a answer) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"code": code, "timeout": 0.5})
		must(t, err)
		req, err := http.NewRequest(method, url, bytes.NewReader(body))
		must(t, err)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		if resp.StatusCode != status {
			t.Fatalf("%s %s: %d %s", method, url, resp.StatusCode, b)
		}
		if a.Error = nil; status == http.StatusOK {
			must(t, json.Unmarshal(b, &a))
		}
		return a
	}
	a := at + "/" + ask(200, "POST", at, "").Context
	ask(200, "POST", a+"/run", "squares = Table([(n, n*n) for n in range(3)])")
	r := ask(200, "POST", a+"/run", "print(len(squares)); squares")
	if r.Stdout != "3\n" || len(r.Results) != 1 || !strings.HasPrefix(r.Results[0]["text/html"], "<table><tr><td>0</td>") || r.Results[0]["text/plain"] != "[(0, 0), (1, 1), (2, 4)]" {
		t.Errorf("a table is answered with %+v", r)
	}
	b := at + "/" + ask(200, "POST", a+"/branch", "").Context
	ask(200, "POST", b+"/run", "squares.append((3, 9))")
	other := at + "/" + ask(200, "POST", at, "").Context
	for url, want := range map[string]string{a: "3", b: "4", other: ""} {
		switch r := ask(200, "POST", url+"/run", "len(squares)"); {
		case want == "" && r.OK, want != "" && (len(r.Results) != 1 || r.Results[0]["text/plain"] != want):
			t.Errorf("a context that should see %q sees %+v", want, r)
		}
	}
	if r := ask(200, "POST", a+"/run", "while True: pass"); r.OK || r.Error == nil {
		t.Errorf("what never ends is answered with %+v", r)
	}
	if r := ask(200, "POST", a+"/run", "len(squares)"); !r.OK {
		t.Errorf("after a time-out: %+v", r)
	}
	ask(404, "POST", at+"/nobody/run", "1")
	ask(404, "POST", at+"/../v1/cells", "1")
	ask(200, "DELETE", a, "")
	ask(404, "POST", a+"/run", "1")
	c.Process.Signal(os.Interrupt)
	must(t, c.Wait())
}
