package linux

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What this process maps shared and writable is found, and nothing else of it.
func TestMapped(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	hold := func(name string, prot, flags int) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(at, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, prot, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(b) })
		return at
	}
	want := hold("wri ten", unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	others := []string{hold("read", unix.PROT_READ, unix.MAP_SHARED), hold("own", unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)}
	proc := t.TempDir()
	if err := os.Symlink("/proc/self", filepath.Join(proc, "1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/gone", filepath.Join(proc, "2")); err != nil {
		t.Fatal(err)
	}
	list, err := Mapped(proc)
	var got []string
	for _, f := range list {
		got = append(got, f.Path)
		var st unix.Stat_t
		if f.Path == want && (unix.Lstat(want, &st) != nil || st.Ino != f.Inode) {
			t.Errorf("%s has inode %d, not %d", want, st.Ino, f.Inode)
		}
	}
	if err != nil || !slices.Contains(got, want) || slices.ContainsFunc(others, func(o string) bool { return slices.Contains(got, o) }) {
		t.Errorf("%q, %v", got, err)
	}
}
