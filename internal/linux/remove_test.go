package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An empty path would mean the working directory, and empty it. What is tried here lies
// in the test's own directory, should it work.
func TestRemoveTreeNeedsAPlace(t *testing.T) {
	top := t.TempDir()
	inner := filepath.Join(top, "inner")
	for _, d := range []string{"sub/sub", "other"} {
		if err := os.MkdirAll(filepath.Join(inner, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(inner)
	for _, path := range []string{"", ".", "./", "..", "sub", "./sub"} {
		if err := RemoveTree(path); !errors.Is(err, unix.EINVAL) {
			t.Errorf("remove %q: %v, want EINVAL", path, err)
		}
	}
	at, err := unix.Open(inner, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	for _, name := range []string{"", ".", "..", "sub/sub"} {
		if err := RemoveAt(at, name); !errors.Is(err, unix.EINVAL) {
			t.Errorf("remove %q in a directory: %v, want EINVAL", name, err)
		}
	}
	for _, d := range []string{"sub/sub", "other"} {
		if _, err := os.Stat(filepath.Join(inner, d)); err != nil {
			t.Error(err)
		}
	}
}
