package linux

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

func BenchmarkSpawnTrue(b *testing.B) {
	for b.Loop() {
		var s Script
		s.Stdio([3]*os.File{})
		s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
		c, err := Spawn(&s, SpawnOptions{})
		if err != nil {
			b.Fatal(err)
		}
		c.Wait()
		c.PIDFD.Close()
	}
}
