package paths

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// environ is an environment with its state in one place, and its sockets in another.
func environ(dir, run string) func(string) string {
	return func(name string) string {
		return map[string]string{"HOME": dir, "XDG_RUNTIME_DIR": filepath.Join(dir, run)}[name]
	}
}

// One state has one daemon: a client with another environment finds the sockets of the
// daemon that has it, or of the keepers that one left.
func TestX19TheStateLeadsToItsDaemon(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"one/pando/keepers", "two"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	find := func(run string) Home {
		t.Helper()
		h, err := Find(environ(dir, run), 1000)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	one, own := find("one"), find("two")
	if one.State != own.State || one.Run == own.Run {
		t.Fatalf("%+v, %+v", one, own)
	}
	if err := os.MkdirAll(one.State, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(one.Lock())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sign := func(o Holder) {
		t.Helper()
		b, _ := json.Marshal(o)
		if err := os.WriteFile(one.Lock(), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sign(Holder{PID: 1, Host: Host(), Run: one.Run})
	if got := find("two"); got != own {
		t.Errorf("no process has the lock, and %s was chosen", got.Run)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := find("two"); got.Run != one.Run {
		t.Errorf("the daemon's sockets are in %s, and %s was chosen", one.Run, got.Run)
	}
	sign(Holder{PID: 1, Host: "another", Run: one.Run})
	if got := find("two"); got != own {
		t.Errorf("of another host %s was chosen", got.Run)
	}
	sign(Holder{PID: 1, Host: Host(), Run: filepath.Join(dir, "gone")})
	if got := find("two"); got != own {
		t.Errorf("a directory that is gone was chosen: %s", got.Run)
	}
	f.Close()
	sign(Holder{PID: 1, Host: Host(), Run: one.Run, Ended: true})
	if err := os.Mkdir(filepath.Join(one.Keepers(), "c-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := find("two"); got.Run != one.Run {
		t.Errorf("keepers live in %s, and %s was chosen", one.Run, got.Run)
	}
	if err := os.WriteFile(one.Lock(), []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := find("two"); got != own {
		t.Errorf("by rubbish %s was chosen", got.Run)
	}
}

// TestF22RelativeHomeIsRefused: a relative PANDO_HOME would be another state in each directory.
func TestF22RelativeHomeIsRefused(t *testing.T) {
	for home, ok := range map[string]bool{"x": false, "./x": false, "../x": false, "/x": true, "/x/../y/": true} {
		h, err := Find(func(v string) string { return map[string]string{"PANDO_HOME": home}[v] }, 1000)
		if (err == nil) != ok || ok && h.State != filepath.Clean(home)+"/state" {
			t.Errorf("%s: %+v, %v", home, h, err)
		}
	}
}

// TestX34CopiedState: the lock of a copied state names the sockets of the original's daemon.
// It leads no client of the copy to that daemon.
func TestX34CopiedState(t *testing.T) {
	dir := t.TempDir()
	find := func(name string) Home {
		t.Helper()
		h, err := Find(func(v string) string { return map[string]string{"PANDO_HOME": filepath.Join(dir, name)}[v] }, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	one, copied := find("one"), find("copy")
	for _, d := range []string{one.State, copied.State, filepath.Join(one.Keepers(), "c-1")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := json.Marshal(Holder{PID: 1, Host: Host(), State: one.State, Run: one.Run})
	for _, h := range []Home{one, copied} {
		if err := os.WriteFile(h.Lock(), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := find("copy"); got.Run != copied.Run {
		t.Errorf("a copy leads to the original's sockets, %s", got.Run)
	}
	if err := os.RemoveAll(copied.State); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(one.State, copied.State); err != nil {
		t.Fatal(err)
	}
	if got := find("copy"); got.Run != one.Run {
		t.Errorf("a state that was moved leads to %s, its keepers are in %s", got.Run, one.Run)
	}
	if err := os.Symlink(copied.State, one.State); err != nil {
		t.Fatal(err)
	}
	if got := find("copy"); got.Run != one.Run {
		t.Errorf("a state of two names leads to %s, its keepers are in %s", got.Run, one.Run)
	}
}
