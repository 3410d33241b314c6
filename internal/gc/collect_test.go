package gc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What expired or is named by nothing goes, and is only told dry; nothing else goes.
func TestCollect(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	past := func(k *state.Checkpoint) { k.Expires = time.Now().Add(-time.Second) }
	keep := b.cell("keep", 10)
	over := b.cell("over", 10)
	over.Expires = time.Now().Add(-time.Second)
	b.must(b.reg.Commit(&over))
	waits := b.cell("waits", 10)
	head, err := b.reg.Checkpoint(waits.Head)
	b.must(err)
	waits.Expires = over.Expires
	b.must(b.reg.Commit(&waits))
	b.run(&waits, &head, cell.Pending)
	old := b.checkpoint(&keep, 10, past)
	applied := b.checkpoint(&keep, 10, past)
	keep.KnownAt = []cell.CheckpointID{applied.ID}
	b.must(b.reg.Commit(&keep))
	stray, base, unused := b.layer(10), b.layer(10), b.layer(10)
	b.age()
	young := b.layer(10)
	b.sources = []Source{{Name: "used", State: base, Used: time.Now()}, {Name: "unused", State: unused, Used: time.Now().Add(-KeepUnused - time.Minute)}}
	b.leftover = []string{"keeper"}

	before := b.layers()
	if went := b.collected(true); !slices.Equal(went, []string{"cell over", "checkpoint keep@2", "layer", "leftover keeper", "source unused"}) || !slices.Equal(b.layers(), before) || b.gone(old) {
		t.Errorf("dry: would go %q", went)
	}
	went := b.collected(false)
	if !slices.Contains(went, "cell over") || !slices.Contains(went, "checkpoint keep@2") || !slices.Contains(went, "source unused") || !slices.Contains(went, "trees objects") {
		t.Errorf("went %q", went)
	}
	if c, err := b.reg.Cell(over.ID); err != nil || c.State != cell.Removed || len(b.removed) != 1 {
		t.Errorf("removed %v; %v", b.removed, err)
	}
	for what, s := range map[string]workspace.State{"an applied result": applied.State, "a result that waits": head.State, "the base of a source": base, "a young layer": young} {
		if !b.has(s) {
			t.Errorf("%s went", what)
		}
	}
	for what, s := range map[string]workspace.State{"an expired checkpoint": old.State, "a stray": stray, "an unused source": unused} {
		if b.has(s) {
			t.Errorf("%s is there", what)
		}
	}
	if !b.cfg.Pins.Has(head.Tree) || !b.cfg.Pins.Has(applied.Tree) || b.cfg.Pins.Has(old.Tree) {
		t.Error("the trees are not those of the checkpoints that are there")
	}
}

// A source that is being imported is not forgotten: its base is what the import begins with, and
// no pin knows that yet.
func TestF20ImportKeepsItsSource(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	base := b.layer(10)
	b.age()
	b.sources = []Source{{Name: "s", State: base, Used: time.Now().Add(-KeepUnused - time.Minute)}}
	b.locked[ImportLock("s")] = true
	if went := b.collected(false); len(went) > 0 || len(b.sources) == 0 || !b.has(base) {
		t.Errorf("went %q under an import", went)
	}
	b.locked[ImportLock("s")] = false
	if b.collected(false); len(b.sources) > 0 || b.has(base) {
		t.Error("a source that was not used for long is there")
	}
}

// Work that takes long keeps the layers that it makes, whatever their age, and the import that
// it begins with.
func TestF20LongWorkKeepsItsLayers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	base := b.layer(10)
	b.age()
	p := b.cfg.Pins.Begin()
	p.began = time.Now().Add(-2 * time.Hour)
	made := b.layer(10)
	b.age()
	if b.collected(false); !b.has(made) {
		t.Error("a layer went under the work that makes it")
	}
	p.began = time.Now()
	tree, err := b.clone.Walk(t.Context(), base, b.cfg.Pins)
	b.must(err)
	p.Use(&workspace.Imported{State: base, Tree: tree})
	if b.collected(false); !b.has(base) || b.has(made) {
		t.Errorf("layers %v, want that which is used", b.layers())
	}
	p.End()
	if b.collected(false); b.has(base) {
		t.Error("a layer is there when the work is over")
	}
}

// A removed cell's layers go at once, whatever their age, but for those that a fork or another
// name needs.
func TestDropCell(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	parent := b.cell("parent", 10)
	first, err := b.reg.Checkpoint(parent.Head)
	b.must(err)
	forked := b.checkpoint(&parent, 10, nil)
	own := b.checkpoint(&parent, 10, nil)
	child := state.Cell{ID: cell.NewID(), Name: "child", State: cell.Idle, Created: b.began, Provider: "clone", Head: forked.ID, Parent: &state.Origin{Cell: parent.ID, Checkpoint: forked.ID}, Next: 1}
	g, err := b.clone.Begin(t.Context(), forked.State, workspace.Entry{Mode: 0o755}, "")
	b.must(err)
	child.Gen = &g
	b.must(b.reg.Commit(&child))
	b.must(b.remove(t.Context(), parent.ID))
	b.work.Wait()
	if b.has(own.State) {
		t.Error("a layer of its own is there")
	}
	if !b.has(forked.State) || !b.has(first.State) {
		t.Error("what the fork is on, or what its source was, went")
	}
	b.must(b.remove(t.Context(), child.ID))
	b.work.Wait()
	b.age()
	if b.collected(false); len(b.layers()) > 0 {
		t.Errorf("left are %v", b.layers())
	}
}

// What lies below the homes of a template and its forks goes with the last of them.
func TestDropCellBelowAHome(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	home := b.layer(10)
	below := func(name string) (state.Cell, string) {
		c := b.cell(name, 10)
		g, err := b.clone.Begin(t.Context(), home, workspace.Entry{Mode: 0o755}, "")
		b.must(err)
		c.Home = &g
		b.must(b.reg.Commit(&c))
		return c, g.Layer
	}
	one, ownOfOne := below("one")
	two, _ := below("two")
	b.must(b.remove(t.Context(), one.ID))
	b.work.Wait()
	if !b.has(home) || slices.Contains(b.layers(), ownOfOne) {
		t.Errorf("left are %v, want %v among them, and not %s", b.layers(), home.Layers, ownOfOne)
	}
	b.must(b.remove(t.Context(), two.ID))
	b.work.Wait()
	if b.has(home) {
		t.Error("it is there when both are gone")
	}
}

// A checkpoint that the cell is at, or that belongs to a run, is not removed.
func TestRemoveCheckpoint(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell("w", 10)
	k := b.checkpoint(&c, 10, func(k *state.Checkpoint) { k.Message = "kept" })
	b.result(&c, 10)
	for n, want := range map[int]cell.Kind{1: cell.Conflict, 3: cell.Conflict, 4: cell.NotFound} {
		if err := b.RemoveCheckpoint(&c, n); cell.KindOf(err) != want {
			t.Errorf("@%d: %v, want %s", n, err, want)
		}
	}
	b.must(b.RemoveCheckpoint(&c, 2))
	if !b.gone(k) {
		t.Error("@2 is there")
	}
	if err := b.RemoveCheckpoint(&c, 2); cell.KindOf(err) != cell.NotFound {
		t.Errorf("again: %v", err)
	}
	head, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	head.Message = "name"
	b.must(b.reg.Commit(&head))
	b.must(b.RemoveCheckpoint(&c, 1))
	if now, err := b.reg.Checkpoint(c.Head); err != nil || now.Gone || now.Message != "" {
		t.Errorf("the named head is %+v, %v", now, err)
	}
}

// Of the checkpoints that steps of a cell began with the newest stay, whatever their time is.
func TestStepsAreCounted(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell("w", 10)
	later := time.Now().Add(time.Hour)
	var steps []state.Checkpoint
	for range KeepSteps + 3 {
		steps = append(steps, b.checkpoint(&c, 10, func(k *state.Checkpoint) { k.Kind, k.Expires = state.KindStep, later }))
	}
	named := b.checkpoint(&c, 10, func(k *state.Checkpoint) { k.Kind, k.Message = state.KindManual, "named" })
	res, err := b.Collect(t.Context(), true)
	b.must(err)
	if n := len(res.Items); n != 3 || !strings.Contains(res.Items[0].Why, "newer ones of steps") {
		t.Errorf("it would remove %+v", res.Items)
	}
	_, err = b.Collect(t.Context(), false)
	b.must(err)
	for i, k := range steps {
		if gone := b.gone(k); gone != (i < 3) {
			t.Errorf("step %d: gone %v", i, gone)
		}
	}
	if b.gone(named) {
		t.Error("what is no step is gone")
	}
}

// What an earlier daemon left and no record names is found before this one makes anything, and
// removed whatever its age.
func TestStrays(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell("w", 10)
	k, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	stray := b.layer(10)
	left := []string{b.folder(cell.NewID()), filepath.Join(b.cfg.Home.Sources(), "x.json.new")}
	for _, f := range append([]string{b.folder(c.ID)}, left...) {
		b.must(os.MkdirAll(f, 0o700))
	}
	s := b.Strays()
	later := b.layer(10)
	b.RemoveStrays(s)
	if b.has(stray) || !b.has(k.State) || !b.has(later) {
		t.Errorf("left are %v", b.layers())
	}
	for _, f := range left {
		if _, err := os.Lstat(f); err == nil {
			t.Errorf("%s is there", f)
		}
	}
	if _, err := os.Lstat(b.folder(c.ID)); err != nil {
		t.Error(err)
	}
}

// What a service kept at checkpoints of its cell goes with these, and its cell with that.
func TestServicesKeepWhatTheirCellNames(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	web, db := b.cell("web", 10), b.cell("web.db", 10)
	db.Serves, db.Expires = &state.Serves{Of: web.ID, Name: "db"}, b.began
	var kept [4]state.Checkpoint
	for i := range kept {
		kept[i] = b.checkpoint(&db, 10, func(k *state.Checkpoint) { k.Kind = state.KindService })
	}
	own := b.checkpoint(&db, 10, func(k *state.Checkpoint) { k.Kind = state.KindManual })
	b.checkpoint(&db, 10, nil)
	young := b.checkpoint(&db, 10, func(k *state.Checkpoint) { k.Kind, k.Created = state.KindService, time.Now() }) // a checkpoint under way is to name it
	of := func(k state.Checkpoint) state.Checkpoint {
		return b.checkpoint(&web, 10, func(at *state.Checkpoint) { at.Services = map[string]cell.CheckpointID{"db": k.ID} })
	}
	first, second := of(kept[1]), of(kept[2])
	b.must(b.reg.Commit(&db))
	if err := b.RemoveCheckpoint(&db, kept[1].Number); cell.KindOf(err) != cell.Conflict {
		t.Errorf("a part of a checkpoint of the cell is removed: %v", err)
	}
	second.Gone = true
	b.must(b.reg.Commit(&second))
	if got, want := b.collected(true), "checkpoint web.db@2,checkpoint web.db@4,checkpoint web.db@5"; strings.Join(got, ",") != want {
		t.Errorf("a dry collection says %q, want %s", got, want)
	}
	b.collected(false)
	for i, want := range []bool{true, false, true, true} {
		if b.gone(kept[i]) != want {
			t.Errorf("@%d is gone: %v", kept[i].Number, !want)
		}
	}
	if b.gone(own) || b.gone(young) || b.gone(first) || len(b.removed) > 0 {
		t.Errorf("what nothing says is over went: %v, cells %v", []bool{b.gone(own), b.gone(young), b.gone(first)}, b.removed)
	}
}
