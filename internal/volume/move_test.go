package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func move(t *testing.T, root string) {
	t.Helper()
	for _, d := range []string{"cells/c-1/home", "layers/l-1/fs"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "cells/c-1/home/f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Move(root, "cells/c-1/home", "layers/l-1/fs"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(root, "layers/l-1/fs/f")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(root, "cells/c-1/home")); !os.IsNotExist(err) {
		t.Errorf("it is still where it was: %v", err)
	}
}

func TestMove(t *testing.T) { move(t, t.TempDir()) }

// The directory of cells is a mount of its own where there are volumes.
func TestMoveFromAMount(t *testing.T) {
	root := filepath.Dir(inside(t))
	cells := filepath.Join(root, "cells")
	if err := os.Mkdir(cells, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(cells, cells, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(cells, unix.MNT_DETACH)
	move(t, root)
}
