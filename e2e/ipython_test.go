package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// ipythonHost is a host with the distribution's python3, IPython, pandas and matplotlib.
func ipythonHost(t *testing.T) *host {
	t.Helper()
	for _, m := range []string{"IPython", "pandas", "matplotlib"} {
		if exec.Command("/usr/bin/python3", "-c", "import "+m).Run() != nil {
			t.Skip("needs Debian's python3-ipython, python3-pandas and python3-matplotlib")
		}
	}
	h := newHost(t)
	for i, e := range h.env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			h.env[i] = "PATH=/usr/bin:" + path
		}
	}
	return h
}

// frameAndChart has a data frame as its value, and shows a chart.
const frameAndChart = `%matplotlib inline
import pandas as pd, matplotlib.pyplot as plt
!echo by the shell
plt.plot([1, 2], [3, 4]); plt.title("T")
pd.DataFrame({"a": [1, 2], "b": ["x", None]})`

// X46: IPython's words and rich results go through every door.
func TestIPythonThroughDoors(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	h := ipythonHost(t)
	c, _, _ := caller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	// REST.
	_, err := c.Create(ctx, api.CreateRequest{Name: "web"})
	must(t, err)
	var out bytes.Buffer
	res, err := c.Eval(ctx, "web", api.EvalRequest{Code: frameAndChart}, client.Listener{Stdout: func(b []byte) { out.Write(b) }})
	must(t, err)
	var ev cell.Evaluated
	must(t, json.Unmarshal(res.Result, &ev))
	if !ev.OK || ev.Value == nil || ev.Value.MIME["e2b/data"] != `{"a":[1,2],"b":["x",null]}` || !strings.Contains(ev.Value.MIME["text/html"], "<table") || out.String() != "by the shell\n" {
		t.Errorf("%q, %.500s", out.String(), res.Result)
	}
	if len(ev.Display) != 1 || !strings.HasPrefix(ev.Display[0]["image/png"], "iVBORw0KGgo") || !strings.Contains(ev.Display[0]["e2b/chart"], `"title":"T"`) {
		t.Errorf("%d were shown: %.500s", len(ev.Display), res.Result)
	}

	// The command line.
	h.pando("eval", "web", "--save", "saved", "display(_)")
	for name, want := range map[string]string{"2-1.html": "<table", "2-1.data.json": `"a"`} {
		if b, err := os.ReadFile(filepath.Join(h.src, "saved", name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v %.100s", name, err, b)
		}
	}
	if o := h.try("eval", "web", "%nosuch"); o.code != 1 || o.stderr != "UsageError: Line magic function `%nosuch` not found.\n" {
		t.Errorf("%d: %s", o.code, o.stderr)
	}

	// MCP.
	call := agentOver(t, h.cmd(h.bin, "mcp"))
	got := call("eval", map[string]any{"cell": "web", "code": frameAndChart})
	if !strings.Contains(got, `"type":"image","mimeType":"image/png","data":"iVBORw0KGgo`) && !strings.Contains(got, `"data":"iVBORw0KGgo`) || !strings.Contains(got, "by the shell") {
		t.Errorf("MCP: %.1000s", got)
	}

	// Forks of a template have the shell that it has begun, and the cell of a branch, too.
	_, err = c.BuildTemplate(ctx, api.TemplateRequest{Name: "notebook", Setup: "get_ipython(); x = 20"}, client.Listener{})
	must(t, err)
	o := h.pando("fork", "notebook", "-n", "3", "--name", "n", "--eval", "%time y = x\n!echo forked\nx + 1")
	if strings.Count(o, " 21\n") != 3 {
		t.Errorf("forks say %s", o)
	}
	h.pando("fork", "notebook", "--name", "strict", "--certify", "strict") // it has nothing that forks would draw from alike
	h.pando("branch", "n-1", "--name", "b")
	if o := h.pando("eval", "b", "z = !echo $PANDO_CELL\n[z, Out[1]]"); !strings.Contains(o, "[['b'], 21]") {
		t.Errorf("a branch says %s", o)
	}
}

// X46: E2B's packages have IPython's words, data frames and charts.
func TestE2BWithIPython(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	h := ipythonHost(t)
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	packages := npmInstall(t, npm, e2bNewest...)
	script, err := filepath.Abs("e2b/ipython.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, node, script)
	c.Env = append(append(os.Environ(), serveE2B(t, h)...), "PACKAGES="+packages)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}
