package state

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// The workspace of a cell is a run's from the start of its command until its end is recorded.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	r := open(t, durabletest.New())
	c := Cell{ID: idOf(1), State: cell.Idle, Next: 1}
	for phase, want := range map[cell.Phase]cell.Kind{
		cell.Preparing: "", cell.Executing: cell.Conflict, cell.Finishing: cell.Conflict, cell.Ended: "",
	} {
		run := Run{ID: "r-0000000000000001", Cell: string(c.ID), Phase: phase}
		if err := r.Commit(&c, &run); err != nil {
			t.Fatal(err)
		}
		if got := cell.KindOf(r.Unfinished(&c, "")); got != want {
			t.Errorf("%s: %q, want %q", phase, got, want)
		}
		if err := r.Unfinished(&c, run.RunID()); err != nil {
			t.Errorf("%s: the run is in its own way: %v", phase, err)
		}
		if err := r.Unfinished(&Cell{ID: idOf(2)}, ""); err != nil {
			t.Errorf("%s: another cell: %v", phase, err)
		}
	}
}
