package run

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Recover goes on with a run where its record says it was. One without a started
// command ends for cause.
func (m *Manager) Recover(r state.Run, cause error) {
	run := &r
	c, err := m.cfg.Records.Cell(run.CellID())
	if err != nil {
		c = state.Gone(run.CellID(), run.CellName)
	}
	j := Job{Run: run, Planned: &c, Cell: c, Began: run.Created, Check: run.In.Check, Workdir: func() string { return c.Source }}
	if run.Phase == cell.Preparing {
		m.failedToStart(m.cfg.Life, j, cause)
		m.notice(run.RunID())
		if c.State == cell.Creating {
			m.cfg.RemoveUnmade(c)
		}
		return
	}
	if run.In.Check != "" && (run.In.CheckHidden || len(run.In.EnvNames) > 0) {
		// What it needs was known to the earlier daemon alone.
		run.Notes = append(run.Notes, "the check was not run: the daemon ended meanwhile, and with it what the check needs")
		run.In.Check, run.In.OnSuccess = "", "pending"
	}
	l := newLive(run.RunID())
	close(l.attached)
	l.ctx, l.stop = context.WithCancelCause(m.cfg.Life)
	x := &execution{m: m, Job: j}
	x.Live = l
	if run.In.Before != "" {
		if x.Before, err = m.cfg.Records.Checkpoint(run.In.Before); err != nil {
			m.failRun(run, &c, err)
			m.notice(run.RunID())
			return
		}
	}
	if x.Imported, err = m.cfg.LastImport(c.ImportKey); err != nil {
		x.Imported = nil
	}
	m.add(l)
	release, err := m.cfg.Locks.TryAcquire(c.ID, "run "+run.ID) // before a client can ask for it
	m.cfg.Background(func(ctx context.Context) {
		defer m.ended(l)
		if err != nil {
			if release, err = m.cfg.Locks.Acquire(ctx, c.ID, "run "+run.ID, nil); err != nil {
				return
			}
		}
		defer release()
		if c, err := m.cfg.Records.Cell(x.Cell.ID); err == nil { // what had the lock may have changed it
			x.Cell = c
		}
		l.working.Store(true)
		defer l.working.Store(false)
		m.goOn(ctx, x)
	})
}

// goOn waits for the command of a recovered run, if it lives, and finishes.
func (m *Manager) goOn(ctx context.Context, x *execution) {
	run := x.Run
	if run.Phase == cell.Finishing {
		x.finish(ctx, cell.Status{}, nil)
		return
	}
	if inst := m.cfg.Commands.AwaitReach(ctx, &x.Cell); inst != nil {
		if proc, err := m.cfg.Command(ctx, inst, run.RunID()); err == nil {
			x.Inst, x.Proc = inst, proc
			x.Live.Started(proc)
			status, werr := x.waitFor(x.Live.ctx)
			if m.leaves(werr) {
				return
			}
			if status.Exit != nil && status.Exit.Cause == "" && *status.Exit != (cell.Exit{}) {
				// The command failed while no client could be told: the result waits.
				run.In.OnFailure = "pending"
			}
			x.finish(ctx, status, werr)
			return
		}
	}
	if ctx.Err() != nil {
		return // the next daemon asks again
	}
	status, err := m.cfg.Files.ExitOf(run)
	x.finish(ctx, status, err)
}
