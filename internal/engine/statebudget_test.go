package engine

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// kindOf is the sum of one kind in a disk.
func kindOf(d api.Disk, kind string) (k api.DiskKind) {
	for _, x := range d.Kinds {
		if x.Kind == kind {
			k = x
		}
	}
	return k
}

func objectNamed(d api.Disk, kind, name string) (o api.DiskObject, ok bool) {
	for _, x := range d.Objects {
		if x.Kind == kind && x.Name == name {
			return x, true
		}
	}
	return o, false
}

const megabyte = 1 << 20

// What is on disk is counted once, is of the thing that its removal frees, and is named
// as shared when it is several things'.
func TestX27DiskIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	failed := b.run("w", "head -c 3145728 /dev/urandom > big; ln big link && exit 7")
	if failed.ExitCode == nil || *failed.ExitCode != 7 {
		t.Fatalf("no link was made: %v", failed.ExitCode)
	}
	b.run("w", "head -c 2097152 /dev/urandom > mine")
	b.run("v", "head -c 1048576 /dev/urandom > ours")
	before, err := b.Disk(b.ctx, true)
	b.must(err)
	b.must(second(b.Fork(b.ctx, b.id("v"), api.ForkRequest{Name: "child"})))
	d, err := b.Disk(b.ctx, true)
	b.must(err)

	var kinds, objects int64
	for _, k := range d.Kinds {
		kinds += k.Bytes
	}
	for _, o := range d.Objects {
		objects += o.Bytes
	}
	state, err := workspace.DiskUse(b.home.State)
	b.must(err)
	cache, err := workspace.DiskUse(b.home.Cache)
	b.must(err)
	if kinds != d.Held || objects != d.Held || d.Held > state+cache || d.Held < state+cache-megabyte/4 {
		t.Errorf("held %d, by kind %d, by object %d; on disk %d", d.Held, kinds, objects, state+cache)
	}
	result, _ := objectNamed(d, "result", "w@2")
	if result.Bytes < 3*megabyte || result.Bytes > 3*megabyte+megabyte/2 || result.Expires.IsZero() || result.Command != "pando discard "+failed.ID+" --yes" {
		t.Errorf("the result is %+v", result)
	}
	if w, _ := objectNamed(d, "cell", "w"); w.Bytes < 2*megabyte || w.Bytes > 3*megabyte || w.State != "pending" || w.Command != "pando rm w" {
		t.Errorf("the cell is %+v", w)
	}
	for _, name := range []string{"v", "child"} {
		if o, _ := objectNamed(d, "cell", name); o.Shared < megabyte || o.Bytes > megabyte/2 {
			t.Errorf("cell %s is %+v", name, o)
		}
	}
	if was, is := kindOf(before, "shared").Bytes, kindOf(d, "shared").Bytes; is-was < megabyte || is-was > megabyte*3/2 {
		t.Errorf("shared: %d, and %d before the fork", is, was)
	}

	// What the command for it frees is what was said.
	res, err := b.Discard(b.ctx, runTarget(failed), api.DiscardRequest{Lose: true})
	b.must(err)
	if res.Freed != result.Bytes {
		t.Errorf("discard freed %d, df said %d", res.Freed, result.Bytes)
	}

	// What a checkpoint of a cell and the cell itself need is the cell's: revert needs it.
	b.must(second(b.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	b.run("w", "rm mine")
	d, err = b.Disk(b.ctx, true)
	b.must(err)
	if w, _ := objectNamed(d, "cell", "w"); w.Bytes < 2*megabyte || w.Shared > megabyte/2 {
		t.Errorf("the cell whose files are in the source is %+v", w)
	}
	if k, _ := objectNamed(d, "checkpoint", "w@3"); k.Bytes > megabyte/2 || k.Shared > megabyte/2 {
		t.Errorf("the checkpoint whose files are in the source is %+v", k)
	}
}

// Near its budget the state says what is removed next; above it that is removed, the
// oldest first, and only what was named before.
func TestX27StateBudget(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	fit := func() { b.Helper(); b.must(b.fitBudget(b.ctx)) }
	df := func() api.Disk { b.Helper(); d, err := b.Disk(b.ctx, true); b.must(err); return d }
	kept := func(r api.Run) bool {
		k, err := b.reg.Checkpoint(recordOf(b, r).In.After)
		b.must(err)
		return !k.Gone
	}
	first := b.run("w", "head -c 3145728 /dev/urandom > big; exit 1")
	next := b.run("w", "head -c 3145728 /dev/urandom > big; exit 1")
	back := b.run("v", "head -c 3145728 /dev/urandom > big; exit 1")
	b.must(second(b.Restore(b.ctx, b.id("v"), api.RestoreRequest{Number: back.After.Number})))
	waits := b.run("", "head -c 3145728 /dev/urandom > big")
	earlier := b.run("k", "head -c 3145728 /dev/urandom > big")
	b.run("k", "rm big")

	d := df()
	if d.Warning != "" || len(d.Next) > 0 {
		t.Fatalf("far from the budget it says %q, %+v", d.Warning, d.Next)
	}
	b.cfg.MaxState = d.Held + megabyte
	fit()
	if !kept(first) || b.spaceWarning() == "" {
		t.Fatal("near the budget something was removed, or nothing said")
	}
	if d = df(); len(d.Next) == 0 || d.Next[0].Name != "w@2" || !strings.Contains(d.Warning, "result w@2") {
		t.Errorf("next is %+v: %q", d.Next, d.Warning)
	}

	// A run that fills it says so, and takes nothing away itself.
	filled := b.run("u", "head -c 1048576 /dev/urandom > big")
	if n := strings.Join(filled.Notes, "\n"); !strings.Contains(n, "result w@2") || !kept(first) {
		t.Errorf("the run says %q; kept: %v", n, kept(first))
	}
	fit()
	d = df()
	if kept(first) || d.Held > b.cfg.MaxState {
		t.Errorf("kept: %v; held %d of %d", kept(first), d.Held, b.cfg.MaxState)
	}
	if len(d.Removed) != 1 || d.Removed[0].Name != "w@2" || d.Removed[0].Bytes < 3*megabyte || !kept(next) {
		t.Errorf("removed %+v; the next is kept: %v", d.Removed, kept(next))
	}

	// What was not named is not removed, however much too large the state is.
	b.mu.Lock()
	b.warned = nil
	b.mu.Unlock()
	b.cfg.MaxState = 1
	fit()
	fit()
	if !kept(next) {
		t.Error("what nothing had named was removed")
	}

	// What waits, is in use, or is kept without an end stays, however much is asked for.
	for range 8 {
		df()
		fit()
	}
	if kept(next) {
		t.Error("a result that was named is still there")
	}
	if d = df(); len(d.Next) > 0 || !strings.Contains(d.Warning, "nothing of it is removed") {
		t.Errorf("next is %+v: %q", d.Next, d.Warning)
	}
	if !kept(back) || !kept(waits) || !kept(filled) || !kept(earlier) || b.verdict(waits) != "pending" {
		t.Error("what is in use, or waits, was removed")
	}
	for _, r := range []api.Run{waits, filled} {
		b.must(second(b.Accept(b.ctx, runTarget(r), api.AcceptRequest{})))
	}
	b.run("w", "cat f")
	b.verified()
}

// What somebody works in is left alone, and nothing waits for it.
func TestX27BudgetWaitsForNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	failed := b.run("w", "head -c 3145728 /dev/urandom > big; exit 1")
	b.cfg.MaxState = 1
	b.must(b.fitBudget(b.ctx))
	if b.spaceWarning() == "" {
		t.Fatal("nothing is said")
	}
	release, err := b.locks.Acquire(b.ctx, b.id("w"), "a test", nil)
	b.must(err)
	b.must(b.fitBudget(b.ctx))
	if k, err := b.reg.Checkpoint(recordOf(b, failed).In.After); err != nil || k.Gone {
		t.Errorf("it was removed under somebody's hands: %v", err)
	}
	release()
	b.must(b.fitBudget(b.ctx))
	if k, err := b.reg.Checkpoint(recordOf(b, failed).In.After); err != nil || !k.Gone {
		t.Errorf("it is still there: %v", err)
	}
	b.wantKind("back", second(b.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: failed.After.Number, Lose: true})), cell.NotFound, "removed")
}

// recordOf is what the registry keeps of a run.
func recordOf(b *bed, r api.Run) state.Run {
	b.Helper()
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	return run
}
