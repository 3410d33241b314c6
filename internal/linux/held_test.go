package linux

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file without a name counts as long as a process has it open or mapped.
func TestHeldBytes(t *testing.T) {
	held := func() int64 { return HeldBytes("/proc", []int{os.Getpid()}) }
	before := held()
	name := filepath.Join(t.TempDir(), "file")
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(name), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("needs a temporary directory on a disk")
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 3 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil { // blocks are counted when they are there
		t.Fatal(err)
	}
	if got := held() - before; got != 0 {
		t.Errorf("%d bytes counted of a file that has a name", got)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := held() - before; got < size || got > size+1<<20 {
		t.Errorf("open: %d bytes, want %d", got, size)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if got := held() - before; got < size || got > size+1<<20 {
		t.Errorf("open and mapped: %d bytes, want %d", got, size)
	}
	f.Close()
	if got := held() - before; got != size {
		t.Errorf("mapped: %d bytes, want %d", got, size)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if got := held() - before; got != 0 {
		t.Errorf("%d bytes counted of a file that is gone", got)
	}
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if got := held() - before; got != 0 {
		t.Errorf("%d bytes counted of a file in memory", got)
	}
}
