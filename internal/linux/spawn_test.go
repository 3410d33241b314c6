package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

func TestSpawnExitCodeAndOutput(t *testing.T) {
	r, w, _ := os.Pipe()
	w, _ = Raise(w)
	var s Script
	s.Stdio([3]*os.File{nil, w, w})
	s.Exec([]string{"/nonexistent/sh", "/bin/sh"}, []string{"sh", "-c", "echo $GREETING; exit 7"}, []string{"GREETING=hello"})
	c, err := Spawn(&s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	w.Close()
	buf := make([]byte, 64)
	n, _ := r.Read(buf)
	ws, _, err := c.Wait()
	if err != nil || ws.ExitStatus() != 7 || string(buf[:n]) != "hello\n" {
		t.Fatalf("status %v err %v output %q", ws, err, buf[:n])
	}
}

func TestSpawnSaysWhichCallFailed(t *testing.T) {
	var s Script
	s.Call("open the impossible", unix.SYS_OPENAT, AtCWD, "/nonexistent/file", 0, 0)
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	_, err := Spawn(&s, SpawnOptions{})
	se, ok := errors.AsType[*ScriptError](err)
	if !ok || se.Call != "open the impossible" || se.Errno != unix.ENOENT || se.IsExec() {
		t.Fatalf("err = %v", err)
	}
	s = Script{}
	s.Exec([]string{"/nonexistent/a", "/etc/passwd", "/nonexistent/b"}, []string{"x"}, nil)
	_, err = Spawn(&s, SpawnOptions{})
	se, ok = errors.AsType[*ScriptError](err)
	if !ok || !se.IsExec() || se.Errno != unix.EACCES {
		t.Fatalf("a program that is not executable: err = %v", err)
	}
}

func TestSpawnProbesAndSlots(t *testing.T) {
	var s Script
	fd := s.Call("open", unix.SYS_OPENAT, AtCWD, "/etc/passwd", unix.O_RDONLY, 0)
	s.Call("close", unix.SYS_CLOSE, fd)
	s.Probe("closed twice", unix.SYS_CLOSE, fd)
	s.Probe("getpid", unix.SYS_GETPID)
	s.Report()
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	c, err := Spawn(&s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	c.Wait()
	want := []Outcome{{"closed twice", unix.EBADF}, {"getpid", 0}}
	if len(c.Probes) != 2 || c.Probes[0] != want[0] || c.Probes[1] != want[1] {
		t.Fatalf("probes %v", c.Probes)
	}
}

// A receive with a time limit is interrupted when its process is stopped or frozen, and goes on.
func TestSpawnGoesOnAfterAStop(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3600}); err != nil {
		t.Fatal(err)
	}
	var s Script
	s.Call("receive", unix.SYS_RECVFROM, pair[0], make([]byte, 8), 8, 0, nil, nil)
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	done := make(chan error)
	go func() {
		c, err := Spawn(&s, SpawnOptions{})
		if err == nil {
			_, _, err = c.Wait()
			c.PIDFD.Close()
		}
		done <- err
	}()
	var child int
	state := func(want string) {
		t.Helper()
		testenv.Eventually(t, func() bool {
			dirs, _ := filepath.Glob("/proc/self/task/*/children")
			for _, d := range dirs {
				b, _ := os.ReadFile(d)
				for _, f := range strings.Fields(string(b)) {
					stat, _ := os.ReadFile("/proc/" + f + "/stat")
					call, _ := os.ReadFile("/proc/" + f + "/syscall")
					if !strings.Contains(string(stat), ") "+want+" ") || want == "S" && !strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_RECVFROM)+" ") {
						continue
					}
					fmt.Sscan(f, &child)
					return true
				}
			}
			return false
		}, "no child is in state "+want)
	}
	state("S")
	unix.Kill(child, unix.SIGSTOP)
	state("T")
	unix.Kill(child, unix.SIGCONT)
	if _, err := unix.Write(pair[1], []byte("go on")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("a child that was stopped meanwhile: %v", err)
	}
}

// A child keeps no descriptor of its parent but its standard streams.
func TestSpawnClosesEverythingElse(t *testing.T) {
	leak, _ := os.Open("/etc/passwd")
	defer leak.Close()
	n, _ := unix.FcntlInt(leak.Fd(), unix.F_DUPFD, 300) // not closed on exec
	defer unix.Close(n)
	r, w, _ := os.Pipe()
	w, _ = Raise(w)
	var s Script
	s.Stdio([3]*os.File{nil, w, w})
	s.Exec([]string{"/bin/sh"}, []string{"sh", "-c", "echo /proc/self/fd/*"}, nil)
	c, err := Spawn(&s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	w.Close()
	buf := make([]byte, 4096)
	k, _ := r.Read(buf)
	c.Wait()
	got := strings.TrimSpace(string(buf[:k]))
	for _, f := range strings.Fields(got) {
		if f != "/proc/self/fd/1" && f != "/proc/self/fd/2" && f != "/proc/self/fd/0" && f != "/proc/self/fd/3" && f != "/proc/self/fd/10" {
			t.Errorf("child has %s (all: %s)", f, got)
		}
	}
}

func TestInitReapsAndWaits(t *testing.T) {
	f, err := InitProgram()
	if err != nil {
		t.Fatal(err)
	}
	f, _ = Raise(f)
	defer f.Close()
	var s Script
	s.Stdio([3]*os.File{}, f)
	s.ExecFD(int(f.Fd()), []string{"pando-init"}, nil)
	c, err := Spawn(&s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	if err := c.Signal(0); err != nil {
		t.Fatalf("init does not live: %v", err)
	}
	c.Kill()
	if ws, _, err := c.Wait(); err != nil || ws.Signal() != unix.SIGKILL {
		t.Fatalf("%v %v", ws, err)
	}
}

// Children that share our memory do what forked ones do, many at once, while
// the garbage collector runs.
func TestSpawnShared(t *testing.T) {
	if _, err := Spawn(failing(), SpawnOptions{Share: true}); err == nil || err.Error() != "open the impossible: no such file or directory" {
		t.Errorf("a call that fails: %v", err)
	}
	stop := make(chan struct{})
	var collecting, spawning sync.WaitGroup
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for n := range 8 {
		spawning.Go(func() {
			for range 50 {
				var s Script
				s.Stdio([3]*os.File{})
				s.Probe("closed", unix.SYS_CLOSE, 77)
				s.Capture("/proc/self/stat", 4096)
				s.Report()
				s.Exec([]string{"/nonexistent", "/bin/sh"}, []string{"sh", "-c", fmt.Sprintf("exit %d", n)}, nil)
				c, err := Spawn(&s, SpawnOptions{Share: true})
				if err != nil {
					t.Error(err)
					return
				}
				ws, _, err := c.Wait()
				c.PIDFD.Close()
				if err != nil || ws.ExitStatus() != n || len(c.Probes) != 1 || c.Probes[0].Errno != unix.EBADF || !strings.HasPrefix(c.Captured["/proc/self/stat"], fmt.Sprint(c.PID, " ")) {
					t.Errorf("%v, %v, %v, %q", ws, err, c.Probes, c.Captured)
				}
			}
		})
	}
	spawning.Wait()
	close(stop)
	collecting.Wait()
}

// A stopped child that shares our memory stops the goroutine that spawned it and nothing
// else, not even the garbage collector.
func TestSpawnSharedChildIsStopped(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if w, err = Raise(w); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var s Script
	pid := s.Call("getpid", unix.SYS_GETPID)
	s.WriteTo("say", int(w.Fd()), "!")
	s.Call("stop", unix.SYS_KILL, pid, int(unix.SIGSTOP))
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	spawned := make(chan *Child)
	go func() {
		c, err := Spawn(&s, SpawnOptions{Share: true})
		if err != nil {
			t.Error(err)
		}
		spawned <- c
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	var stopped int
	for stopped == 0 {
		children, err := os.ReadFile("/proc/thread-self/children")
		if err != nil {
			t.Skip("this kernel does not list children")
		}
		tasks, _ := filepath.Glob("/proc/self/task/*/children")
		for _, f := range tasks {
			b, _ := os.ReadFile(f)
			children = append(children, b...)
		}
		for _, n := range strings.Fields(string(children)) {
			b, _ := os.ReadFile("/proc/" + n + "/stat")
			if strings.Contains(string(b), ") T ") {
				fmt.Sscan(n, &stopped)
			}
		}
	}
	select {
	case <-spawned:
		t.Error("Spawn came back from a child that is stopped")
	default:
	}
	unix.Kill(stopped, unix.SIGCONT)
	c := <-spawned
	if c.PID != stopped {
		t.Errorf("%d was stopped, %d spawned", stopped, c.PID)
	}
	c.Wait()
	c.PIDFD.Close()
}

// failing is a script that comes to no end.
func failing() *Script {
	var s Script
	s.Call("open the impossible", unix.SYS_OPENAT, AtCWD, "/nonexistent/file", 0, 0)
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	return &s
}

func BenchmarkSpawnTrue(b *testing.B) {
	for _, share := range []bool{false, true} {
		b.Run(fmt.Sprint("share ", share), func(b *testing.B) {
			for b.Loop() {
				var s Script
				s.Stdio([3]*os.File{})
				s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
				c, err := Spawn(&s, SpawnOptions{Share: share})
				if err != nil {
					b.Fatal(err)
				}
				c.Wait()
				c.PIDFD.Close()
			}
		})
	}
}

// After a child was born in another pid namespace, also one that came to no end,
// the next of the same goroutine is born in ours.
func TestSpawnElsewhereAndHere(t *testing.T) {
	testenv.Root(t)
	first := &Script{}
	first.Stdio([3]*os.File{})
	first.Exec([]string{"/bin/sleep"}, []string{"sleep", "60"}, nil)
	p, err := Spawn(first, SpawnOptions{Flags: unix.CLONE_NEWPID})
	if err != nil {
		t.Fatal(err)
	}
	defer p.PIDFD.Close()
	for _, fails := range []bool{false, true} {
		s := failing()
		if !fails {
			s = &Script{}
			s.Stdio([3]*os.File{})
			s.Exit()
		}
		c, err := Spawn(s, SpawnOptions{PIDNS: int(p.PIDFD.Fd()), Share: true})
		if _, ok := errors.AsType[*ScriptError](err); ok != fails || err != nil && !ok {
			t.Fatalf("in another namespace: %v", err)
		}
		if c != nil {
			c.Wait()
			c.PIDFD.Close()
		}
	}
	p.Kill()
	p.Wait()
	s := &Script{}
	s.Stdio([3]*os.File{})
	s.CaptureLink("/proc/self/ns/pid", 64)
	s.Report()
	s.Exit()
	c, err := Spawn(s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Wait()
	c.PIDFD.Close()
	if own, _ := os.Readlink("/proc/self/ns/pid"); c.Captured["/proc/self/ns/pid"] != own {
		t.Errorf("born in %s, not in %s", c.Captured["/proc/self/ns/pid"], own)
	}
}

// What a child keeps of the capabilities is in every set, also after it has executed
// something, and nothing else is in any; also of one that is not root.
func TestSpawnKeepsCaps(t *testing.T) {
	testenv.Root(t)
	const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_SETFCAP
	for _, c := range []struct {
		uid  int
		keep uint64
	}{{0, 0}, {0, keep}, {65534, 0}, {65534, keep}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if w, err = Raise(w); err != nil {
			t.Fatal(err)
		}
		var s Script
		s.Stdio([3]*os.File{nil, w, w})
		s.Call("keep", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
		s.Call("setresuid", unix.SYS_SETRESUID, c.uid, c.uid, c.uid)
		s.SetCaps(keep | 1<<unix.CAP_SETPCAP) // it has lost the effective ones
		s.KeepCaps(c.keep, LastCap())
		s.NoNewPrivs()
		s.Exec([]string{"/bin/sh"}, []string{"sh", "-c", "grep ^Cap /proc/self/status"}, []string{"PATH=/usr/bin:/bin"})
		child, err := Spawn(&s, SpawnOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		text, err := io.ReadAll(r)
		r.Close()
		child.Wait()
		child.PIDFD.Close()
		if err != nil || strings.Count(string(text), fmt.Sprintf("%016x", c.keep)) != 5 {
			t.Errorf("user %d, %#x: %v\n%s", c.uid, c.keep, err, text)
		}
	}
}
