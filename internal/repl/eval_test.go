package repl

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// python is the host's, with the built-in program.
type python struct {
	*testing.T
	*Conn
	cmd      *exec.Cmd
	ready    Ready
	ctx      context.Context
	out, err *tail

	interrupt func()
}

// tail keeps what comes from a pipe.
type tail struct {
	mu   sync.Mutex // guards b
	b    bytes.Buffer
	over sync.WaitGroup
}

func (o *tail) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.b.String()
	o.b.Reset()
	return s
}

// until waits for a text, and takes all that has come.
func (o *tail) until(t *testing.T, text string) string {
	t.Helper()
	for range 1000 {
		o.mu.Lock()
		s := o.b.String()
		o.mu.Unlock()
		if strings.Contains(s, text) {
			return o.take()
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("it never said %q, but %q", text, o.take())
	return ""
}

func pipe(t *testing.T) (*tail, *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o := &tail{}
	o.over.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			o.mu.Lock()
			o.b.Write(buf[:n])
			o.mu.Unlock()
			if err != nil {
				r.Close()
				return
			}
		}
	})
	t.Cleanup(o.over.Wait)
	return o, w
}

func startPython(t *testing.T, env ...string) *python {
	t.Helper()
	return startKind(t, cell.WarmPython, testenv.Python(t), nil, env...)
}

// startKind starts a built-in interpreter.
func startKind(t *testing.T, name, program string, own *syscall.SysProcAttr, env ...string) *python {
	t.Helper()
	k, ok := KindOf(name)
	if !ok {
		t.Fatalf("there is no kind %s", name)
	}
	var first []byte
	if k.First != nil {
		first = k.First()
	}
	return startFrom(t, own, env, k.Stdin, first, append([]string{program}, k.Args...)...)
}

func startProgram(t *testing.T, own *syscall.SysProcAttr, env []string, program []byte, args ...string) *python {
	t.Helper()
	return startFrom(t, own, env, nil, program, args...)
}

func startFrom(t *testing.T, own *syscall.SysProcAttr, env []string, stdin, program []byte, args ...string) *python {
	t.Helper()
	conn, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	p := &python{T: t, Conn: conn, cmd: exec.Command(args[0], args[1:]...), ctx: ctx}
	p.interrupt = func() { p.cmd.Process.Signal(unix.SIGINT) }
	var stdout, stderr *os.File
	p.out, stdout = pipe(t)
	p.err, stderr = pipe(t)
	p.cmd.ExtraFiles, p.cmd.Stdout, p.cmd.Stderr = []*os.File{theirs}, stdout, stderr
	p.cmd.Env = append(append(os.Environ(), "PANDO_EVAL_FD=3"), env...)
	p.cmd.Dir, p.cmd.SysProcAttr = t.TempDir(), own
	if stdin != nil {
		f, err := File(stdin)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p.cmd.Stdin = f
	}
	err = p.cmd.Start()
	for _, f := range []*os.File{theirs, stdout, stderr} {
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
		p.cmd.Wait()
		cancel()
		if t.Failed() {
			t.Logf("stdout: %s\nstderr: %s", p.out.take(), p.err.take())
		}
	})
	if p.ready, err = conn.Ready(ctx, program); err != nil {
		t.Fatalf("%v: %s", err, p.err.take())
	}
	return p
}

// Eval evaluates code until ctx ends.
func (p *python) Eval(ctx context.Context, code string, limit int64, interrupt func()) (cell.Evaluated, error) {
	return p.Conn.Eval(ctx, Evaluation{Code: code, Limit: limit, Interrupt: interrupt})
}

// eval evaluates code that answers.
func (p *python) eval(code string) cell.Evaluated {
	p.Helper()
	ev, err := p.Eval(p.ctx, code, 1<<20, p.interrupt)
	if err != nil {
		p.Fatalf("%s: %v", code, err)
	}
	return ev
}

// value evaluates code that has a value.
func (p *python) value(code string) cell.Value {
	p.Helper()
	ev := p.eval(code)
	if !ev.OK || ev.Value == nil {
		p.Fatalf("%s: %s", code, show(ev))
	}
	return *ev.Value
}

func show(v any) string {
	b, _ := json.MarshalIndent(v, "", " ")
	return string(b)
}

// run evaluates code that has no value.
func (p *python) run(code string) {
	p.Helper()
	if ev := p.eval(code); !ev.OK || ev.Value != nil {
		p.Fatalf("%s: %s", code, show(ev))
	}
}

func TestEvalKeepsItsState(t *testing.T) {
	p := startPython(t)
	if !strings.HasPrefix(p.ready.Version, "Python 3.") || p.ready.Kind != "python" {
		t.Errorf("ready: %+v", p.ready)
	}
	p.run("x = 41")
	p.run("def f(y):\n    return x + y\nclass C:\n    pass\n")
	want := cell.Value{Type: "int", JSON: json.RawMessage("42"), Repr: "42"}
	if diff := cmp.Diff(want, p.value("f(1)")); diff != "" {
		t.Error(diff)
	}
	if v := p.value("import pickle; pickle.loads(pickle.dumps(C())).__class__ is C"); v.Repr != "True" {
		t.Errorf("what was defined can't be pickled: %s", v.Repr)
	}
	if v := p.value("sorted(n for n in dir() if not n.startswith('__'))"); v.Repr != "['C', 'f', 'pickle', 'x']" {
		t.Errorf("the namespace has %s", v.Repr)
	}
	if ev := p.eval("x = 1"); ev.N != 6 {
		t.Errorf("the sixth evaluation is called %d", ev.N)
	}
	if ev := p.eval("None"); !ev.OK || ev.Value != nil {
		t.Errorf("None is %s", show(ev))
	}
	p.run("from __future__ import annotations")
	p.run("def g(a: nowhere): pass") // the import lasts
}

func TestF48Values(t *testing.T) {
	p := startPython(t)
	for _, x := range []struct{ code, typ, json, repr string }{
		{"float('nan')", "float", `{"$float":"NaN"}`, "nan"},
		{"[float('inf'), -float('inf'), -0.0, 0.1, 1e300]", "list", `[{"$float":"Infinity"},{"$float":"-Infinity"},-0.0,0.1,1e+300]`, "[inf, -inf, -0.0, 0.1, 1e+300]"},
		{"2**53, 2**53+1, -2**70", "tuple", `{"$tuple":[9007199254740992,{"$int":"9007199254740993"},{"$int":"-1180591620717411303424"}]}`, "(9007199254740992, 9007199254740993, -1180591620717411303424)"},
		{`b"\xff\x00"`, "bytes", `{"$bytes":"/wA="}`, `b'\xff\x00'`},
		{`"a\ud800"`, "str", `{"$str":"Ye2ggA=="}`, `'a\ud800'`},
		{`"ä\0\n\u2028😀"`, "str", "\"ä\\u0000\\n\u2028😀\"", `'ä\x00\n\u2028😀'`},
		{"{2, 1}", "set", `{"$set":[1,2]}`, "{1, 2}"},
		{"{1: 2, 'a': None}", "dict", `{"$dict":[[1,2],["a",null]]}`, "{1: 2, 'a': None}"},
		{"{'$int': 'x'}", "dict", `{"$dict":[["$int","x"]]}`, "{'$int': 'x'}"},
		{"{'a': [True, ()]}", "dict", `{"a":[true,{"$tuple":[]}]}`, "{'a': [True, ()]}"},
		{"[object]", "list", `[{"$opaque":{"type":"type","repr":"<class 'object'>"}}]`, "[<class 'object'>]"},
		// X46: what has no form costs itself alone.
		{"import datetime; {'n': [1, 1j], 'd': datetime.date(2020, 1, 2)}", "dict", `{"n":[1,{"$opaque":{"type":"complex","repr":"1j"}}],"d":{"$opaque":{"type":"datetime.date","repr":"datetime.date(2020, 1, 2)"}}}`, "{'n': [1, 1j], 'd': datetime.date(2020, 1, 2)}"},
		{"{1j: 2}", "dict", `{"$dict":[[{"$opaque":{"type":"complex","repr":"1j"}},2]]}`, "{1j: 2}"},
		{"x = []; x.append(x); x", "list", ``, "[[...]]"},
		{"1j", "complex", ``, "1j"},
		{"import collections; collections.Counter('aab')", "collections.Counter", `{"a":2,"b":1}`, "Counter({'a': 2, 'b': 1})"},
		{"class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()", "__main__.Bad", ``, "<__main__.Bad: its repr failed: ValueError: no>"},
		{"class Odd(int):\n    pass\nOdd(3)", "__main__.Odd", ``, "3"},
	} {
		v := p.value(x.code)
		if diff := cmp.Diff(cell.Value{Type: x.typ, JSON: raw(x.json), JSONCut: x.repr == "[[...]]", Repr: x.repr}, v); diff != "" {
			t.Errorf("%s:\n%s", x.code, diff)
		}
	}
	// Beyond a megabyte there is no JSON, and the repr is cut.
	v := p.value("'x' * 3000000")
	if v.JSON != nil || len(v.Repr) != 1<<20 || v.Cut != 3000002-1<<20 {
		t.Errorf("of a long string: %d bytes of JSON, %d of repr, %d cut", len(v.JSON), len(v.Repr), v.Cut)
	}
	if v := p.value("10**5000"); !strings.HasPrefix(string(v.JSON), `{"$int":"1000`) || len(v.JSON) != 5001+11 || !strings.HasPrefix(v.Repr, "0x") && len(v.Repr) != 5001 {
		t.Errorf("a number of 5,001 digits is %d bytes of JSON, %.20s", len(v.JSON), v.Repr)
	}
	if v := p.value("10**1000000"); v.JSON != nil {
		t.Error("a number of a million digits was written")
	}
}

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

func TestValuesOfNumpy(t *testing.T) {
	p := startPython(t)
	if ev := p.eval("import numpy as np"); !ev.OK {
		t.Skip("needs numpy")
	}
	for code, want := range map[string]string{
		"np.zeros(3)":                     `[0.0,0.0,0.0]`,
		"np.array([[1, 2], [3, 4]])":      `[[1,2],[3,4]]`,
		"np.float64('nan')":               `{"$float":"NaN"}`,
		"np.uint64(2**64 - 1)":            `{"$int":"18446744073709551615"}`,
		"{'a': np.bool_(True)}":           `{"a":true}`,
		"np.array(['ä', 'b'])":            `["ä","b"]`,
		"np.array([1, None, b'x'])":       `[1,null,{"$bytes":"eA=="}]`,
		"np.array(5)":                     `5`,
		"np.zeros((2000, 2000))":          ``,
		"np.array([1 + 2j])":              ``,
		"np.longdouble(1)":                ``,
		"np.datetime64('2020-01-01')":     ``,
		"np.ma.masked_array([1], [1])":    ``,
		"np.array([(1, 2)], dtype='i,i')": ``,
	} {
		if v := p.value(code); string(v.JSON) != want {
			t.Errorf("%s is %s, want %s", code, v.JSON, want)
		}
	}
}

func TestEvalErrors(t *testing.T) {
	p := startPython(t)
	p.run("def f(x):\n    return 1 / x\n")
	ev := p.eval("a = 1\nf(0)")
	want := &cell.EvalError{Type: "ZeroDivisionError", Message: "division by zero", Line: 2}
	tb := ""
	if ev.Error != nil {
		tb = ev.Error.Traceback
		ev.Error.Traceback = ""
	}
	if diff := cmp.Diff(want, ev.Error); diff != "" || ev.OK || ev.Cause != "" {
		t.Errorf("%s%s", diff, show(ev))
	}
	for _, part := range []string{"Traceback (most recent call last):\n  File \"<eval 2>\", line 2, in <module>\n    f(0)\n", "File \"<eval 1>\", line 2, in f\n    return 1 / x\n", "ZeroDivisionError: division by zero\n"} {
		if !strings.Contains(tb, part) {
			t.Errorf("the traceback lacks %q:\n%s", part, tb)
		}
	}
	if strings.Contains(tb, "pando") {
		t.Errorf("the traceback shows the interpreter's own frames:\n%s", tb)
	}
	// Marks below a line, from Python 3.11 on, are below what they mean.
	if ev := p.eval("b = 7\na + a/0"); strings.Contains(ev.Error.Traceback, "~") && !strings.Contains(ev.Error.Traceback, "    a + a/0\n        ~^~\n") {
		t.Errorf("the marks are elsewhere:\n%s", ev.Error.Traceback)
	}
	ev = p.eval("x = 1\nif x\n    pass")
	if ev.Error == nil || ev.Error.Type != "SyntaxError" || ev.Error.Line != 2 || !strings.Contains(ev.Error.Traceback, "    if x\n") {
		t.Errorf("a syntax error: %s", show(ev))
	}
	for code, want := range map[string]string{
		"import sys; sys.exit(3)": "SystemExit", "raise BaseException('b')": "BaseException", "raise KeyboardInterrupt": "KeyboardInterrupt",
		"def r(): r()\nr()": "RecursionError", "class E(Exception):\n    def __str__(self): 1/0\nraise E": "__main__.E",
		"'\\0' + chr(0x110000)": "ValueError", "x = \x00": "", "raise ValueError('\\ud800')": "ValueError",
	} {
		ev := p.eval(code)
		if ev.OK || ev.Error == nil || (want != "" && ev.Error.Type != want) || ev.Cause != "" {
			t.Errorf("%q: %s", code, show(ev))
		}
	}
	if v := p.value("a"); v.Repr != "1" {
		t.Error("what was done before the exception is gone")
	}
}

func TestEvalOutput(t *testing.T) {
	p := startPython(t)
	p.run("print('out'); import sys; print('err', file=sys.stderr); _ = sys.stdout.write('no end')")
	if out, errs := p.out.until(t, "no end"), p.err.until(t, "err"); out != "out\nno end" || errs != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	p.run(`import os, subprocess, ctypes
os.write(1, b"\xff\n")
_ = subprocess.run(["echo", "from a process"])
_ = ctypes.CDLL(None).printf(b"from C\n")`)
	if got := p.out.until(t, "from C\n"); got != "\xff\nfrom a process\nfrom C\n" {
		t.Errorf("stdout %q", got)
	}
	if ev := p.eval("input()"); ev.Error == nil || ev.Error.Type != "EOFError" {
		t.Errorf("input: %s", show(ev))
	}
}

func TestAwait(t *testing.T) {
	p := startPython(t)
	if v := p.value("import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x\nawait f(3)"); v.Repr != "3" {
		t.Errorf("await: %s", v.Repr)
	}
	p.run("task = asyncio.ensure_future(f(4)) if False else None\nlock = asyncio.Lock()\n_ = await lock.acquire()")
	if v := p.value("async def g():\n    async with asyncio.timeout(1) if hasattr(asyncio, 'timeout') else asyncio.Lock():\n        return lock.locked()\nawait g()"); v.Repr != "True" {
		t.Errorf("in the next evaluation: %s", v.Repr)
	}
	if v := p.value("asyncio.run(f(5))"); v.Repr != "5" {
		t.Errorf("asyncio.run: %s", v.Repr)
	}
	if v := p.value("await f(6)"); v.Repr != "6" {
		t.Errorf("after asyncio.run: %s", v.Repr)
	}
}

func TestF49TimeoutsInterrupt(t *testing.T) {
	p := startPython(t)
	p.run("x = 1\nimport time, subprocess, asyncio, threading")
	for _, code := range []string{
		"time.sleep(60)", "while True: x += 1", "subprocess.run(['sleep', '60'])", "await asyncio.sleep(60)", "threading.Event().wait(60)",
		"class Slow:\n    def __repr__(self): time.sleep(60)\nSlow()",
		"for n in range(3):\n    try:\n        time.sleep(60)\n    except KeyboardInterrupt: pass\n    break\nelse: pass\ntime.sleep(60)",
	} {
		ctx, cancel := context.WithTimeout(p.ctx, 150*time.Millisecond)
		began := time.Now()
		ev, err := p.Eval(ctx, code, 1000, p.interrupt)
		cancel()
		if err != nil || ev.OK || ev.Cause != cell.CauseTimeout || ev.Error == nil || ev.Error.Type != "KeyboardInterrupt" {
			t.Errorf("%q: %v %s", code, err, show(ev))
		}
		if d := time.Since(began); d > 55*time.Second { // the code by itself takes a minute
			t.Errorf("%q went on for %v", code, d)
		}
		if v := p.value("x > 0"); v.Repr != "True" {
			t.Errorf("after %q: %s", code, v.Repr)
		}
	}
	// A signal that comes when nothing is evaluated means nothing.
	p.interrupt()
	if v := p.value("7"); v.Repr != "7" {
		t.Errorf("after a late signal: %s", v.Repr)
	}
	// A caller that cancels is no time-out.
	ctx, cancel := context.WithCancel(p.ctx)
	time.AfterFunc(50*time.Millisecond, cancel)
	if ev, err := p.Eval(ctx, "time.sleep(60)", 1000, p.interrupt); err != nil || ev.Cause != cell.CauseInterrupted {
		t.Errorf("interrupted: %v %s", err, show(ev))
	}
}

func TestStuckEvaluations(t *testing.T) {
	p := startPython(t)
	p.run("import signal, time")
	ctx, cancel := context.WithTimeout(p.ctx, 100*time.Millisecond)
	defer cancel()
	ev, err := p.Eval(ctx, "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(6.5)", 1000, p.interrupt)
	if err != nil || ev.Cause != cell.CauseStuck || !p.Busy() {
		t.Fatalf("%v, busy %v: %s", err, p.Busy(), show(ev))
	}
	short, cancel2 := context.WithTimeout(p.ctx, 50*time.Millisecond)
	defer cancel2()
	if _, err := p.Eval(short, "1", 1000, p.interrupt); cell.KindOf(err) != cell.Timeout {
		t.Errorf("while it is stuck: %v", err)
	}
	if v := p.value("8"); v.Repr != "8" { // when it has ended after all
		t.Errorf("afterwards: %s", v.Repr)
	}
	ctx, cancel = context.WithTimeout(p.ctx, 100*time.Millisecond)
	defer cancel()
	if ev, err := p.Eval(ctx, "time.sleep(60)", 1000, p.interrupt); err != nil || ev.Cause != cell.CauseTimeout {
		t.Errorf("its handler was not put back: %v %s", err, show(ev))
	}
}

func TestEvalOneAtATime(t *testing.T) {
	p := startPython(t)
	p.run("log = []\nimport time")
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if _, err := p.Eval(p.ctx, "log.append('in'); time.sleep(0.02); log.append('out')", 1000, p.interrupt); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if v := p.value("log == ['in', 'out'] * 5"); v.Repr != "True" {
		t.Error("evaluations overlapped")
	}
}

func TestInterpreterEnds(t *testing.T) {
	p := startPython(t)
	ev := p.eval("import os; os._exit(3)")
	if ev.OK || ev.Cause != cell.CauseEnded {
		t.Errorf("%s", show(ev))
	}
	if _, err := p.Eval(p.ctx, "1", 1000, p.interrupt); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("afterwards: %v", err)
	}
}

// Code may put something else in the place of what its interpreter answers with, as
// some that freeze the time or write JSON in their own way do.
func TestCodeReplacesWhatAnswersUse(t *testing.T) {
	for _, x := range []struct{ kind, program, replace, fails string }{
		{cell.WarmPython, "python3", "import json, time; json.dumps = json.loads = time.time = time.perf_counter = time.monotonic = None", "1 / 0"},
		{cell.WarmNode, "node", "JSON.stringify = JSON.parse = Date.now = performance.now = null", "no.such"},
	} {
		t.Run(x.kind, func(t *testing.T) {
			p := startKind(t, x.kind, testenv.Program(t, x.program), nil)
			p.eval(x.replace)
			if v := p.value(`[1, "ü"]`); string(v.JSON) != `[1,"ü"]` {
				t.Errorf("then [1, ü] is %s", show(v))
			}
			if ev := p.eval(x.fails); ev.OK || ev.Error == nil || ev.Error.Message == "" {
				t.Errorf("an error is %s", show(ev))
			}
		})
	}
}

func TestForkOfCodeHasNoPart(t *testing.T) {
	p := startPython(t)
	p.run(`import os
pid = os.fork()
if pid == 0:
    try:
        os.fstat(3)
        print("it has the socket")
    except OSError:
        print("it has no socket")
    os._exit(0)
_ = os.waitpid(pid, 0)`)
	if got := p.out.until(t, "\n"); got != "it has no socket\n" {
		t.Error(got)
	}
	if v := p.value("9"); v.Repr != "9" {
		t.Error(v.Repr)
	}
}

func TestRichForms(t *testing.T) {
	p := startPython(t)
	v := p.value(`class R:
    def _repr_html_(self): return "<b>ä</b>"
    def _repr_png_(self): return b"\x89PNG"
    def _repr_svg_(self): raise ValueError("no picture")
    def _repr_latex_(self): return None
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/markdown": "**b**", "text/plain": "x"}
    def __repr__(self): return "R()"
R()`)
	want := cell.Value{Type: "__main__.R", Repr: "R()", MIME: cell.Bundle{"text/html": "<b>ä</b>", "image/png": "iVBORw==", "text/markdown": "**b**"}}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Error(diff)
	}
	if errs := p.err.until(t, "no picture"); !strings.Contains(errs, "Traceback") {
		t.Errorf("what a form raised is not on stderr: %q", errs)
	}
	ev := p.eval("display(R(), 5)\ndisplay({'text/html': 'x'}, raw=True)\n7")
	if diff := cmp.Diff([]cell.Bundle{{"text/plain": "R()", "text/html": "<b>ä</b>", "image/png": "iVBORw==", "text/markdown": "**b**"}, {"text/plain": "5"}, {"text/html": "x"}}, ev.Display); diff != "" {
		t.Error(diff)
	}
	if v := p.value("R"); v.MIME != nil {
		t.Error("a class was shown like its instances")
	}
	ev = p.eval("for _ in range(10): display({'text/plain': 'x' * 3_000_000}, raw=True)")
	if !ev.OK || len(ev.Display) != 3 || !strings.Contains(ev.Display[2]["text/plain"], "8 more") {
		t.Errorf("of thirty megabytes %d pieces came", len(ev.Display))
	}
}

func TestFigures(t *testing.T) {
	p := startPython(t, "MPLBACKEND=Agg")
	if ev := p.eval("import matplotlib.pyplot as plt"); !ev.OK {
		t.Skip("needs matplotlib")
	}
	ev := p.eval("plt.plot([1, 2])\nplt.figure()\nplt.show()")
	if len(ev.Display) != 2 || !strings.HasPrefix(ev.Display[0]["image/png"], "iVBORw0KGgo") {
		t.Errorf("%d figures: %.300s", len(ev.Display), show(ev))
	}
	if ev := p.eval("1"); ev.Display != nil {
		t.Error("figures were shown again")
	}
}

func TestDisplayOfIPython(t *testing.T) {
	p := startPython(t)
	p.run(`import os, sys
os.makedirs("IPython/core")
open("IPython/__init__.py", "w").close()
open("IPython/core/__init__.py", "w").close()
_ = open("IPython/core/display_functions.py", "w").write("def display(*a, **k): print('no shell')")
_ = open("IPython/display.py", "w").write("from IPython.core.display_functions import display")
sys.path.insert(0, os.getcwd())`)
	if ev := p.eval("from IPython.display import display\ndisplay(3)"); len(ev.Display) != 1 {
		t.Errorf("%s", show(ev))
	}
}

func TestPythonIsOldEnough(t *testing.T) {
	cmd := exec.Command(testenv.Python(t), "-c", "import ast, sys; ast.parse(sys.stdin.read(), feature_version=(3, 8))")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		in.Write(pythonProgram()[16:])
		for _, part := range pythonLater(t) {
			in.Write(part)
		}
		in.Close()
	}()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("what Python 3.8 does not understand: %s", out)
	}
}
