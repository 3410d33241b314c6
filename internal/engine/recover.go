package engine

import (
	"context"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// recover brings what an earlier daemon left to an end, or on its way again:
// operations that were begun, applies that were interrupted, runs whose
// commands may still live, cells whose keepers may be gone.
func (e *Engine) recover(ctx context.Context) error {
	strays := e.gc.Strays()
	e.results.Recover(ctx)
	if err := workspace.RemoveTree(e.uploadsPath()); err != nil {
		e.log.Warn("cannot remove the uploaded sources of an earlier daemon", "error", err)
	}
	e.openVolumes()
	e.alive.EndUnknown(ctx, e.cfg.Backends)
	for _, rec := range e.reg.OpenOps() {
		if err := e.resume(ctx, rec); err != nil {
			e.log.Warn("cannot finish an operation of an earlier daemon; it is given up", "op", rec.ID, "kind", rec.Kind, "error", err)
		}
	}
	e.alive.ReachAll(ctx)
	e.forgetMemory()
	e.recoverWhole()
	e.endReplaced()
	for _, b := range e.cfg.Backends { // before a run goes on, which may make a cell for its check
		if _, err := b.Leftovers(ctx, false); err != nil {
			e.log.Warn("cannot clean up after dead keepers", "backend", b.Name(), "error", err)
		}
	}
	for _, r := range e.reg.Runs("") {
		if r.Phase != cell.Ended {
			e.runs.Recover(r, cell.Errorf(cell.Interrupted, "engine.recover", "run it again", "the daemon ended before the command was started"))
		}
	}
	for _, c := range e.reg.Cells() {
		if c.State == cell.Creating && !e.reg.InRun(c.ID) {
			// Its run has ended or was never recorded.
			e.removeUnmade(c)
		}
	}
	e.govern.ExpireAsks()
	e.fillPools()
	e.background(func(context.Context) { e.gc.RemoveStrays(strays) })
	return nil
}

// takeUp takes up what goes on in a living cell that an earlier daemon made.
func (e *Engine) takeUp(ctx context.Context, c *state.Cell, inst backend.Instance) {
	if it, _ := e.alive.Interp(c.ID); it.Sealed && e.warmParentOf(c) {
		e.mu.Lock()
		e.poolOf(c.Template, c.ID)
		e.mu.Unlock()
	}
	if c.Talks() {
		e.countRefused(ctx, inst, true)
		e.govern.FollowAsks(inst)
	}
}

// forgetMemory removes the images of captures, and of copies that were begun.
func (e *Engine) forgetMemory() {
	names, _ := filepath.Glob(filepath.Join(e.cfg.Home.Memory(), "*"))
	for _, n := range names {
		if err := os.RemoveAll(n); err != nil {
			e.log.Warn("cannot remove an image of memory", "path", n, "error", err)
		}
	}
}

// warmParentOf reports whether a cell is the present one of its template.
func (e *Engine) warmParentOf(c *state.Cell) bool {
	t, err := e.reg.Template(c.Template)
	return c.Template != "" && err == nil && t.Cell == c.ID
}

// endReplaced removes the cells of templates that were built anew, or removed,
// when the daemon ended before it could.
func (e *Engine) endReplaced() {
	for _, c := range e.reg.AllCells() {
		if c.Template == "" || c.State == cell.Removed || c.State == cell.Creating || e.warmParentOf(&c) {
			continue
		}
		e.background(func(ctx context.Context) {
			if err := e.removeCell(ctx, c.ID); err != nil {
				e.log.Warn("cannot remove the cell of a template that is gone", "template", c.Template, "cell", c.ID, "error", err)
			}
		})
	}
}

// removeUnmade takes away a cell whose making never came to an end.
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
