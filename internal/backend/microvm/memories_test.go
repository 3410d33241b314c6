package microvm

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// D34: the memory that copies map is that of the image, and reopening it gives
// no write access. It goes with the image, and when it was unused for long.
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
		t.Error("it stays although it is unused")
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

// A memory that is taken for a moment is read through its folder, and is what copies map,
// without another one. It goes with its link, and no sooner.
func TestBriefMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	m := newMemories()
	m.host = func() (int64, int64, error) { return 2*100<<20 + briefRest, 1 << 40, nil }
	if done, err := m.brief(path, 101<<20); done || err != nil {
		t.Fatal(done, err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("what the host has no room for is in memory (%v)", err)
	}
	if done, err := m.brief(path, 100<<20); !done || err != nil {
		t.Fatal(done, err)
	}
	to, err := os.OpenFile(path, os.O_RDWR, 0) // as a capture does
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := to.WriteAt([]byte("page"), 8192); err != nil {
		t.Fatal(err)
	}
	f, err := m.open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	is, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if was, err := to.Stat(); err != nil || !os.SameFile(is, was) {
		t.Errorf("it was copied (%v)", err)
	}
	if _, err := to.WriteAt([]byte("other"), 8192); err == nil {
		t.Error("what copies map can be written")
	}
	if b, err := os.ReadFile(path); err != nil || string(b[8192:]) != "page" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	m.cool(time.Now().Add(2 * coolAfter))
	if again, err := m.open(path); err != nil {
		t.Errorf("it is gone before its link: %v", err)
	} else {
		again.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m.cool(time.Now())
	if len(m.all) != 0 {
		t.Error("it stays, and its link is gone")
	}
}

// What a copy began with is lent to its own copies only if it cannot be changed or cut
// any more: the lender may lie.
func TestD34LentMemoryIsSealed(t *testing.T) {
	m := newMemories()
	dir := t.TempDir()
	for name, seals := range map[string]int{"none": 0, "can be cut": unix.F_SEAL_WRITE | unix.F_SEAL_SEAL, "all": linux.AllSeals} {
		f, err := linux.MemoryFile("pando-memory", false)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		err = m.lend(path, f)
		if _, serr := os.Lstat(path); (err == nil) != (name == "all") || (serr == nil) != (err == nil) {
			t.Errorf("%s: %v, %v", name, err, serr)
		}
	}
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.lend(filepath.Join(dir, "of a disk"), file); err == nil {
		t.Error("a file of a disk is taken")
	}
}
