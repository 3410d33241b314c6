package microvm

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// D34: the memory that copies map is that of the image, and nobody who opens it once
// more can change it. It goes with the image, and when nobody wanted it for long.
func TestD34MemoryIsSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(path, []byte("page"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	m := newMemories()
	f, err := m.open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := os.ReadFile(process(os.Getpid(), "fd/"+strconv.Itoa(int(f.Fd())))); err != nil || len(b) != 1<<20 || string(b[:4]) != "page" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	again, err := os.OpenFile(process(os.Getpid(), "fd/"+strconv.Itoa(int(f.Fd()))), os.O_RDWR, 0) // as QEMU does
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.WriteAt([]byte("other"), 0); err == nil {
		t.Error("what copies map can be written")
	}
	if err := again.Truncate(0); err == nil {
		t.Error("what copies map can be cut")
	}
	m.cool(time.Now())
	if len(m.all) != 1 {
		t.Error("it is gone at once")
	}
	m.cool(time.Now().Add(coolAfter + time.Second))
	if len(m.all) != 0 {
		t.Error("it stays, and nobody wants it")
	}
	if f, err := m.open(path); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m.cool(time.Now())
	if len(m.all) != 0 {
		t.Error("it stays, and its image is gone")
	}
}
