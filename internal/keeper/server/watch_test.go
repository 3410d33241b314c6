package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/keeper/proto"
)

// countedIn is an open directory as one that is counted.
func countedIn(t *testing.T, d *os.File) []counted {
	t.Helper()
	f, err := os.OpenFile(d.Name(), unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	dirs, drop, err := new(Server).countable(proto.Watch{Limit: 1}, []*os.File{f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return dirs
}

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
	if n, err := diskUse(d, limit); err != nil || n < 4<<20 || n > limit {
		t.Errorf("%d bytes counted, %v", n, err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	open, _, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(open) + 70, Max: old.Max}); err != nil { // what is kept back
		t.Fatal(err)
	}
	n, cerr := diskUse(d, limit)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if cerr != nil || n <= limit {
		t.Errorf("%d bytes counted with too few descriptors, %v", n, cerr)
	}
}

// A keeper that has no descriptors left says nothing about what a cell has on disk, and
// nothing is ended for it.
func TestX16AShortageIsNoVerdict(t *testing.T) {
	k := newKit(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a", "b", "big"), make([]byte, 4<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w := &watch{cell: one, limit: 1 << 30, used: -1, free: 1 << 62, dirs: countedIn(t, d)}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	spare, err := unix.Dup(int(d.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(spare)
	for _, left := range []int{0, 1, 3} { // at the top, and further down
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(spare + left), Max: old.Max}); err != nil {
			t.Fatal(err)
		}
		n, err := diskUse(d, 1<<30)
		k.s.look(w, true)
		if serr := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); serr != nil {
			t.Fatal(serr)
		}
		if err == nil || w.used != -1 {
			t.Errorf("with %d descriptors: %d bytes counted, %v; of the cell %d", left, n, err, w.used)
		}
	}
	killed := func() bool {
		k.d.mu.Lock()
		defer k.d.mu.Unlock()
		return slices.Contains(k.d.asked, "kill "+string(one))
	}
	if killed() {
		t.Error("a cell was ended")
	}
	if k.s.look(w, true); w.used < 4<<20 {
		t.Errorf("with descriptors again %d bytes were counted", w.used)
	}
	w.limit, w.free = 1<<20, 1<<62
	if k.s.look(w, true); !killed() {
		t.Error("a cell above its limit was not ended")
	}
}
