package engine

import (
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A pause does not hold the cell's lock: what other work made of the cell meanwhile stays,
// also for the next daemon.
func TestPausedTooLate(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.run("a", "true")
	id := b.id("a")
	_, err := b.Remove(t.Context(), id, false)
	b.must(err)
	b.must(b.reg.Commit(state.StateChange{Cell: id, From: cell.Running, To: cell.Paused}))
	for range 2 {
		if c, err := b.reg.Cell(id); err == nil && c.State != cell.Removed {
			t.Errorf("a removed cell is %s", c.State)
		}
		b.reopen()
	}
	b.run("b", "true")
	id = b.id("b")
	was, err := b.reg.Cell(id)
	b.must(err)
	b.must(b.reg.Commit(state.StateChange{Cell: id, From: was.State, To: cell.Running}))
	if c, err := b.reg.Cell(id); err != nil || c.State != cell.Running || c.Head != was.Head {
		t.Errorf("%+v %v", c.State, err)
	}
}

// A run that ends commits the cell as it read it: that a cell was paused or resumed meanwhile
// stays, also for the next daemon.
func TestARunsEndKeepsAPause(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.run("a", "true")
	id := b.id("a")
	commit := func(from, to cell.State) {
		t.Helper()
		b.must(b.reg.Commit(state.StateChange{Cell: id, From: from, To: to}))
	}
	commit(cell.Idle, cell.Running)
	for _, to := range []cell.State{cell.Paused, cell.Running} {
		before, err := b.reg.Cell(id)
		b.must(err)
		commit(before.State, to)
		before.Runs++
		b.must(b.reg.Commit(&before))
		if c, err := b.reg.Cell(id); err != nil || c.State != to || c.Runs != before.Runs {
			t.Errorf("%s after %d runs, %v, and was %s", c.State, c.Runs, err, to)
		}
	}
	commit(cell.Running, cell.Paused)
	c, err := b.reg.Cell(id)
	b.must(err)
	b.must(c.To(cell.Idle))
	b.must(b.reg.Commit(&c))
	if c, err := b.reg.Cell(id); err != nil || c.State != cell.Idle {
		t.Errorf("%s %v", c.State, err)
	}
}

// F28: a paused cell with a run is removed: in some nothing ends while it stands still.
func TestF28PausedCellsAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		r, err := b.StartRun(b.ctx, b.request("w", "sleep 300"))
		b.must(err)
		b.starts(r)
		id := b.id("w")
		_, err = b.Pause(b.ctx, id)
		b.must(err)
		_, err = b.Remove(b.ctx, id, false)
		b.must(err)
		if over, err := b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || over.Phase != string(cell.Ended) {
			t.Errorf("%+v, %v", over, err)
		}
	})
}

// What is left in a paused cell after the end of a command stands still again.
func TestPausedCellsStayPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.run("w", "true")
		id := b.id("w")
		_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "100000"}})
		b.must(err)
		x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "100000"}, Attach: true}) // no client comes
		b.must(err)
		_, err = b.Pause(b.ctx, id)
		b.must(err)
		b.until("it ended", func() bool { return b.ended(x.ID) })
		synctest.Wait()
		list, err := b.alive.Processes(b.ctx, id)
		c, cerr := b.Cell(id)
		if err != nil || cerr != nil || len(list) != 1 || list[0].State != "T" || c.State != string(cell.Paused) {
			t.Errorf("%v %v, cell %s: %v", list, err, c.State, cerr)
		}
	})
}

// A paused cell that is resumed while a checkpoint is made of it is copied at one moment, and goes on.
func TestCheckpointOfACellThatIsResumed(t *testing.T) {
	t.Parallel()
	for _, resumed := range []string{"before it is frozen", "while it is copied"} {
		t.Run(resumed, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.run("w", "true")
				id := b.id("w")
				_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "100000"}})
				b.must(err)
				_, err = b.Pause(b.ctx, id)
				b.must(err)
				resume := func() {
					_, err := b.Engine.Resume(b.ctx, id)
					b.must(err)
				}
				check := func() {
					_, err := b.Checkpoint(b.ctx, id, api.CheckpointRequest{})
					b.must(err)
				}
				times := 0
				if resumed == "while it is copied" { // its processes go on, and the record does not say it yet
					b.toys.goes = func() {
						if times++; times == 1 {
							check()
						}
					}
					resume()
				} else {
					b.toys.stops = func() {
						if times++; times == 1 {
							resume()
						}
					}
					check()
				}
				list, err := b.alive.Processes(b.ctx, id)
				if times != 2 || err != nil || len(list) != 1 || list[0].State != "S" {
					t.Errorf("%d times, %v %v", times, list, err)
				}
			})
		})
	}
}
