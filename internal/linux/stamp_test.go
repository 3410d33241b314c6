package linux

import (
	"os"
	"path/filepath"
	"testing"
)

// A stamp differs when a file has come, gone, or changed in content, mode or owner.
func TestX35Stamp(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	was := map[string]string{}
	look := func(what string) {
		t.Helper()
		s := Stamp(f, "/proc/sys/kernel/ostype")
		if s != Stamp(f, "/proc/sys/kernel/ostype") {
			t.Errorf("%s: two stamps of the same files differ", what)
		}
		if old, ok := was[s]; ok {
			t.Errorf("%s: the stamp is that of %s", what, old)
		}
		was[s] = what
	}
	look("nothing there")
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"a file", func() error { return os.WriteFile(f, []byte("1"), 0o644) }},
		{"more content", func() error { return os.WriteFile(f, []byte("12"), 0o644) }},
		{"another mode", func() error { return os.Chmod(f, 0o600) }},
		{"a directory", func() error { os.Remove(f); return os.Mkdir(f, 0o700) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		look(step.what)
	}
	const name = "/proc/self/comm" // has no times, as the kernel's settings
	own, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(name, own, 0o644)
	before := Stamp(name)
	if err := os.WriteFile(name, []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	if Stamp(name) == before {
		t.Error("a setting was changed, and the stamp is what it was")
	}
}
