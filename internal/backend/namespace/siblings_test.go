package namespace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// interpreterOf finds the host's number of a cell's interpreter.
func (g *forkBed) interpreterOf(w backend.Warmer) int {
	g.Helper()
	mark := "os.stat('/proc/self/ns/pid').st_ino"
	inode := g.says(w, "import os; "+mark)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		ns, err := os.Readlink(d + "/ns/pid")
		if err != nil || ns != "pid:["+inode+"]" {
			continue
		}
		b, _ := os.ReadFile(d + "/status")
		if f := strings.Fields(linux.StatusField(b, "NSpid")); len(f) > 0 && f[len(f)-1] == "1" {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return pid
		}
	}
	g.Fatal("the interpreter of a fork is not there")
	return 0
}

// Two forks of one parent share no namespace, no writable file, no memory, no
// abstract socket, no System V memory, no terminal; neither sees, signals, traces
// or reads the other or what they were forked from.
func TestD34SiblingsShareNothing(t *testing.T) {
	g := newForkBed(t, `import os, socket, ctypes, mmap, signal, glob
secret = "of the trunk"
def tries(f):
    try:
        return f()
    except BaseException as e:
        return type(e).__name__
shm = ctypes.CDLL(None, use_errno=True).shmget`)
	g.seal()
	a, b := g.fork(), g.fork()
	pa, pb := g.interpreterOf(a), g.interpreterOf(b)
	for _, n := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		x, _ := os.Readlink(procPath(pa, "ns/"+n))
		y, _ := os.Readlink(procPath(pb, "ns/"+n))
		if x == "" || x == y {
			t.Errorf("they share the %s namespace %s", n, x)
		}
	}
	// What one puts where others might look, the other doesn't find.
	g.says(a, `open('/tmp/of-a', 'w').write('a'); open('/dev/shm/of-a', 'w').write('a'); open('of-a', 'w').write('a'); open(os.path.expanduser('~/of-a'), 'w').write('a')
s = socket.socket(socket.AF_UNIX); s.bind('\0pando-test'); s.listen()
l = socket.create_server(('127.0.0.1', 7007))
id = shm(4711, 4096, 0o1666)
assert id >= 0`)
	for code, want := range map[string]string{
		"glob.glob('/tmp/*') + glob.glob('/dev/shm/*') + glob.glob('*') + glob.glob(os.path.expanduser('~/*'))": "[]",
		"tries(lambda: socket.socket(socket.AF_UNIX).connect('\\0pando-test'))":                                 "'ConnectionRefusedError'",
		"tries(lambda: socket.create_connection(('127.0.0.1', 7007)))":                                          "'ConnectionRefusedError'",
		"shm(4711, 4096, 0)":                                     "-1",
		"[p for p in os.listdir('/proc') if p.isdigit()]":        "['1']",
		fmt.Sprintf("tries(lambda: os.kill(%d, 0))", pa):         "'ProcessLookupError'",
		"len(glob.glob('/dev/pts/*'))":                           "1",
		"tries(lambda: open('/proc/1/root/work/../dev/x', 'w'))": "'OSError'",
	} {
		if got := g.says(b, code); got != want {
			t.Errorf("%s is %s, want %s", code, got, want)
		}
	}
	// No open file, and no page, is the other's or the parent's.
	for _, other := range []int{pb, 0} {
		if other == 0 {
			st, _ := os.ReadFile(procPath(pa, "status"))
			other, _ = strconv.Atoi(linux.StatusField(st, "PPid"))
		}
		mine, _ := openFiles(pa)
		theirs, _ := openFiles(other)
		for fd, what := range mine {
			for fd2, what2 := range theirs {
				if what == what2 && !strings.HasPrefix(what, "/") && os.Getuid() == 0 && sameFile(pa, fd, other, fd2) {
					t.Errorf("descriptor %d (%s) is the same open file", fd, what)
				}
			}
		}
	}
	for _, p := range []int{pa, pb} {
		maps, _ := os.ReadFile(procPath(p, "maps"))
		for l := range strings.Lines(string(maps)) {
			if f := strings.Fields(l); len(f) > 1 && strings.HasSuffix(f[1], "s") && strings.Contains(f[1], "w") {
				t.Errorf("it shares memory: %s", l)
			}
		}
	}
}

// A signal to a process group goes round pid namespaces: a fork is in none but
// its own, and so is a source that goes on.
func TestD34SignalsToAGroupStayInside(t *testing.T) {
	g := newForkBed(t, "import os, signal")
	g.seal()
	a, b := g.fork(), g.fork()
	g.says(a, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
	for _, sig := range []string{"SIGTERM", "SIGKILL"} { // the latter does nothing to the first process of a namespace
		g.says(a, "os.kill(0, signal."+sig+"); os.killpg(os.getpgrp(), signal."+sig+")")
	}
	if got := g.says(b, "(os.getpgrp(), 1+1)"); got != "(1, 2)" {
		t.Errorf("the sibling says %s", got)
	}
	g.says(g.fork(), "1")
}

// A terminal that the fork parent had is not its forks'.
func TestD34ForksHaveNoTerminal(t *testing.T) {
	g := newForkBed(t, "import os\npair = os.openpty()\nos.close(os.open(os.ttyname(pair[1]), os.O_RDWR))\nos.close(os.open('/dev/tty', os.O_RDWR))")
	g.seal()
	if got := g.says(g.fork(), `try:
    r = os.open('/dev/tty', os.O_RDWR)
except OSError as e:
    r = e.strerror
r`); got != "'No such device or address'" {
		t.Errorf("/dev/tty is %s", got)
	}
}

// After many forks have written everywhere, what they were forked from is as it
// was: every file, and everything that it remembers.
func TestD34TheTrunkIsAsItWas(t *testing.T) {
	g := newForkBed(t, `import os, hashlib, sys
data = bytearray(os.urandom(1 << 16))
table = {i: str(i) for i in range(500)}
for n in range(5):
    open('f%d' % n, 'w').write('trunk')
open('/tmp/t', 'w').write('trunk')
os.makedirs('d')
sum = lambda: hashlib.sha256(bytes(data) + repr(sorted(table.items())).encode() + b''.join(open('f%d' % n, 'rb').read() for n in range(5))).hexdigest()`)
	g.seal()
	var dirs []string
	for _, m := range g.spec.Mounts {
		if m.Owned {
			dirs = append(dirs, m.Source)
		}
	}
	first := g.fork()
	before, was := g.says(first, "sum()"), folders(t, dirs...)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				f := g.fork()
				got := g.says(f, `ok = sum()
for i in range(len(data)):
    data[i] = 0
table.clear()
for n in range(5):
    os.remove('f%d' % n) if n % 2 else open('f%d' % n, 'w').write('fork')
os.rmdir('d'); os.mkdir('e'); open('/tmp/t', 'a').write('fork'); os.chmod('/tmp/t', 0)
ok`)
				if got != before {
					t.Errorf("a fork began with %s, want %s", got, before)
				}
				f.Remove(g.bg(), "done")
			}
		})
	}
	wg.Wait()
	if now := folders(t, dirs...); now != was {
		t.Error("the trunk's files have changed")
	}
	if got := g.says(g.fork(), "sum()"); got != before {
		t.Errorf("the next fork begins with %s, want %s", got, before)
	}
}

func folders(t *testing.T, dirs ...string) string {
	t.Helper()
	h := sha256.New()
	for _, d := range dirs {
		err := filepath.WalkDir(d, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			i, err := e.Info()
			if err != nil {
				return err
			}
			var b []byte
			if i.Mode().IsRegular() {
				b, err = os.ReadFile(path)
			}
			fmt.Fprintln(h, path, i.Mode(), i.Size(), i.ModTime(), hex.EncodeToString(b))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A fork that ends, by itself or by its limits, ends alone, and it is told of
// what; its files stay.
func TestC26ForksEndAlone(t *testing.T) {
	g := newForkBed(t, "import os, ctypes, signal")
	g.seal()
	other := g.fork()
	caps, err := g.b.Probe(t.Context())
	g.must(err)
	limited := caps.MemoryLimit == ""
	for _, x := range []struct {
		code, cause string
		needs       bool
	}{
		{"os._exit(3)", "exit 3", true},
		{"ctypes.string_at(8)", "killed by SIGSEGV", true},
		{"x = bytearray(600 << 20)", "memory limit", limited},
	} {
		if !x.needs {
			continue
		}
		f := g.fork()
		ev, err := f.Eval(t.Context(), cell.Eval{Code: x.code, Timeout: 20e9, Limit: 1000}, nil)
		if err != nil || ev.Cause != "ended" {
			t.Errorf("%s: %+v, %v", x.code, ev, err)
		}
		found := ""
		since := int64(0)
		for range 10 {
			var list []cell.Death
			if list, since, err = other.Deaths(t.Context(), since); err != nil {
				t.Fatal(err)
			}
			for _, d := range list {
				if d.Cell == f.ID() {
					found = d.Cause
				}
			}
			if found != "" {
				break
			}
		}
		if found != x.cause {
			t.Errorf("%s: it died of %q, want %q", x.code, found, x.cause)
		}
		for began := time.Now(); ; time.Sleep(time.Millisecond) { // it is told, and then removed
			_, err := f.List(t.Context())
			if cell.KindOf(err) == cell.NotFound {
				break
			}
			if time.Since(began) > testenv.Patience() {
				t.Errorf("%s: its cell is still there: %v", x.code, err)
				break
			}
		}
	}
	if got := g.says(other, "6 * 7"); got != "42" {
		t.Errorf("a sibling says %s", got)
	}
	// One that forks without end, and one that doesn't answer any more.
	if limited {
		f := g.fork()
		g.says(f, `n = 0
try:
    while n < 10000:
        if os.fork() == 0:
            signal.pause()
        n += 1
except OSError:
    pass
n < 200`)
		if got := g.says(other, "os.fork() == 0 and os._exit(0)"); got != "False" {
			t.Errorf("a sibling can't fork: %s", got)
		}
	}
	f := g.fork()
	go f.Eval(g.bg(), cell.Eval{Code: "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", Timeout: 1e9, Limit: 1000}, nil)
	if got := g.says(g.fork(), "6 * 7"); got != "42" {
		t.Errorf("while one is busy a new one says %s", got)
	}
	g.must(f.Remove(t.Context(), "removed"))
}

// When a keeper is killed nothing of its family lives on, however deep.
func TestC26NobodyOutlivesTheKeeper(t *testing.T) {
	g := newForkBed(t, "import os")
	var all []int
	w, spec := g.warm, g.spec
	for range 3 {
		list, specs, _ := g.branch(w, spec, 2)
		all = append(all, g.interpreterOf(list[0]), g.interpreterOf(list[1]), g.interpreterOf(w))
		w, spec = list[0], specs[0]
	}
	pid := g.warm.(*client.Instance).KeeperPID()
	g.must(unix.Kill(pid, unix.SIGKILL))
	all = append(all, pid)
	for began := time.Now(); len(all) > 0; time.Sleep(time.Millisecond) {
		all = slices.DeleteFunc(all, func(p int) bool {
			b, err := os.ReadFile(procPath(p, "stat"))
			return err != nil || strings.Contains(string(b), ") Z ")
		})
		if time.Since(began) > testenv.Patience() {
			t.Fatalf("%v live on", all)
		}
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) { // its last thread may hold its lock when it is a zombie already
		if _, err := g.b.Leftovers(t.Context(), false); err != nil {
			t.Error(err)
		}
		list := backendtest.Left(t, g.cfg.Keepers, g.cfg.Installation)
		if len(list) == 0 {
			return
		}
		if time.Since(began) > testenv.Patience() {
			t.Fatalf("left over: %v", list)
		}
	}
}

// Forks and branches that come and go leave nothing: no descriptor and no memory
// of their keeper, no namespace, no cgroup, no mount, no process.
func TestForksLeaveNothing(t *testing.T) {
	rounds := 20
	if os.Getenv("E2E_SOAK") != "" {
		rounds = 1000
	}
	g := newForkBed(t, "import os")
	g.seal()
	pid := g.warm.(*client.Instance).KeeperPID()
	round := func() {
		var wg sync.WaitGroup
		for n := range 10 {
			top := g.child()
			wg.Go(func() {
				defer func() {
					for _, d := range top.Writes {
						os.RemoveAll(d)
					}
				}()
				f, err := g.warm.Fork(t.Context(), top)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "x"}); err != nil {
					t.Error(err)
				}
				switch n % 3 {
				case 0:
					f.Eval(t.Context(), cell.Eval{Code: "os._exit(1)", Timeout: 20e9, Limit: 100}, nil)
				case 1:
					g.says(f, "x = bytearray(1 << 20); open('f', 'w').write('x')")
				}
				if err := f.Remove(t.Context(), "done"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	type use struct{ files, threads, memory, namespaces, cgroups int }
	measure := func() (u use) {
		for range 100 { // the kernel takes its time with namespaces
			dir, _ := os.ReadDir(procPath(pid, "fd"))
			b, _ := os.ReadFile(procPath(pid, "status"))
			u.files = len(dir)
			fmt.Sscan(linux.StatusField(b, "Threads"), &u.threads)
			fmt.Sscan(linux.StatusField(b, "VmRSS"), &u.memory)
			procs, _ := filepath.Glob("/proc/[0-9]*/status")
			u.namespaces = 0
			for _, p := range procs {
				if b, err := os.ReadFile(p); err == nil && strings.Count(linux.StatusField(b, "NSpid"), "\t") > 0 && linux.StatusField(b, "PPid") == strconv.Itoa(pid) {
					u.namespaces++
				}
			}
			u.cgroups = len(backendtest.Left(t, g.cfg.Keepers, g.cfg.Installation))
			if u.files < 60 && u.namespaces < 4 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		return u
	}
	for range 3 {
		round()
	}
	before := measure()
	for range rounds {
		round()
	}
	after := measure()
	t.Logf("%d forks: %+v before, %+v after", 10*rounds, before, after)
	if after.files > before.files+4 || after.threads > before.threads+6 || after.namespaces > before.namespaces || after.cgroups > before.cgroups {
		t.Errorf("something stays: %+v before, %+v after %d forks", before, after, 10*rounds)
	}
	if after.memory > before.memory+16<<10 {
		t.Errorf("the keeper grew from %d to %d KiB", before.memory, after.memory)
	}
}

// sameFile reports whether two processes have one open file.
func sameFile(a, fa, b, fb int) bool {
	const kcmpFile = 0
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFile, uintptr(fa), uintptr(fb), 0)
	return e != 0 || r == 0 // what can't be compared is taken for the same
}

// Of what a fork parent could write, its forks see nothing that can be written: at each
// place one mount can, which is their own, over one that can't.
func TestD34WhatTheTrunkWroteIsReadOnly(t *testing.T) {
	g := newForkBed(t, "import os\nopen('/dev/shm/m', 'w').write('trunk')")
	g.seal()
	pid := g.interpreterOf(g.fork())
	b, err := os.ReadFile(procPath(pid, "mountinfo"))
	g.must(err)
	for _, target := range []string{"/work", g.spec.User.Home, "/tmp", "/run", "/dev/shm"} {
		may := map[string]int{}
		for l := range strings.Lines(string(b)) {
			if f := strings.Fields(l); len(f) > 5 && f[4] == target {
				may[f[5][:2]]++
			}
		}
		own := 1
		if target == "/dev/shm" { // a layer, and what it is kept in
			own = 2
		}
		if may["rw"] != own || may["ro"] != 1 {
			t.Errorf("%s: %d mounts can be written, %d can't:\n%s", target, may["rw"], may["ro"], b)
		}
	}
}

// A cgroup that is left when keeper and daemon were killed, with a process in it, does not keep
// the cell from coming to life again: the process ends.
func TestF19CgroupOfAnEarlierKeeper(t *testing.T) {
	cfg := config(t)
	b := New(cfg)
	defer b.Close()
	spec := backendtest.Little(t)
	groups, err := linux.FindCgroups(cfg.Installation)
	if err != nil {
		t.Fatal(err)
	}
	if why := groups.Caps().Group; why != "" {
		t.Skip("no cgroups: " + why)
	}
	left, _, err := groups.Create(string(spec.ID), linux.CgroupLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer left.Remove(context.Background())
	in, err := left.Entry()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out strings.Builder
	p := exec.Command("sleep", "1h")
	p.Stderr = &out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(in.Tasks, in.Procs) {
		if f != nil {
			if _, err := f.WriteString(strconv.Itoa(p.Process.Pid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		p.Process.Kill()
		p.Wait()
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("the process lives on")
	}
	if err := i.Remove(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if list := backendtest.Left(t, cfg.Keepers, cfg.Installation); len(list) > 0 {
		t.Errorf("left over: %v", list)
	}
}
