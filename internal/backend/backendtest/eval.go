package backendtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// snake is a cell with a Python interpreter.
type snake struct {
	*bench
	backend.Warmer
	spec   cell.Spec
	warmth cell.Warmth
}

// warmer returns an instance that keeps interpreters.
func (k *bench) warmer(i backend.Instance) backend.Warmer {
	k.Helper()
	w, ok := i.(backend.Warmer)
	if !ok {
		k.Fatal("the backend says that it keeps interpreters, and its instances don't")
	}
	return w
}

// noEval: a backend without interpreters in its Caps refuses them.
func (k *bench) noEval() {
	k.Helper()
	i, _ := k.cell()
	if w, ok := i.(backend.Warmer); ok {
		_, err := w.Warm(k.ctx, cell.Warm{Kind: cell.WarmPython, Timeout: time.Minute}, nil)
		k.wantKind("an interpreter where there can be none", err, cell.Unsupported)
	}
}

// python returns the host's Python interpreter.
func (k *bench) python(setup, ready string) cell.Warm {
	k.Helper()
	return cell.Warm{Kind: cell.WarmPython, Setup: setup, Ready: ready, Timeout: 2 * time.Minute,
		Process: cell.Process{Args: []string{"python3"}, Path: []string{testenv.Python(k)}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/u"}, Workdir: work}}
}

// snake warms a new cell.
func (k *bench) snake(setup string) *snake {
	k.Helper()
	i, s := k.cell()
	w := k.warmer(i)
	st, err := w.Warm(k.ctx, k.python(setup, ""), nil)
	k.must(err)
	return &snake{bench: k, Warmer: w, spec: s, warmth: st}
}

// eval evaluates code, and also returns its output.
func (p *snake) eval(code string) (ev cell.Evaluated, stdout, stderr string) {
	p.Helper()
	return p.evalFor(p.ctx, code, 2*time.Minute)
}

func (p *snake) evalFor(ctx context.Context, code string, timeout time.Duration) (ev cell.Evaluated, stdout, stderr string) {
	p.Helper()
	var mu sync.Mutex
	var out [3]strings.Builder
	ev, err := p.Eval(ctx, cell.Eval{Code: code, Timeout: timeout, Limit: 1 << 20}, func(o cell.Output) {
		mu.Lock()
		defer mu.Unlock()
		out[o.Stream].Write(o.Data)
	})
	p.must(err)
	return ev, out[1].String(), out[2].String()
}

// is asserts the repr of an expression.
func (p *snake) is(code, want string) {
	p.Helper()
	ev, _, _ := p.eval(code)
	if !ev.OK || ev.Value == nil || ev.Value.Repr != want {
		p.Errorf("%s: %+v, want %s", code, ev, want)
		if ev.Error != nil {
			p.Log(ev.Error.Traceback)
		}
	}
}

func testEvalKeepsState(k *bench) {
	p := k.snake("x = 20")
	if p.warmth.Kind != cell.WarmPython || !strings.HasPrefix(p.warmth.Version, "Python 3.") || p.warmth.PID == 0 || p.warmth.Busy || p.warmth.Sealed {
		k.Errorf("it is %+v", p.warmth)
	}
	p.is("x += 1; x * 2", "42")
	p.is("import os; os.getcwd().endswith('/work') or os.getcwd()", map[bool]string{true: "'" + work + "'", false: "True"}[k.caps.Mounts == ""])
	if st, err := p.Warmth(k.ctx); err != nil || st.Evals != 2 {
		k.Errorf("after two evaluations: %v %+v", err, st)
	}
	if list, err := p.List(k.ctx); err != nil || len(list) != 1 {
		k.Errorf("the interpreter is not a process of its cell: %v %v", err, list)
	}
	_, err := p.Warm(k.ctx, k.python("", ""), nil)
	k.wantKind("a second interpreter", err, cell.Exists)
	i, _ := k.cell()
	_, err = i.(backend.Warmer).Warmth(k.ctx)
	k.wantKind("a cell without an interpreter", err, cell.NotFound)
	_, err = i.(backend.Warmer).Eval(k.ctx, cell.Eval{Code: "1", Timeout: time.Second}, nil)
	k.wantKind("an evaluation without an interpreter", err, cell.NotFound)
}

func testEvalValues(k *bench) {
	p := k.snake("")
	ev, _, _ := p.eval(`[float("nan"), 2**60, b"\xff", "\ud800", (1,)]`)
	want := `[{"$float":"NaN"},{"$int":"1152921504606846976"},{"$bytes":"/w=="},{"$str":"7aCA"},{"$tuple":[1]}]`
	if ev.Value == nil || string(ev.Value.JSON) != want {
		k.Errorf("got %+v", ev.Value)
	}
	ev, _, _ = p.eval("def f(): return 1/0\nf()")
	if ev.OK || ev.Error == nil || ev.Error.Type != "ZeroDivisionError" || !strings.Contains(ev.Error.Traceback, "in f\n") {
		k.Errorf("got %+v", ev)
	}
}

// The output streams are separate, and complete before the answer. Output beyond the limit is
// counted.
func testEvalOutput(k *bench) {
	p := k.snake("import sys, os, subprocess, threading, time")
	ev, out, errs := p.eval(`print("out"); print("err", file=sys.stderr); os.write(1, b"\xff"); subprocess.run(["sh", "-c", "echo process"])
sys.stdout.write("x" * 300000); None`)
	if want := "out\n\xffprocess\n" + strings.Repeat("x", 300000); !ev.OK || out != want || errs != "err\n" || ev.Stdout != int64(len(want)) || ev.Stderr != 4 {
		k.Errorf("%+v: %d bytes on stdout, of %d, and %q", ev.Error, len(out), len(want), errs)
	}
	ev, out, _ = p.eval("sys.stdout.write('y' * (3 << 20)); None")
	if len(out) != 1<<20 || ev.Stdout != 3<<20 {
		k.Errorf("of three megabytes %d bytes came, and %d were counted", len(out), ev.Stdout)
	}
	// Output outside an evaluation blocks nothing, and is not lost.
	p.eval("t = threading.Thread(target=lambda: (time.sleep(0.05), print('z' * 200000), os.write(2, b'done'))); t.start()")
	time.Sleep(300 * time.Millisecond)
	if _, out, errs := p.eval("t.join()"); !strings.HasPrefix(out, "zzz") || errs != "done" {
		k.Errorf("of what came in between there are %d bytes, and %q", len(out), errs)
	}
	// Output is streamed: the first line arrives before the second is written.
	var pieces []string
	_, err := p.Eval(k.ctx, cell.Eval{Code: "print(1, flush=True); time.sleep(1); print(2)", Timeout: time.Minute, Limit: 100}, func(o cell.Output) { pieces = append(pieces, string(o.Data)) })
	k.must(err)
	if len(pieces) == 0 || pieces[0] != "1\n" {
		k.Errorf("what is printed comes as %q", pieces)
	}
}

func testEvalTimeout(k *bench) {
	p := k.snake("import time; x = 5")
	began := time.Now()
	ev, _, _ := p.evalFor(k.ctx, "time.sleep(60)", 200*time.Millisecond)
	if ev.OK || ev.Cause != "timeout" || ev.Error == nil || time.Since(began) > 20*time.Second {
		k.Errorf("after %v: %+v", time.Since(began), ev)
	}
	p.is("x", "5")
	// A caller that goes away interrupts its evaluation.
	ctx, cancel := context.WithCancel(k.ctx)
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := p.Eval(ctx, cell.Eval{Code: "time.sleep(60)", Timeout: time.Minute, Limit: 1}, nil); err == nil {
		k.Error("an abandoned evaluation has an answer")
	}
	began = time.Now()
	p.is("x", "5")
	if d := time.Since(began); d > 20*time.Second {
		k.Errorf("it went on for %v after it was abandoned", d)
	}
	_, err := p.Eval(k.ctx, cell.Eval{Code: "1"}, nil)
	k.wantKind("no time-out", err, cell.Invalid)
}

func testEvalWaits(k *bench) {
	p := k.snake("import time; log = []")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := p.Eval(k.ctx, cell.Eval{Code: "log.append(1); time.sleep(0.05); log.append(2)", Timeout: time.Minute, Limit: 1}, nil); err != nil {
				k.Error(err)
			}
		})
	}
	all.Wait()
	p.is("log == [1, 2] * 4", "True")
	// An evaluation that is cancelled in the queue was not started.
	ctx, cancel := context.WithTimeout(k.ctx, 100*time.Millisecond)
	defer cancel()
	done := make(chan bool)
	go func() {
		defer close(done)
		p.Eval(k.ctx, cell.Eval{Code: "time.sleep(1)", Timeout: time.Minute, Limit: 1}, nil)
	}()
	k.eventually("it is busy", func() bool { st, err := p.Warmth(k.ctx); return err == nil && st.Busy })
	if _, err := p.Eval(ctx, cell.Eval{Code: "log.append(3)", Timeout: time.Minute, Limit: 1}, nil); err == nil {
		k.Error("it did not wait")
	}
	<-done
	p.is("3 in log", "False")
}

// An interpreter outlives the daemon.
func testEvalAttach(k *bench) {
	p := k.snake("x = 1")
	p.is("x", "1")
	p.Close()
	k.end()
	k.open()
	i, err := k.b.Attach(k.ctx, p.spec.ID, "")
	k.must(err)
	k.made = []backend.Instance{i}
	again := &snake{bench: k, Warmer: i.(backend.Warmer), spec: p.spec}
	st, err := again.Warmth(k.ctx)
	if err != nil || !st.Started.Equal(p.warmth.Started) {
		k.Errorf("after the daemon: %v %+v, was %+v", err, st, p.warmth)
	}
	again.is("x + 1", "2")
}

// The end of an interpreter is reported, and its cell can have another.
func testEvalDeaths(k *bench) {
	p := k.snake("")
	ev, out, _ := p.eval("import os; print('last'); os._exit(3)")
	if ev.OK || ev.Cause != "ended" || ev.Error == nil || ev.Error.Message != "exit 3" || out != "last\n" {
		k.Errorf("it ended: %+v %q", ev, out)
	}
	list, version, err := p.Deaths(k.ctx, 0)
	if err != nil || len(list) != 1 || list[0] != (cell.Death{Cell: p.spec.ID, Cause: "exit 3"}) {
		k.Errorf("told: %v %v", err, list)
	}
	_, err = p.Warmth(k.ctx)
	k.wantKind("an interpreter that has ended", err, cell.NotFound)
	st, err := p.Warm(k.ctx, k.python("", ""), nil)
	k.must(err)
	p.is("1", "1")
	if _, err := p.KillAll(k.ctx, "stopped"); err != nil {
		k.Error(err)
	}
	if list, _, err := p.Deaths(k.ctx, version); err != nil || len(list) != 1 || list[0].Cause != "stopped" {
		k.Errorf("told of %d: %v %v", st.PID, err, list)
	}
	// An interpreter that is replaced is not reported, and its end does not kill processes
	// beside it.
	_, version, err = p.Deaths(k.ctx, version)
	k.must(err)
	_, err = p.Warm(k.ctx, k.python("x = 1", ""), nil)
	k.must(err)
	beside := k.start(p, sh("exec sleep 1000"))
	p.eval("import subprocess; subprocess.Popen(['sleep', '1001']); None")
	k.eventually("three processes", func() bool { l, err := p.List(k.ctx); return err == nil && len(l) == 3 })
	busy := make(chan bool)
	go func() {
		defer close(busy)
		p.Eval(k.ctx, cell.Eval{Code: "import time; time.sleep(1)", Timeout: time.Minute, Limit: 1}, nil)
	}()
	k.eventually("it is busy", func() bool { st, err := p.Warmth(k.ctx); return err == nil && st.Busy })
	k.wantKind("to end an interpreter that evaluates", p.Dismiss(k.ctx), cell.Conflict)
	<-busy
	p.is("x", "1")
	k.must(p.Dismiss(k.ctx))
	k.wantKind("to end what has ended", p.Dismiss(k.ctx), cell.NotFound)
	if l, err := p.List(k.ctx); err != nil || len(l) != 1 || l[0].PID == st.PID {
		k.Errorf("beside it there is %v, %v", l, err)
	}
	k.must(beside.Process.Signal(k.ctx, "SIGKILL"))
	_, err = p.Warm(k.ctx, k.python("", ""), nil)
	k.must(err)
	p.is("'x' in globals()", "False")
	p.eval("import os; os._exit(5)")
	if list, _, err := p.Deaths(k.ctx, version); err != nil || len(list) != 1 || list[0].Cause != "exit 5" {
		k.Errorf("told: %v %v", err, list)
	}
	// A dismissed interpreter is none any more.
	_, err = p.Warm(k.ctx, k.python("", ""), nil)
	k.must(err)
	ev, _, _ = p.eval("import os; os.write(3, b'nonsense\\n')")
	if ev.Cause != "ended" {
		k.Errorf("nonsense is %+v", ev)
	}
	k.eventually("it is gone", func() bool { return k.empty(p) })
}

func testWarmFails(k *bench) {
	i, _ := k.cell()
	w := k.warmer(i)
	for _, x := range []struct {
		what string
		warm cell.Warm
		kind cell.Kind
		says string
	}{
		{"a set-up that fails", k.python("def f(): 1/0\nf()", ""), cell.Invalid, "ZeroDivisionError: division by zero"},
		{"a set-up that ends it", k.python("import os; os._exit(4)", ""), cell.Invalid, "ended"},
		{"a set-up that is no Python", k.python("if", ""), cell.Invalid, "SyntaxError"},
		{"a probe that fails", k.python("", "if"), cell.Invalid, "SyntaxError"},
	} {
		_, err := w.Warm(k.ctx, x.warm, nil)
		k.wantKind(x.what, err, x.kind)
		if err != nil && !strings.Contains(err.Error(), x.says) {
			k.Errorf("%s: %v", x.what, err)
		}
		k.eventually("nothing remains of "+x.what, func() bool { return k.empty(i) })
	}
	slow := k.python("import time; time.sleep(60)", "")
	slow.Timeout = 300 * time.Millisecond
	_, err := w.Warm(k.ctx, slow, nil)
	k.wantKind("a set-up that takes too long", err, cell.Timeout)
	never := k.python("n = 0", "n += 1; None")
	never.Timeout = 300 * time.Millisecond
	_, err = w.Warm(k.ctx, never, nil)
	k.wantKind("a probe that never holds", err, cell.Timeout)
	mute := cell.Warm{Kind: cell.WarmCommand, Timeout: 300 * time.Millisecond, Process: sh("exec sleep 60").Process}
	_, err = w.Warm(k.ctx, mute, nil)
	k.wantKind("a program that never says that it is ready", err, cell.Timeout)
	none := k.python("", "")
	none.Process.Path = []string{"/usr/bin/no-such-python"}
	_, err = w.Warm(k.ctx, none, nil)
	k.wantKind("an interpreter that is not there", err, cell.NoSuchBinary)
	other := cell.Warm{Kind: cell.WarmCommand, Timeout: 10 * time.Second, Process: sh("echo no protocol; echo oh >&2").Process}
	var wrote strings.Builder
	_, err = w.Warm(k.ctx, other, func(o cell.Output) { wrote.Write(o.Data) })
	k.wantKind("a program that does not speak the protocol", err, cell.Invalid)
	if !strings.Contains(wrote.String(), "no protocol") || !strings.Contains(wrote.String(), "oh") {
		k.Errorf("what it wrote is %q", wrote.String())
	}
	k.must(func() error { _, err := w.Warm(k.ctx, k.python("n = 0", "n += 1\nn > 3"), nil); return err }())
	ev, err := w.Eval(k.ctx, cell.Eval{Code: "n", Timeout: time.Minute, Limit: 10}, nil)
	if err != nil || ev.Value == nil || ev.Value.Repr != "4" || ev.N != 1 {
		k.Errorf("the probe was asked otherwise than four times: %v %+v", err, ev)
	}
}

// No process of the cell can answer the keeper in the interpreter's place.
func testEvalSocketIsItsOwn(k *bench) {
	p := k.snake("import os")
	if k.caps.Isolation != "" {
		k.Skip("without isolation everything is shared")
	}
	p.is("sorted(int(f) for f in os.listdir('/proc/self/fd'))[:4]", "[0, 1, 2, 3]")
	ev, _, _ := p.eval("pid = os.getpid(); pid")
	st, c := k.run(p, fmt.Sprintf(`ls /proc/%[1]s/fd/ >/dev/null && echo sees
(echo forged > /proc/%[1]s/fd/3) 2>/dev/null && echo wrote
python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(434, %[1]s, 0)
if fd >= 0 and libc.syscall(438, fd, 3, 0) >= 0: print("took it")
try:
    open("/proc/%[1]s/mem", "rb"); print("reads its memory")
except OSError: pass
END
true`, ev.Value.Repr))
	if got := c.stdout(); strings.Contains(got, "wrote") || strings.Contains(got, "took it") {
		k.Errorf("%d: a process of the cell %s", st.Exit.Code, got)
	}
	// Processes that the code starts do not inherit the socket, forked or executed.
	p.is("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os.fstat(3)'], stderr=subprocess.DEVNULL, close_fds=False).returncode", "1")
	p.is("2 + 2", "4")
}

// An interpreter that exceeds its cell's memory ends, and reports the cause.
func testEvalMemory(k *bench) {
	if k.caps.MemoryLimit != "" {
		k.Skip(k.caps.MemoryLimit)
	}
	s := k.spec()
	s.Limits.Memory, s.Asked = 64<<20, []string{"memory"}
	w := k.warmer(k.create(s))
	_, err := w.Warm(k.ctx, k.python("", ""), nil)
	k.must(err)
	ev, err := w.Eval(k.ctx, cell.Eval{Code: "x = bytearray(300 << 20)", Timeout: time.Minute, Limit: 10}, nil)
	k.must(err)
	if ev.Cause != "ended" || ev.Error == nil || ev.Error.Message != "memory limit" {
		k.Errorf("%+v", ev)
	}
}
