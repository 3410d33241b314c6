package namespace

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/need"
)

// A keeper has no more descriptors open for a fork than are foreseen for one, and none
// when it is gone.
func TestX16DescriptorsOfForks(t *testing.T) {
	need.Root(t) // it looks at the descriptors of another process, which keeps others from that
	g := newGarden(t, "x = 1")
	g.seal()
	pid, err := g.warm.(*kept.Instance).KeeperPID(t.Context())
	g.must(err)
	open := func() int {
		list, err := os.ReadDir(procPath(pid, "fd"))
		g.must(err)
		return len(list)
	}
	const n = 8
	before := open()
	var forks []backend.Warmer
	for range n {
		f, err := g.warm.Fork(t.Context(), g.child())
		g.must(err)
		forks = append(forks, f)
	}
	waiting := open() - before
	if keeper.ForksIn(int64(waiting-1), false) >= n {
		t.Errorf("%d forks that wait take %d descriptors", n, waiting)
	}
	t.Logf("%.1f descriptors for each", float64(waiting)/n)
	for _, f := range forks {
		g.must(f.Remove(t.Context(), "removed"))
	}
	if left := open() - before; left > 1 { // a connection that is being closed
		t.Errorf("of %d forks that were removed %d descriptors are left", n, left)
	}
}

// That there are no descriptors left is said as what it is, and not as a verdict about
// isolation.
func TestX16AShortageSaysNothingAboutIsolation(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	_, files := openFiles(os.Getpid())
	_, _, shared := sharedMemory(os.Getpid())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{files, shared} {
		if cell.KindOf(err) != cell.Unavailable {
			t.Errorf("with no descriptors left: %v", err)
		}
	}
	if _, err := openFiles(1 << 30); cell.KindOf(err) != cell.Denied {
		t.Errorf("of a process that is gone: %v", err)
	}
}
