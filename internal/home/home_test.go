package home

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// environ is an environment whose state is in one place, and whose sockets are elsewhere.
func environ(dir, run string) func(string) string {
	return func(name string) string {
		return map[string]string{"HOME": dir, "XDG_RUNTIME_DIR": filepath.Join(dir, run)}[name]
	}
}

// One state has one daemon: who asks with another environment finds the sockets of the
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
		t.Errorf("nobody has the lock, and %s was chosen", got.Run)
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
