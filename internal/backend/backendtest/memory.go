package backendtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// copy is a copy of a cell.
type copy struct {
	backend.Capturer
	spec cell.Spec
}

// copied captures a cell, and makes copies of its files for each copy, all of one instant. The
// copies wait for their adoption; the second is marked as made ahead.
func (k *bench) copied(i backend.Instance, of cell.Spec, n int) (list []copy) {
	k.Helper()
	src, ok := i.(backend.Capturer)
	if !ok {
		k.Fatal("Caps say that memory can be captured, and this is no Capturer")
	}
	dir := filepath.Join(k.dir, string(of.ID)+".memory."+strconv.Itoa(len(k.made)))
	k.must(os.Mkdir(dir, 0o700))
	k.must(src.Freeze(k.ctx))
	_, err := src.Capture(k.ctx, dir)
	k.must(err)
	specs := make([]cell.Spec, n)
	for j := range specs {
		specs[j] = k.spec()
		for _, to := range specs[j].Mounts {
			for _, from := range of.Mounts {
				if to.Owned && to.Target == from.Target {
					k.must(os.CopyFS(to.Source, os.DirFS(from.Source)))
				}
			}
		}
		specs[j].Memory, specs[j].Ahead = dir, j == 1
	}
	for _, s := range specs { // while the source is paused, its files do not change
		for name, want := range contentsBelow(k.folder(of)) {
			if got := contentsBelow(k.folder(s))[name]; got != want {
				k.Errorf("%s changed from %q to %q while its cell stood still", name, got, want)
			}
		}
	}
	k.must(src.Thaw(k.ctx))
	for _, s := range specs {
		list = append(list, copy{k.create(s).(backend.Capturer), s})
	}
	return list
}

// contentsBelow returns the contents of the files in a directory.
func contentsBelow(dir string) map[string]string {
	all := map[string]string{}
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			all[e.Name()] = string(b)
		}
	}
	return all
}

// A copy continues where its source was, with the files of that instant, isolated from it and
// from other copies, even after the source was removed.
func testCopies(k *bench) {
	i, spec := k.cell()
	if k.caps.Memory != "" {
		if c, ok := i.(backend.Capturer); ok {
			k.must(c.Freeze(k.ctx))
			_, err := c.Capture(k.ctx, k.TempDir())
			k.wantKind("a capture that Caps deny", err, cell.Unsupported)
		}
		return
	}
	// A counter in memory that writes each number to a file, and then to another.
	k.start(i, sh("n=0; while :; do n=$((n+1)); echo $n > a; echo $n > b; cat go >> said 2>/dev/null && echo $n >> said && rm go; sleep 0.01; done"))
	number := func(dir, name string) int {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n
	}
	k.eventually("it counts", func() bool { return number(k.folder(spec), "b") > 5 })
	copies := k.copied(i, spec, 2)
	// A copy may have run for a moment before it was stopped, and is frozen now.
	at, said := 0, []int{}
	for _, c := range copies {
		if _, err := c.List(k.ctx); err != nil {
			k.Error(err)
		}
		dir := k.folder(c.spec)
		a, b := number(dir, "a"), number(dir, "b")
		if a == 0 { // it was being written
			a = b + 1
		} else if b == 0 {
			b = a - 1
		}
		if a < 5 || a-b > 1 || a < b {
			k.Errorf("a copy's files say %d and %d", a, b)
		}
		at, said = max(at, a), append(said, number(dir, "a"))
	}
	time.Sleep(100 * time.Millisecond)
	for n, c := range copies {
		if a := number(k.folder(c.spec), "a"); a != said[n] {
			k.Errorf("a copy went on from %d to %d before it was adopted", said[n], a)
		}
	}
	for n, c := range copies {
		cert, err := c.Adopt(k.ctx, cell.Adoption{Hostname: fmt.Sprint("copy-", n)})
		k.must(err)
		if cert.Cell != c.ID() || len(cert.Hazards) == 0 {
			k.Errorf("what was measured: %+v", cert)
		}
		dir := k.folder(c.spec)
		k.eventually("the copy goes on", func() bool { return number(dir, "b") > at })
		if _, err := c.Adopt(k.ctx, cell.Adoption{}); cell.KindOf(err) != cell.Conflict {
			k.Errorf("adopted twice: %v", err)
		}
	}
	first := k.folder(copies[0].spec)
	k.must(os.WriteFile(filepath.Join(first, "go"), []byte("memory says\n"), 0o666))
	k.eventually("a copy says what it has in memory", func() bool {
		b, _ := os.ReadFile(filepath.Join(first, "said"))
		return strings.Count(string(b), "\n") == 2
	})
	k.must(i.Remove(k.ctx, "removed"))
	for n, c := range copies {
		dir := k.folder(c.spec)
		was := number(dir, "b")
		k.eventually("the copy goes on without its source", func() bool { return number(dir, "b") > was })
		st, out := k.run(c.Capturer, "hostname; cat said 2>/dev/null | head -1")
		want := fmt.Sprintf("copy-%d\n", n)
		if n == 0 {
			want += "memory says\n"
		}
		if st.Exit == nil || st.Exit.Code != 0 || out.stdout() != want {
			k.Errorf("a command in a copy: %+v, %q, want %q", st.Exit, out.stdout(), want)
		}
	}
	// A copy of a copy.
	again := k.copied(copies[1].Capturer, copies[1].spec, 1)[0]
	_, err := again.Adopt(k.ctx, cell.Adoption{Hostname: "again"})
	k.must(err)
	dir := k.folder(again.spec)
	was := number(dir, "b")
	k.eventually("the copy of a copy goes on", func() bool { return number(dir, "b") > was })
	if n, err := again.KillAll(k.ctx, "stopped"); err != nil || n == 0 {
		k.Errorf("%d processes ended, %v", n, err)
	}
	k.eventually("all have ended", func() bool { return k.empty(again.Capturer) })
}

// An interpreter's copies have its state, except what must be unique.
func testCopiedInterpreter(k *bench) {
	p := k.snake("import os, pando, random, threading, uuid\nx, hooked = [41], []\npando.at_fork(lambda: hooked.append((os.environ.get('NAME'), os.uname().nodename)))\nt = threading.Thread(target=threading.Event().wait, daemon=True); t.start()")
	if k.caps.Memory != "" {
		return
	}
	p.is("x.append(1) or len(x)", "2")
	copies := k.copied(p.Warmer, p.spec, 2)
	seen := map[string]bool{}
	for n, c := range copies {
		cert, err := c.Adopt(k.ctx, cell.Adoption{Hostname: "copy", Env: map[string]string{"NAME": fmt.Sprint("copy-", n)}})
		k.must(err)
		if len(cert.Hazards) < 5 {
			k.Errorf("what was measured: %+v", cert.Hazards)
		}
		s := &snake{bench: k, Warmer: k.warmer(c.Capturer)}
		s.is("x[0] += 1; x, t.is_alive(), hooked", fmt.Sprintf("([42, 1], True, [('copy-%d', 'copy')])", n))
		for _, code := range []string{"random.random()", "uuid.uuid4()", "os.urandom(8)"} {
			ev, _, _ := s.eval(code)
			if ev.Value == nil || seen[ev.Value.Repr] {
				k.Errorf("two copies have the same of %s: %+v", code, ev.Value)
			} else {
				seen[ev.Value.Repr] = true
			}
		}
		if w, err := s.Warmth(k.ctx); err != nil || w.Kind != cell.WarmPython || !strings.HasPrefix(w.Version, "Python 3") || w.Depth != 1 {
			k.Errorf("the interpreter of a copy is %+v, %v", w, err)
		}
	}
	p.is("x", "[41, 1]")
	// During an evaluation a copy would have no client to answer.
	done := make(chan bool)
	go func() {
		p.evalFor(k.ctx, "import time; time.sleep(2)", 10*time.Second)
		close(done)
	}()
	k.eventually("it evaluates", func() bool { w, err := p.Warmth(k.ctx); return err == nil && w.Busy })
	k.must(p.Freeze(k.ctx))
	_, err := p.Warmer.(backend.Capturer).Capture(k.ctx, k.TempDir())
	k.wantKind("a capture during an evaluation", err, cell.Conflict)
	k.must(p.Thaw(k.ctx))
	<-done
}
