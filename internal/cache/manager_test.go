package cache

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/overlay"
)

// bed is a manager over a registry and layers on disk. Nothing is mounted: writing to a cell's cache is writing to its
// writable layer, and what a cell sees is worked out from its mounts.
type bed struct {
	t    *testing.T
	reg  *state.Registry
	p    *overlay.Provider
	m    *Manager
	host string
	n    int
	by   string // which gives verdicts
	work sync.WaitGroup
}

func newBed(t *testing.T) *bed {
	dir := t.TempDir()
	b := &bed{t: t, by: "user", host: filepath.Join(dir, "host")}
	home := paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache")}
	for _, d := range []string{home.Layers(), home.Cells(), b.host} {
		b.must(os.MkdirAll(d, 0o755))
	}
	var err error
	b.reg, err = state.Open(durable.Disk(home.State), "registry.log", home)
	b.must(err)
	t.Cleanup(func() { b.reg.Close() })
	b.p = overlay.New(home.Layers(), os.Geteuid() == 0)
	b.m = New(Config{
		Records: b.reg, Log: slog.New(slog.DiscardHandler), State: home.State, Empty: home.Empty(),
		Private:    func(id cell.ID) string { return filepath.Join(home.Cells(), string(id)) },
		Provider:   func(string) (workspace.Provider, error) { return b.p, nil },
		DropLayer:  func(_, layer string) { b.must(b.p.Drop(layer)) },
		Pin:        func() func() { return func() {} },
		Background: func(work func(context.Context)) { b.work.Go(func() { work(t.Context()) }) },
		Sync:       func() error { return nil }, Most: 1 << 30,
	})
	return b
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// cell makes a cell of a source with a kept cache.
func (b *bed) cell(source string) *state.Cell {
	b.n++
	c := &state.Cell{ID: cell.ID(fmt.Sprintf("c-%d", b.n)), State: cell.Idle, Source: source, Image: "host", Provider: overlay.Name}
	c.Setup.Mounts = []cell.Mount{{Kind: cell.Cache, Target: "/c", Source: b.host, Kept: "go"}, {Kind: cell.Cache, Target: "/other", Source: b.host}}
	b.must(b.reg.Commit(c))
	return c
}

// begin lays a cell's caches, and returns what it sees there.
func (b *bed) begin(c *state.Cell) map[string]string {
	b.t.Helper()
	b.must(b.m.Lay(c, c.Setup.Mounts))
	if m := c.Setup.Mounts[1]; len(m.Lower) > 0 {
		b.t.Errorf("a cache that is not kept has layers: %+v", m)
	}
	b.must(os.RemoveAll(b.upper(c)))
	b.must(os.MkdirAll(b.upper(c), 0o755))
	m := c.Setup.Mounts[0]
	seen := map[string]string{}
	for _, dir := range append([]string{m.Source}, backward(m.Lower)...) {
		b.must(filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			rel := strings.TrimPrefix(at, dir+"/")
			switch {
			case err != nil || at == dir:
				return err
			case d.Type()&fs.ModeCharDevice != 0:
				maps.DeleteFunc(seen, func(p, _ string) bool { return p == rel || strings.HasPrefix(p, rel+"/") })
			case d.Type().IsRegular():
				text, err := os.ReadFile(at)
				seen[rel] = string(text)
				return err
			}
			return nil
		}))
	}
	return seen
}

func backward(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

func (b *bed) upper(c *state.Cell) string {
	return filepath.Join(Upper(b.m.cfg.Private(c.ID), 0, "/c"), "fs")
}

func (b *bed) write(c *state.Cell, name, text string) {
	b.t.Helper()
	at := filepath.Join(b.upper(c), name)
	b.must(os.MkdirAll(filepath.Dir(at), 0o755))
	b.must(os.WriteFile(at, []byte(text), 0o644))
}

func (b *bed) hide(c *state.Cell, name string) {
	b.t.Helper()
	at := filepath.Join(b.upper(c), name)
	b.must(os.MkdirAll(filepath.Dir(at), 0o755))
	b.must(unix.Mknod(at, unix.S_IFCHR, 0))
}

// run records a run in a cell that has ended, with a verdict.
func (b *bed) run(c *state.Cell, v cell.Verdict) *state.Run {
	b.t.Helper()
	b.n++
	r := &state.Run{ID: fmt.Sprintf("r-%d", b.n), Cell: string(c.ID), Phase: cell.Ended, Verdict: v, By: b.by, ExitCode: new(int), Created: time.Now()}
	b.must(b.reg.Commit(r))
	return r
}

// session is one instance of a cell, in which do writes and a run ends with a verdict.
func (b *bed) session(c *state.Cell, v cell.Verdict, do func()) (seen map[string]string, r *state.Run) {
	b.t.Helper()
	seen = b.begin(c)
	do()
	if v != "" {
		r = b.run(c, v)
	}
	if v == cell.Accepted && b.by == "user" {
		b.must(b.m.Answer(c.ID))
	}
	b.must(b.m.Unmounted(b.t.Context(), c.ID))
	b.work.Wait()
	return seen, r
}

// keep has what a cell wrote to caches kept, after a person accepted what it is, or for a run that is accepted by itself.
func (b *bed) keep(c *state.Cell, want ...string) {
	b.t.Helper()
	b.must(b.m.Answer(c.ID))
	b.keepFor(c, "", want...)
}

func (b *bed) keepFor(c *state.Cell, run cell.RunID, want ...string) {
	b.t.Helper()
	was := map[string]time.Time{}
	for _, k := range b.reg.Caches() {
		was[k.ID] = k.Written
	}
	b.must(b.m.Keep(b.t.Context(), c.ID, run))
	b.work.Wait()
	var names []string
	for _, k := range b.reg.Caches() {
		if !k.Written.Equal(was[k.ID]) {
			names = append(names, k.Name)
		}
	}
	if !slices.Equal(names, want) {
		b.t.Errorf("kept %v, want %v", names, want)
	}
}

func (b *bed) sees(got map[string]string, want ...string) {
	b.t.Helper()
	var list []string
	for _, p := range slices.Sorted(maps.Keys(got)) {
		list = append(list, p+"="+got[p])
	}
	if !slices.Equal(list, want) {
		b.t.Errorf("sees %v, want %v", list, want)
	}
}

// named counts the layers that a record names.
func (b *bed) named() (n int) {
	all, err := b.p.Layers()
	b.must(err)
	for _, l := range all {
		if b.reg.NamesLayer(l, "") {
			n++
		}
	}
	return n
}

func TestKeptWhenAccepted(t *testing.T) {
	b := newBed(t)
	b.must(os.WriteFile(b.host+"/h", []byte("host"), 0o644))
	first := b.cell("/src")
	_, r := b.session(first, cell.Pending, func() { b.write(first, "d/a", "1") })
	b.keep(first)
	b.sees(b.begin(b.cell("/src")), "h=host") // it waits
	if got := b.m.Waiting(first.ID, []cell.RunID{r.RunID()}); !slices.Equal(got, []string{"go"}) {
		t.Error(got)
	}
	b.must(r.Decide(cell.Accepted, "", "user"))
	b.must(b.reg.Commit(r))
	b.keep(first, "go")
	b.keep(first)
	second := b.cell("/src")
	b.sees(b.begin(second), "d/a=1", "h=host")
	b.sees(b.begin(b.cell("/elsewhere")), "h=host")
	k := b.reg.Caches()
	if len(k) != 1 || k[0].Source != "/src" || k[0].Name != "go" || k[0].Bytes() == 0 || k[0].Boot != "" || string(k[0].Run) != r.ID {
		t.Errorf("%+v", k)
	}
	b.session(second, cell.Accepted, func() { b.hide(second, "h"); b.hide(second, "gone"); b.write(second, "d/a", "2") })
	third := b.cell("/src")
	b.sees(b.begin(third), "d/a=2") // it was accepted by then
	// What hides nothing is not kept: the kernel would list it.
	if b.reg.Caches(); func() bool { _, err := os.Lstat(third.Setup.Mounts[0].Lower[0] + "/gone"); return err == nil }() {
		t.Error("a name that nothing below has is hidden")
	}
	b.must(b.m.Remove(k[0].ID))
	b.sees(b.begin(b.cell("/src")), "h=host")
}

// What ran while the result of another run waited may have run what that made: it is kept when that is accepted, too.
func TestWhatWaitedIsBehindIt(t *testing.T) {
	for _, v := range []cell.Verdict{cell.Accepted, cell.Discarded} {
		b := newBed(t)
		c := b.cell("/src")
		waits := b.run(c, cell.Pending)
		b.by = "pando"
		_, r := b.session(c, cell.Accepted, func() { b.write(c, "a", "1") })
		b.keepFor(c, r.RunID())
		b.keep(c)
		b.must(waits.Decide(v, "", "user"))
		b.must(b.reg.Commit(waits))
		if v == cell.Accepted {
			b.keep(c, "go")
			b.sees(b.begin(b.cell("/src")), "a=1")
			continue
		}
		b.keep(c)
		_, r = b.session(c, cell.Accepted, func() { b.write(c, "b", "2") })
		b.keepFor(c, r.RunID(), "go")
		b.sees(b.begin(b.cell("/src")), "b=2")
	}
}

// What a run wrote that was restored or discarded is in no cell that begins after that.
func TestDiscardedReachesNothing(t *testing.T) {
	for _, v := range []cell.Verdict{cell.Restored, cell.Discarded} {
		b := newBed(t)
		c := b.cell("/src")
		b.session(c, v, func() { b.write(c, "poison", "x") })
		_, r := b.session(c, cell.Accepted, func() { b.write(c, "good", "1") })
		b.sees(b.begin(c), "good=1")
		b.keep(c)
		b.sees(b.begin(b.cell("/src")), "good=1")
		// Of an instance in which several runs were, all have to be accepted.
		b.begin(c)
		b.write(c, "mixed", "x")
		b.run(c, v)
		b.run(c, cell.Accepted)
		b.must(b.m.Unmounted(t.Context(), c.ID))
		b.keep(c)
		b.sees(b.begin(b.cell("/src")), "good=1")
		if r.Verdict != cell.Accepted {
			t.Fatal(r.Verdict)
		}
	}
}

// What a run has of a file that another made, which was discarded, is not kept with its own: a write copies all of it.
func TestCopiesOfWhatWasDiscarded(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	_, bad := b.session(c, cell.Pending, func() { b.write(c, "index", "poison\n") })
	_, _ = b.session(c, cell.Accepted, func() { b.write(c, "index", "poison\ngood\n") })
	b.must(bad.Decide(cell.Discarded, "", "user"))
	b.must(b.reg.Commit(bad))
	b.keep(c)
	b.sees(b.begin(c))
	b.sees(b.begin(b.cell("/src")))
}

// An instance that ends when another run waits, or after it, has to do with the runs that were in it.
func TestRunsOfAnInstance(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	first, second := b.run(c, ""), b.run(c, "")
	first.Phase = cell.Executing
	b.must(b.reg.Commit(first))
	b.begin(c) // of the first, while the second has been given up
	b.write(c, "a", "1")
	first.Phase, first.Verdict = cell.Ended, cell.Discarded
	b.must(b.reg.Commit(first))
	b.must(b.m.Unmounted(t.Context(), c.ID))
	rec, _ := b.reg.CellCaches(c.ID)
	if own := rec.Dirs[0].Own; len(own) != 1 || !slices.Contains(own[0].Runs, first.RunID()) || slices.Contains(own[0].Runs, second.RunID()) {
		t.Errorf("%+v", own)
	}
	// What other commands wrote is not kept by itself.
	b.session(c, "", func() { b.write(c, "b", "2") })
	b.keep(c)
}

// What was asked for one run is for what that wrote.
func TestAlwaysIsNotForWhatWasBefore(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	b.session(c, cell.Pending, func() { b.write(c, "a", "1") })
	c.Setup.Kept.CacheWrite = Always
	b.session(c, cell.Restored, func() { b.write(c, "b", "2") })
	b.sees(b.begin(b.cell("/src")), "b=2")
	b.keep(c)
}

func TestAlways(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	c.Setup.Kept.CacheWrite = Always
	b.session(c, cell.Restored, func() { b.write(c, "a", "1") })
	b.sees(b.begin(b.cell("/src")), "a=1")
	// A caller that may accept nothing brings nothing into caches.
	b.begin(c)
	b.write(c, "b", "2")
	r := b.run(c, cell.Restored)
	r.In.Confined = true
	b.must(b.reg.Commit(r))
	b.must(b.m.Unmounted(t.Context(), c.ID))
	b.sees(b.begin(b.cell("/src")), "a=1")
}

// What a person accepts while a cell lives is kept when it does not: what earlier instances wrote, too, but not what
// came after the answer.
func TestAnswerWhileItLives(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	_, first := b.session(c, cell.Pending, func() { b.write(c, "a", "1") })
	b.by = "pando"
	_, check := b.session(c, cell.Accepted, func() { b.write(c, "b", "2") })
	b.begin(c)
	b.must(first.Decide(cell.Accepted, "", "user"))
	b.must(b.reg.Commit(first))
	b.must(b.m.Answer(c.ID))
	if rec, _ := b.reg.CellCaches(c.ID); rec.Answered != check.RunID() {
		t.Errorf("%+v", rec)
	}
	b.sees(b.begin(b.cell("/src")))
	b.begin(c)                               // after a start that failed, for example
	b.must(b.m.Unmounted(t.Context(), c.ID)) // it wrote nothing more
	b.work.Wait()
	b.sees(b.begin(b.cell("/src")), "a=1", "b=2")
	b.session(c, cell.Accepted, func() { b.write(c, "c", "3") })
	b.sees(b.begin(b.cell("/src")), "a=1", "b=2")
}

// A run that ends is accepted before the registry knows it, and one of another cell by the fork that went on.
func TestAcceptedByOthers(t *testing.T) {
	b := newBed(t)
	c := b.cell("/src")
	_, r := b.session(c, cell.Pending, func() { b.write(c, "a", "1") })
	fork := b.cell("/src")
	b.must(b.reg.Commit(b.m.Inherit(c.ID, fork.ID, false)))
	b.must(r.Decide(cell.Forked, "", "user"))
	b.must(b.reg.Commit(r))
	b.keep(c)
	b.by = "pando"
	seen, r := b.session(fork, cell.Accepted, func() { b.write(fork, "b", "2") })
	b.sees(seen, "a=1")
	// That it changed nothing is no answer for what it was forked from.
	b.keepFor(fork, r.RunID())
	b.keep(fork, "go")
	b.sees(b.begin(b.cell("/src")), "a=1", "b=2")
	last := b.cell("/src")
	_, r = b.session(last, cell.Pending, func() { b.write(last, "c", "3") })
	b.keepFor(last, r.RunID(), "go")
}

// What was unpacked of a module is verified by its hash, where that is the host's, too.
func TestVerifyLooksAtTheHost(t *testing.T) {
	files := map[string]string{"go.mod": "module example.com/m", "a.go": "package a"}
	text, sum := modZip(t, "example.com/m@v1.0.0", files)
	const at = "cache/download/example.com/m/@v/v1.0.0"
	b := newBed(t)
	tree(t, b.host, map[string]string{at + ".zip": text, at + ".ziphash": sum + "\n"})
	c := b.cell("/src")
	b.session(c, cell.Accepted, func() {
		for f, s := range files {
			b.write(c, "example.com/m@v1.0.0/"+f, s)
		}
	})
	got, err := b.m.Verify(t.Context(), b.reg.Caches()[0].ID)
	if err != nil || got.Files != 1 || len(got.Bad) > 0 {
		t.Errorf("%+v %v", got, err)
	}
}

// A cache has few layers, however often something is kept, and those that a cell has mounted stay.
func TestLayersOfCachesGo(t *testing.T) {
	b := newBed(t)
	holder := b.cell("/src")
	for i := range 3 * maxLayers {
		c := b.cell("/src")
		b.session(c, cell.Accepted, func() { b.write(c, fmt.Sprint("f", i), "x") })
		b.keep(c)
		c.State = cell.Removed
		b.must(b.reg.Commit(c))
		if i == 3 {
			b.begin(holder)
		}
	}
	k := b.reg.Caches()[0]
	if n := len(k.Dirs[0].Layers); n > maxLayers {
		t.Errorf("the cache has %d layers", n)
	}
	if seen := b.begin(b.cell("/src")); len(seen) != 3*maxLayers {
		t.Errorf("%d files were kept", len(seen))
	}
	for _, l := range holder.Setup.Mounts[0].Lower {
		if _, err := os.Lstat(l); err != nil {
			t.Errorf("a layer that is mounted went: %v", err)
		}
	}
	if n := b.named(); n > maxLayers+4 {
		t.Errorf("%d layers are named", n)
	}
}

func TestCacheThatIsTooLarge(t *testing.T) {
	b := newBed(t)
	b.m.cfg.Most = 96 << 10
	for i := range 3 {
		c := b.cell("/src")
		b.session(c, cell.Accepted, func() { b.write(c, fmt.Sprint("f", i), strings.Repeat("x", 40<<10)) })
		b.keep(c)
	}
	if k := b.reg.Caches()[0]; k.Bytes() > b.m.cfg.Most {
		t.Errorf("it has %d bytes", k.Bytes())
	}
	if seen := b.begin(b.cell("/src")); len(seen) != 1 || seen["f2"] == "" {
		t.Errorf("sees %v", slices.Collect(maps.Keys(seen)))
	}
	c := b.cell("/src")
	b.session(c, cell.Accepted, func() { b.write(c, "large", strings.Repeat("x", 200<<10)) })
	b.keep(c)
	b.sees(b.begin(b.cell("/src")))
}

// What was not on the disk when the host ended is not trusted.
func TestCacheAfterPowerLoss(t *testing.T) {
	b := newBed(t)
	b.m.cfg.Sync = func() error { return unix.EIO }
	c := b.cell("/src")
	b.session(c, cell.Accepted, func() { b.write(c, "a", "1") })
	waits := b.cell("/src")
	_, r := b.session(waits, cell.Pending, func() { b.write(waits, "b", "2") })
	k := b.reg.Caches()[0]
	if k.Boot != linux.BootID() {
		t.Errorf("it is said to be on the disk: %+v", k)
	}
	k.Boot = "another"
	rec, _ := b.reg.CellCaches(waits.ID)
	rec.Boot = "another"
	b.must(b.reg.Commit(&k, &rec))
	b.sees(b.begin(b.cell("/src")))
	b.must(r.Decide(cell.Accepted, "", "user"))
	b.must(b.reg.Commit(r))
	b.keep(waits)
	b.begin(waits)
	b.keep(waits)
	b.sees(b.begin(b.cell("/src")))
}
