package namespace

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/testenv"
)

// A keeper has at most four descriptors open for a fork, whatever was done in it, and
// none when it is gone.
func TestX16DescriptorsOfForks(t *testing.T) {
	testenv.Root(t) // it looks at the descriptors of another process, which keeps others from that
	g := newForkBed(t, "x = 1")
	g.seal()
	pid := g.warm.(*client.Instance).KeeperPID()
	open := func() map[string]int {
		list, err := os.ReadDir(procPath(pid, "fd"))
		g.must(err)
		kinds := map[string]int{}
		for _, fd := range list {
			what, _ := os.Readlink(procPath(pid, "fd/"+fd.Name())) // of one that was closed it is ""
			if kind, _, is := strings.Cut(what, ":["); is {
				what = kind
			}
			kinds[what]++
			kinds["all"]++
		}
		return kinds
	}
	g.must(g.unadopted().Remove(t.Context(), "removed")) // what all forks share is there now
	const n, most = 20, 4
	before := open()
	within := func(when string) {
		t.Helper()
		var now map[string]int
		defer func() {
			if t.Failed() {
				t.Logf("%d forks %s:\nbefore %v\nnow %v", n, when, before, now)
			}
		}()
		testenv.Eventually(t, func() bool { // what a command had is closed in a moment
			now = open()
			return now["all"]-before["all"] <= n*most
		}, "forks "+when+" with four descriptors each")
	}
	var forks []backend.Warmer
	for range n {
		forks = append(forks, g.unadopted())
	}
	within("that wait")
	for _, f := range forks {
		_, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "adopted"})
		g.must(err)
		if got := g.says(f, "open('f', 'w').write('12345')"); got != "5" {
			t.Fatalf("a fork says %s", got)
		}
		if st := g.runs(f, "true"); st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("a command in a fork: %+v", st)
		}
	}
	within("that were used")
	for _, f := range forks {
		g.must(f.Remove(t.Context(), "removed"))
	}
	testenv.Eventually(t, func() bool { return open()["all"]-before["all"] <= 1 }, // a connection that is being closed
		"forks that were removed without a descriptor left")
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
