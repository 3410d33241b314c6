package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// recover brings what an earlier daemon left to an end, or on its way again:
// operations that were begun, applies that were interrupted, runs
// with commands that may still live, cells with keepers that may be gone.
func (e *Engine) recover(ctx context.Context) error {
	strays := e.gc.Strays()
	e.results.Recover(ctx)
	if err := workspace.RemoveTree(e.cfg.Home.Uploads()); err != nil {
		e.log.Warn("cannot remove the uploaded sources of an earlier daemon", "error", err)
	}
	e.openVolumes()
	e.alive.EndUnknown(ctx, e.cfg.Backends)
	for _, owed := range []bool{false, true} { // applies that are owed, after accepts that were begun: of the same run, perhaps
		for _, rec := range e.reg.OpenOps() {
			if (rec.Kind == run.OpApply) != owed {
				continue
			}
			if err := e.resume(ctx, rec); err != nil {
				e.log.Warn("cannot finish an operation of an earlier daemon; it is given up", "op", rec.ID, "kind", rec.Kind, "error", err)
			}
		}
	}
	e.alive.ReachAll(ctx)
	e.spawn.Recover()
	for _, b := range e.cfg.Backends { // before a run goes on, which may make a cell for its check
		if _, err := b.Leftovers(ctx, false); err != nil {
			e.log.Warn("cannot clean up after dead keepers", "backend", b.Name(), "error", err)
		}
	}
	for _, r := range e.reg.Runs("") {
		if r.Phase != cell.Ended {
			e.runs.Recover(r, cell.Errorf(cell.Interrupted, "engine.recover", "run it again", "the daemon ended before the command was started").About(cell.Daemon))
		}
	}
	for _, c := range e.reg.Cells() {
		e.services.Follow(&c)
		e.serveAgain(&c)
		e.followServed(&c)
		if c.State == cell.Creating && !e.reg.InRun(c.ID) {
			// Its run has ended or was never recorded.
			e.removeUnmade(c)
		}
		if c.Builds && c.State != cell.Creating && c.State != cell.Removed { // what wanted the image was ended with the daemon
			e.background(func(ctx context.Context) {
				if _, err := e.Remove(ctx, c.ID, false); err != nil {
					e.log.Warn("cannot remove the cell of a build that was given up", "cell", c.ID, "error", err)
				}
			})
		}
	}
	e.govern.ExpireAsks()
	if err := e.evidence.FinishErasing(); err != nil {
		e.log.Warn("cannot finish an erasure of an earlier daemon", "error", err)
	}
	e.recoverRaces()
	e.spawn.FillPools()
	e.background(func(context.Context) { e.gc.RemoveStrays(strays) })
	return nil
}

// takeUp takes up what goes on in a living cell that an earlier daemon made.
func (e *Engine) takeUp(ctx context.Context, c *state.Cell, inst backend.Instance) {
	e.spawn.TakeUp(c)
	if c.Talks() {
		e.countRefused(ctx, inst, true)
		e.govern.FollowAsks(inst)
	}
}

// removeUnmade takes away a cell that was never made to the end.
func (e *Engine) removeUnmade(c state.Cell) {
	err := c.To(cell.Removed)
	if err == nil {
		err = e.gc.Freeing(func() error { return e.reg.Commit(&c) })
	}
	if err != nil {
		e.log.Error("cannot record a cell", "cell", c.ID, "error", err)
		return
	}
	e.gc.DropCell(&c)
}
