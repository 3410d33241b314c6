package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// Several removals of the same tree at once all end without an error, and it is gone.
func TestRemoveTreeAtOnce(t *testing.T) {
	dir := t.TempDir()
	for round := range 100 {
		tree := filepath.Join(dir, "tree")
		for i := range 20 {
			at := filepath.Join(tree, fmt.Sprint(i), "a", "b")
			if err := os.MkdirAll(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := RemoveTree(tree); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
		if _, err := os.Lstat(tree); !os.IsNotExist(err) {
			t.Fatalf("round %d: it is there: %v", round, err)
		}
	}
}
