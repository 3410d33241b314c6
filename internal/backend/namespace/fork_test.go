package namespace

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
)

// forkBed is a backend with a warm cell that can be forked.
type forkBed struct {
	testing.TB
	b    *Backend
	cfg  isolation.Config
	spec cell.Spec
	warm backend.Warmer
	n    int // commands so far

	pauses []time.Duration // of branches
}

// python is the cell's process of an interpreter.
func python(spec cell.Spec) cell.Process {
	return cell.Process{Args: []string{"python3"}, Path: []string{"/usr/bin/python3"}, Workdir: spec.Workdir,
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + spec.User.Home, "PYTHONHASHSEED=0"}}
}

func newForkBed(t testing.TB, setup string) *forkBed {
	t.Helper()
	return newForkBedWith(t, setup, func(*cell.Spec) {})
}

// newForkBedWith lets the spec of the cell be changed.
func newForkBedWith(t testing.TB, setup string, change func(*cell.Spec)) *forkBed {
	t.Helper()
	g := &forkBed{TB: t, cfg: config(t), spec: backendtest.Little(t)}
	g.b = New(g.cfg)
	t.Cleanup(g.b.Close)
	change(&g.spec)
	for _, d := range []string{"home", "tmp"} {
		dir := t.TempDir()
		target := "/tmp"
		if d == "home" {
			target = g.spec.User.Home
		}
		g.spec.Mounts = append(g.spec.Mounts, cell.Mount{Kind: cell.Bind, Source: dir, Target: target, Owned: true})
	}
	i, err := g.b.Create(t.Context(), g.spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Remove(context.Background(), "the test ended") })
	g.warm = i.(backend.Warmer)
	if _, err := g.warm.Warm(t.Context(), cell.Warm{Kind: cell.WarmPython, Process: python(g.spec), Setup: setup, Timeout: 20 * time.Second}, nil); err != nil {
		t.Fatal(err)
	}
	return g
}

// child is the spec of a fork: over the folders of its parent, each with a layer
// of its own.
func (g *forkBed) child() cell.Spec {
	g.Helper()
	s := g.spec
	s.ID, s.Hostname = cell.NewID(), "fork"
	s.Mounts = append([]cell.Mount(nil), g.spec.Mounts...)
	top := g.TempDir()
	s.Writes = []string{top}
	for i, m := range s.Mounts {
		if m.Kind == cell.Bind && m.Owned {
			own := filepath.Join(top, filepath.Base(m.Target))
			for _, d := range []string{"fs", "work"} {
				if err := os.MkdirAll(filepath.Join(own, d), 0o755); err != nil {
					g.Fatal(err)
				}
			}
			backendtest.Removable(g, own+"/work")
			s.Mounts[i] = cell.Mount{Kind: cell.Overlay, Target: m.Target, Lower: []string{m.Source}, Upper: own + "/fs", Work: own + "/work", Owned: true}
		}
	}
	return s
}

func (g *forkBed) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

func (g *forkBed) seal() {
	g.Helper()
	_, err := g.warm.Seal(g.Context())
	g.must(err)
}

// unadopted is a fork that is removed at the end, and waits.
func (g *forkBed) unadopted() backend.Warmer {
	g.Helper()
	f, err := g.warm.Fork(g.Context(), g.child())
	g.must(err)
	g.Cleanup(func() {
		if err := f.Remove(context.Background(), "the test ended"); err != nil {
			g.Errorf("cannot remove a fork: %v", err)
		}
	})
	return f
}

func (g *forkBed) fork() backend.Warmer {
	g.Helper()
	f := g.unadopted()
	_, err := f.Adopt(g.Context(), cell.Adoption{Hostname: "h" + string(f.ID()[2:6])})
	g.must(err)
	return f
}

// says evaluates, and returns the value's repr.
func (g *forkBed) says(w backend.Warmer, code string) string {
	g.Helper()
	ev, err := w.Eval(g.Context(), cell.Eval{Code: code, Timeout: 20 * time.Second, Limit: 1 << 20}, nil)
	g.must(err)
	if !ev.OK || ev.Value == nil {
		b, _ := json.Marshal(ev)
		return string(b)
	}
	return ev.Value.Repr
}

// A fork has the memory of what it was forked from, and everything else of its
// own: files, processes, names.
func TestForkIsACell(t *testing.T) {
	g := newForkBed(t, "x = [1]\nimport os, socket\nopen('f', 'w').write('trunk')")
	g.seal()
	f := g.unadopted()
	c, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "hugo", Env: map[string]string{"A": "b"}})
	g.must(err)
	if c.Battery.Passed < 30 || c.Battery.Passed != c.Battery.Total || !slices.Contains(c.Battery.Bites, "limits") {
		t.Errorf("its battery: %+v", c.Battery)
	}
	if got, want := g.says(f, "x.append(2); (x, os.getpid(), socket.gethostname(), open('f').read(), os.environ['A'], os.getcwd(), os.listdir('/tmp'))"),
		"([1, 2], 1, 'hugo', 'trunk', 'b', '/work', [])"; got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	g.says(f, "open('f', 'w').write('fork'); open('/tmp/t', 'w').write('fork')")
	other := g.fork()
	if got, want := g.says(other, "x, open('f').read(), os.listdir('/tmp')"), "([1], 'trunk', [])"; got != want {
		t.Errorf("another is %s, want %s", got, want)
	}
	list, err := f.List(t.Context())
	if err != nil || len(list) != 1 || list[0].PID != 1 {
		t.Errorf("its processes are %+v, %v", list, err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	g.must(err)
	defer out.Close()
	p, err := f.Start(t.Context(), "p", cell.Start{LogLimit: 1 << 20, Process: cell.Process{Args: []string{"sh", "-c", "cat f; hostname; touch g && test ! -w /usr && kill -0 1 && cat /proc/1/environ"}, Path: []string{"/bin/sh"}, Workdir: "/work"}}, [3]*os.File{out})
	g.must(err)
	st, err := p.Wait(t.Context())
	b, _ := os.ReadFile(out.Name())
	if err != nil || string(b) != "forkhugo\n" {
		t.Errorf("a command in it said %q, %+v, %v", b, st.Exit, err)
	}
	if got := g.says(f, "os.path.exists('g')"); got != "True" {
		t.Errorf("its interpreter sees the command's file: %s", got)
	}
	if _, err := f.Adopt(t.Context(), cell.Adoption{}); cell.KindOf(err) != cell.Conflict {
		t.Errorf("it was adopted twice: %v", err)
	}
	if _, err := g.warm.Start(t.Context(), "q", cell.Start{Process: cell.Process{Args: []string{"true"}, Path: []string{"/bin/true"}, Workdir: "/work"}}, [3]*os.File{}); cell.KindOf(err) != cell.Conflict {
		t.Errorf("a command in what is only forked: %v", err)
	}
	if w, err := f.Warmth(t.Context()); err != nil || w.Depth != 1 || w.PID != 1 || w.Sealed {
		t.Errorf("its interpreter: %+v, %v", w, err)
	}
}

// bg outlives the test's context.
func (g *forkBed) bg() context.Context { return context.WithoutCancel(g.Context()) }
