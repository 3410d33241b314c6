package namespace

import (
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// sourceState is code that makes state of every kind that a source keeps, and state()
// that tells all of it as the kernel does.
const sourceState = `import os, fcntl, signal, ctypes, struct, select, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def opened(name, mode, text="0123456789"):
    open(name, "w").write(text)
    return open(name, mode)
os.makedirs("d/e"); os.chdir("d/e")
whole = opened("whole", "r"); fcntl.flock(whole, fcntl.LOCK_EX)
shared = opened("shared", "r+"); fcntl.flock(shared, fcntl.LOCK_SH)
record = opened("record", "r+"); fcntl.lockf(record, fcntl.LOCK_EX, 10, 5); fcntl.lockf(record, fcntl.LOCK_SH, 0, 100)
reader = open("record")
ofd = opened("ofd", "r+"); fcntl.fcntl(ofd, 37, struct.pack("hh4xqqi4x", fcntl.F_WRLCK, 0, 3, 4, 0))
twice = opened("twice", "r+"); again = os.dup(twice.fileno()); fcntl.flock(again, fcntl.LOCK_EX); os.lseek(again, 7, 0)
tail = opened("tail", "a+"); os.lseek(tail.fileno(), 2, 0)
signal.signal(signal.SIGALRM, lambda *a: None); signal.signal(signal.SIGPROF, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 1000, 7); signal.setitimer(signal.ITIMER_PROF, 500, 3)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
r, w = os.pipe(); os.write(w, b"in a pipe")
a, b = socket.socketpair(); a.send(b"in a socket")
counter = os.eventfd(5, os.EFD_NONBLOCK | os.EFD_SEMAPHORE) if hasattr(os, "eventfd") else None
libc.prctl(36, 1, 0, 0, 0)
os.umask(0o027); os.setpriority(os.PRIO_PROCESS, 0, 19); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def asked(option):
    n = ctypes.c_int(0); libc.prctl(option, ctypes.byref(n), 0, 0, 0); return n.value
def locks(f):
    lines = open("/proc/self/fdinfo/%d" % (f if type(f) is int else f.fileno())).read().splitlines()
    return sorted(l.split()[2] + " " + l.split()[4] + " " + " ".join(l.split()[-2:]) for l in lines if l.startswith("lock:"))
def timer(which):
    left, interval = signal.getitimer(which); return 0 < left <= 1000 and interval
def unread():
    n = ctypes.c_int(0); libc.ioctl(r, 0x541b, ctypes.byref(n)); return n.value
def mask():
    old = os.umask(0); os.umask(old); return oct(old)
def state():
    return {"cwd": os.getcwd(), "whole": locks(whole), "shared": locks(shared), "record": locks(record), "reader": locks(reader), "ofd": locks(ofd), "twice": locks(twice), "again": locks(again),
        "one offset": (os.lseek(again, 3, 0), os.lseek(twice.fileno(), 0, 1), os.lseek(again, 7, 0))[1], "tail": os.lseek(tail.fileno(), 0, 1),
        "timers": (timer(0), timer(1), timer(2)), "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "subreaper": asked(37), "umask": mask(), "nice": os.nice(0), "cpus": os.sched_getaffinity(0)}
def connected():
    return unread(), select.select([b], [], [], 0)[0] == [b], counter is None or (os.eventfd_read(counter), os.eventfd_write(counter, 1))[0]
state(), connected()`

const keptState = `{'cwd': '/work/d/e', 'whole': ['FLOCK WRITE 0 EOF'], 'shared': ['FLOCK READ 0 EOF'], 'record': ['POSIX READ 100 EOF', 'POSIX WRITE 5 14'], 'reader': [], ` +
	`'ofd': ['OFDLCK WRITE 3 6'], 'twice': ['FLOCK WRITE 0 EOF'], 'again': ['FLOCK WRITE 0 EOF'], 'one offset': 3, 'tail': 2, 'timers': (7.0, False, 3.0), 'blocked': [<Signals.SIGUSR2: 12>], 'subreaper': 1, 'umask': '0o27', 'nice': 19, 'cpus': {0}}`

// The source of a branch keeps all that the kernel held for it, and other processes of
// its cell find its locks; a branch has the same on its own files. A branch that is
// given up leaves the source with all of it, too.
func TestX15ASourceKeepsWhatTheKernelHeld(t *testing.T) {
	g := newForkBed(t, "")
	check := func(what string, w backend.Warmer) {
		t.Helper()
		if got := g.says(w, "state()"); got != keptState {
			t.Errorf("%s has\n%s, want\n%s", what, got, keptState)
		}
		st := g.runs(w, `cd d/e && for f in whole twice; do flock -n $f true && exit 1; done; flock -n shared true && exit 2; flock -s -n shared true || exit 3
python3 -c '
import fcntl
f = open("record", "r+")
for start, n in ((5, 10), (200, 1)):
    try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, n, start)
    except OSError: continue
    raise SystemExit(4)
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)' || exit 4`)
		if st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("another process of %s found its locks: %+v", what, st.Exit)
		}
	}
	if got, want := g.says(g.warm, sourceState), "("+keptState+", (9, True, 1))"; got != want {
		t.Fatalf("the source has\n%s, want\n%s", got, want)
	}
	check("the source", g.warm)
	b := cell.Branching{Self: g.over(g.spec, g.spec.ID), Cells: []cell.Spec{g.over(g.spec, cell.NewID())}}
	b.Self.Mounts = append(b.Self.Mounts, cell.Mount{Kind: cell.Protect, Target: "/work/not-there"})
	if _, _, err := g.warm.Branch(t.Context(), b); err == nil {
		t.Fatal("a source went on with what can't be mounted")
	}
	check("the source of a branch that was given up", g.warm)
	list, _, self := g.branch(g.warm, g.spec, 1)
	check("the source", g.warm)
	check("the branch", list[0])
	if got := g.says(g.warm, "connected()"); got != "(9, True, 1)" {
		t.Errorf("of its connections the source has %s", got)
	}
	// A lock that the branch lets go of is its own.
	g.says(list[0], "fcntl.flock(whole, fcntl.LOCK_UN); twice.close(); os.close(again); record.close(); 1")
	check("the source of a branch that let go of its locks", g.warm)
	again, _, _ := g.branch(g.warm, self, 1)
	check("a source that was branched twice", g.warm)
	if got := g.says(again[0], "a.send(b'x'), b.recv(1)"); got != "(1, b'x')" {
		t.Errorf("the pair of a branch of a source that was branched twice: %s", got)
	}
}

// Each fork of a template has the locks and timers of its set-up, on its own files; its
// terminals are dead, and named. What a fork would lose unnamed refuses the template.
func TestX15ForksOfTemplates(t *testing.T) {
	g := newForkBed(t, `import fcntl, signal, pty, os
l = open("lock", "w"); fcntl.flock(l, fcntl.LOCK_EX)
m = open("records", "w"); fcntl.lockf(m, fcntl.LOCK_EX, 10, 5)
_ = signal.signal(signal.SIGALRM, lambda *_: None); _ = signal.setitimer(signal.ITIMER_REAL, 1000, 7)
p, q = pty.openpty()
s = os.open("/work", os.O_RDONLY)`)
	g.seal()
	for range 2 {
		f := g.unadopted()
		cert, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "fork"})
		g.must(err)
		if dropped := strings.Join(cert.Dropped, ", "); strings.Count(dropped, "it is a terminal") != 2 {
			t.Errorf("dropped %s", dropped)
		}
		if got := g.says(f, "900 < signal.getitimer(0)[0] <= 1000, os.listdir(s) == os.listdir('/work')"); got != "(True, True)" {
			t.Errorf("a fork has %s", got)
		}
		if st := g.runs(f, `flock -n lock true && exit 1; python3 -c 'import fcntl; fcntl.lockf(open("records", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 14)' 2>&1 && exit 2; exit 0`); st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("another process of a fork found its locks: %+v", st.Exit)
		}
	}
	for names, setup := range map[string]string{
		"timer_create":       "import ctypes, struct; t = ctypes.c_void_p(); _ = ctypes.CDLL(None).timer_create(1, struct.pack('QiiQQQQQQ', 0, 10, 1, 0, 0, 0, 0, 0, 0), ctypes.byref(t))",
		"System V":           "import ctypes; _ = ctypes.CDLL(None).msgget(0, 0o600)",
		"was not waited for": "import subprocess, os; p = subprocess.Popen(['true']); _ = os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)",
	} {
		b := newForkBed(t, setup)
		if _, err := b.warm.Seal(t.Context()); cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", names, err)
		}
	}
}

// What a branch does not get of its source's descriptors is in its certificate.
func TestX15ABranchNamesWhatItDoesNotGet(t *testing.T) {
	g := newForkBed(t, `import os, socket, ctypes
r, w = os.pipe(); _ = os.write(w, b"123")
a, b = socket.socketpair(); _ = a.send(b"12345")
n = ctypes.CDLL(None).inotify_init1(0)`)
	b := cell.Branching{Self: g.over(g.spec, g.spec.ID), Cells: []cell.Spec{g.over(g.spec, cell.NewID())}}
	list, _, err := g.warm.Branch(t.Context(), b)
	g.must(err)
	t.Cleanup(func() { list[0].Remove(g.bg(), "the test ended") })
	cert, err := list[0].Adopt(t.Context(), cell.Adoption{Hostname: "branch"})
	g.must(err)
	for _, want := range []string{"3 unread bytes in pipe", "5 unread bytes in socket", "inotify"} {
		if !strings.Contains(strings.Join(cert.Dropped, ", "), want) {
			t.Errorf("dropped %q, and not %s", cert.Dropped, want)
		}
	}
	if got := g.says(g.warm, "os.read(r, 9), b.recv(9)"); got != "(b'123', b'12345')" {
		t.Errorf("the source reads %s", got)
	}
}

// An open transaction of the source keeps others from writing, and its commit
// overwrites nothing.
func TestX15TransactionsOfTheSource(t *testing.T) {
	g := newForkBed(t, "")
	if got := g.says(g.warm, `import sqlite3
db = sqlite3.connect("db", isolation_level=None)
_ = db.execute("create table t (who text)")
_ = db.execute("begin immediate"); _ = db.execute("insert into t values ('source')"); 1`); got != "1" {
		t.Skipf("needs sqlite3 in the cell: %s", got)
	}
	list, _, _ := g.branch(g.warm, g.spec, 1)
	other := `python3 -c '
import sqlite3
db = sqlite3.connect("db", timeout=0)
try: db.execute("insert into t values (\"other\")"); db.commit()
except sqlite3.OperationalError as e: raise SystemExit(7 if "locked" in str(e) else 8)'`
	for what, w := range map[string]backend.Warmer{"the source": g.warm, "the branch": list[0]} {
		if st := g.runs(w, other); st.Exit == nil || st.Exit.Code != 7 {
			t.Errorf("in %s another process wrote during its transaction: %+v", what, st.Exit)
		}
		g.says(w, "db.execute('commit'); 1")
		if st := g.runs(w, other); st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("in %s another process could not write after its transaction: %+v", what, st.Exit)
		}
		if got := g.says(w, "db.execute('select who from t').fetchall(), db.execute('pragma integrity_check').fetchall()"); got != "([('source',), ('other',)], [('ok',)])" {
			t.Errorf("%s has %s", what, got)
		}
	}
}

// What a source could not keep refuses the branch by name, and is there afterwards.
func TestX15WhatCannotBeKeptRefuses(t *testing.T) {
	out := t.TempDir()
	if err := os.Chmod(out, 0o777); err != nil {
		t.Fatal(err)
	}
	g := newForkBedWith(t, `import os, fcntl, ctypes, signal, socket, subprocess, pty, mmap, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
def must(n):
    if n < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return n
x = 1`, func(s *cell.Spec) {
		s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Bind, Source: out, Target: "/out"})
	})
	for _, x := range []struct{ names, setup, undo string }{
		{"SIGUSR1", "signal.pthread_sigmask(signal.SIG_BLOCK, [10]); os.kill(os.getpid(), 10)", "signal.sigpending(); signal.sigwait([10]); signal.pthread_sigmask(signal.SIG_UNBLOCK, [10])"},
		{"timer_create", "t = ctypes.c_void_p(); must(libc.timer_create(1, struct.pack('QiiQQQQQQ', 0, 10, 1, 0, 0, 0, 0, 0, 0), ctypes.byref(t)))", "libc.timer_delete(t)"},
		{"mlock", "m = ctypes.create_string_buffer(8192); must(libc.mlock(m, 8192))", "libc.munlock(m, 8192)"},
		{"lease on /work/leased", "open('leased', 'w').write('x'); f = open('leased'); fcntl.fcntl(f, 1024, fcntl.F_RDLCK)", "f.close()"},
		{"inotify", "n = must(libc.inotify_init1(0)); must(libc.inotify_add_watch(n, b'/work', 0x100))", "os.close(n)"},
		{"true, which has ended and was not waited for", "p = subprocess.Popen(['true']); os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)", "p.wait()"},
		{"terminal /dev/pts", "p, q = pty.openpty()", "os.close(p); os.close(q)"},
		{"named pipe /work/fifo", "os.mkfifo('fifo'); f = os.open('fifo', os.O_RDWR)", "os.close(f)"},
		{"socket /work/listening", "s = socket.socket(socket.AF_UNIX); s.bind('/work/listening'); s.listen()", "s.close()"},
		{"socket /work/datagrams", "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('/work/datagrams')", "s.close()"},
		{"socket relative", "s = socket.socket(socket.AF_UNIX); s.bind('relative'); s.listen()", "s.close()"},
		{"directory /work, which it is reading", "d = os.open('/work', os.O_RDONLY); f = ctypes.create_string_buffer(4096); must(libc.syscall(217, d, f, 4096))", "os.close(d)"},
		{"/work/gone-dir", "os.mkdir('gone-dir'); d = os.open('gone-dir', os.O_RDONLY); os.rmdir('gone-dir')", "os.close(d)"},
		{"/work/link-gone", "open('link-stays', 'w').close(); os.link('link-stays', 'link-gone'); f = open('link-gone'); os.remove('link-gone')", "f.close()"},
		{"RLIMIT_CPU", "was = resource.getrlimit(resource.RLIMIT_CPU); resource.setrlimit(resource.RLIMIT_CPU, (1000, was[1]))", "resource.setrlimit(resource.RLIMIT_CPU, was)"},
		{"MADV_DONTFORK", "m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_DONTFORK)", "m.madvise(mmap.MADV_DOFORK); m.close()"},
		{"PR_SET_PDEATHSIG 10", "libc.prctl(1, 10, 0, 0, 0)", "libc.prctl(1, 0, 0, 0, 0)"},
		{"PR_SET_DUMPABLE", "libc.prctl(4, 0, 0, 0, 0)", "libc.prctl(4, 1, 0, 0, 0)"},
		{"System V semaphores", "s = must(libc.semget(0, 1, 0o600))", "libc.semctl(s, 0, 0)"},
		{"F_SETOWN", "s = socket.socketpair(); fcntl.fcntl(s[0], fcntl.F_SETOWN, os.getpid())", "s[0].close(); s[1].close()"},
		{"lock on /out/locked", "f = open('/out/locked', 'w'); fcntl.flock(f, fcntl.LOCK_EX)", "f.close()"},
		{"descriptor 1", "o = os.dup(1); f = os.open('said', os.O_CREAT | os.O_RDWR); os.dup2(f, 1); os.close(f)", "os.dup2(o, 1); os.close(o)"},
		{"/work/barred, which it could not open again", "f = open('barred', 'w'); os.chmod('barred', 0o600); os.seteuid(1); libc.prctl(4, 1, 0, 0, 0)", "os.seteuid(0); libc.prctl(4, 1, 0, 0, 0); f.close()"},
	} {
		if os.Getuid() != 0 && strings.Contains(x.setup, "seteuid") { // a user's cell has one user
			continue
		}
		if got := g.says(g.warm, x.setup+"\n1"); got != "1" {
			t.Errorf("%s: %s", x.names, got)
			continue
		}
		b := cell.Branching{Self: g.over(g.spec, g.spec.ID), Cells: []cell.Spec{g.over(g.spec, cell.NewID())}}
		list, _, err := g.warm.Branch(t.Context(), b)
		if cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), x.names) || !strings.Contains(cell.HintOf(err), "--backend gvisor") || list != nil {
			t.Errorf("%s: %v (%s)", x.names, err, cell.HintOf(err))
		}
		if got := g.says(g.warm, x.undo+"\nx"); got != "1" {
			t.Errorf("%s, afterwards: %s", x.names, got)
		}
	}
	if w, err := g.warm.Warmth(t.Context()); err != nil || w.Depth != 0 {
		t.Errorf("the source: %+v, %v", w, err)
	}
	_, _, self := g.branch(g.warm, g.spec, 1)
	if got := g.says(g.warm, "os.sched_setscheduler(0, 0x40000000, os.sched_param(0))\n1"); got != "1" { // which it may not take back
		t.Fatal(got)
	}
	b := cell.Branching{Self: g.over(self, g.spec.ID), Cells: []cell.Spec{g.over(self, cell.NewID())}}
	if _, _, err := g.warm.Branch(t.Context(), b); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "SCHED_RESET_ON_FORK") {
		t.Errorf("a scheduling policy that forks do not have: %v", err)
	}
}

// Whether the locks are there is what the kernel says, and not the interpreter.
func TestX15LocksAreSeenFromOutside(t *testing.T) {
	g := newForkBed(t, `import fcntl, sys
l = open("lock", "w"); fcntl.flock(l, fcntl.LOCK_EX)
f = sys._getframe()
while "lock_again" not in f.f_globals: f = f.f_back
own = f.f_globals; real = own["lock_again"]
own["lock_again"] = lambda *_: None`)
	b := cell.Branching{Self: g.over(g.spec, g.spec.ID), Cells: []cell.Spec{g.over(g.spec, cell.NewID())}}
	if _, _, err := g.warm.Branch(t.Context(), b); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "lock on /work/lock") {
		t.Errorf("a source went on without its lock: %v", err)
	}
	// The fork that was given up is gone: it is no child that the source has to wait for.
	if got := g.says(g.warm, "own['lock_again'] = real\n1"); got != "1" {
		t.Fatal(got)
	}
	g.branch(g.warm, g.spec, 1)
}
