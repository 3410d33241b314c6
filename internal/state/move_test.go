package state

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// Records change their state by the tables of package cell, and are as they were when a move
// is refused.
func TestRecordsMoveByTheirTable(t *testing.T) {
	t.Parallel()
	states := []cell.State{"", cell.Creating, cell.Idle, cell.Running, cell.Paused, cell.Failed, cell.Removed}
	for _, from := range states {
		for _, to := range states {
			c := Cell{ID: "c-1", Name: "web", State: from}
			_, refused := from.To(to)
			err := c.To(to)
			switch {
			case from == to && (err != nil || c.State != from):
				t.Errorf("a cell that stays %s: %v", from, err)
			case from != to && refused == nil && (err != nil || c.State != to):
				t.Errorf("%s→%s: %v, it is %s", from, to, err, c.State)
			case from != to && refused != nil && (cell.KindOf(err) != cell.Conflict || c.State != from || !strings.Contains(err.Error(), "web")):
				t.Errorf("%s→%s: %v, it is %s", from, to, err, c.State)
			}
		}
	}
	phases := []cell.Phase{"", cell.Preparing, cell.Executing, cell.Finishing, cell.Ended}
	for _, from := range phases {
		for _, to := range phases {
			r := Run{Phase: from}
			_, refused := from.To(to)
			err := r.To(to)
			if allowed := from == to || refused == nil; (err == nil) != allowed || allowed && r.Phase != to || !allowed && r.Phase != from {
				t.Errorf("%s→%s: %v, it is %s", from, to, err, r.Phase)
			}
		}
	}
	verdicts := []cell.Verdict{"", cell.Pending, cell.Accepted, cell.Restored, cell.Forked, cell.Discarded}
	for _, from := range verdicts {
		for _, to := range verdicts {
			r := Run{Verdict: from, Reason: "before", By: "pando"}
			_, refused := from.To(to)
			err := r.Decide(to, "after", "user")
			allowed := from == to || refused == nil
			want := Run{Verdict: from, Reason: "before", By: "pando"}
			if allowed {
				want = Run{Verdict: to, Reason: "after", By: "user"}
			}
			if (err == nil) != allowed || r.Verdict != want.Verdict || r.Reason != want.Reason || r.By != want.By {
				t.Errorf("%s→%s: %v, it is %s, %s by %s", from, to, err, r.Verdict, r.Reason, r.By)
			}
		}
	}
}

// What a run's own receipt says takes the place of what the record had instead, if a run can
// have it first.
func TestSealedVerdict(t *testing.T) {
	t.Parallel()
	r := Run{Verdict: cell.Pending, Reason: "the run could not be finished", By: "pando"}
	if err := r.Sealed(cell.Restored, "exit code 1", "pando"); err != nil || r.Verdict != cell.Restored || r.Reason != "exit code 1" {
		t.Errorf("%s, %s: %v", r.Verdict, r.Reason, err)
	}
	if err := r.Sealed(cell.Forked, "", "user"); cell.KindOf(err) != cell.Conflict || r.Verdict != cell.Restored {
		t.Errorf("a run that begins forked: %s, %v", r.Verdict, err)
	}
}

// A change of a cell's state alone is refused like any other, and nothing is written of what
// came with it.
func TestStateChangeGoesByTheTable(t *testing.T) {
	t.Parallel()
	fs := durabletest.New()
	r := open(t, fs)
	if err := r.Commit(&Cell{ID: "c-1", State: cell.Idle}); err != nil {
		t.Fatal(err)
	}
	err := r.Commit(&Cell{ID: "c-2", State: cell.Idle}, StateChange{Cell: "c-1", From: cell.Idle, To: cell.Paused})
	if cell.KindOf(err) != cell.Conflict {
		t.Errorf("idle→paused: %v", err)
	}
	if c, err := r.Cell("c-1"); err != nil || c.State != cell.Idle {
		t.Errorf("%s, %v", c.State, err)
	}
	if _, err := r.Cell("c-2"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("what came with it is recorded: %v", err)
	}
	if err := r.Commit(StateChange{Cell: "c-1", From: cell.Running, To: cell.Paused}); err != nil { // it is not running any more
		t.Fatal(err)
	}
	if c, _ := r.Cell("c-1"); c.State != cell.Idle {
		t.Errorf("it became %s", c.State)
	}
}
