package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// told tells of every object that was put.
type told struct {
	store.Store
	put func()
}

func (s *told) Put(d cell.Digest, b []byte) error {
	err := s.Store.Put(d, b)
	if s.put != nil {
		s.put()
	}
	return err
}

// age makes every layer look as if nothing were at work on it.
func (b *bed) age() {
	b.Helper()
	names, err := os.ReadDir(b.home.Layers())
	b.must(err)
	for _, n := range names {
		b.must(os.Chtimes(filepath.Join(b.home.Layers(), n.Name()), time.Time{}, time.Now().Add(-time.Hour)))
	}
}

// collected collects and returns what went, as "what name". Trees are counted in freed.
func (b *bed) collected() (went []string) {
	b.Helper()
	res, err := b.GC(b.ctx, false)
	b.must(err)
	for _, i := range res.Items {
		if i.What == "trees" {
			b.freed += i.Bytes
			continue
		}
		went = append(went, i.What+" "+i.Name)
	}
	return went
}

func (b *bed) layers() (names []string) {
	b.Helper()
	names, err := b.cfg.Providers[0].Layers()
	b.must(err)
	slices.Sort(names)
	return names
}

// whole asserts that the trees of all checkpoints are in the store, with all
// their directories, and that what was written of them agrees.
func (b *bed) whole() {
	b.Helper()
	b.trees.forget()
	for _, c := range b.reg.Cells() {
		for _, k := range b.reg.Checkpoints(c.ID) {
			t, err := b.trees.get(k.Tree)
			if err == nil {
				err = t.Reach(map[cell.Digest]bool{})
			}
			if err != nil {
				b.Errorf("the tree of %s@%d: %v", c.Title(), k.Number, err)
			}
		}
	}
}

// Garbage is collected after every object that any use case puts: none of it
// is garbage.
func TestF20CollectionLeavesWorkUnderWayAlone(t *testing.T) {
	t.Parallel()
	objects := &told{}
	b := newBedWith(t, func(s store.Store) store.Store { objects.Store = s; return objects }, "d/e/f: one", "g: two")
	collections := 0
	objects.put = func() {
		collections++
		if _, err := b.GC(b.ctx, false); err != nil {
			t.Errorf("collection %d: %v", collections, err)
		}
	}
	req := b.request("w", "mkdir -p n/o; echo new > n/o/p; echo changed > d/e/f")
	req.Check = "test -f n/o/p && touch checked"
	if r := b.do(req); r.Error != nil || r.Verdict != string(cell.Pending) || r.Check == nil || r.Check.ExitCode != 0 {
		t.Fatalf("run: %+v %+v", r.Error, r)
	}
	b.has("w", "d/e/f: changed", "g: two", "n/o/p: new")
	if r := b.run("w", "rm -r n; mkdir -p q/r; echo 3 > q/r/s; exit 1"); r.Verdict != string(cell.Restored) || r.After == nil {
		t.Fatalf("failing run: %+v", r)
	}
	b.has("w", "d/e/f: changed", "g: two", "n/o/p: new")
	id := b.id("w")
	if _, err := b.Fork(b.ctx, id, api.ForkRequest{Name: "child"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 3, Lose: true, Verify: true}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "d/e/f: changed", "g: two", "q/r/s: 3")
	x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "mkdir -p t/u; echo 4 > t/u/v"}})
	b.must(err)
	b.until("the exec ended", func() bool { return b.ended(x.ID) })
	if _, err := b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Cell: id}, Form: "text"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Checkpoint(b.ctx, id, api.CheckpointRequest{Message: "kept"}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "d/e/f: changed", "g: two", "q/r/s: 3", "t/u/v: 4")
	r := b.run("child", "mkdir -p y; echo 5 > y/z")
	if _, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{Apply: true}); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(b.src, "y/z")); string(got) != "5\n" {
		t.Errorf("the source has %q", got)
	}
	if _, err := b.results.Undo(b.ctx, b.id("child"), api.UndoRequest{Lose: true}); err != nil {
		t.Fatal(err)
	}
	if collections < 10 {
		t.Fatalf("there were %d collections", collections)
	}
	objects.put = nil
	b.whole()
	b.reopen()
	b.whole()
	b.has("child", "d/e/f: changed", "g: two", "n/o/p: new")
	b.verified()
}

func (b *bed) ended(exec string) bool {
	b.Helper()
	x, err := b.alive.ShowExec(exec)
	b.must(err)
	return !x.Running
}

// What is garbage goes, and nothing else does.
func TestF20CollectionFreesWhatNothingNeeds(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a/b/c: one")
	b.run("keep", "mkdir -p k; echo kept > k/l")
	b.run("go", "mkdir -p x/y/z; echo gone > x/y/z/f")
	b.age()
	if went := b.collected(); len(went) > 0 {
		t.Fatalf("of what is needed went %q", went)
	}
	before := b.layers()
	b.freed = 0
	_, err := b.Remove(b.ctx, b.id("go"), false)
	b.must(err)
	b.Engine.work.Wait() // what a removed cell held is freed behind
	b.age()
	if went := b.collected(); b.freed == 0 {
		t.Errorf("no tree went: %q", went)
	}
	if after := b.layers(); len(after) >= len(before) {
		t.Errorf("layers %q, they were %q", after, before)
	}
	b.has("keep", "a/b/c: one", "k/l: kept")
	b.whole()
	b.reopen()
	b.Engine.work.Wait() // it takes away what the one before had not
	b.age()
	b.collected()
	b.has("keep", "a/b/c: one", "k/l: kept")
	if r := b.run("keep", "cat a/b/c k/l"); *r.ExitCode != 0 {
		t.Errorf("in what was kept: %+v", r)
	}
}

// A fork goes on without its parent: its files, the changes since the import,
// its place in the family.
func TestF20RemovingAParentKeepsTheLineage(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: source")
	b.run("parent", "echo parent > f; echo p > p")
	_, err := b.Fork(b.ctx, b.id("parent"), api.ForkRequest{Name: "child"})
	b.must(err)
	b.run("child", "echo child >> f; echo c > c")
	_, err = b.Fork(b.ctx, b.id("child"), api.ForkRequest{Name: "grandchild"})
	b.must(err)
	if f := b.family("grandchild"); !slices.Equal(f, []string{"parent", "child", "grandchild"}) {
		t.Errorf("the family is %q", f)
	}
	for _, name := range []string{"parent", "grandchild"} {
		_, err = b.Remove(b.ctx, b.id(name), false)
		b.must(err)
	}
	b.Engine.work.Wait()
	b.must(os.RemoveAll(b.home.Sources())) // the source's newest import is forgotten, too
	b.reopen()
	b.Engine.work.Wait()
	b.age()
	b.collected()
	b.has("child", "c: c", "f: parent\nchild", "p: p")
	if f := b.family("child"); !slices.Equal(f, []string{"parent", "child"}) {
		t.Errorf("the family is %q", f)
	}
	d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Cell: b.id("child")}})
	if err != nil || len(d.Files) != 3 {
		t.Errorf("changes since the import: %+v, %v", d, err)
	}
	res, err := b.results.Accept(b.ctx, b.cellTarget("child"), api.AcceptRequest{Apply: true})
	if err != nil || !slices.Equal(res.Applied, []string{"c", "f", "p"}) {
		t.Errorf("applied %q, %v", res.Applied, err)
	}
	b.verified()
}

// family lists the titles of a cell's founder and all that come from it.
func (b *bed) family(name string) (names []string) {
	b.Helper()
	id := cell.ID("")
	for _, c := range b.reg.AllCells() {
		if c.Name == name {
			id = c.ID
		}
	}
	roots, err := b.All().Tree(id)
	b.must(err)
	var walk func([]api.TreeNode)
	walk = func(list []api.TreeNode) {
		for _, n := range list {
			names = append(names, n.Cell.Name)
			walk(n.Children)
		}
	}
	walk(roots)
	return names
}

// A kept result goes when its time is over, unless something came from it.
func TestF20ExpiredCheckpoints(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f; exit 1") // @2, kept for a while
	b.run("w", "echo 2 > f; exit 1") // @3
	b.run("w", "echo 3 > f")         // @4, the head
	id := b.id("w")
	_, err := b.Fork(b.ctx, id, api.ForkRequest{Number: 2, Name: "child"})
	b.must(err)
	for n := 2; n <= 4; n++ {
		k, err := b.reg.Numbered(id, n)
		b.must(err)
		if (n < 4) == k.Expires.IsZero() {
			t.Errorf("@%d expires %v", n, k.Expires)
		}
		k.Expires = time.Now().Add(-time.Second)
		b.must(b.reg.Commit(&k))
	}
	b.age()
	went := b.collected()
	slices.Sort(went)
	if len(went) < 3 || !slices.Equal(went[:2], []string{"checkpoint w@2", "checkpoint w@3"}) {
		t.Errorf("went %q", went)
	}
	b.has("w", "f: 3")
	b.has("child", "f: 1")
	_, err = b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 3, Lose: true})
	b.wantKind("restoring what expired", err, cell.NotFound, "expired")
	if r := b.run("child", "cat f"); *r.ExitCode != 0 {
		t.Errorf("in the fork: %+v", r)
	}
}

// A cell that has outlived its lease stays while something happens in it or waits.
func TestF20ExpiredCells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		r := b.run("", "echo 1 > f")
		id := cell.ID(r.Cell)
		expire := func() {
			c, err := b.reg.Cell(id)
			b.must(err)
			c.Expires = time.Now().Add(-time.Second)
			b.must(b.reg.Commit(&c))
		}
		there := func() bool {
			b.collected()
			c, err := b.reg.Cell(id)
			b.must(err)
			return c.State != cell.Removed
		}
		expire()
		if !there() {
			t.Fatal("a pending result went")
		}
		_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{})
		b.must(err)
		if !there() {
			t.Fatal("it went when it was accepted, not 30 days later")
		}
		x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
		b.must(err)
		expire()
		if !there() {
			t.Fatalf("a living cell went, with %s in it", x.ID)
		}
		_, err = b.Stop(b.ctx, id)
		b.must(err)
		expire()
		if there() {
			t.Error("it stays for ever")
		}
	})
}

// The base that a run is about to start from stays, however old it is and
// whatever becomes of the source meanwhile.
func TestF20ImportUnderWay(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "true")
	_, err := b.Remove(b.ctx, b.id("w"), false)
	b.must(err)
	b.Engine.work.Wait()
	p := b.cfg.Providers[0]
	w := b.pins.Begin()
	im, key, err := b.importSource(b.ctx, p, []workspace.Directory{{Source: b.src}}, nil, nil, false, w, func(int64, int64) {})
	b.must(err)
	path := b.sources.path(key, "json")
	if st, err := os.Stat(path); err != nil || time.Since(st.ModTime()) > time.Minute {
		t.Errorf("a source that is used looks unused: %v", err)
	}
	old := time.Now().Add(-gc.KeepUnused - time.Hour)
	b.must(os.Chtimes(path, old, old))
	b.age()
	if went := b.collected(); !slices.Contains(went, "source "+key) {
		t.Errorf("went %q", went)
	}
	if !haveLayers(p, im.State) {
		t.Fatal("the base went under the run that starts from it")
	}
	if err := im.Tree.Reach(map[cell.Digest]bool{}); err != nil {
		t.Errorf("its tree: %v", err)
	}
	w.End()
	b.age()
	b.collected()
	if haveLayers(p, im.State) {
		t.Error("the base stays for ever")
	}
}

// A source that is used again is a source that is used.
func TestF20UsedSourcesStay(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("", "true")
	names, err := filepath.Glob(filepath.Join(b.home.Sources(), "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	old := time.Now().Add(-gc.KeepUnused - time.Hour)
	b.must(os.Chtimes(names[0], old, old))
	b.run("", "true")
	if went := b.collected(); len(went) > 0 {
		t.Errorf("went %q", went)
	}
}

// A store that lost a directory is no reason to stop collecting; the tree is
// computed again.
func TestCollectionMendsDamagedTrees(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a/b/c: one")
	b.run("w", "echo 2 > a/b/d")
	c, err := b.reg.Cell(b.id("w"))
	b.must(err)
	k, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	tree, err := b.trees.get(k.Tree)
	b.must(err)
	lost, err := tree.Lookup("a/b")
	b.must(err)
	_, err = b.objects.Keep(func(d cell.Digest) bool { return d != lost.Digest })
	b.must(err)
	b.collected()
	b.has("w", "a/b/c: one", "a/b/d: 2")
	b.whole()
}
