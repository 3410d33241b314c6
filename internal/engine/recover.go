package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/live"
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
			e.recoverRun(r, cell.Errorf(cell.Interrupted, "engine.recover", "run it again", "the daemon ended before the command was started"))
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

// recoverRun goes on with a run where its record says it was. One whose
// command was not started ends for cause.
func (e *Engine) recoverRun(r state.Run, cause error) {
	run := &r
	c, err := e.reg.Cell(run.CellID())
	if err != nil {
		c = state.Gone(run.CellID(), run.CellName)
	}
	p := &runPlan{req: api.RunRequest{Command: run.Command, Check: run.In.Check}, source: run.Source, cell: &c, run: run}
	if run.Phase == cell.Preparing {
		e.failedToStart(e.life, p, cause)
		if c.State == cell.Creating {
			e.removeUnmade(c)
		}
		return
	}
	if run.In.Check != "" && (run.In.CheckHidden || len(run.In.EnvNames) > 0) {
		// What it needs was known to the earlier daemon alone.
		run.Notes = append(run.Notes, "the check was not run: the daemon ended meanwhile, and with it what the check needs")
		run.In.Check, run.In.OnSuccess = "", "pending"
	}
	l := &liveRun{id: run.RunID(), attached: make(chan struct{}), started: make(chan struct{}), done: make(chan struct{}), watchers: map[chan api.Progress]bool{}}
	close(l.attached)
	l.ctx, l.stop = context.WithCancelCause(e.life)
	x := &execution{e: e, p: p, l: l, run: run, c: c, began: run.Created}
	if run.In.Before != "" {
		if x.before, err = e.reg.Checkpoint(run.In.Before); err != nil {
			e.failRun(run, &c, err)
			return
		}
	}
	if x.imported, err = e.lastImport(c.ImportKey); err != nil {
		x.imported = nil
	}
	e.mu.Lock()
	e.live[l.id] = l
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		defer e.ended(l)
		release, err := e.locks.Acquire(ctx, c.ID, "run "+run.ID, nil)
		if err != nil {
			return
		}
		defer release()
		l.working.Store(true)
		defer l.working.Store(false)
		e.goOn(ctx, x)
	})
}

// goOn waits for the command of a recovered run, if it lives, and finishes.
func (e *Engine) goOn(ctx context.Context, x *execution) {
	run := x.run
	if run.Phase == cell.Finishing {
		x.finish(ctx, cell.Status{}, nil)
		return
	}
	if inst := e.alive.AwaitReach(ctx, &x.c); inst != nil {
		proc, err := live.Ask(ctx, inst, func(ctx context.Context) (backend.Process, error) { return inst.Process(ctx, run.ID) })
		if err == nil {
			x.inst, x.proc = inst, proc
			x.l.mu.Lock()
			x.l.proc = proc
			x.l.mu.Unlock()
			close(x.l.started)
			status, werr := e.alive.WaitFor(x.l.ctx, inst, proc)
			if errors.Is(werr, live.ErrClosing) {
				return
			}
			if status.Exit != nil && status.Exit.Cause == "" && *status.Exit != (cell.Exit{}) {
				// The command failed while nobody could tell the person: the
				// result waits.
				run.In.OnFailure = "pending"
			}
			x.finish(ctx, status, werr)
			return
		}
	}
	if ctx.Err() != nil {
		return // the next daemon asks again
	}
	status, err := evidence.ExitOf(run)
	x.finish(ctx, status, err)
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
