package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/testenv"
)

// A process is what a driver of the keeper returns.
var _ interface {
	server.Process
	server.Releaser
	server.Interrupter
} = (*Process)(nil)

// A command gets its input, and what it writes, its exit, its identity and its
// privileges are as asked for.
func TestCommands(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		exit, out, errs := b.run(t, sh("a", "cat; id -u; echo no >&2; grep -E 'CapEff|CapBnd|NoNew' /proc/self/status; ulimit -c; exit 3"), "hello\n")
		if exit.Code != 3 || exit.Signal != "" || errs != "no\n" {
			t.Errorf("%+v, stderr %q", exit, errs)
		}
		caps := fmt.Sprintf("%016x", uint64(rootCaps))
		want := "hello\n0\nCapEff:\t" + caps + "\nCapBnd:\t" + caps + "\nNoNewPrivs:\t1\n0\n"
		if out != want {
			t.Errorf("wrote %q, want %q", out, want)
		}
		c := sh("b", "id -u; id -g; grep CapEff /proc/self/status; pwd; ulimit -n; ulimit -f; kill -TERM $$")
		c.UID, c.GID, c.Process.Workdir = 1000, 1001, "/tmp"
		c.Limits = confine.Limits{OpenFiles: 777, FileSize: 1 << 20, Processes: 50}
		exit, out, errs = b.run(t, c, "")
		if exit.Code != 128+15 || exit.Signal != "SIGTERM" || errs != "" {
			t.Errorf("%+v, stderr %q", exit, errs)
		}
		if want := "1000\n1001\nCapEff:\t0000000000000000\n/tmp\n777\n2048\n"; out != want {
			t.Errorf("wrote %q, want %q", out, want)
		}
	})
}

// A command that can't be started says why.
func TestNotStarted(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		for i, c := range []struct {
			change func(*cell.Process)
			kind   cell.Kind
			text   string
		}{
			{func(p *cell.Process) { p.Path = []string{"/bin/no", "/usr/bin/no"} }, cell.NoSuchBinary, "cannot find sh: looked for /bin/no, /usr/bin/no"},
			{func(p *cell.Process) { p.Path = []string{"/etc/passwd"} }, cell.NotRunnable, "cannot execute /etc/passwd: permission denied"},
			{func(p *cell.Process) { p.Workdir = "/no" }, cell.NotFound, "cannot start sh: cannot work in /no: no such file or directory"},
		} {
			cmd := sh(fmt.Sprint(i), "true")
			c.change(&cmd.Process)
			_, err := b.start(t, cmd, nil)
			if cell.KindOf(err) != c.kind || err.Error() != c.text {
				t.Errorf("%v (%s), want %q (%s)", err, cell.KindOf(err), c.text, c.kind)
			}
		}
		if exit, out, _ := b.run(t, sh("0", "echo then"), ""); exit.Code != 0 || out != "then\n" {
			t.Errorf("after that: %+v %q", exit, out)
		}
		list, err := b.Processes(b.ctx)
		if len(list) != 0 || err != nil {
			t.Errorf("left are %v, %v", list, err)
		}
	})
}

// The name of a command that was released is free for the next one, even if the
// caller did not wait until the guest released it.
func TestNameIsFreeAgain(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		for i := range 20 {
			if exit, _, _ := b.run(t, sh("a", "exit 3"), ""); exit.Code != 3 {
				t.Fatalf("%d: %+v", i, exit)
			}
		}
	})
}

// Output goes on as long as something inside has the stream, and ends then; Wait
// returns when the command has ended.
func TestStreamsEndAsInside(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		r, err := b.start(t, sh("a", "exec 3<&0; (read told <&3; echo late) & echo early"), nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); r.Wait(func() {}) }()
		testenv.Receive(t, ended, "the end of a command whose child goes on")
		r.in.WriteString("go on\n")
		if out := readAll(r.out); out != "early\nlate\n" {
			t.Errorf("wrote %q", out)
		}
		// What was written before the end is there at the end.
		times := 20
		if b.gv != nil {
			times = 4
		}
		for i := range times {
			r, err = b.start(t, sh(fmt.Sprint("b", i), "head -c 60000 /dev/zero"), nil)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			r.Wait(func() { n, err = unix.IoctlGetInt(int(r.out.Fd()), unix.TIOCINQ) })
			if n != 60000 || err != nil {
				t.Fatalf("%d bytes are there, %v", n, err)
			}
			r.Release()
		}
		// Without a reader the program is told, as by a pipe.
		r, err = b.start(t, sh("c", "trap '' PIPE; while echo x; do sleep 0.01; done; exit 9"), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.out.Close()
		if exit, _ := r.Wait(func() {}); exit.Code != 9 {
			t.Errorf("it ended with %+v", exit)
		}
		// Without a reader inside the keeper is told.
		r, err = b.start(t, sh("d", "exec <&-; sleep 0.3"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err = r.in.Write(make([]byte, 1<<10)); err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !errors.Is(err, unix.EPIPE) {
			t.Errorf("writing to who does not read: %v", err)
		}
	})
}

// A program that does not read, and a reader that does not take, block no other stream.
func TestSlowOnesStopNobody(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		deaf, err := b.start(t, sh("deaf", "sleep 60"), nil)
		if err != nil {
			t.Fatal(err)
		}
		deaf.in.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := deaf.in.Write(make([]byte, 4<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < window {
			t.Errorf("wrote %d: %v", n, err)
		}
		loud, err := b.start(t, sh("loud", "yes"), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // no output is read
		for i := range 3 {
			if exit, out, _ := b.run(t, sh(fmt.Sprint(i), "echo hi"), ""); exit.Code != 0 || out != "hi\n" {
				t.Fatalf("%+v %q", exit, out)
			}
		}
		for _, p := range []*running{deaf, loud} {
			if err := p.Signal("SIGKILL"); err != nil {
				t.Error(err)
			}
			if exit, _ := p.Wait(func() {}); exit.Signal != "SIGKILL" {
				t.Errorf("ended with %+v", exit)
			}
		}
	})
}

// Bytes pass unchanged in both directions, more than any buffer has room for.
func TestBytes(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		var want strings.Builder
		for i := range 300000 {
			fmt.Fprintf(&want, "%d\n", i)
		}
		c := sh("a", "")
		c.Process.Args, c.Process.Path = []string{"cat"}, []string{"/bin/cat"}
		if _, out, _ := b.run(t, c, want.String()); out != want.String() {
			t.Errorf("%d bytes came back of %d", len(out), want.Len())
		}
		c = sh("b", "printf %s \"$V\" | wc -c")
		c.Process.Env = append(c.Process.Env, "V="+strings.Repeat("x", 120<<10))
		if _, out, errs := b.run(t, c, ""); strings.TrimSpace(out) != fmt.Sprint(120<<10) {
			t.Errorf("%q %q", out, errs)
		}
	})
}

// A signal reaches the process's group; Interrupt the process alone. After
// Wait both have no effect.
func TestSignals(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		c := sh("a", "")
		c.Process.Path = []string{"/usr/bin/python3"}
		c.Process.Args = []string{"python3", "-u", "-c", `
import signal, subprocess, sys, time
p = subprocess.Popen(["sleep", "60"])
def handle(*a):
    time.sleep(0.1); print("child", p.poll()); p.kill(); sys.exit(4)
signal.signal(signal.SIGINT, handle)
print("ready")
while True: # one long sleep would begin although a signal came just before it
    time.sleep(0.05)
`}
		r, err := b.start(t, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, r.out)
		if err := r.Interrupt(); err != nil {
			t.Error(err)
		}
		if exit, _ := r.Wait(func() {}); exit.Code != 4 {
			t.Errorf("ended with %+v", exit)
		}
		if out := readAll(r.out); out != "child None\n" {
			t.Errorf("wrote %q", out)
		}
		r, err = b.start(t, sh("b", "sleep 60 & echo ready; wait"), nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, r.out)
		if err := r.Signal("SIGTERM"); err != nil {
			t.Error(err)
		}
		if exit, _ := r.Wait(func() {}); exit.Signal != "SIGTERM" {
			t.Errorf("ended with %+v", exit)
		}
		if out := readAll(r.out); out != "" { // its child is gone, too
			t.Errorf("wrote %q", out)
		}
		if err := r.Signal("SIGTERM"); err != nil {
			t.Errorf("after its end: %v", err)
		}
		if err := r.Signal("SIGNONSENSE"); cell.KindOf(err) != cell.Invalid {
			t.Errorf("no signal: %v", err)
		}
	})
}

func readLine(t testing.TB, f *os.File) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(testenv.Patience()))
	defer f.SetReadDeadline(time.Time{})
	var line []byte
	for {
		var one [1]byte
		if _, err := f.Read(one[:]); err != nil {
			t.Fatalf("%q, then %v", line, err)
		}
		if one[0] == '\n' {
			return string(line)
		}
		line = append(line, one[0])
	}
}

// EndRest ends what a command has left behind, also in sessions and namespaces of
// its own, and nothing of others; KillAll ends all.
func TestWhatACommandLeaves(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		other, err := b.start(t, sh("other", "exec sleep 61"), nil)
		if err != nil {
			t.Fatal(err)
		}
		// They hide as well as they can: as root, orphaned, in sessions of their own. A
		// namespace of its own, to leave its cgroup in, the filter gives to none.
		dir := t.TempDir()
		r, err := b.start(t, sh("a", strings.ReplaceAll(`setsid setsid sleep 62 >/dev/null 2>&1 &
			setsid sh -c 'unshare -r -m -C mount -t cgroup2 none DIR && echo unshared; (setsid sleep 63 &)' >DIR/hidden 2>&1 &
			sleep 0.4; ps ax >&2; grep 0:: /proc/self/cgroup`, "DIR", dir)), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Wait(func() {})
		if l := readLine(t, r.out); l != "0::/" {
			t.Errorf("it sees itself in %q", l)
		}
		hidden, _ := b.read(t, dir+"/hidden")
		if strings.Contains(hidden, "unshared") || !strings.Contains(hidden, "unshare failed") {
			t.Errorf("who hides: %s", hidden)
		}
		n, err := r.EndRest()
		if n != 2 || err != nil {
			t.Errorf("ended %d: %v\n%s", n, err, readAll(r.errs))
		}
		if n, err := r.EndRest(); n != 0 || err != nil {
			t.Errorf("ended %d again: %v", n, err)
		}
		r.Release()
		list, err := b.List(b.ctx)
		if len(list) != 1 || err != nil || list[0].PID != other.PID() || list[0].Command != "sleep 61" {
			t.Errorf("left are %+v, %v", list, err)
		}
		if n, err := b.KillAll(b.ctx); n < 1 || err != nil {
			t.Errorf("killed %d: %v", n, err)
		}
		if exit, _ := other.Wait(func() {}); exit.Signal != "SIGKILL" {
			t.Errorf("ended with %+v", exit)
		}
		other.Release()
		if list, err := b.List(b.ctx); len(list) != 0 || err != nil {
			t.Errorf("left are %+v, %v", list, err)
		}
	})
}

// read reads a file of the cell.
func (b *bed) read(t testing.TB, path string) (string, error) {
	t.Helper()
	var ar bytes.Buffer
	if err := b.ReadFiles(b.ctx, path, &ar); err != nil {
		return "", err
	}
	r := tar.NewReader(&ar)
	if _, err := r.Next(); err != nil {
		return "", err
	}
	content, err := io.ReadAll(r)
	return string(content), err
}

// Files come in and out, and errors are those of the cell.
func TestFiles(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		dir := fmt.Sprintf("/tmp/pando-guest-%d-%v", os.Getpid(), b.gv != nil)
		t.Cleanup(func() { os.RemoveAll(dir) })
		var ar bytes.Buffer
		w := tar.NewWriter(&ar)
		big := strings.Repeat("0123456789abcdef", 1<<16)
		w.WriteHeader(&tar.Header{Name: "d/big", Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(big))})
		io.WriteString(w, big)
		w.WriteHeader(&tar.Header{Name: "d/link", Typeflag: tar.TypeSymlink, Linkname: "big"})
		w.Close()
		if err := b.WriteFiles(b.ctx, dir, cell.User{UID: 1000, GID: 1001}, &ar); err != nil {
			t.Fatal(err)
		}
		if got, err := b.read(t, dir+"/d/big"); got != big || err != nil {
			t.Errorf("%d bytes came back: %v", len(got), err)
		}
		if _, out, _ := b.run(t, sh("a", "stat -c '%u %g %a' "+dir+"/d/big; readlink "+dir+"/d/link"), ""); out != "1000 1001 640\nbig\n" {
			t.Errorf("they are %q", out)
		}
		if err := b.ReadFiles(b.ctx, dir+"/no", io.Discard); cell.KindOf(err) != cell.NotFound {
			t.Errorf("what is not there: %v", err)
		}
		if err := b.WriteFiles(b.ctx, dir+"/d/big/below", cell.User{}, strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
			t.Error("wrote below a file")
		}
		if err := b.WriteFiles(b.ctx, dir, cell.User{}, strings.NewReader(strings.Repeat("x", 1<<20))); cell.KindOf(err) != cell.Invalid {
			t.Errorf("what is no archive: %v", err)
		}
		if err := b.ReadFiles(b.ctx, "/proc/1/status", io.Discard); err == nil {
			t.Error("the guest reads /proc for the cell")
		}
		if err := b.Sync(b.ctx); err != nil {
			t.Error(err)
		}
	})
}

// A port of the sandbox's loopback can be reached.
func TestDial(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		c := sh("a", "")
		c.Process.Args = []string{"python3", "-c", `
import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True)
c = s.accept()[0]
got = b""
while True:
    p = c.recv(65536)
    if not p: break
    got += p
c.sendall(got[::-1]); c.close()
`}
		c.Process.Path = []string{"/usr/bin/python3"}
		r, err := b.start(t, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		var port int
		fmt.Sscan(readLine(t, r.out), &port)
		if list, err := b.Ports(b.ctx); err != nil || !slices.Contains(list, cell.Listening{Port: port, Address: "127.0.0.1"}) {
			t.Errorf("port %d is not among %v, %v", port, list, err)
		}
		before, err := b.Tried(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if exit, _, errs := b.run(t, sh("nobody", "exec bash -c 'echo x > /dev/udp/127.0.0.1/9'"), ""); exit.Code != 0 {
			t.Errorf("%+v, %s", exit, errs)
		}
		if n, err := b.Tried(b.ctx); n <= before || err != nil {
			t.Errorf("%d packets found nobody, %d before: %v", n, before, err)
		}
		conn, err := b.Dial(b.ctx, port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			io.WriteString(conn, strings.Repeat("ab", 1<<20))
			conn.(*net.UnixConn).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != strings.Repeat("ba", 1<<20) {
			t.Errorf("%d bytes came back: %v", len(got), err)
		}
		r.Wait(func() {})
		if _, err := b.Dial(b.ctx, port); cell.KindOf(err) != cell.Unavailable {
			t.Errorf("to a port that nobody listens on: %v", err)
		}
	})
}

// A command with a terminal has it as its own, with a size, and ends with it.
func TestTerminal(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		c := sh("a", "stty size; tty; read x; echo got $x; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.02; done")
		c.Process.TTY, c.Process.Rows, c.Process.Cols = true, 33, 77
		p, err := b.Start(b.ctx, c, [3]*os.File{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		term := p.Terminal()
		if l := readLine(t, term); l != "33 77\r" {
			t.Errorf("its size is %q", l)
		}
		if l := readLine(t, term); !strings.HasPrefix(l, "/dev/pts/") {
			t.Errorf("its name is %q", l)
		}
		term.WriteString("hello\n")
		if l := readLine(t, term) + readLine(t, term); l != "hello\rgot hello\r" {
			t.Errorf("it says %q", l)
		}
		readLine(t, term)
		if err := p.Resize(20, 30); err != nil {
			t.Error(err)
		}
		if l := readLine(t, term); l != "20 30\r" {
			t.Errorf("its size is %q now", l)
		}
		if exit, _ := p.Wait(func() {}); exit.Code != 5 {
			t.Errorf("ended with %+v", exit)
		}
		if rest := readAll(term); rest != "" {
			t.Errorf("after the end comes %q", rest)
		}
		c = sh("b", "trap 'exit 6' HUP; echo ready; while :; do sleep 0.02; done")
		c.Process.TTY = true
		if p, err = b.Start(b.ctx, c, [3]*os.File{}, nil); err != nil {
			t.Fatal(err)
		}
		readLine(t, p.Terminal())
		p.Terminal().Close()
		if exit, _ := p.Wait(func() {}); exit.Code != 6 {
			t.Errorf("when its terminal was closed it ended with %+v", exit)
		}
	})
}

// Descriptor 3 of an interpreter is the socket that the keeper gave.
func TestControl(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		mine, theirs, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer mine.Close()
		c := sh("a", "")
		c.Process.Args = []string{"python3", "-c", "import socket\ns=socket.socket(fileno=3)\nwhile True:\n  b=s.recv(100)\n  if not b: break\n  s.sendall(b.upper())\nprint('over')"}
		c.Process.Path = []string{"/usr/bin/python3"}
		r, err := b.start(t, c, theirs)
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []string{"one\n", "two\n"} {
			mine.WriteString(w)
			if l := readLine(t, mine) + "\n"; l != strings.ToUpper(w) {
				t.Errorf("answered %q", l)
			}
		}
		mine.Close()
		if l := readLine(t, r.out); l != "over" {
			t.Errorf("said %q", l)
		}
		if exit, _ := r.Wait(func() {}); exit.Code != 0 {
			t.Errorf("ended with %+v", exit)
		}
	})
}

// Root of a cell can do nothing to the guest: it has no name for it. What it can
// do to the first process of its own namespace depends on the kernel.
func TestTheGuestIsOutOfReach(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		c := sh("a", "")
		c.Process.Path = []string{"/usr/bin/python3"}
		c.Process.Args = []string{"python3", "-u", "-c", `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def say(what, f):
    try: r = f()
    except OSError as e: r = e.strerror
    print(what + ":", r)
def attach(pid):
    return "yes" if libc.ptrace(16, pid, 0, 0) == 0 else os.strerror(ctypes.get_errno())
def seen():
    return [p for p in os.listdir("/proc") if p.isdigit() and "guest" in os.readlink("/proc/%s/exe" % p)]
say("parent", os.getppid)
say("ptrace", lambda: attach(1))
say("mem", lambda: open("/proc/1/mem", "rb").read(1))
say("fd 0", lambda: os.readlink("/proc/1/fd/0"))
say("umount", lambda: libc.umount2(b"/proc", 2) == 0)
say("fds", lambda: [l for l in (os.readlink("/proc/self/fd/" + f) for f in "0123456789" if os.path.exists("/proc/self/fd/" + f)) if "socket" in l])
libc.unshare(0x10020000)
say("umount in a namespace of its own", lambda: libc.umount2(b"/proc", 2) == 0 and [p for p in os.listdir("/proc") if p.isdigit() and p != "1"])
say("there", lambda: open("/proc/1/comm").read())
say("mem of that", lambda: open("/proc/1/mem", "rb").read(1))
say("fd 0 of that", lambda: os.readlink("/proc/1/fd/0"))
say("root of that", lambda: os.readlink("/proc/1/root"))
`}
		exit, out, errs := b.run(t, c, "")
		t.Logf("%+v\n%s%s", exit, out, errs)
		for _, want := range []string{"parent: 0\n", "ptrace: Operation not permitted\n", "mem: Permission denied\n", "umount: False\n", "fds: []\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("not %q", want)
			}
		}
		for _, how := range []string{"kill -STOP 1", "kill -9 1", "kill -9 -1", "kill -TERM 1", "setpriv --reuid 2147483646 kill -9 1"} {
			exit, out, errs := b.run(t, sh(how, how+"; sleep 0.05; echo alive"), "")
			t.Logf("%s: %+v %s %s", how, exit, out, errs)
			// Whatever became of its own, the guest goes on.
			if exit, out, _ := b.run(t, sh("after "+how, "echo then"), ""); out != "then\n" {
				t.Errorf("after %s: %+v %q", how, exit, out)
			}
		}
	})
}
