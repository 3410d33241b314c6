package gc

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/state"
)

func (b *bed) fit() {
	b.Helper()
	b.must(b.fitBudget(b.Context()))
}

func (b *bed) df() api.Disk {
	b.Helper()
	d, err := b.Disk(b.Context(), true)
	b.must(err)
	return d
}

// Near its budget the state says what is removed next; above it that is removed, the
// oldest first, and only what was named before.
func TestX27StateBudget(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.cell("w", 10)
	first, next := b.result(&w, 3*megabyte), b.result(&w, 3*megabyte)
	v := b.cell("v", 10)
	back := b.result(&v, 3*megabyte)
	v.Head = back.ID
	k := b.cell("k", 10)
	earlier := b.checkpoint(&k, 3*megabyte, nil)
	b.checkpoint(&k, 10, nil)
	waits := b.cell("waits", 10)
	pending := b.checkpoint(&waits, 3*megabyte, nil)
	b.run(&waits, &pending, cell.Pending)
	waits.Expires = time.Now().Add(time.Hour)
	b.must(b.reg.Commit(&v, &waits))

	d := b.df()
	if d.Warning != "" || len(d.Next) > 0 {
		t.Fatalf("far from the budget it says %q, %+v", d.Warning, d.Next)
	}
	b.cfg.MaxState = d.Held + megabyte
	if b.fit(); b.gone(first) || b.Warning() == "" {
		t.Fatal("near the budget something was removed, or nothing said")
	}
	if d = b.df(); len(d.Next) == 0 || d.Next[0].Name != "w@2" || !strings.Contains(d.Warning, "result w@2") {
		t.Errorf("next is %+v: %q", d.Next, d.Warning)
	}

	// What fills it is told so, and nothing is taken away under it.
	u := b.cell("u", megabyte+megabyte/2)
	if n := b.Note(t.Context(), 0); !strings.Contains(n, "result w@2") || b.gone(first) {
		t.Errorf("noted is %q; gone: %v", n, b.gone(first))
	}
	b.fit()
	d = b.df()
	if !b.gone(first) || d.Held > b.cfg.MaxState || b.has(first.State) {
		t.Errorf("gone: %v; held %d of %d", b.gone(first), d.Held, b.cfg.MaxState)
	}
	if len(d.Removed) != 1 || d.Removed[0].Name != "w@2" || d.Removed[0].Bytes < 3*megabyte || b.gone(next) {
		t.Errorf("removed %+v; the next is gone: %v", d.Removed, b.gone(next))
	}

	// What was not named is not removed, however much too large the state is.
	b.warned = nil
	b.cfg.MaxState = 1
	b.fit()
	if b.fit(); b.gone(next) {
		t.Error("what nothing had named was removed")
	}

	// What waits, is in use, or is kept without an end stays, however much is asked for.
	for range 8 {
		b.df()
		b.fit()
	}
	if !b.gone(next) {
		t.Error("a result that was named is still there")
	}
	if d = b.df(); len(d.Next) > 0 || !strings.Contains(d.Warning, "nothing of it is removed") {
		t.Errorf("next is %+v: %q", d.Next, d.Warning)
	}
	for _, k := range []state.Checkpoint{back, earlier, pending} {
		if b.gone(k) || !b.has(k.State) {
			t.Errorf("@%d of %s is in use, or waits, and was removed", k.Number, k.Cell)
		}
	}
	if c, err := b.reg.Cell(u.ID); err != nil || c.State == cell.Removed || len(b.removed) > 0 {
		t.Errorf("removed were %v (%v)", b.removed, err)
	}
}

// What is worked in is left alone, and nothing waits for it.
func TestX27BudgetWaitsForNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.cell("w", 10)
	failed := b.result(&w, 3*megabyte)
	b.cfg.MaxState = 1
	if b.fit(); b.Warning() == "" {
		t.Fatal("nothing is said")
	}
	b.locked[w.ID] = true
	if b.fit(); b.gone(failed) {
		t.Error("it was removed under work in its cell")
	}
	b.locked[w.ID] = false
	if b.fit(); !b.gone(failed) || b.has(failed.State) {
		t.Error("it is still there")
	}
}

// What runs make counts, also while other programs free as much on the same disk.
func TestX27GrowthIsNotHidden(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.cell("w", 10)
	b.result(&w, 3*megabyte)
	b.cfg.MaxState = b.df().Held * 5 / 4
	b.usage.free = 0 // since then much was freed
	b.cell("u", megabyte)
	if n := b.Note(t.Context(), 0); n != "" {
		t.Fatalf("far from the budget it says %q", n)
	}
	if n := b.Note(t.Context(), megabyte); !strings.Contains(n, "result w@2") {
		t.Errorf("near the budget it says %q", n)
	}
	if b.Manager.made != 0 {
		t.Errorf("after it was measured, %d bytes are said to be made since", b.Manager.made)
	}
}

// What an answer has named stays named when an older measurement is looked at after it.
func TestX27TheNewestMeasurementCounts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.cell("w", 10)
	first, second := b.result(&w, 3*megabyte), b.result(&w, 3*megabyte)
	b.cfg.MaxState = b.df().Held - megabyte
	if b.fit(); !strings.Contains(b.Warning(), "result w@2") || strings.Contains(b.Warning(), "result w@3") {
		t.Fatalf("it says %q", b.Warning())
	}
	b.locked[w.ID] = true
	b.meanwhile = func() {
		b.cell("u", 4*megabyte)
		if n := b.Note(t.Context(), 4*megabyte); !strings.Contains(n, "result w@3") {
			t.Errorf("noted is %q", n)
		}
		b.meanwhile = nil
	}
	b.fit()
	b.locked[w.ID] = false
	if b.fit(); !b.gone(first) || !b.gone(second) {
		t.Errorf("gone: %v, %v; it says %q", b.gone(first), b.gone(second), b.Warning())
	}
}

// Of kept results the hint names the one that holds the most.
func TestX27HintNamesTheLargest(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.cell("w", 10)
	b.result(&w, 10)
	largest := b.result(&w, megabyte)
	b.result(&w, 10)
	if hint := b.Hint(); !strings.Contains(hint, "`pando discard "+string(largest.Run)+" --yes` gives up what is kept of that run") {
		t.Errorf("the hint is %q, want run %s", hint, largest.Run)
	}
}

// An image that others were made of has their files: it goes with the last of them, and not before.
func TestX27ImagesThatShareFiles(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var list []oci.Image
	var needed cell.Digest
	id := func(name string) cell.Digest { return cell.Sum([]byte(name)) }
	folder := func(name string) string {
		return filepath.Join(b.cfg.Home.Images(), strings.TrimPrefix(id(name).String(), "sha256:"))
	}
	make := func(name, from string, used time.Duration) {
		img := oci.Image{ID: id(name), Refs: []string{name}, Root: filepath.Join(folder(name), "root"), Layers: len(list), Used: b.began.Add(used)}
		b.must(os.MkdirAll(img.Root, 0o700))
		if name == "step" {
			img.Refs = nil
		}
		if from == "" {
			b.must(os.WriteFile(filepath.Join(img.Root, "big"), bytes.Repeat([]byte(name), 2*megabyte/len(name)), 0o600))
		} else {
			img.Made = &oci.Made{From: id(from)}
			b.must(os.Link(filepath.Join(folder(from), "root", "big"), filepath.Join(img.Root, "big")))
		}
		list = append(list, img)
	}
	b.cfg.Images = func() ([]oci.Image, error) { return slices.Clone(list), nil }
	b.cfg.ImageNeeded = func(i *oci.Image) bool { return i.ID == needed }
	b.cfg.RemoveImage = func(i *oci.Image) error {
		list = slices.DeleteFunc(list, func(x oci.Image) bool { return x.ID == i.ID })
		return os.RemoveAll(filepath.Dir(i.Root))
	}
	make("base", "", 4*time.Minute)
	make("step", "base", time.Minute)
	make("one", "step", time.Minute)
	make("two", "base", 2*time.Minute)
	make("other", "", 3*time.Minute)
	there := func(want string) {
		t.Helper()
		var names []string
		for _, i := range list {
			names = append(names, strings.Join(i.Refs, ""))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("there are %q, want %q", got, want)
		}
	}
	fit := func() {
		for range 8 {
			b.df()
			b.fit()
		}
	}
	b.cfg.MaxState = b.df().Held - megabyte
	fit() // both steps of one, and two: they free nothing but folders; then what is older than the base's last use
	there("base")
	list = nil
	b.must(os.RemoveAll(b.cfg.Home.Images()))
	make("base", "", time.Minute)
	make("one", "base", time.Minute)
	make("two", "base", 2*time.Minute)
	needed = id("two")
	b.cfg.MaxState = b.df().Held - 2*megabyte
	fit()
	if there("base two"); b.df().Held < 2*megabyte {
		t.Error("what the image in use has is not counted")
	}
}
