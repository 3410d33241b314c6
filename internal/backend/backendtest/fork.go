package backendtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// forkOf returns a spec for a fork: layers over the directories of the other cell.
func (k *bench) forkOf(of cell.Spec, id cell.ID) cell.Spec {
	k.Helper()
	s := k.spec()
	theirs := map[string]cell.Mount{}
	for _, m := range of.Mounts {
		theirs[m.Target] = m
	}
	for i, m := range s.Mounts {
		t := theirs[m.Target]
		if m.Kind != cell.Bind || !m.Owned {
			continue
		}
		lower := []string{t.Source}
		if t.Kind == cell.Overlay {
			lower = append([]string{t.Upper}, t.Lower...)
		}
		top := m.Source + ".layer"
		for _, d := range []string{top + "/fs", top + "/work"} {
			k.must(os.MkdirAll(d, 0o755))
		}
		Removable(k.T, top+"/work")
		s.Mounts[i] = cell.Mount{Kind: cell.Overlay, Target: m.Target, Lower: lower, Upper: top + "/fs", Work: top + "/work", Owned: true}
		s.Writes = append(s.Writes, top)
	}
	if id != "" {
		s.ID = id
	}
	s.Layer = filepath.Base(s.Writes[0])
	return s
}

// adopted returns a fork with a name, removed at the end.
func (k *bench) adopted(w backend.Warmer, name string) *snake {
	k.Helper()
	k.made = append(k.made, w)
	c, err := w.Adopt(k.ctx, cell.Adoption{Hostname: name, Env: map[string]string{"NAME": name}})
	k.must(err)
	if c.Cell != w.ID() || c.At.IsZero() || len(c.Hazards) == 0 || c.Battery.Total == 0 || c.Battery.Passed != c.Battery.Total {
		k.Errorf("what was measured of %s: %+v", name, c)
	}
	return &snake{bench: k, Warmer: w}
}

// Forks start with the state of their parent, each with its own copy. The parent is only forked
// from then on. The end of the parent or of one fork ends no other.
func testFork(k *bench) {
	p := k.snake("import os, random, socket, uuid\nx = [1]\nopen('f', 'w').write('trunk')")
	if k.caps.Fork != "" {
		_, err := p.Seal(k.ctx)
		k.wantKind("a seal that Caps deny", err, cell.Unsupported)
		_, err = p.Fork(k.ctx, k.forkOf(p.spec, ""))
		k.wantKind("a fork that Caps deny", err, cell.Unsupported)
		p.is("x", "[1]")
		return
	}
	_, err := p.Fork(k.ctx, k.forkOf(p.spec, ""))
	k.wantKind("a fork of what is not sealed", err, cell.Conflict)
	for range 2 {
		st, err := p.Seal(k.ctx)
		if k.must(err); !st.Sealed {
			k.Errorf("it is sealed, and is %+v", st)
		}
	}
	_, err = p.Eval(k.ctx, cell.Eval{Code: "1", Timeout: 1e9, Limit: 10}, nil)
	k.wantKind("an evaluation in what is only forked", err, cell.Conflict)
	forks := make([]*snake, 6)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for n := range forks {
		spec := k.forkOf(p.spec, "")
		wg.Go(func() {
			w, err := p.Fork(k.ctx, spec)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				k.Error(err)
				return
			}
			forks[n] = k.adopted(w, fmt.Sprint("fork-", n))
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for n, f := range forks {
		if f == nil {
			return
		}
		f.is(fmt.Sprintf("x.append(%d); open('f', 'a').write('%d'); x, open('f').read(), socket.gethostname(), os.environ['NAME']", n, n),
			fmt.Sprintf("([1, %d], 'trunk%d', 'fork-%d', 'fork-%d')", n, n, n, n))
		for _, code := range []string{"random.random()", "uuid.uuid4()", "uuid.uuid1()", "os.urandom(8)", "open('/etc/machine-id').read() if os.path.exists('/etc/machine-id') else random.random()"} {
			ev, _, _ := f.eval(code)
			if ev.Value == nil || seen[ev.Value.Repr] {
				k.Errorf("two forks have the same of %s: %+v", code, ev.Value)
			} else {
				seen[ev.Value.Repr] = true
			}
		}
	}
	_, err = forks[0].Adopt(k.ctx, cell.Adoption{})
	k.wantKind("a second adoption", err, cell.Conflict)
	again, err := k.b.Attach(k.ctx, forks[1].ID(), p.ID())
	k.must(err)
	st, c := k.run(again, "cat f")
	if st.Exit == nil || st.Exit.Code != 0 || c.stdout() != "trunk1" {
		k.Errorf("a command in a fork: %+v, %q", st.Exit, c.stdout())
	}
	again.Close()
	k.must(forks[0].Remove(k.ctx, "removed"))
	k.must(p.Remove(k.ctx, "removed"))
	k.living(forks[0].ID(), p.ID(), false)
	k.living(forks[1].ID(), p.ID(), true)
	forks[1].is("x", "[1, 1]")
	_, err = p.Fork(k.ctx, k.forkOf(p.spec, ""))
	if err == nil {
		k.Error("what was removed is forked")
	}
}

// Branches share one instant, and the source continues.
func testBranch(k *bench) {
	p := k.snake("import os, threading\nx = 41\nopen('f', 'w').write('source')")
	b := func() cell.Branching {
		return cell.Branching{Self: k.forkOf(p.spec, p.spec.ID), Cells: []cell.Spec{k.forkOf(p.spec, ""), k.forkOf(p.spec, "")}}
	}
	if k.caps.LiveBranch != "" {
		_, _, err := p.Branch(k.ctx, b())
		k.wantKind("a branch that Caps deny", err, cell.Unsupported)
		p.is("x", "41")
		return
	}
	p.eval("stop = threading.Event(); t = threading.Thread(target=stop.wait, name='worker-7'); t.start()")
	_, _, err := p.Branch(k.ctx, b())
	if k.wantKind("a branch of what has threads", err, cell.Conflict); err != nil && !strings.Contains(err.Error(), "worker-7") {
		k.Errorf("the thread is not named: %v", err)
	}
	p.eval("stop.set(); t.join()")
	spec := b()
	called := false
	spec.Paused = func() error { called = true; return nil }
	list, pause, err := p.Branch(k.ctx, spec)
	k.must(err)
	if !called || pause.Gap <= 0 || pause.Shared <= 0 || len(list) != 2 {
		k.Errorf("called %v, %+v, %d branches", called, pause, len(list))
	}
	one, two := k.adopted(list[0], "one"), k.adopted(list[1], "two")
	for n, s := range []*snake{p, one, two} {
		s.is(fmt.Sprintf("x += %d; open('f', 'a').write('%d'); x, open('f').read()", n, n), fmt.Sprintf("(%d, 'source%d')", 41+n, n))
	}
	if st, err := p.Warmth(k.ctx); err != nil || st.Layer != spec.Self.Layer || st.Depth != 1 {
		k.Errorf("the source: %+v, %v", st, err)
	}
	if st, _ := k.run(p.Warmer, "test \"$(cat f)\" = source0"); st.Exit == nil || st.Exit.Code != 0 {
		k.Errorf("a command in the source sees something else: %+v", st.Exit)
	}
	k.must(p.Remove(k.ctx, "removed"))
	one.is("x", "42")
	two.is("x", "43")
}
