package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// over returns a spec with layers over the directories of another.
func (g *forkBed) over(s cell.Spec, id cell.ID) cell.Spec {
	g.Helper()
	was := s.Mounts
	next := g.child()
	next.ID = id
	for i, m := range next.Mounts {
		if m.Kind != cell.Overlay {
			continue
		}
		if o := was[i]; o.Kind == cell.Overlay {
			next.Mounts[i].Lower = append([]string{o.Upper}, o.Lower...)
		}
	}
	next.Layer = filepath.Base(next.Writes[0])
	return next
}

// branch branches the cell of a spec, and returns the branches and the
// source's new spec.
func (g *forkBed) branch(w backend.Warmer, spec cell.Spec, n int) ([]backend.Warmer, []cell.Spec, cell.Spec) {
	g.Helper()
	b := cell.Branching{Self: g.over(spec, spec.ID)}
	for range n {
		b.Cells = append(b.Cells, g.over(spec, cell.NewID()))
	}
	list, pause, err := w.Branch(g.Context(), b)
	g.must(err)
	g.pauses = append(g.pauses, pause.Gap)
	g.Logf("pause %v, dropped %v, %d KiB shared", pause.Gap, pause.Dropped, pause.Shared>>10)
	for _, i := range list {
		g.Cleanup(func() { i.Remove(g.bg(), "the test ended") })
		_, err := i.Adopt(g.Context(), cell.Adoption{Hostname: "branch"})
		g.must(err)
	}
	return list, b.Cells, b.Self
}

// A running interpreter is branched in the middle of its life: each branch has
// its variables and files of that instant, and its own from there on. The source
// goes on, with what it had open, and may be removed.
func TestD40BranchesAreOfOneInstant(t *testing.T) {
	g := newForkBed(t, "")
	g.says(g.warm, "import os, socket\nx = 41\nlog = open('log', 'a'); _ = log.write('before '); log.flush()\npair = socket.socketpair()\nopen('f', 'w').write('source'); open('/dev/shm/m', 'w').write('source'); open('/run/r', 'w').write('source')")
	branches, specs, self := g.branch(g.warm, g.spec, 2)
	a, b := branches[0], branches[1]
	if got, want := g.says(a, "x + 1, open('f').read(), os.getpid(), socket.gethostname()"), "(42, 'source', 1, 'branch')"; got != want {
		t.Errorf("a branch is %s, want %s", got, want)
	}
	for n, w := range []backend.Warmer{a, b, g.warm} { // what is in memory alone, too
		if got, want := g.says(w, fmt.Sprintf("open('/dev/shm/m').read() + open('/run/r').read(), open('/dev/shm/m', 'a').write('%d'), os.remove('/run/r'), open('/dev/shm/m').read()", n)), fmt.Sprintf("('sourcesource', 1, None, 'source%d')", n); got != want {
			t.Errorf("%d has in memory %s, want %s", n, got, want)
		}
	}
	for n, w := range []backend.Warmer{a, b, g.warm} {
		g.says(w, fmt.Sprintf("x += %d; open('f', 'w').write('of %d'); log.write('of %d'); log.flush()", n, n, n))
	}
	for n, w := range []backend.Warmer{a, b, g.warm} {
		if got, want := g.says(w, "x, open('f').read(), open('log').read()"), fmt.Sprintf("(%d, 'of %d', 'before of %d')", 41+n, n, n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
	if got := g.says(g.warm, "pair[0].send(b'x'); pair[1].recv(1)"); got != "b'x'" {
		t.Errorf("the source's connection: %s", got)
	}
	// A signal to its process group reaches neither the others nor what they were forked from.
	for _, w := range []backend.Warmer{g.warm, a} {
		g.says(w, "import signal; was = signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(0, signal.SIGTERM); os.kill(0, signal.SIGKILL); signal.signal(signal.SIGTERM, was); 1")
	}
	st, err := g.warm.Warmth(t.Context())
	if err != nil || st.Layer != self.Layer || st.Depth != 1 {
		t.Errorf("the source's interpreter: %+v, %v; want layer %s", st, err, self.Layer)
	}
	// A branch of a branch, of a source that is branched again, and the end of all
	// above.
	deeper, _, _ := g.branch(a, specs[0], 1)
	again, _, _ := g.branch(g.warm, self, 1)
	g.must(g.warm.Remove(t.Context(), "removed"))
	g.must(a.Remove(t.Context(), "removed"))
	for _, x := range []struct {
		w    backend.Warmer
		want string
	}{{deeper[0], "(41, 'of 0')"}, {again[0], "(43, 'of 2')"}, {b, "(42, 'of 1')"}} {
		if got := g.says(x.w, "x, open('f').read()"); got != x.want {
			t.Errorf("after the end of what it was branched from: %s, want %s", got, x.want)
		}
	}
}

// D36: what a source writes after it was branched waits for the page that it writes
// to, and not for its memory.
func TestD36AWriteWaitsForOnePage(t *testing.T) {
	g := newForkBed(t, "b = bytearray(b'x') * (24 << 20)")
	g.branch(g.warm, g.spec, 1)
	// The least of several writes is the time of one, also where processors are busy.
	got := g.says(g.warm, `import time
def write(first, last):
    began = time.perf_counter()
    for i in range(first, last, 4096): b[i] = 1
    return time.perf_counter() - began
one = min(write(i << 12, i + 1 << 12) for i in range(64))
all = write(64 << 12, len(b))
one < all / 4 or (one, all)`)
	if got != "True" {
		t.Errorf("one page and all of them took %s seconds", got)
	}
}

// A source is branched sixteen times, and its last branch is as complete as its first; in the soak it is
// as quick, too.
func TestD41ChainsOfBranches(t *testing.T) {
	g := newForkBed(t, "n = 0")
	w, spec := g.warm, g.spec
	for n := range 16 {
		g.says(w, fmt.Sprintf("n += 1; open('f%d', 'w').write('x')", n))
		began := time.Now()
		list, specs, _ := g.branch(w, spec, 1)
		t.Logf("branch %d: %v", n+1, time.Since(began))
		w, spec = list[0], specs[0]
	}
	// The minimum of several is the time on an idle host.
	if first, last := slices.Min(g.pauses[:5]), slices.Min(g.pauses[11:]); os.Getenv("E2E_SOAK") != "" && last > 2*first+5*time.Millisecond {
		t.Errorf("the pause grew from %v to %v", first, last)
	}
	if got, want := g.says(w, "import os; n, len([f for f in os.listdir('.') if f[0] == 'f'])"), "(16, 16)"; got != want {
		t.Errorf("sixteen branches down it is %s, want %s", got, want)
	}
}

// What stands in the way of a branch is named, and nothing has changed
// afterwards; the same when something fails in the pause, or while a branch is
// made, or when its caller has gone.
func TestD38AFailedBranchLeavesTheSource(t *testing.T) {
	g := newForkBed(t, "import os, threading, subprocess, mmap, time\nx = 1\nlog = open('log', 'a'); _ = log.write('a'); log.flush()")
	whole := func(what string) {
		t.Helper()
		if got := g.says(g.warm, "x += 1; _ = log.write('b'); log.flush(); open('f', 'w').write('y'); os.path.exists('f')"); got != "True" {
			t.Errorf("after %s the source says %s", what, got)
		}
		if w, err := g.warm.Warmth(t.Context()); err != nil || w.Depth != 0 || w.Layer != "" {
			t.Errorf("after %s: %+v, %v", what, w, err)
		}
		if st := g.runs(g.warm, "touch of-a-command"); st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("after %s a command in the source ends with %+v", what, st.Exit)
		}
	}
	plain := func() cell.Branching {
		return cell.Branching{Self: g.over(g.spec, g.spec.ID), Cells: []cell.Spec{g.over(g.spec, cell.NewID())}}
	}
	for _, x := range []struct{ what, setup, undo, names string }{
		{"a thread", "stop = threading.Event(); w = threading.Thread(target=stop.wait, name='worker-7'); w.start()", "stop.set(); w.join()", "worker-7"},
		{"a process", "p = subprocess.Popen(['sleep', '300'])", "p.kill(); p.wait()", "sleep"},
		{"shared memory", "m = mmap.mmap(-1, 4096)", "m.close()", "4096|zero"},
		{"a deleted file", "d = open('gone', 'w+'); os.remove('gone')", "d.close()", "gone"},
	} {
		g.says(g.warm, x.setup)
		list, _, err := g.warm.Branch(t.Context(), plain())
		if cell.KindOf(err) != cell.Conflict || !anyOf(err.Error(), x.names) || cell.HintOf(err) == "" || list != nil {
			t.Errorf("%s: %v", x.what, err)
		}
		g.says(g.warm, x.undo)
		whole(x.what)
	}
	b := plain()
	b.Paused = func() error { return errors.New("no room") }
	if _, _, err := g.warm.Branch(t.Context(), b); err == nil || err.Error() != "no room" {
		t.Errorf("what fails in the pause: %v", err)
	}
	whole("a failure in the pause")
	b = plain()
	b.Self.Mounts = append(b.Self.Mounts, cell.Mount{Kind: cell.Protect, Target: "/work/not-there"})
	if _, _, err := g.warm.Branch(t.Context(), b); err == nil {
		t.Error("a source went on with what can't be mounted")
	}
	whole("a source that could not go on")
	ctx, cancel := context.WithCancel(t.Context())
	b = plain()
	b.Paused = func() error { cancel(); return nil }
	if _, _, err := g.warm.Branch(ctx, b); err == nil {
		t.Error("a branch was made that nobody waited for")
	}
	whole("the caller's end")
	if members, err := g.b.Living(t.Context()); len(members) != 1 || err != nil {
		t.Errorf("the family is %v (%v)", members, err)
	}
	// What fails when the source has gone on already takes the branches, and the
	// source stays.
	b = plain()
	b.Cells = append(b.Cells, g.over(g.spec, cell.NewID()))
	b.Cells[1].Mounts = append(b.Cells[1].Mounts, cell.Mount{Kind: cell.Protect, Target: "/work/not-there"})
	list, pause, err := g.warm.Branch(t.Context(), b)
	if err == nil || list != nil || pause.Gap <= 0 {
		t.Errorf("a branch with what can't be mounted was made: %v, %v, %+v", list, err, pause)
	}
	if got := g.says(g.warm, "x += 1; _ = log.write('b'); log.flush(); x"); got != "9" {
		t.Errorf("after a branch that could not be completed the source says %s", got)
	}
	if w, err := g.warm.Warmth(t.Context()); err != nil || w.Depth != 1 || w.Layer != b.Self.Layer {
		t.Errorf("after a branch that could not be completed: %+v, %v", w, err)
	}
	if members, err := g.b.Living(t.Context()); len(members) != 1 || err != nil {
		t.Errorf("the family is %v (%v)", members, err)
	}
	made, _, _ := g.branch(g.warm, b.Self, 1)
	if got := g.says(made[0], "x, open('log').read()"); got != "(9, 'a"+strings.Repeat("b", 8)+"')" {
		t.Errorf("after all that a branch has %s", got)
	}
}

func anyOf(s, words string) bool {
	for w := range strings.SplitSeq(words, "|") {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// runs runs a shell command in a cell.
func (g *forkBed) runs(w backend.Warmer, script string) cell.Status {
	g.Helper()
	g.n++
	p, err := w.Start(g.Context(), fmt.Sprint("p", g.n), cell.Start{LogLimit: 1 << 16, Process: cell.Process{Args: []string{"sh", "-c", script}, Path: []string{"/bin/sh"}, Env: []string{"PATH=/usr/bin:/bin"}, Workdir: "/work"}}, [3]*os.File{})
	if err != nil {
		g.Error(err)
		return cell.Status{}
	}
	st, err := p.Wait(g.Context())
	g.must(err)
	return st
}
