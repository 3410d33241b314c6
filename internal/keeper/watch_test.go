package keeper

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A cell can't hide what it writes below more directories than its keeper can
// have open: what can't be counted is too much.
func TestDiskUseOfTheDeepest(t *testing.T) {
	root := t.TempDir()
	deep := root
	for range 100 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "big"), make([]byte, 4<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const limit = 64 << 20
	if n := diskUse(d, limit); n < 4<<20 || n > limit {
		t.Errorf("%d bytes counted", n)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 60, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	n := diskUse(d, limit)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if n <= limit {
		t.Errorf("%d bytes counted with too few descriptors", n)
	}
}
