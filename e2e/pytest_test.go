package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// shardsOf is the set-up of a template for forks that each run a share of a suite. Collecting
// once imports every module, and rewrites every assertion, before the first fork.
const shardsOf = `
import numpy, pytest

class Share:
    def __init__(self, k, n):
        self.k, self.n, self.outcomes = k, n, {}
    def pytest_collection_modifyitems(self, items):
        items[:] = items[self.k::self.n]
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = ("expected " if hasattr(report, "wasxfail") else "") + report.outcome

def share(k, n, *args):
    s = Share(k, n)
    pytest.main(["-q", "-p", "no:cacheprovider", "--disable-warnings", *args, "suite"], plugins=[s])
    return s.outcomes
`

// numpySuite copies tests of numpy, as Debian installs them, into the source.
func numpySuite(h *host, parts ...string) {
	h.t.Helper()
	dir, err := exec.Command("/usr/bin/python3", "-c", "import numpy, pytest; print(numpy.__path__[0])").Output()
	if err != nil {
		h.t.Skip("needs Debian's python3-numpy and python3-pytest")
	}
	for _, p := range parts {
		from := filepath.Join(strings.TrimSpace(string(dir)), p, "tests")
		if err := os.CopyFS(filepath.Join(h.src, "suite", "test_"+p), os.DirFS(from)); err != nil {
			h.t.Fatal(err)
		}
	}
	h.sh("find . -name __pycache__ -exec rm -r {} +")
	h.env = append(h.env, "PATH="+filepath.Dir(h.bin)+":/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1")
}

// A suite of a real project, run in sixteen forked cells, a share each, comes to
// what one serial run of it comes to.
func TestPytestInForks(t *testing.T) {
	t.Parallel()
	const shares = 16
	h := newHost(t)
	parts := []string{"polynomial", "fft", "matrixlib"}
	if os.Getenv("E2E_SOAK") != "" {
		parts = append(parts, "ma", "random")
	}
	numpySuite(h, parts...)
	h.write("warm.py", shardsOf)
	h.write("serial.py", "import json, sys\nexec(open('warm.py').read())\n"+
		"k, n = int(sys.argv[1]), int(sys.argv[2])\no = share(k, n)\njson.dump(o, open(sys.argv[3], 'w'))\n")

	began := time.Now()
	h.sh("python3 serial.py 0 1 ../serial.json > ../serial.log")
	serial := time.Since(began)
	want := map[string]string{}
	must(t, json.Unmarshal([]byte(h.readAt(filepath.Join(h.work, "serial.json"))), &want))
	if len(want) < 800 {
		t.Fatalf("the serial run has %d results:\n%s", len(want), h.readAt(filepath.Join(h.work, "serial.log")))
	}

	began = time.Now()
	h.writeAt(filepath.Join(h.work, "setup.py"), shardsOf+"\nshare(0, 1, '--collect-only', '-qq')\n")
	h.pando("template", "build", "suite", "--from", ".", "--setup", "@../setup.py", "--env", "PYTHONDONTWRITEBYTECODE=1")
	warming := time.Since(began)

	began = time.Now()
	res := decoded[api.WarmForkResult](h, "fork", "suite", "-n", strconv.Itoa(shares), "--name", "s", "--timeout", "10m",
		"--eval", "import pando; share(int(pando.cell.split('-')[1]) - 1, 16)")
	forked := time.Since(began)
	got := map[string]string{}
	for _, f := range res.Forks {
		var ev cell.Evaluated
		must(t, json.Unmarshal(f.Result, &ev))
		if !ev.OK || ev.Value == nil {
			t.Fatalf("%s: %s %+v\n%s", f.Cell.Name, ev.Cause, ev.Error, f.Stdout)
		}
		part := map[string]string{}
		must(t, json.Unmarshal(ev.Value.JSON, &part))
		for id := range part {
			if _, twice := got[id]; twice {
				t.Errorf("%s ran in two cells", id)
			}
		}
		maps.Copy(got, part)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results differ (-serial +forks):\n%s", diff)
	}

	t.Logf("%d tests: serial %.1f s; in %d forks %.1f s, after %.1f s of warming", len(want), serial.Seconds(), shares, forked.Seconds(), warming.Seconds())
	if os.Getenv("E2E_SOAK") != "" { // the same shares one after the other, each in a new process
		began = time.Now()
		for k := range shares {
			h.sh(fmt.Sprintf("python3 serial.py %d %d ../part.json >/dev/null", k, shares))
		}
		t.Logf("%d shares, each in a cold process, one after the other: %.1f s", shares, time.Since(began).Seconds())
	}
	h.pando("template", "rm", "suite", "--cascade")
	if found := leftOn(h.work); len(found) > 0 {
		t.Errorf("left over: %s", strings.Join(found, "; "))
	}
}
