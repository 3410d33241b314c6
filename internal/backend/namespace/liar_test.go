package namespace

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// lie begins the set-up of an interpreter that lies: what is named
// CHILD runs in a fork before it says that it is one, TRUNK in the fork parent after
// each fork. Descriptors from 900 on are neither told of nor closed.
const lie = `
import array, ctypes, gc, mmap, os, signal, socket, struct, sys, time
OPS = next(o for o in gc.get_objects() if type(o) is dict and 'adopt' in o and 'fork' in o and 'OPS' not in o)
G = OPS['fork'].__globals__
LIBC = ctypes.CDLL(None, use_errno=True)
CHILD = TRUNK = lambda: None
FORKING = False
class Meta(type):
    def __setattr__(c, k, v):
        type.__setattr__(c, k, v)
        if k == 'mode' and FORKING: CHILD()
class Fork(metaclass=Meta):
    mode, was, filled = '', [], False
G['Fork'] = Fork
def hold(req, files, was=OPS['hold']):
    r = was(req, files)
    G['Held'].plan = [o for o in G['Held'].plan if o.fd < 900]
    G['Trunk'].close = (ctypes.c_long(G['Forking'].numbers['close_range']), ctypes.c_ulong(4), ctypes.c_ulong(899), ctypes.c_ulong(0))
    return r
OPS['hold'] = hold
def forked(req, files, was=OPS['fork']):
    global FORKING
    FORKING = True
    r = was(req, files)
    FORKING = False
    if r is not None: TRUNK()
    return r
OPS['fork'] = forked
OPS['check'] = lambda _, __: {}
def stand(req, files): raise G['Refused']('no')
OPS['stand'] = stand
def high(s, fd):
    os.dup2(s.fileno() if hasattr(s, 'fileno') else s, fd)
    (s.close if hasattr(s, 'close') else lambda: os.close(s))()
    return fd
`

// refuses makes sure that a fork of an interpreter with that set-up never
// becomes a cell.
func refuses(t *testing.T, setup, why string) {
	t.Helper()
	g := newForkBed(t, lie+setup)
	if _, err := g.warm.Seal(t.Context()); err != nil {
		if cell.KindOf(err) == cell.Internal || !strings.Contains(err.Error(), why) {
			t.Errorf("it was not sealed, but because %v, not %q", err, why)
		}
		return
	}
	f, err := g.warm.Fork(t.Context(), g.child())
	if err == nil {
		defer f.Remove(context.Background(), "the test ended")
		_, err = f.Adopt(t.Context(), cell.Adoption{})
	}
	if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), why) {
		t.Errorf("it was forked, and should not have been because %q: %v", why, err)
	}
}

// What a fork still has of its parent is found by looking at it, wherever its own
// end has put it.
func TestD34aLiarsKeepNothing(t *testing.T) {
	for name, x := range map[string][2]string{
		"a socket under way in another": {`
shared = socket.socketpair(); high(shared[0], 900); high(shared[1], 901)
def CHILD():
    a, b = socket.socketpair()
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [900]))])
    os.close(900); os.close(901); high(a, 902); high(b, 903)
`, "descriptor"},
		"a socket that the trunk has closed": {`
shared = socket.socketpair(); high(shared[0], 900); high(shared[1], 901)
def TRUNK():
    os.close(900); os.close(901)
`, "descriptor"},
		"an event under another number": {`
high(LIBC.eventfd(0, 0), 900)
def CHILD():
    os.dup2(900, 950); os.close(900)
`, "descriptor"},
		"its trunk's own connection": {`
os.dup2(3, 900)
`, "descriptor"},
		"its connection, in the trunk": {`
def keep(req, files, was=OPS['fork']):
    r = was(req, files)
    if r is not None: os.dup2(files[0], 905)
    return r
OPS['fork'] = keep
`, "descriptor"},
		"its connection, under way in the trunk": {`
pair = socket.socketpair()
def keep(req, files, was=OPS['fork']):
    r = was(req, files)
    if r is not None: pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [files[0]]))])
    return r
OPS['fork'] = keep
`, "descriptor"},
		"shared memory that it can't write yet": {`
m = mmap.mmap(-1, 4096); m[:4] = b'here'
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
LIBC.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 1)
`, "memory"},
		"capabilities in another process": {`
def CHILD():
    LIBC.fork.restype = ctypes.c_int
    if LIBC.fork() == 0:
        LIBC.sleep(60)
        os._exit(0)
`, "process"},
		"its trunk's process group": {`
os.setpgid = lambda pid, group: None
`, "process group"},
		"its trunk's terminal": {`
os.setsid = lambda: os.setpgid(0, 0)
os.close(os.open(os.ttyname(os.openpty()[1]), os.O_RDWR))
`, "terminal"},
		"a thread": {`
import _thread
def CHILD():
    _thread.start_new_thread(time.sleep, (60,))
`, "thread"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, x[0], x[1]) })
	}
}

// What a set-up has left running is found although it has no parent any more,
// and although its own end says nothing of it.
func TestD38NobodyStaysBesideATrunk(t *testing.T) {
	for name, setup := range map[string]string{
		"orphans": "import os, time\nif os.fork() == 0:\n  if os.fork() == 0:\n    time.sleep(60)\n  os._exit(0)\nos.wait()",
		"lies":    lie + "import subprocess\np = subprocess.Popen(['sleep', '60'])",
	} {
		t.Run(name, func(t *testing.T) {
			g := newForkBed(t, setup)
			if _, err := g.warm.Seal(t.Context()); cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), "processes of it are alive") {
				t.Errorf("it was sealed: %v", err)
			}
		})
	}
}

// A template that goes on running reaches none of its forks' files and memory.
func TestD38ATrunkDoesNotReachItsForks(t *testing.T) {
	for name, find := range map[string]string{
		"by name":         "find = lambda: '/proc'",
		"by a descriptor": "high(os.open('/proc', os.O_RDONLY), 900)\nfind = lambda: '/proc/self/fd/900' if os.path.exists('/proc/self') else None",
	} {
		t.Run(name, func(t *testing.T) {
			g := newForkBed(t, lie+find+`
def reach(*_):
    try:
        d = os.open('/proc', os.O_RDONLY)
    except OSError:
        d = 900
    for d in (d, 900):
        try:
            for p in os.listdir(d):
                if p.isdigit() and int(p) != os.getpid():
                    try:
                        f = os.open(p + '/root/work/reached', os.O_CREAT | os.O_WRONLY, dir_fd=d)
                    except OSError:
                        pass
        except OSError:
            pass
signal.signal(signal.SIGALRM, reach)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
`)
			if _, err := g.warm.Seal(t.Context()); err != nil {
				if cell.KindOf(err) != cell.Unsupported {
					t.Error(err)
				}
				return
			}
			f := g.fork()
			time.Sleep(300 * time.Millisecond)
			if got := g.says(f, "import os; os.listdir('/work')"); strings.Contains(got, "reached") {
				t.Errorf("its trunk has written into it: %s", got)
			}
		})
	}
}

// The fork parent of a branch can't be woken by what its code has wound up before, at
// whatever depth.
func TestD40ATrunkStaysStill(t *testing.T) {
	g := newForkBed(t, "")
	wind := lie + `
def woken(*_):
    for p in os.listdir('/proc'):
        if p.isdigit() and int(p) != os.getpid():
            try:
                os.kill(int(p), 9)
            except OSError:
                pass
def wind():
    signal.signal(signal.SIGCONT, woken)
    ev = (ctypes.c_int * 16)(); ev[2] = signal.SIGCONT; ev[3] = 0
    LIBC.syscall(ctypes.c_long(222 if os.uname().machine == 'x86_64' else 107), 0, ev, ctypes.byref(timer := ctypes.c_int()))
    LIBC.syscall(ctypes.c_long(223 if os.uname().machine == 'x86_64' else 110), timer, 0, (ctypes.c_long * 4)(0, 300000000, 0, 300000000), None)
def release(req, files, was=OPS['release']):
    r = was(req, files)
    wind()
    return r
OPS['release'] = release
`
	if got := g.says(g.warm, wind); strings.Contains(got, "error") {
		t.Fatal(got)
	}
	first, specs, _ := g.branch(g.warm, g.spec, 1)
	second, _, _ := g.branch(first[0], specs[0], 1)
	time.Sleep(time.Second)
	for n, w := range []backend.Warmer{g.warm, first[0], second[0]} {
		if ev, err := w.Eval(t.Context(), cell.Eval{Code: "1", Timeout: 10 * time.Second}, nil); err != nil || !ev.OK {
			t.Errorf("%d was ended: %+v, %v", n, ev, err)
		}
	}
}

// What a fork parent makes beside the forks that were asked for does not live: in
// namespaces of its own, with all capabilities there, or in its parent's.
func TestD38ATrunkHasNoOtherForks(t *testing.T) {
	g := newForkBed(t, lie+`
def again(req, files, was=OPS['fork']):
    r = was(req, files)
    if r is not None:
        LIBC.syscall.restype = ctypes.c_long
        for args in (G['arguments'](req['flags']), (ctypes.c_long(G['Forking'].numbers['clone']), ctypes.c_ulong(signal.SIGCHLD), 0, 0, 0, 0)):
            pid = LIBC.syscall(*args)
            if pid == 0:
                LIBC.sleep(20)
                LIBC._exit(0)
            more.append(pid)
    return r
OPS['fork'], more = again, []
`)
	g.seal()
	f := g.fork()
	status, err := os.ReadFile(procPath(g.interpreterOf(f), "status"))
	g.must(err)
	forkParent := linux.StatusField(status, "PPid")
	var list []string
	for range 100 {
		b, err := os.ReadFile("/proc/" + forkParent + "/task/" + forkParent + "/children")
		g.must(err)
		if list = strings.Fields(string(b)); len(list) == 1 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("one fork was asked for, and there are %d", len(list))
}

// What a fork gives up before it waits for its identity is seen, and no other process
// has it.
func TestD34aLiarsGiveUpTheirRights(t *testing.T) {
	refuses(t, `
OPS['settle'] = lambda _, __: {'settled': True}
`, "its Cap")
	refuses(t, `
def settle(req, files, was=OPS['settle']):
    if os.fork() == 0: time.sleep(60)
    return was(req, files)
OPS['settle'] = settle
`, "another process")
	refuses(t, `
import threading
def settle(req, files, was=OPS['settle']):
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    return was(req, files)
OPS['settle'] = settle
`, "its Threads")
}

// What does not let go of files that it writes to is refused, and they are named;
// what it has let go of is not.
func TestOpenFilesAreNamed(t *testing.T) {
	g := newForkBed(t, lie+`
def some(was=G['descriptors']): return [o for o in was() if o.fd < 900]
G['descriptors'] = some
good = open("held", "w")
high(open("my log", "w"), 900)
high(open("read", "w+") and open("read"), 901)
high(os.open("/dev/null", os.O_RDWR), 902)
`)
	_, err := g.warm.Seal(t.Context())
	dir := g.spec.Workdir
	if cell.KindOf(err) != cell.Unsupported || !strings.HasSuffix(err.Error(), "open for writing: "+dir+"/my log") {
		t.Errorf("sealed with open files: %v", err)
	}
	if !strings.Contains(cell.HintOf(err), "close them") {
		t.Errorf("hint %q", cell.HintOf(err))
	}
}
