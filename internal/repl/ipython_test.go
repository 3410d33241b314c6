package repl

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// startWith starts Python, which must have these modules.
func startWith(t *testing.T, modules ...string) *python {
	t.Helper()
	program := testenv.Python(t)
	for _, m := range modules {
		if exec.Command(program, "-c", "import "+m).Run() != nil {
			t.Skip("needs " + m)
		}
	}
	return startPython(t, "HOME="+t.TempDir(), "MPLBACKEND=Agg", "OPENBLAS_NUM_THREADS=1")
}

// pythonLater are the parts of the Python end that are loaded when they are needed.
func pythonLater(t *testing.T) (parts [][]byte) {
	t.Helper()
	names, err := fs.Glob(pythonFiles, "python/later/*.py")
	if err != nil || len(names) < 3 {
		t.Fatalf("there are %q: %v", names, err)
	}
	for _, n := range names {
		b, err := pythonFiles.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, b)
	}
	return parts
}

// IPython's shell begins with the first code that needs it, with nothing beside the
// process's memory: no thread, no process, no file.
func TestIPython(t *testing.T) {
	p := startWith(t, "IPython")
	p.run("import sys, os")
	p.value("6 * 7")
	if v := p.value(`"IPy" + "thon" in sys.modules, _`); v.Repr != "(False, 42)" {
		t.Errorf("before it is needed: %s", v.Repr)
	}
	p.run("!echo out; echo err >&2; exit 3")
	if out, errs := p.out.until(t, "\n"), p.err.until(t, "\n"); out != "out\n" || errs != "err\n" {
		t.Errorf("!echo wrote %q and %q", out, errs)
	}
	for _, x := range []struct{ code, want string }{
		{"_exit_code, _", "(3, (False, 42))"},
		{"x = !printf 'a\\nb {6 * 7}'\nlist(x)", "['a', 'b 42']"},
		{"[_, __, ___][0], len(Out[6]), In[5][:6]", "(['a', 'b 42'], 2, '_exit_')"},
		{"%cd -q /\nos.getcwd()", "'/'"},
		{"get_ipython().user_ns is globals()", "True"},
		{"import asyncio\nawait asyncio.sleep(0.001, 5)", "5"},
		{"def f(): return 7\nf()", "7"},
		{"import pickle\nclass C: pass\npickle.loads(pickle.dumps(C())).__class__ is C", "True"},
		{"%%capture said\n!echo captured", ""},
		{"said.stdout", `'captured\n'`},
		{"%%bash\necho by bash\n", ""},
		{"from __future__ import annotations\n8;", ""},
		{"def g(a: nowhere): pass\ng.__annotations__", "{'a': 'nowhere'}"},
	} {
		ev := p.eval(x.code)
		got := ""
		if ev.Value != nil {
			got = ev.Value.Repr
		}
		if !ev.OK || got != x.want {
			t.Errorf("%s is %s, want %s", x.code, show(ev), x.want)
		}
	}
	p.out.until(t, "by bash\n")
	if v := p.value("x"); string(v.JSON) != `["a","b 42"]` {
		t.Errorf("what !printf gave is %s", show(v))
	}

	for _, x := range []struct{ code, typ, message, traceback string }{
		{"def f(y):\n    return 1/y\nf(0)", "ZeroDivisionError", "division by zero", "Traceback (most recent call last):\n  File \"<eval 19>\", line 3, in <module>\n    f(0)\n  File \"<eval 19>\", line 2, in f\n    return 1/y\n"},
		{"x +", "SyntaxError", "invalid syntax (<eval 20>, line 1)", "  File \"<eval 20>\", line 1\n"},
		{"%nosuch", "IPython.core.error.UsageError", "Line magic function `%nosuch` not found.", "UsageError: Line magic function"},
		{"import sys; sys.exit(3)", "SystemExit", "3", "Traceback"},
		{"return 1", "SyntaxError", "'return' outside function (<eval 23>, line 1)", "  File \"<eval 23>\", line 1\n"},
	} {
		ev := p.eval(x.code)
		if ev.OK || ev.Error == nil || ev.Error.Type != x.typ || ev.Error.Message != x.message || !strings.HasPrefix(ev.Error.Traceback, x.traceback) {
			t.Errorf("%s: %s", x.code, show(ev))
		}
	}
	// What is not the evaluation's own error is on stderr, and only that is.
	p.run("open('/tmp/../" + p.cmd.Dir + "/bad.py', 'w').write('1/0') and None\n%run " + p.cmd.Dir + "/bad.py")
	if errs := p.err.until(t, "ZeroDivisionError"); strings.Count(errs, "Traceback") != 1 {
		t.Errorf("stderr has %q", errs)
	}

	ev := p.eval(`from IPython.display import HTML, display as show, update_display, clear_output
show(1)
clear_output()
h = show(HTML("<b>x</b>"), display_id="x")
display(2)
update_display(HTML("<i>y</i>"), display_id="x")
get_ipython().display_formatter.formatters["text/markdown"].for_type(complex, lambda c, *a: "**c**")
1j`)
	html := "<IPython.core.display.HTML object>"
	want := cell.Evaluated{OK: true, N: ev.N, TookMS: ev.TookMS, Display: []cell.Bundle{{"text/plain": html, "text/html": "<i>y</i>"}, {"text/plain": "2"}},
		Value: &cell.Value{Type: "complex", Repr: "1j", MIME: cell.Bundle{"text/markdown": "**c**"}}}
	if diff := cmp.Diff(want, ev); diff != "" {
		t.Error(diff)
	}
	if ev := p.eval("int?"); len(ev.Display) != 1 || !strings.Contains(ev.Display[0]["text/plain"], "Docstring") {
		t.Errorf("int?: %s", show(ev))
	}

	if v := p.value("[m for m in ('jedi', '_sqlite3') if m in sys.modules], __import__('sqlite3').__name__"); v.Repr != "([], 'sqlite3')" {
		t.Errorf("what it can do without: %s", v.Repr)
	}
	o, err := p.Check(p.ctx)
	if err != nil || o.Any() {
		t.Errorf("it can't be forked any more: %v %+v", err, o)
	}
	v := p.value("os.path.expanduser('~')")
	if list, err := os.ReadDir(strings.Trim(v.Repr, "'")); err != nil || len(list) > 0 {
		t.Errorf("its home has %v: %v", list, err)
	}
}

// FAILURES 94: what a command has installed is found at once, also in a directory that
// was not there before.
func TestInstalledModulesAreFound(t *testing.T) {
	p := startPython(t, "HOME="+t.TempDir())
	install := "!d=$(" + testenv.Python(t) + " -m site --user-site); mkdir -p $d; echo here = %d >$d/%s.py"
	p.run("import sys; sys.modules['IPy' + 'thon'] = None")
	p.run(fmt.Sprintf(install, 1, "first"))
	if v := p.value("import first; first.here"); v.Repr != "1" {
		t.Error(v.Repr)
	}
	q := startWith(t, "IPython")
	q.run("import sys")
	q.run(fmt.Sprintf(install, 2, "second"))
	if v := q.value("import second; second.here"); v.Repr != "2" {
		t.Error(v.Repr)
	}
	q.run("%pip --version")
	if out := q.out.until(t, "\n"); !strings.HasPrefix(out, "pip ") || strings.Contains(out, "restart") {
		t.Errorf("%%pip says %q", out)
	}
}

// What a library has imported of IPython before there was a shell shows things with it, too.
func TestDisplayBeforeAndAfter(t *testing.T) {
	p := startWith(t, "IPython")
	ev := p.eval("show = __import__('IPy' + 'thon.display', fromlist=['display']).display\nshow(1)")
	if len(ev.Display) != 1 {
		t.Errorf("before: %s", show(ev))
	}
	p.run("!true")
	ev = p.eval("show(1)\ndisplay(2)\nfrom IPython.display import display as another\nanother(3)")
	if want := []cell.Bundle{{"text/plain": "1"}, {"text/plain": "2"}, {"text/plain": "3"}}; !cmp.Equal(want, ev.Display) {
		t.Errorf("after: %s", show(ev))
	}
}

// A command that is interrupted ends with what it has begun.
func TestIPythonsCommandsAreInterrupted(t *testing.T) {
	p := startWith(t, "IPython")
	p.run("import os")
	p.run("!true")
	ev, err := p.Conn.Eval(p.ctx, Evaluation{Code: "!sleep 61 & echo $! >child; echo begun; wait", Limit: 1000, Timeout: 300 * 1e6, Interrupt: p.interrupt})
	if err != nil || ev.Cause != cell.CauseTimeout {
		t.Errorf("%v %s", err, show(ev))
	}
	p.run("import time\ndef gone(pid):\n    return not os.path.exists('/proc/' + pid) or ') Z' in open('/proc/%s/stat' % pid).read()")
	if v := p.value("any(gone(open('child').read().strip()) or time.sleep(0.01) for _ in range(1000))"); v.Repr != "True" {
		t.Error("what the command began goes on")
	}
}

// A hundred forks of a warm template have the shell, each its own, at once.
func TestIPythonForks(t *testing.T) {
	p := startWith(t, "IPython")
	if _, err := p.Conn.Eval(p.ctx, Evaluation{Code: "x = 1; get_ipython()", Name: "<setup>", Limit: 1000, Interrupt: p.interrupt}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Hold(p.ctx, true); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		f := p.fork(plainFlags, ModeFork)
		if _, err := f.Conn.Adopt(p.ctx, asItIs); err != nil {
			t.Fatal(err)
		}
		if v := f.value(fmt.Sprintf("x += %d\ny = !echo %d\n(x, y[0], len(Out))", i, i)); v.Repr != fmt.Sprintf("(%d, '%d', 0)", 1+i, i) {
			t.Fatalf("fork %d has %s", i, v.Repr)
		}
		if v := f.value("_, Out[1] is _, In[1][:4]"); v.Repr != fmt.Sprintf("((%d, '%d', 0), True, 'x +=')", 1+i, i) {
			t.Fatalf("then fork %d has %s", i, v.Repr)
		}
		f.Close()
	}
}

// Another namespace, as contexts of E2B's are, has histories of its own.
func TestIPythonInContexts(t *testing.T) {
	p := startWith(t, "IPython")
	p.run("!true")
	p.value("'of a'")
	turn := `def __pando_turn(to):
    g = globals()
    kept = __builtins__.__dict__.setdefault("kept", {})
    was = kept.pop("now", "a")
    kept["now"] = to
    own = {k for k in g if k.startswith("__")}
    kept[was] = {k: v for k, v in g.items() if k not in own}
    for k in [k for k in g if k not in own]:
        del g[k]
    g.update(kept.get(to, {}))
__pando_turn(%q)`
	p.run(fmt.Sprintf(turn, "b"))
	if v := p.value("list(Out), _, [n for n in dir() if n[0] != '_']"); v.Repr != "([], '', ['In', 'Out', 'exit', 'get_ipython', 'quit'])" {
		t.Errorf("a new context has %s", v.Repr)
	}
	p.value("'of b'")
	p.run(fmt.Sprintf(turn, "a"))
	if v := p.value("_, list(Out), Out[2]"); v.Repr != "('of a', [2], 'of a')" {
		t.Errorf("the first context has %s", v.Repr)
	}
	if v := p.value("_[0]"); v.Repr != "'of a'" {
		t.Errorf("_ is not renewed: %s", v.Repr)
	}
}

// Without IPython some of its words work, and the others say what to install. What was
// installed meanwhile is found.
func TestWordsWithoutIPython(t *testing.T) {
	p := startPython(t)
	p.run("import sys, os; sys.modules['IPy' + 'thon'] = None")
	p.value("6 * 7")
	for _, x := range []struct{ code, want string }{
		{"_", "42"},
		{"!echo one; exit 3", ""},
		{"_exit_code", "3"},
		{"x = !echo a; echo b\nx", "['a', 'b']"},
		{"for i in range(2):\n    !echo \\\n  it's \"\n7", "7"},
		{"%cd /\nos.getcwd()", "'/'"},
		{"%matplotlib inline\n8", "8"},
		{"%pip --version", ""},
		{"pip list", ""},
	} {
		ev := p.eval(x.code)
		got := ""
		if ev.Value != nil {
			got = ev.Value.Repr
		}
		if !ev.OK || got != x.want {
			t.Errorf("%s is %s, want %s", x.code, show(ev), x.want)
		}
	}
	for _, x := range []struct{ code, typ, part string }{
		{"x = 1\n%timeit x", "SyntaxError", "%timeit needs IPython, and this Python ("},
		{"%%bash\necho", "SyntaxError", "%%bash needs IPython"},
		{"int?", "SyntaxError", "? needs IPython"},
		{"get_ipython()", "NameError", "has no IPython: install it (%pip install ipython"},
		{"x +", "SyntaxError", "invalid syntax"},
		{"!true\nx +", "SyntaxError", "invalid syntax"},
		{"!true\n1 / 0", "ZeroDivisionError", "division by zero"},
	} {
		ev := p.eval(x.code)
		if ev.OK || ev.Error == nil || ev.Error.Type != x.typ || !strings.Contains(ev.Error.Message, x.part) {
			t.Errorf("%s: %s", x.code, show(ev))
		} else if strings.Contains(ev.Error.Traceback, "During handling") || strings.Contains(ev.Error.Traceback, "<pando>") {
			t.Errorf("%s: %s", x.code, ev.Error.Traceback)
		}
	}
	if ev := p.eval("display(1, display_id='a')"); !ev.OK || len(ev.Display) != 1 {
		t.Errorf("display: %s", show(ev))
	}
	if exec.Command(testenv.Python(t), "-c", "import IPython").Run() == nil {
		p.run("del sys.modules['IPy' + 'thon']")
		if v := p.value("get_ipython().__class__.__name__"); v.Repr != "'PandoShell'" {
			t.Errorf("when it was installed: %s", v.Repr)
		}
	}
}

// X46: nothing is left out without a word.
func TestX46CutsAreMarked(t *testing.T) {
	p := startPython(t)
	if v := p.value("'x' * 5_000_000"); !v.JSONCut || v.Cut != 5000002-1<<20 {
		t.Errorf("of a long string: JSON is cut %v, of the repr %d", v.JSONCut, v.Cut)
	}
	if v := p.value("'ä' * 600_000"); !v.JSONCut || v.JSON != nil {
		t.Errorf("of 1.2 MB in 600,000 characters: JSON is cut %v", v.JSONCut)
	}
	if v := p.value("x = []; x.append(x); x"); !v.JSONCut {
		t.Error("what has no end has no JSON without a word")
	}
	if v := p.value("object()"); v.JSONCut {
		t.Error("what has no form is said to be too long")
	}
	p.run("class R:\n    def _repr_html_(self): return 'x' * 5_000_000")
	if v := p.value("R()"); v.MIME != nil {
		t.Errorf("its forms are %v", v.MIME)
	}
	if errs := p.err.until(t, "\n"); !strings.Contains(errs, "text/html is left out of the result: it has 5,000,000 bytes, and at most 4,194,304 are taken") {
		t.Errorf("stderr says %q", errs)
	}
	p.run("class B:\n    def _repr_html_(self): return 'x' * 4_000_000\n    def _repr_markdown_(self): return 'y' * 3_000_000")
	if ev := p.eval("display(B())\nB()"); len(ev.Display) != 1 || !strings.Contains(ev.Display[0]["text/plain"], "is left out") || ev.Value == nil || len(ev.Value.MIME) != 2 {
		t.Errorf("of 14 megabytes %d were shown: %.200s", len(ev.Display), show(ev.Display))
	}
}

// Data frames come as E2B's clients have them.
func TestFrames(t *testing.T) {
	p := startWith(t, "pandas")
	v := p.value(`import pandas as pd, decimal
pd.DataFrame({"n": [1, 2, 3], 5: ["x", None, float("nan")], "t": pd.to_datetime(["2020-01-01", None, "2020-01-03"]),
    "f": [1.5, float("nan"), float("inf")], "o": [decimal.Decimal("1.1"), b"x", pd.NA], "b": [True, False, True]})`)
	want := `{"n":[1,2,3],"5":["x",null,null],"t":["2020-01-01T00:00:00",null,"2020-01-03T00:00:00"],"f":[1.5,null,null],"o":["1.1","b'x'",null],"b":[true,false,true]}`
	if got := v.MIME["e2b/data"]; got != want {
		t.Errorf("it is %s", got)
	}
	if !strings.Contains(v.MIME["text/html"], "<table") {
		t.Error("it is no table")
	}
	if v := p.value("pd.DataFrame([[1, 2]], columns=['a', 'a'])"); v.MIME["e2b/data"] != `{"a":[1],"a.1":[2]}` {
		t.Errorf("of columns of one name: %s", v.MIME["e2b/data"])
	}
	if v := p.value("pd.DataFrame({'a': range(1_000_000)})"); v.MIME["e2b/data"] != "" {
		t.Error("a million values came")
	}
	p.err.until(t, "e2b/data is left out of the result: it has 1,000,000 values")
}

// Charts come as pictures, and as E2B's clients have them.
func TestCharts(t *testing.T) {
	p := startWith(t, "matplotlib")
	p.run("import matplotlib.pyplot as plt, datetime")
	for _, x := range []struct{ code, typ, elements string }{
		{"plt.plot([1, 2], [3, 4], label='l'); plt.axvline(1)", "line", `[{"label":"l","points":[[1.0,3.0],[2.0,4.0]]}]`},
		{"plt.plot(['u', 'v'], [3, 4])", "line", `[{"label":"Line 0","points":[["u",3.0],["v",4.0]]}]`},
		{"plt.plot([datetime.datetime(2020, 1, 2)], [3])", "line", `[{"label":"Line 0","points":[["2020-01-02T00:00:00+00:00",3.0]]}]`},
		{"plt.scatter([1], [float('nan')])", "scatter", `[{"label":"Scatter 0","points":[[1.0,null]]}]`},
		{"plt.bar(['a', 'b'], [1, 2.5], label='g')", "bar", `[{"label":"a","group":"g","value":"1.0"},{"label":"b","group":"g","value":"2.5"}]`},
		{"plt.barh(['a'], [1])", "bar", `[{"label":"a","group":"Group 0","value":"1"}]`},
		{"plt.pie([1, 3], labels=['p', 'q'])", "pie", `[{"label":"p","angle":90.0,"radius":1.0},{"label":"q","angle":270.0,"radius":1.0}]`},
		{"plt.boxplot([[1, 2, 3, 4, 30]])", "box_and_whisker", `[{"label":"1","min":1.0,"first_quartile":2.0,"median":3.0,"third_quartile":4.0,"max":4.0,"outliers":[30.0]}]`},
		{"plt.boxplot([[1, 2, 3, 4, 30]], patch_artist=True)", "box_and_whisker", `[{"label":"1","min":1.0,"first_quartile":2.0,"median":3.0,"third_quartile":4.0,"max":4.0,"outliers":[30.0]}]`},
		{"plt.imshow([[1, 2]])", "unknown", `[]`},
		{"plt.subplots(1, 2)", "superchart", ""},
	} {
		ev := p.eval(x.code + "; plt.title('T'); plt.xlabel('time (s)')\nNone")
		var chart struct {
			Type, Title, X_unit string
			Elements            json.RawMessage
		}
		if len(ev.Display) != 1 || !strings.HasPrefix(ev.Display[0]["image/png"], "iVBORw0KGgo") {
			t.Errorf("%s: %.300s", x.code, show(ev))
			continue
		}
		if err := json.Unmarshal([]byte(ev.Display[0]["e2b/chart"]), &chart); err != nil || chart.Type != x.typ || x.elements != "" && (string(chart.Elements) != x.elements || chart.Title != "T") {
			t.Errorf("%s: %v %s", x.code, err, ev.Display[0]["e2b/chart"])
		}
		if x.typ == "line" && chart.X_unit != "s" {
			t.Errorf("%s: the unit is %q", x.code, chart.X_unit)
		}
	}
	// A figure that is the value, or was shown, is not shown again.
	if ev := p.eval("f = plt.figure()\nf"); ev.Display != nil || ev.Value == nil || ev.Value.MIME["image/png"] == "" {
		t.Errorf("a figure that is the value: %.300s", show(ev))
	}
	if ev := p.eval("display(plt.figure())"); len(ev.Display) != 1 {
		t.Errorf("a figure was shown %d times", len(ev.Display))
	}
}

// What IPython does for itself with figures shows them once, too.
func TestFiguresOfIPython(t *testing.T) {
	p := startWith(t, "IPython", "matplotlib")
	ev := p.eval("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);")
	if !ev.OK || len(ev.Display) != 1 || ev.Display[0]["image/png"] == "" || !strings.Contains(ev.Display[0]["e2b/chart"], `"line"`) {
		t.Errorf("%.300s", show(ev))
	}
	if ev := p.eval("f = plt.figure()\nplt.plot([1])\nf"); len(ev.Display) > 1 || ev.Value == nil || ev.Value.MIME["image/png"] == "" {
		t.Errorf("%.300s", show(ev))
	}
}

// X46, in the other languages.
func TestX46CutsAreMarkedInNode(t *testing.T) {
	p := startKind(t, cell.WarmNode, testenv.Program(t, "node"), nil)
	if v := p.value("'x'.repeat(5e6)"); !v.JSONCut || v.JSON != nil || v.Cut != 5000002-1<<20 {
		t.Errorf("of a long string: JSON is cut %v, of the text %d", v.JSONCut, v.Cut)
	}
	if v := p.value("'ä'.repeat(6e5)"); !v.JSONCut || v.JSON != nil {
		t.Errorf("of 1.2 MB in 600,000 characters: JSON is cut %v", v.JSONCut)
	}
	if v := p.value("Symbol('x')"); v.JSONCut || v.JSON != nil {
		t.Error("what has no form is said to be too long")
	}
	if v := p.value("({ _toHtml() { return 'x'.repeat(5e6) } })"); v.MIME != nil {
		t.Errorf("its forms are %.100v", v.MIME)
	}
	if errs := p.err.until(t, "\n"); !strings.Contains(errs, "text/html is left out of the result: it has 5000000 bytes") {
		t.Errorf("stderr says %q", errs)
	}
}

func TestJavaMarksCuts(t *testing.T) {
	p := startKind(t, cell.WarmJava, testenv.Program(t, "java"), nil)
	if v := p.value(`"x".repeat(5000000)`); !v.JSONCut || v.JSON != nil || v.Cut != 5000002-1<<20 {
		t.Errorf("of a long string: JSON is cut %v, of the text %d", v.JSONCut, v.Cut)
	}
	if v := p.value("new Object()"); v.JSONCut || v.JSON != nil {
		t.Error("what has no form is said to be too long")
	}
}
