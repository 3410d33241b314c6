package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// gated is a script that makes a file, waits at its gate, and makes another.
func gated(dir string) *Script {
	s := &Script{Gated: true}
	s.Stdio([3]*os.File{})
	s.Capture("/proc/self/comm", 64)
	s.Call("before", unix.SYS_MKDIRAT, AtCWD, filepath.Join(dir, "before"), 0o700)
	s.Report()
	s.Gate()
	s.Call("after", unix.SYS_MKDIRAT, AtCWD, filepath.Join(dir, "after"), 0o700)
	s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
	return s
}

func there(path string) bool { _, err := os.Stat(path); return err == nil }

// A child waits at its gate until it is let go on, and never goes on when it is
// not: nothing that stands behind the gate has happened then.
func TestSpawnGate(t *testing.T) {
	for _, share := range []bool{false, true} {
		t.Run(fmt.Sprint("share ", share), func(t *testing.T) { testGate(t, share) })
	}
}

func testGate(t *testing.T, share bool) {
	dir := t.TempDir()
	c, err := Spawn(gated(dir), SpawnOptions{Share: share, Gate: func(int) error {
		if !there(filepath.Join(dir, "before")) || there(filepath.Join(dir, "after")) {
			t.Error("the child is not at its gate")
		}
		runtime.GC() // a stopped goroutine stops no other
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	if ws, _, err := c.Wait(); err != nil || ws.ExitStatus() != 0 || !there(filepath.Join(dir, "after")) || c.Captured["/proc/self/comm"] == "" {
		t.Errorf("status %v, %v, captured %v", ws, err, c.Captured)
	}

	dir = t.TempDir()
	no := errors.New("no")
	if _, err := Spawn(gated(dir), SpawnOptions{Share: share, Gate: func(int) error { return no }}); !errors.Is(err, no) {
		t.Errorf("stopped at the gate: %v", err)
	}
	if !there(filepath.Join(dir, "before")) || there(filepath.Join(dir, "after")) {
		t.Error("the child went on")
	}

	if c, err := Spawn(gated(t.TempDir()), SpawnOptions{Share: share}); err != nil { // no process holds it
		t.Error(err)
	} else {
		c.Wait()
		c.PIDFD.Close()
	}
}

func TestScriptMatch(t *testing.T) {
	for _, tc := range []struct {
		mask, want string
		same       bool
	}{
		{"\xff\xff\xff", "roo", true}, {"\xff\xff\xff", "rox", false}, {"\xff\xff\x00", "rox", true},
		{"\x00\x00\x0f", "xx\x0f", true}, {"\x00\x00\x1f", "xx\x1f", false},
	} {
		s := &Script{}
		s.Stdio([3]*os.File{})
		buf := make([]byte, 16)
		fd := s.Call("open", unix.SYS_OPENAT, AtCWD, "/etc/passwd", unix.O_RDONLY, 0)
		s.Call("read", unix.SYS_READ, fd, buf, 3) // "roo"
		s.Match("the beginning", buf, []byte(tc.mask), []byte(tc.want))
		s.Exec([]string{"/bin/true"}, []string{"true"}, nil)
		c, err := Spawn(s, SpawnOptions{})
		if err == nil {
			c.Wait()
			c.PIDFD.Close()
		}
		se, ok := errors.AsType[*ScriptError](err)
		if (err == nil) != tc.same || (err != nil && (!ok || se.Call != "the beginning")) {
			t.Errorf("%q with %x: %v", tc.want, tc.mask, err)
		}
	}
}

// A child comes through its gate whatever numbers this process has for its ends: in
// a keeper with many open files they are those that the child uses for itself.
func TestSpawnGateWithManyOpenFiles(t *testing.T) {
	var taken []*os.File
	defer func() {
		for _, f := range taken {
			f.Close()
		}
	}()
	for top := 0; top < reportFD+2; {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, f)
		if top = int(f.Fd()); top < gateFD-6 {
			continue
		}
		c, err := Spawn(gated(t.TempDir()), SpawnOptions{})
		if err != nil {
			t.Fatalf("with files up to number %d: %v", top, err)
		}
		if ws, _, err := c.Wait(); err != nil || ws.ExitStatus() != 0 {
			t.Errorf("with files up to number %d: status %v, %v", top, ws, err)
		}
		c.PIDFD.Close()
	}
}
