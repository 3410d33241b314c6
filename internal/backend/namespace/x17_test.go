package namespace

import (
	"fmt"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// Forks, branches and sources work in the directory that what they were forked from
// worked in, in their own files.
func TestX17TheWorkingDirectoryIsKept(t *testing.T) {
	for _, dir := range []string{"/work/d/e", "/tmp/d", "/dev/shm/d", "/usr/bin", "/"} {
		setup := fmt.Sprintf("import os; os.makedirs(%q, exist_ok=True); os.chdir(%[1]q)", dir)
		write := fmt.Sprintf("open('made', 'w').write(%q), os.getcwd(), os.path.samefile('.', %[1]q), open(os.path.join(%[1]q, 'made')).read()", dir)
		want := fmt.Sprintf("(%d, '%s', True, '%[2]s')", len(dir), dir)
		writable := dir != "/usr/bin" && dir != "/"
		if !writable {
			write, want = fmt.Sprintf("os.getcwd(), os.path.samefile('.', %q)", dir), fmt.Sprintf("('%s', True)", dir)
		}
		check := func(what string, w backend.Warmer) {
			t.Helper()
			if got := (&forkBed{TB: t}).says(w, write); got != want {
				t.Errorf("%s of an interpreter in %s: %s, want %s", what, dir, got, want)
			}
		}
		b := newForkBed(t, setup)
		list, _, self := b.branch(b.warm, b.spec, 2)
		check("a branch", list[0])
		if writable {
			if got := b.says(list[1], "os.path.exists('made')"); got != "False" {
				t.Errorf("a branch in %s sees what another has written: %s", dir, got)
			}
			if got := b.says(b.warm, "os.path.exists('made')"); got != "False" {
				t.Errorf("a source in %s sees what its branch has written: %s", dir, got)
			}
		}
		check("the source", b.warm)
		again, _, _ := b.branch(b.warm, self, 1)
		check("a branch of a source that was branched", again[0])

		f := newForkBed(t, setup)
		f.seal()
		one, two := f.fork(), f.fork()
		check("a fork", one)
		if writable {
			if got := f.says(two, "os.path.exists('made')"); got != "False" {
				t.Errorf("a fork in %s sees what another has written: %s", dir, got)
			}
		}
	}
}

// So it is of a directory that was removed: nothing can be made in it, nor is there
// anything of it left elsewhere.
func TestX17ARemovedWorkingDirectoryIsKept(t *testing.T) {
	const setup = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('/work/gone')"
	const look = `def attempt(f, *a):
    try: return f(*a)
    except OSError as e: return type(e).__name__
attempt(os.getcwd), attempt(open, 'made', 'w'), os.listdir('.'), os.readlink('/proc/self/cwd').endswith(' (deleted)'), os.listdir('/work'), os.listdir('/dev/shm'), os.getcwd() if os.chdir('/work') else os.getcwd()`
	const want = "('FileNotFoundError', 'FileNotFoundError', [], True, [], [], '/work')"
	b := newForkBed(t, setup)
	list, _, _ := b.branch(b.warm, b.spec, 1)
	f := newForkBed(t, setup)
	f.seal()
	for what, got := range map[string]string{"a branch": b.says(list[0], look), "the source": b.says(b.warm, look), "a fork": f.says(f.fork(), look)} {
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
}

// A directory that a fork does not have is named.
func TestX17ADirectoryThatIsNotThereIsNamed(t *testing.T) {
	g := newForkBed(t, "import os; os.makedirs('d/e'); os.chdir('d/e')")
	g.seal()
	spec := g.child()
	spec.Mounts = append(spec.Mounts, cell.Mount{Kind: cell.Tmpfs, Target: "/work/d"})
	f, err := g.warm.Fork(t.Context(), spec)
	g.must(err)
	t.Cleanup(func() { f.Remove(g.bg(), "the test ended") })
	cert, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "h"})
	g.must(err)
	if got := g.says(f, "os.getcwd()"); got != "'/'" || !anyOf(fmt.Sprint(cert.Dropped), "working directory /work/d/e: No such file or directory") {
		t.Errorf("it works in %s, and dropped %v", got, cert.Dropped)
	}
}

// Where a fork works is what the kernel says: one that stays where its parent worked is
// given up.
func TestX17WhereAForkWorksIsSeenFromOutside(t *testing.T) {
	g := newForkBed(t, `import sys
f = sys._getframe()
while "go_to" not in f.f_globals: f = f.f_back
f.f_globals["go_to"] = lambda *_: None`)
	g.seal()
	f, err := g.warm.Fork(t.Context(), g.child())
	if err == nil {
		t.Cleanup(func() { f.Remove(g.bg(), "the test ended") })
		_, err = f.Adopt(t.Context(), cell.Adoption{Hostname: "h"})
	}
	if cell.KindOf(err) != cell.Denied || !anyOf(fmt.Sprint(err), "working directory is not on its own mounts") {
		t.Errorf("a fork works in its parent's files: %v", err)
	}
}
