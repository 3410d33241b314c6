package repl

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// plainFlags are a fork's without namespaces, which an ordinary user may make.
const plainFlags = unix.CLONE_CHILD_SETTID | unix.CLONE_CHILD_CLEARTID

// forked is a fork of a python, adopted.
func (p *python) forked(flags uintptr, mode string, a Adoption) (*python, Adopted) {
	p.Helper()
	f := p.fork(flags, mode)
	if f.f.PID == p.cmd.Process.Pid {
		p.Fatal("the fork is what it was forked from")
	}
	got, err := f.Conn.Adopt(f.ctx, a)
	if err != nil {
		p.Fatal(err)
	}
	return f.python, got
}

type forkOf struct {
	*python
	f *Forked
}

func (p *python) fork(flags uintptr, mode string) *forkOf {
	p.Helper()
	if _, err := p.Hold(p.ctx, mode == ModeFork); err != nil {
		p.Fatal(err)
	}
	q := &python{T: p.T, cmd: p.cmd, ctx: p.ctx}
	var stdout, stderr *os.File
	q.out, stdout = pipe(p.T)
	q.err, stderr = pipe(p.T)
	null, err := os.Open(os.DevNull)
	if err != nil {
		p.Fatal(err)
	}
	f, err := p.Fork(p.ctx, flags, mode, [3]*os.File{null, stdout, stderr})
	for _, f := range []*os.File{null, stdout, stderr} {
		f.Close()
	}
	if err != nil {
		p.Fatal(err)
	}
	q.Conn, q.interrupt = f.Conn, func() { unix.PidfdSendSignal(int(f.PIDFD.Fd()), unix.SIGINT, nil, 0) }
	p.Cleanup(func() {
		unix.PidfdSendSignal(int(f.PIDFD.Fd()), unix.SIGKILL, nil, 0)
		f.Close()
	})
	return &forkOf{q, f}
}

var asItIs = Adoption{UID: -1, GID: -1}

func TestFork(t *testing.T) {
	p := startPython(t)
	if !p.ready.Fork {
		t.Fatalf("it can't be forked: %s", p.ready.Reason)
	}
	p.run("x = [1]\nimport os, threading")
	a, _ := p.forked(plainFlags, ModeFork, asItIs)
	b, _ := p.forked(plainFlags, ModeFork, asItIs)
	a.run("x.append('a')\nprint('from a')")
	b.run("x.append('b')")
	for _, w := range []struct {
		p    *python
		want string
	}{{p, "[1]"}, {a, "[1, 'a']"}, {b, "[1, 'b']"}} {
		if v := w.p.value("x"); v.Repr != w.want {
			t.Errorf("x is %s, want %s", v.Repr, w.want)
		}
	}
	if got := a.out.until(t, "\n"); got != "from a\n" {
		t.Errorf("its stdout has %q", got)
	}
	if got := p.out.take() + b.out.take(); got != "" {
		t.Errorf("others said %q", got)
	}
	// A fork of a fork, and what Python and the C library think of it.
	c, _ := a.forked(plainFlags, ModeFork, asItIs)
	if v := c.value("x, threading.active_count(), threading.main_thread().native_id == os.getpid() == threading.get_native_id()"); v.Repr != "([1, 'a'], 1, True)" {
		t.Error(v.Repr)
	}
	if v := c.value(`import signal
got = []
signal.signal(signal.SIGUSR1, lambda *a: got.append(1))
signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
len(got)`); v.Repr != "2" {
		t.Errorf("of two signals to itself %s came", v.Repr)
	}
	if v := c.value("t = threading.Thread(target=lambda: x.append('t')); t.start(); t.join(); x[-1]"); v.Repr != "'t'" {
		t.Error(v.Repr)
	}
	if v := c.value("import subprocess; subprocess.run(['sh', '-c', 'exit 7']).returncode"); v.Repr != "7" {
		t.Errorf("a process that it started ended with %s", v.Repr)
	}
}

func TestForkIntoNamespaces(t *testing.T) {
	p := startPython(t)
	p.run("import os")
	f := p.fork(plainFlags|unix.CLONE_NEWUSER|unix.CLONE_NEWPID|unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP, ModeFork)
	if f.f.Inner != f.f.PID { // both see it from the same namespace here
		t.Errorf("the kernel says %d, the program %d", f.f.PID, f.f.Inner)
	}
	if _, err := f.Conn.Adopt(p.ctx, asItIs); err != nil {
		t.Fatal(err)
	}
	if v := f.value("os.getpid()"); v.Repr != "1" {
		t.Errorf("it is process %s of its namespace", v.Repr)
	}
	st, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.f.PID))
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000"} {
		if !strings.Contains(string(st), want) {
			t.Errorf("not %s in\n%s", want, st)
		}
	}
}

// A fork has the descriptors that it was given, and nothing else, before it is
// adopted.
func TestF34aForksShareNoDescriptor(t *testing.T) {
	p := startPython(t)
	p.run(`import os, socket, select, asyncio, tempfile
w = open("log", "a"); _ = w.write("buffered "); _ = w.flush()
r = open("/usr/bin/env", "rb"); _ = r.read(10)
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept()
pr, pw = os.pipe()
loop = asyncio.new_event_loop()
ev = os.eventfd(0) if hasattr(os, "eventfd") else None
out = os.dup(1)`)
	if _, err := p.Hold(p.ctx, true); err != nil {
		t.Fatal(err)
	}
	f := p.fork(plainFlags, ModeFork)
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.f.PID))
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, d := range list {
		has = append(has, d.Name())
	}
	if strings.Join(has, " ") != "0 1 2 3" {
		t.Errorf("the fork has descriptors %v", has)
	}
	got, err := f.Conn.Adopt(p.ctx, asItIs)
	if err != nil {
		t.Fatal(err)
	}
	dropped := strings.Join(got.Dropped, ", ")
	if strings.Count(dropped, "socket 127.0.0.1:") != 3 {
		t.Errorf("dropped: %s", dropped)
	}
	// What leads to others is dead, at once.
	for code, want := range map[string]string{"c.recv(1)": "ConnectionResetError", "a.send(b'x'); a.send(b'x')": "BrokenPipeError", "s.accept()": "OSError"} {
		if ev := f.eval(code); ev.Error == nil || ev.Error.Type != want {
			t.Errorf("%s: %s", code, show(ev))
		}
	}
	// What is its own works.
	f.run("w.write('fork'); w.flush(); _ = None")
	if v := f.value("r.read(3) == open('/usr/bin/env', 'rb').read()[10:13] and os.get_inheritable(w.fileno())"); v.Repr != "False" {
		t.Errorf("%s", v.Repr)
	}
	if v := f.value("os.write(pw, b'through'), os.read(pr, 100)"); v.Repr != "(7, b'through')" {
		t.Errorf("a pipe: %s", v.Repr)
	}
	if v := f.value("loop.call_later(0.01, loop.stop); loop.call_soon_threadsafe(lambda: None); loop.run_forever() or 'ran'"); v.Repr != "'ran'" {
		t.Errorf("an event loop: %s", v.Repr)
	}
	f.run("_ = os.write(out, b'stdout')")
	if got := f.out.until(t, "stdout"); got != "stdout" {
		t.Error(got)
	}
	// The parent's are as they were.
	if _, err := p.Resume(p.ctx); err != nil {
		t.Fatal(err)
	}
	if v := p.value("c.send(b'hello'), a.recv(5)"); v.Repr != "(5, b'hello')" {
		t.Error(v.Repr)
	}
	p.run("_ = w.write('parent'); w.close()")
	if v := p.value("open('log').read()"); v.Repr != "'buffered forkparent'" { // here they share the folder
		t.Error(v.Repr)
	}
}

func TestD42RandomnessDiffers(t *testing.T) {
	// In a namespace of its own each has the same number, which is what some
	// libraries look at.
	own := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), ContainerID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), ContainerID: os.Getgid(), Size: 1}}}
	trunk := startKind(t, cell.WarmPython, testenv.Python(t), own)
	trunk.run(`import random, uuid, ssl, secrets, os, tempfile, multiprocessing
try:
    import numpy
except ImportError:
    numpy = None
random.seed(1); uuid.uuid1(); ssl.RAND_bytes(1); tempfile.mkdtemp()
import ctypes; libc = ctypes.CDLL(None)
if numpy: numpy.random.seed(1)
def draw():
    return (random.random(), str(uuid.uuid1()).split("-", 1)[1], str(uuid.uuid4()), ssl.RAND_bytes(8), secrets.token_hex(4), os.urandom(8),
        libc.rand(), next(tempfile._get_candidate_names()), bytes(multiprocessing.current_process().authkey)) + ((numpy.random.rand(),) if numpy else ())`)
	flags := uintptr(plainFlags | unix.CLONE_NEWUSER | unix.CLONE_NEWPID)
	trunk.run("draw(); _ = None")
	seen := map[string]int{}
	var hazards string
	for n := range 4 {
		f, got := trunk.forked(flags, ModeFork, asItIs)
		ev := f.eval("[repr(x) for x in draw()]")
		if !ev.OK {
			t.Fatal(show(ev))
		}
		for i, part := range strings.Split(strings.Trim(string(ev.Value.JSON), "[]"), `","`) {
			if was, there := seen[part]; there {
				t.Errorf("fork %d drew what fork %d did: the %d. is %s", n, was, i, part)
			}
			seen[part] = n
		}
		hazards = show(got.Hazards)
	}
	for _, name := range []string{"randomness", "uuid", "ssl randomness", "hash seed", "clock", "hooks"} {
		if !strings.Contains(hazards, fmt.Sprintf("%q", name)) {
			t.Errorf("%s is not certified: %s", name, hazards)
		}
	}
}

// What does not stand is forked all the same, and says why.
func TestWhatDoesNotStandSaysWhy(t *testing.T) {
	for setup, want := range map[string]string{"pass": "", "import os; del os.memfd_create": "no code for this processor"} {
		p := startPython(t)
		p.run(setup)
		if _, err := p.Hold(p.ctx, true); err != nil {
			t.Fatal(err)
		}
		if p.Slow() != "" {
			t.Errorf("before it was asked: %q", p.Slow())
		}
		p.Stand(p.ctx, plainFlags)
		if p.Slow() != want {
			t.Errorf("after %q: %q, want %q", setup, p.Slow(), want)
		}
		f, _ := p.forked(plainFlags, ModeFork, asItIs)
		f.value("1")
	}
}

// Generators that code made itself go on from where they were, which is counted;
// those that pando renews are not among them.
func TestSeededGeneratorsAreCounted(t *testing.T) {
	const name = "seeded generators"
	p := startPython(t)
	if _, got := p.forked(plainFlags, ModeFork, asItIs); hazardOf(got, name) != "" {
		t.Errorf("without generators: %q", hazardOf(got, name))
	}
	p = startPython(t)
	p.run("import random, secrets, tempfile; tempfile.mktemp(); random.seed(1)\ntry:\n import numpy; numpy.random.seed(1)\nexcept ImportError: pass")
	a, got := p.forked(plainFlags, ModeFork, asItIs)
	if v := hazardOf(got, name); v != "none that code has made" {
		t.Errorf("with those that are renewed: %q", v)
	}
	a.run("mine = random.Random(7)") // of a fork, too, when it is forked
	if _, got := a.forked(plainFlags, ModeFork, asItIs); !strings.HasPrefix(hazardOf(got, name), "inherited: 1 that code has made: ") {
		t.Errorf("of a fork with one: %q", hazardOf(got, name))
	}

	p = startPython(t)
	p.run(`import random
class Mine(random.Random): pass
all = [random.Random(7), Mine(3)]
want = 2
try:
    import numpy
    all += [numpy.random.default_rng(7), numpy.random.RandomState(7)]
    want += 2
except ImportError:
    pass`)
	want := p.value("want").Repr
	var said []string
	for range 2 {
		f, got := p.forked(plainFlags, ModeFork, asItIs)
		v := hazardOf(got, name)
		if !strings.HasPrefix(v, "inherited: "+want+" that code has made: ") || !strings.HasSuffix(v, "1 random.Random)") || !strings.Contains(v, "1 __main__.Mine") {
			t.Errorf("of %s: %q", want, v)
		}
		if want == "4" && !strings.Contains(v, "1 numpy.random.MT19937, 1 numpy.random.PCG64") {
			t.Errorf("of numpy's: %q", v)
		}
		said = append(said, f.value("[g.random() for g in all]").Repr)
		f.run("more = random.Random(1)")
		if _, got := f.forked(plainFlags, ModeFork, asItIs); !strings.Contains(hazardOf(got, name), "2 random.Random") {
			t.Errorf("of a fork of it: %q", hazardOf(got, name))
		}
	}
	if said[0] != said[1] {
		t.Errorf("they do not go on from the same state: %q", said)
	}
}

func hazardOf(a Adopted, name string) string {
	for _, h := range a.Hazards {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

func TestHooksOfForks(t *testing.T) {
	p := startPython(t)
	p.run(`import os, pando
told = []
def hook(): told.append(os.environ["NAME"])
_ = pando.at_fork(hook)
os.register_at_fork(after_in_child=lambda: told.append("child"))`)
	a := asItIs
	a.Env = map[string]string{"NAME": "web-1", "HOME": ""}
	a.Workdir = "/usr"
	f, got := p.forked(plainFlags, ModeFork, a)
	if v := f.value("told, os.getcwd(), os.environ.get('HOME'), os.popen('echo $NAME').read()"); v.Repr != `(['child', 'web-1'], '/usr', None, 'web-1\n')` {
		t.Error(v.Repr)
	}
	if !strings.Contains(show(got.Hazards), "1 ran") {
		t.Error(show(got.Hazards))
	}
	if v := p.value("told"); v.Repr != "[]" {
		t.Errorf("hooks ran in what was forked: %s", v.Repr)
	}
	p.run("def bad(): raise ValueError('no')\n_ = pando.at_fork(bad)")
	g := p.fork(plainFlags, ModeFork)
	_, err := g.Conn.Adopt(p.ctx, a)
	if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "ValueError: no") || !strings.Contains(err.Error(), "in bad") {
		t.Errorf("a hook that fails: %v", err)
	}
}

func TestCheckNamesObstacles(t *testing.T) {
	p := startPython(t)
	if o, err := p.Check(p.ctx); err != nil || o.Any() {
		t.Fatalf("%v %+v", err, o)
	}
	p.run(`import threading, subprocess, mmap, tempfile
stop = threading.Event()
t = threading.Thread(target=stop.wait, name="worker-1"); t.start()
child = subprocess.Popen(["sleep", "60"])
m = mmap.mmap(-1, 4096)
f = tempfile.TemporaryFile()`)
	o, err := p.Check(p.ctx)
	if err != nil || len(o.Threads) != 1 || o.Threads[0] != "worker-1" || len(o.Processes) != 1 || !strings.HasSuffix(o.Processes[0], " sleep") ||
		len(o.Shared) != 1 || len(o.Deleted) != 1 {
		t.Errorf("%v %+v", err, o)
	}
	p.run("child.kill(); child.wait(); stop.set(); t.join(); m.close(); f.close(); _ = None")
	if o, err := p.Check(p.ctx); err != nil || o.Any() {
		t.Errorf("afterwards: %v %+v", err, o)
	}
}

// A thread that is about to end prevents no fork: one that was joined may not be
// gone yet.
func TestCheckWaitsForThreadsThatEnd(t *testing.T) {
	p := startPython(t)
	p.run("import _thread, time; sleep = time.sleep; time.sleep = None; _ = _thread.start_new_thread(sleep, (0.05,))")
	if o, err := p.Check(p.ctx); err != nil || o.Any() {
		t.Errorf("%v %+v", err, o)
	}
	p.run("_ = _thread.start_new_thread(sleep, (60,))")
	if o, err := p.Check(p.ctx); err != nil || len(o.Threads) != 1 {
		t.Errorf("one that stays: %v %+v", err, o)
	}
}

// The source of a branch goes on in a fork as if nothing had happened.
func TestGoOn(t *testing.T) {
	p := startPython(t)
	p.run(`import os, socket, random, threading
random.seed(5); first = random.random()
w = open("log", "w"); _ = w.write("one ")
a, b = socket.socketpair()
os.register_at_fork(after_in_child=lambda: 1/0)`)
	held, err := p.Hold(p.ctx, false)
	if err != nil || len(held) != 1 || !strings.HasSuffix(held[0].Path, "/log") {
		t.Fatalf("%v %+v", err, held)
	}
	f, got := p.forked(plainFlags, ModeGoOn, asItIs)
	if len(got.Dropped) > 0 {
		t.Errorf("dropped %v", got.Dropped)
	}
	if err := p.Release(p.ctx); err != nil {
		t.Fatal(err)
	}
	if v := f.value("a.send(b'x'), b.recv(1)"); v.Repr != "(1, b'x')" {
		t.Errorf("a connection: %s", v.Repr)
	}
	f.run("_ = w.write('two'); w.close(); b.close()")
	if v := f.value("open('log').read()"); v.Repr != "'one two'" {
		t.Error(v.Repr)
	}
	if v := f.value("a.recv(1)"); v.Repr != "b''" { // no other process has the other end
		t.Error(v.Repr)
	}
	if v := f.value("random.random() == (random.seed(5), random.random(), random.random())[2]"); v.Repr != "True" {
		t.Error("its randomness was disturbed")
	}
	if got := f.err.take(); strings.Contains(got, "ZeroDivisionError") {
		t.Error("hooks for children ran in the source")
	}
}

func TestForksAreInterrupted(t *testing.T) {
	p := startPython(t)
	p.run("import time")
	f := p.fork(plainFlags|unix.CLONE_NEWUSER|unix.CLONE_NEWPID, ModeFork)
	if _, err := f.Conn.Adopt(p.ctx, asItIs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.ctx, 100*time.Millisecond)
	defer cancel()
	if ev, err := f.Eval(ctx, "time.sleep(60)", 1000, f.interrupt); err != nil || ev.Cause != cell.CauseTimeout || ev.Error.Type != "KeyboardInterrupt" {
		t.Errorf("process 1 of a namespace: %v %s", err, show(ev))
	}
}

func TestForkSpeed(t *testing.T) {
	p := startPython(t)
	p.eval("import numpy")
	p.Hold(p.ctx, true)
	began := time.Now()
	const n = 50
	var fork, adopt time.Duration
	for range n {
		t0 := time.Now()
		f := p.fork(plainFlags, ModeFork)
		t1 := time.Now()
		if _, err := f.Conn.Adopt(p.ctx, asItIs); err != nil {
			t.Fatal(err)
		}
		fork, adopt = fork+t1.Sub(t0), adopt+time.Since(t1)
	}
	t.Logf("%v each: %v fork, %v adopt", time.Since(began)/n, fork/n, adopt/n)
}

// A fork copies page tables: of a large heap there are few.
func TestLargeTemplatesHaveHugePages(t *testing.T) {
	if b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil || strings.Contains(string(b), "[never]") {
		t.Skip("needs huge pages")
	}
	p := startPython(t)
	p.run("x = [float(i) for i in range(3 << 20)]") // 120 MiB
	huge := func() (kib int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "AnonHugePages:")
		fmt.Sscan(rest, &kib)
		return kib
	}
	before := huge()
	if _, err := p.Hold(p.ctx, true); err != nil {
		t.Fatal(err)
	}
	if n := huge(); n < before+64<<10 {
		t.Errorf("of a heap of 120 MiB %d KiB are huge pages, %d before", n, before)
	}
	f, _ := p.forked(plainFlags, ModeFork, asItIs)
	if v := f.value("sum(x) == (3 << 20) * ((3 << 20) - 1) / 2"); v.Repr != "True" {
		t.Error(v.Repr)
	}
}

// Modules that were there before the interpreter's own end may have registered
// hooks that it does not know of.
func TestForkWithEarlierHooks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/sitecustomize.py", []byte("import os, threading\nos.register_at_fork(after_in_child=lambda: os.environ.update(EARLY='ran'))\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := startPython(t, "PYTHONPATH="+dir)
	p.run("import os, random\nlate = []\nos.register_at_fork(after_in_child=lambda: late.append(1))")
	a, _ := p.forked(plainFlags, ModeFork, asItIs)
	if v := a.value("os.environ.get('EARLY'), late"); v.Repr != "('ran', [1])" {
		t.Errorf("hooks: %s", v.Repr)
	}
	b, _ := p.forked(plainFlags, ModeFork, asItIs)
	if x, y := a.value("random.random()"), b.value("random.random()"); x.Repr == y.Repr {
		t.Error("two forks draw the same")
	}
	if v := p.value("os.environ.get('EARLY'), late"); v.Repr != "(None, [])" {
		t.Errorf("in what was forked: %s", v.Repr)
	}
}

// What a fork of the code's own (os.fork) has asked for is called there, and not
// twice.
func TestForksOfCodeCallTheirHooks(t *testing.T) {
	p := startPython(t)
	p.run(`import os
said = []
os.register_at_fork(before=lambda: said.append("before"), after_in_parent=lambda: said.append("parent"), after_in_child=lambda: said.append("child"))
pid = os.fork()
if pid == 0:
    os.write(1, " ".join(said).encode() + b"\n")
    os._exit(0)
_ = os.waitpid(pid, 0)`)
	if got := p.out.until(t, "\n"); got != "before child\n" {
		t.Errorf("the child: %q", got)
	}
	if v := p.value("said"); v.Repr != "['before', 'parent']" {
		t.Errorf("the parent: %s", v.Repr)
	}
	if ev := p.eval("os.register_at_fork()"); ev.Error == nil || ev.Error.Type != "TypeError" {
		t.Errorf("nothing to register: %s", show(ev))
	}
}

// Pairs with ends in another order than they were made in are joined again all
// the same: a new end must not be overwritten by the other on its way.
func TestEndsInAnyOrder(t *testing.T) {
	p := startPython(t)
	p.run(`import os, socket
a, b = socket.socketpair()
r, w = os.pipe()
for x, y in ((a.fileno(), b.fileno()), (r, w)):
    c = os.dup(x)
    os.dup2(y, x); os.dup2(c, y); os.close(c)
r, w = w, r`)
	f, _ := p.forked(plainFlags, ModeFork, asItIs)
	if v := f.value("(a.send(b'x'), b.recv(1), os.write(w, b'y'), os.read(r, 1))"); v.Repr != "(1, b'x', 1, b'y')" {
		t.Errorf("their ends: %s", v.Repr)
	}
}
