package state

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/workspace"
)

// A checkpoint that is committed from a record of before, such as with its digest, does not bring back
// one that has gone meanwhile, nor one of a cell that has no record any more: a layer that it names
// would never be removed.
func TestLateCheckpoints(t *testing.T) {
	t.Parallel()
	r := open(t, durabletest.New())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &Cell{ID: cell.NewID(), State: cell.Idle, Next: 2, Head: cell.NewCheckpointID()}
	k := &Checkpoint{ID: c.Head, Cell: c.ID, Number: 1, State: workspace.State{Layers: []string{"l1"}}}
	must(r.Commit(c, k))
	before, err := r.Checkpoint(k.ID)
	must(err)
	k.Gone = true
	must(r.Commit(k))
	must(r.Commit(&before))
	if now, err := r.Checkpoint(k.ID); err != nil || !now.Gone {
		t.Errorf("a checkpoint that is gone is back: %v", err)
	}
	must(c.To(cell.Removed))
	must(r.Commit(c))
	late := before
	late.ID, late.Number = cell.NewCheckpointID(), 2
	must(r.Commit(&late))
	if r.NamesLayer("l1", "") {
		t.Error("a removed cell has a checkpoint")
	}
	must(r.Commit(Forget(c.ID), Forget(k.ID), Forget(late.ID)))
	late.ID = cell.NewCheckpointID()
	must(r.Commit(&late))
	if _, err := r.Checkpoint(late.ID); cell.KindOf(err) != cell.NotFound || r.NamesLayer("l1", "") {
		t.Errorf("a checkpoint without a cell is recorded: %v", err)
	}
}
