package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// pathTo opens a directory as daemons do for what is counted.
func pathTo(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A fork's directories are counted by their paths, and take no descriptor. What is at a
// path later is counted only if it is the same directory; what is not is no verdict.
func TestX16DirectoriesAreCountedByPath(t *testing.T) {
	k := newKit(t)
	root := t.TempDir()
	dir, other := filepath.Join(root, "dir"), filepath.Join(root, "other")
	for _, d := range []string{dir, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "big"), make([]byte, 4<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k.s.mu.Lock()
	k.s.cells[one] = &kept{}
	k.s.mu.Unlock()
	before := descriptors()
	watch := func(at string) error { // what the daemon has opened is at another path meanwhile
		return k.s.watch(one, &proto.Watch{Limit: 1 << 20, Quiet: true, Paths: []string{dir}}, []*os.File{pathTo(t, at)})
	}
	if err := watch(dir); err != nil {
		t.Fatal(err)
	}
	if n := descriptors() - before; n != 0 {
		t.Errorf("a directory takes %d descriptors", n)
	}
	w := k.s.watchOf(one)
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"absent", "another", "symlink"} {
		switch name {
		case "another":
			if err := os.Rename(other, dir); err != nil {
				t.Fatal(err)
			}
		case "symlink":
			if err := os.Rename(dir, other); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(dir+"-moved", dir); err != nil {
				t.Fatal(err)
			}
		}
		if k.s.look(w, true); w.used != -1 || k.d.was("kill "+string(one)) {
			t.Errorf("%s: %d bytes counted; asked of the driver: %v", name, w.used, k.d.asked)
		}
		if err := watch(dir + "-moved"); err == nil {
			t.Errorf("%s: it is taken for the directory that it is not", name)
		}
	}
	if n := descriptors() - before; n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"-moved", dir); err != nil {
		t.Fatal(err)
	}
	if k.s.look(w, true); !k.d.was("kill " + string(one)) {
		t.Errorf("a cell above its limit was not ended: %d bytes", w.used)
	}
}

// keepingDriver keeps mounts, as symlinks.
type keepingDriver struct {
	*fakeDriver
	dir     string
	dropped int
	refuses error
}

func (d *keepingDriver) KeepMounts(mounts []*os.File) (paths []string, drop func(), err error) {
	for range mounts {
		paths = append(paths, d.dir)
	}
	return paths, func() { d.dropped++ }, d.refuses
}

// Where the directories are mounts of the daemon's, the driver keeps them as long as they
// are counted; those of cells that are no forks are kept open.
func TestX16MountsAreKeptForForks(t *testing.T) {
	d := &keepingDriver{dir: t.TempDir()}
	k := newKitWith(t, func(f *fakeDriver) Driver {
		d.fakeDriver = f
		return d
	})
	k.s.mu.Lock()
	k.s.cells[one] = &kept{}
	k.s.mu.Unlock()
	before := descriptors()
	watch := func(quiet bool) error {
		return k.s.watch(one, &proto.Watch{Limit: 1 << 20, Quiet: quiet}, []*os.File{pathTo(t, d.dir), pathTo(t, d.dir)})
	}
	for n := range 2 { // the second replaces the first
		if err := watch(true); err != nil {
			t.Fatal(err)
		}
		if got := descriptors() - before; got != 0 || d.dropped != n {
			t.Errorf("watch %d takes %d descriptors, and %d were dropped", n, got, d.dropped)
		}
	}
	d.refuses = cell.Errorf(cell.Unavailable, "test", "", "no more mounts")
	if err := watch(true); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("the driver could not keep them: %v", err)
	}
	if got := descriptors() - before; got != 0 {
		t.Errorf("%d descriptors are left", got)
	}
	k.s.watchOf(one).stop()
	if d.refuses = nil; d.dropped != 2 {
		t.Errorf("%d of 2 were dropped", d.dropped)
	}
	if err := watch(false); err != nil {
		t.Fatal(err)
	}
	if got := descriptors() - before; got != 2 || d.dropped != 2 {
		t.Errorf("a cell that is no fork has %d descriptors", got)
	}
	if w := k.s.watchOf(one); !strings.HasPrefix(w.dirs[0].path, "/proc/self/fd/") {
		t.Errorf("it is counted at %s", w.dirs[0].path)
	}
	k.s.watchOf(one).stop()
}
