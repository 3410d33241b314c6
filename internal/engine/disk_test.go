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
	res, err := b.results.Discard(b.ctx, runTarget(failed), api.DiscardRequest{Lose: true})
	b.must(err)
	if res.Freed != result.Bytes {
		t.Errorf("discard freed %d, df said %d", res.Freed, result.Bytes)
	}

	// What a checkpoint of a cell and the cell itself need is the cell's: revert needs it.
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
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

// A run that brings the state near its budget says what is removed next, and that goes when
// something else is made; what waits or is in use stays.
func TestX27RunSaysWhatGoesNext(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	failed := b.run("w", "head -c 3145728 /dev/urandom > big; exit 1")
	waits := b.run("", "head -c 3145728 /dev/urandom > big")
	d, err := b.Disk(b.ctx, false)
	b.must(err)
	b.maxState = d.Held + megabyte
	b.reopen()
	b.must(second(b.Disk(b.ctx, false)))
	filled := b.run("u", "head -c 2097152 /dev/urandom > big")
	if n := strings.Join(filled.Notes, "\n"); !strings.Contains(n, "result w@2") {
		t.Errorf("the run says %q", n)
	}
	b.until("the result is removed", func() bool {
		b.must(b.gc.Room())
		k, err := b.reg.Checkpoint(recordOf(b, failed).In.After)
		b.must(err)
		return k.Gone
	})
	b.wantKind("back", second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: failed.After.Number, Lose: true})), cell.NotFound, "removed")
	for _, r := range []api.Run{waits, filled} {
		b.must(second(b.results.Accept(b.ctx, runTarget(r), api.AcceptRequest{})))
	}
	b.run("w", "cat f")
	b.verified()
}

// recordOf is what the registry keeps of a run.
func recordOf(b *bed, r api.Run) state.Run {
	b.Helper()
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	return run
}
