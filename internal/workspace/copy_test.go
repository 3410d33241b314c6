package workspace_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
)

// TestDiskUse: two names are one file, holes are nothing, and what is mounted
// below lies somewhere else.
func TestDiskUse(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "volume"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "a"), bytes.Repeat([]byte("a"), 1<<20), 0o600))
	must(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(os.WriteFile(filepath.Join(dir, "holes"), nil, 0o600))
	must(os.Truncate(filepath.Join(dir, "holes"), 1<<30))
	if err := unix.Mount("tmpfs", filepath.Join(dir, "volume"), "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Join(dir, "volume"), unix.MNT_DETACH) })
	must(os.WriteFile(filepath.Join(dir, "volume", "c"), bytes.Repeat([]byte("c"), 2<<20), 0o600))
	if n, err := workspace.DiskUse(dir); err != nil || n < 1<<20 || n > 1<<20+64<<10 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := workspace.DiskUse(filepath.Join(dir, "volume")); err != nil || n < 2<<20 {
		t.Errorf("the volume itself: %d bytes, %v", n, err)
	}
	if n, err := workspace.DiskUse(filepath.Join(dir, "none")); err == nil || n != 0 {
		t.Errorf("of nothing: %d bytes, %v", n, err)
	}
}
