package volume

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// inside gives the test a mount namespace of its own.
func inside(t *testing.T) string {
	testenv.Root(t)
	if why := Lacks(); why != "" {
		t.Skip("needs volumes: " + why)
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(t.TempDir(), "c-1")
}

func TestVolumeLimitsAndIsTheSameAgain(t *testing.T) {
	dir := inside(t)
	if err := Make(t.Context(), dir, 8<<20); err != nil {
		t.Fatal(err)
	}
	defer Remove(dir)
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 9<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("writing past the end: %v", err)
	}
	os.Remove(filepath.Join(dir, "big"))

	// Opened a second time, elsewhere, while the first mount lives: one file
	// system, not two on the same blocks.
	other := filepath.Join(filepath.Dir(dir), "other")
	os.Mkdir(other, 0o700)
	if err := unix.Mount(dir, other, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(other, unix.MNT_DETACH)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "seen"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "seen"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestVolumeLeavesNothing(t *testing.T) {
	dir := inside(t)
	if err := Make(t.Context(), dir, 8<<20); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if dev, err := attached(f); err != nil || dev != nil {
		t.Errorf("its loop device is still there: %v %v", dev, err)
	}
	left, _ := os.ReadDir(filepath.Dir(dir))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestVolumeTooSmall(t *testing.T) {
	dir := inside(t)
	if err := Make(t.Context(), dir, 100); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a disk of 100 bytes: %v", err)
	}
	if Exists(dir) {
		t.Error("something was made")
	}
}
