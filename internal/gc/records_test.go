package gc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
)

// A thousand cells that were made and removed leave a bounded number of records, in memory and
// in the journal. A cell stays that a run, a fork or a template names, or that has changes in
// its source.
func TestRecordsOfRemovedCells(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	remove := func(c *state.Cell) {
		t.Helper()
		b.must(b.remove(t.Context(), c.ID))
		b.work.Wait()
	}
	parent := b.cell("parent", 1)
	child := state.Cell{ID: cell.NewID(), Name: "child", State: cell.Idle, Parent: &state.Origin{Cell: parent.ID, Checkpoint: parent.Head}, Head: parent.Head, Next: 1}
	b.must(b.reg.Commit(&child))
	ran := b.cell("ran", 1)
	head, err := b.reg.Checkpoint(ran.Head)
	b.must(err)
	r := b.run(&ran, &head, cell.Accepted)
	applied := b.cell("applied", 1)
	applied.Applied = []state.Applied{{ID: "a"}}
	b.must(b.reg.Commit(&applied))
	warm := b.cell("", 1)
	warm.Template = "warm"
	b.must(b.reg.Commit(&warm, &state.Template{Name: "warm", Cell: warm.ID}))
	needed := []state.Cell{parent, ran, applied, warm}
	for i := range needed {
		remove(&needed[i])
	}

	const many = 1000
	var newest state.Cell
	for i := range many / 50 {
		var gone []*state.Cell
		var objects []any
		for k := range 50 {
			c := &state.Cell{ID: cell.NewID(), Name: fmt.Sprintf("c%d-%d", i, k), State: cell.Idle, Next: 2, Head: cell.NewCheckpointID()}
			objects = append(objects, c, &state.Checkpoint{ID: c.Head, Cell: c.ID, Number: 1}, &state.Lease{Cell: c.ID, Labels: map[string]string{"a": "b"}})
			gone = append(gone, c)
		}
		b.must(b.reg.Commit(objects...))
		objects = nil
		for _, c := range gone {
			b.must(c.To(cell.Removed))
			objects = append(objects, c)
		}
		b.must(b.reg.Commit(objects...))
		for _, c := range gone {
			b.DropCell(c)
		}
		newest = *gone[len(gone)-1]
		b.work.Wait()
	}
	there := func(c *state.Cell) bool {
		_, err := b.reg.Cell(c.ID)
		_, kerr := b.reg.Checkpoint(c.Head)
		if (err == nil) != (kerr == nil) {
			t.Errorf("cell %s: %v; its checkpoint: %v", c.Title(), err, kerr)
		}
		return err == nil
	}
	if n := len(b.reg.AllCells()); n > len(needed)+1+keptRemoved+keptRemoved/2 || n < keptRemoved {
		t.Errorf("%d cells that were removed left %d records", many, n)
	}
	if !there(&newest) {
		t.Error("the newest is gone")
	}

	// When they were removed long ago, none is left; dry they are only counted.
	for _, c := range b.reg.AllCells() {
		if c.State == cell.Removed {
			c.RemovedAt = time.Now().Add(-KeepRemoved - time.Minute)
			b.must(b.reg.Commit(&c))
		}
	}
	before := len(b.reg.AllCells())
	if went := b.collected(true); len(went) != 1 || len(b.reg.AllCells()) != before {
		t.Errorf("dry: %q would go", went)
	}
	b.collected(false)
	b.must(b.reg.Rewrite())
	lines := 0
	if err := durable.Scan(durable.Disk(b.cfg.Home.State), "registry.log", func(durable.Found) error { lines++; return nil }); err != nil {
		t.Error(err)
	}
	if n := len(b.reg.AllCells()); n != len(needed)+1 || lines > 20 {
		t.Errorf("left are %d cells, and %d lines of the journal", n, lines)
	}
	for i := range needed {
		if !there(&needed[i]) {
			t.Errorf("%s is gone", needed[i].Title())
		}
	}

	// A cell goes when what named it has gone.
	remove(&child)
	b.must(b.reg.Commit(state.Forget(r.RunID()), state.Forget(state.ForgetTemplate+"warm")))
	b.must(b.reg.Commit(&state.Cell{ID: child.ID, State: cell.Removed, Parent: child.Parent}))
	b.collected(false)
	if left := b.reg.AllCells(); len(left) != 1 || left[0].ID != applied.ID {
		t.Errorf("left are %v", slices.Collect(func(yield func(string) bool) {
			for _, c := range left {
				yield(c.Title())
			}
		}))
	}
}
