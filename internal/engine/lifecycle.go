package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Pause freezes all processes of a cell where they are.
func (e *Engine) Pause(ctx context.Context, id cell.ID) (api.Cell, error) {
	return e.shown(id, e.alive.Pause(ctx, id))
}

// Resume lets them go on.
func (e *Engine) Resume(ctx context.Context, id cell.ID) (api.Cell, error) {
	return e.shown(id, e.alive.Resume(ctx, id))
}

// shown is a cell as it is after something was done to it, unless that failed.
func (e *Engine) shown(id cell.ID, err error) (api.Cell, error) {
	if err != nil {
		return api.Cell{}, err
	}
	c, err := e.reg.Cell(id)
	if err != nil {
		return api.Cell{}, err
	}
	return e.cellView(&c), nil
}

// Stop is StopWithin with the usual grace.
func (e *Engine) Stop(ctx context.Context, id cell.ID) (api.Cell, error) {
	return e.StopWithin(ctx, id, api.StopGrace)
}

// StopWithin ends all processes of a cell; its files stay. A run in it ends too and
// is pending: its command is asked to end, and killed after grace. What else runs there is killed
// then. A run that has not started its command does not start, and a cell that was
// being made for it is removed.
func (e *Engine) StopWithin(ctx context.Context, id cell.ID, grace time.Duration) (api.Cell, error) {
	if c, err := e.reg.Cell(id); err == nil {
		if err := e.services.Ask(ctx, &c); err != nil {
			return api.Cell{}, err
		}
	}
	return e.stopWithin(ctx, id, grace)
}

// stopWithin is StopWithin, without asking the program of a service.
func (e *Engine) stopWithin(ctx context.Context, id cell.ID, grace time.Duration) (api.Cell, error) {
	l := e.runs.UnderWay(id)
	if err := e.alive.Rouse(ctx, id); err != nil { // to end by itself, as one that was not idle
		return api.Cell{}, err
	}
	c, err := e.alive.Usable(id)
	if err != nil && (l == nil || c.State != cell.Creating) {
		return api.Cell{}, err
	}
	inst := e.alive.Instance(id)
	if l == nil && e.alive.AtRest(id) {
		return e.cellView(&c), e.services.Stop(ctx, &c)
	}
	stopped := cell.Errorf(cell.Interrupted, "engine.Stop", "", "the cell was stopped")
	if l != nil {
		if err := e.alive.MayWait(id); err != nil {
			return api.Cell{}, err
		}
		if c.State == cell.Paused && inst != nil {
			// It was not to do anything more, so it has next to no time. A kernel of its own must go on
			// to be told.
			grace = time.Millisecond
			if err := inst.Thaw(ctx); err != nil {
				return api.Cell{}, err
			}
		}
		l.Stop(ctx, stopped, grace)
		select {
		case <-l.Done():
		case <-ctx.Done():
			return api.Cell{}, context.Cause(ctx)
		}
		c, err := e.reg.Cell(id)
		if err != nil {
			return api.Cell{}, err
		}
		// A run that waited for this one may have begun: it is not what was to be stopped.
		if inst != nil && e.alive.Instance(id) != inst || e.runs.In(id) != nil || c.State == cell.Removed {
			return e.cellView(&c), nil
		}
	}
	release, err := e.locks.AcquireUnlessRun(ctx, id, "stop")
	if errors.As(err, new(state.HeldByRun)) {
		if l == nil { // it began in the meantime, and is what goes on
			return e.stopWithin(ctx, id, grace)
		}
		if c, err = e.reg.Cell(id); err != nil {
			return api.Cell{}, err
		}
		return e.cellView(&c), nil
	}
	if err != nil {
		return api.Cell{}, err
	}
	defer release()
	if err := e.alive.Deactivate(ctx, id, cell.CauseStopped); err != nil {
		return api.Cell{}, err
	}
	if c, err = e.reg.Cell(id); err != nil {
		return api.Cell{}, err
	}
	if c.State == cell.Running || c.State == cell.Paused {
		if err := c.To(cell.Idle); err != nil {
			return api.Cell{}, err
		}
		if err := e.reg.Commit(&c); err != nil {
			return api.Cell{}, err
		}
	}
	return e.cellView(&c), e.services.Stop(ctx, &c)
}

type removeArgs struct {
	Cell  cell.ID   `json:"cell,omitempty"`
	Cells []cell.ID `json:"cells,omitempty"` // several at once
}

// Remove takes a cell away with its processes, files and checkpoints. The
// records and receipts of its runs stay. What a fork of it needs stays too.
func (e *Engine) Remove(ctx context.Context, id cell.ID, dry bool) (api.Cell, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return api.Cell{}, err
	}
	if err := c.ForkedOnly(); err != nil && c.State != cell.Removed {
		return api.Cell{}, err
	}
	if err := e.unheld(&c); err != nil {
		return api.Cell{}, err
	}
	if dry {
		return e.cellView(&c), nil
	}
	var release func()
	for release == nil { // each run that waits for another may begin
		if l := e.runs.UnderWay(id); l != nil {
			if err := e.alive.MayWait(id); err != nil {
				return api.Cell{}, err
			}
			l.Interrupt(cell.Errorf(cell.Interrupted, "engine.Remove", "", "the cell was removed"))
			select {
			case <-l.Done():
			case <-ctx.Done():
				return api.Cell{}, context.Cause(ctx)
			}
		}
		if release, err = e.locks.AcquireUnlessRun(ctx, id, "remove"); err != nil && !errors.As(err, new(state.HeldByRun)) {
			return api.Cell{}, err
		}
	}
	defer release()
	if c, err = e.reg.Cell(id); err != nil {
		return api.Cell{}, err
	}
	if c.State == cell.Removed {
		return e.cellView(&c), nil
	}
	if err := e.remove(ctx, id); err != nil {
		return api.Cell{}, err
	}
	if now, err := e.reg.Cell(id); err == nil {
		c = now
	} else if err := c.To(cell.Removed); err != nil { // nothing is left to tell of it
		return api.Cell{}, err
	}
	return e.cellView(&c), nil
}

// endOrphan ends what an earlier daemon left alive of a cell.
func (e *Engine) endOrphan(ctx context.Context, c *state.Cell) {
	if b, err := e.backend(c.Backend); err == nil {
		e.alive.EndOrphan(ctx, b, cell.Held{ID: c.ID, Family: c.Family})
	}
}

// resumeRemove goes on with a removal. The cells may live yet.
func (e *Engine) resumeRemove(ctx context.Context, a removeArgs) error {
	for _, id := range append(a.Cells, a.Cell) {
		c, err := e.reg.Cell(id)
		if err != nil {
			continue
		}
		e.endOrphan(ctx, &c)
	}
	if len(a.Cells) > 0 {
		return e.doRemoveAll(ctx, a.Cells)
	}
	return e.doRemove(ctx, a.Cell)
}

// remove takes away a cell that the caller holds the turn of.
func (e *Engine) remove(ctx context.Context, id cell.ID) error {
	return e.operate(ctx, opRemove, removeArgs{Cell: id}, func(ctx context.Context) error { return e.doRemove(ctx, id) })
}

func (e *Engine) doRemove(ctx context.Context, id cell.ID) error {
	c, err := e.reg.Cell(id)
	if cell.KindOf(err) == cell.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.unheld(&c); err != nil {
		return err
	}
	if err := e.alive.Deactivate(ctx, id, cell.CauseRemoved); err != nil {
		return err
	}
	e.holding.RLock()
	defer e.holding.RUnlock()
	if err := e.unheld(&c); err != nil { // a hold that came meanwhile
		return err
	}
	if c.State != cell.Removed {
		if err := c.To(cell.Removed); err != nil {
			return err
		}
		objects := []any{&c}
		for _, k := range e.reg.Checkpoints(id) {
			k.Gone = true
			objects = append(objects, &k)
		}
		runs, err := e.discardWith(ctx, &c)
		if err != nil {
			return err
		}
		if err := e.reg.Commit(append(objects, runs...)...); err != nil {
			return err
		}
	}
	e.gc.DropCell(&c)
	return nil
}

// removeCells is Remove for several cells. One that fails does not keep the others.
func (e *Engine) removeCells(ctx context.Context, cells []state.Cell) error {
	var g errgroup.Group
	g.SetLimit(gc.RemovesAtOnce)
	for _, c := range cells {
		g.Go(func() error {
			_, err := e.Remove(ctx, c.ID, false)
			return err
		})
	}
	return g.Wait()
}

// doRemoveAll removes cells that no run was in yet, with one record for all.
func (e *Engine) doRemoveAll(ctx context.Context, ids []cell.ID) error {
	var workers errgroup.Group
	workers.SetLimit(gc.RemovesAtOnce)
	var objects []any
	var gone []*state.Cell
	for _, id := range ids {
		c, err := e.reg.Cell(id)
		if err != nil || c.State == cell.Removed {
			continue
		}
		if err := e.unheld(&c); err != nil {
			return errors.Join(err, workers.Wait())
		}
		if err := c.To(cell.Removed); err != nil {
			return errors.Join(err, workers.Wait())
		}
		workers.Go(func() error { return e.alive.Deactivate(ctx, id, cell.CauseRemoved) })
		gone = append(gone, &c)
		objects = append(objects, &c)
		for _, k := range e.reg.Checkpoints(id) {
			k.Gone = true
			objects = append(objects, &k)
		}
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	e.holding.RLock()
	defer e.holding.RUnlock()
	for _, c := range gone { // a hold that came meanwhile
		if err := e.unheld(c); err != nil {
			return err
		}
	}
	if err := e.reg.Commit(objects...); err != nil {
		return err
	}
	for _, c := range gone {
		e.gc.DropCell(c)
	}
	return nil
}

// discardWith writes the receipts of the results that can't be accepted any
// more when their cell goes, and returns the runs as they are then.
func (e *Engine) discardWith(ctx context.Context, c *state.Cell) (runs []any, err error) {
	for _, r := range e.reg.Runs(c.ID) {
		if r.Verdict != cell.Pending {
			continue
		}
		if err := r.Decide(cell.Discarded, "its cell was removed", "user"); err != nil {
			return nil, err
		}
		if err := e.evidence.SealRemoved(ctx, &r, c.Name); err != nil {
			return nil, err
		}
		runs = append(runs, &r)
	}
	return runs, nil
}

// Stats is what a cell uses now.
func (e *Engine) Stats(ctx context.Context, id cell.ID) (api.Stats, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return api.Stats{}, err
	}
	s := api.Stats{Cell: string(c.ID), Isolation: api.IsolationOf(c.Backend), Name: c.Title(), State: string(c.State), Measured: []string{}, MemoryMax: c.Limits().Memory}
	if n, err := workspace.DiskUse(e.private(c.ID)); err == nil {
		s.Disk = n
	}
	if c.Gen != nil {
		if p, err := e.providerOf(c.Provider); err == nil {
			if n, err := p.Size(c.Gen.Layer); err == nil {
				s.Disk += n
			}
		}
	}
	inst, err := e.alive.InstanceOf(&c)
	if inst == nil {
		return s, err
	}
	if !slices.ContainsFunc(inst.Assurance().Limits, func(l cell.AppliedLimit) bool { return l.Name == "memory" && l.Applied != "" }) {
		s.MemoryMax = 0
	}
	st, err := inst.Stats(ctx)
	if err != nil {
		return s, err
	}
	s.Processes, s.Memory, s.PeakMemory, s.CPU, s.Written, s.OOMKills = st.Processes, st.Memory, st.PeakMemory, st.CPU, st.Written, st.OOMKills
	s.Measured = append(s.Measured, st.Measured...)
	return s, nil
}
