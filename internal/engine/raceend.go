package engine

import (
	"context"
	"errors"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// endUndriven ends the record of a race that this daemon does not drive, and its attempts. These are told first: a daemon that
// ends meanwhile leaves the race to the next.
func (e *Engine) endUndriven(id cell.RaceID, why error) error {
	d, err := e.recordUndriven(id, why)
	if d == nil || err != nil {
		return err
	}
	if len(d.list) > 0 && d.list[0].Cell == "" {
		d.removeUnknown(e.life)
	}
	d.clearUp(e.life, nil)
	return nil
}

// recordUndriven interrupts the runs of a race that nothing drives, and records its end; nil when there is none to end.
func (e *Engine) recordUndriven(id cell.RaceID, why error) (*racing, error) {
	e.races.mu.Lock()
	defer e.races.mu.Unlock()
	rec, list, err := e.reg.Race(id)
	if err != nil || rec.State == api.RaceEnded || e.races.m[id] != nil {
		return nil, nil
	}
	e.endRecord(&rec, why)
	objects := []any{&rec}
	for i := range list {
		a := &list[i]
		if a.Over == "" {
			for _, r := range e.reg.Runs(a.Cell) {
				if r.RunID() == a.Run || r.In.Race == id {
					e.runs.Interrupt(r.RunID(), "its race ended")
				}
			}
			a.Over = api.AttemptStopped
		}
		objects = append(objects, a)
	}
	return &racing{e: e, v: e.asRace(&rec), id: id, rec: rec, list: list, changed: make(chan struct{})}, e.reg.Commit(objects...)
}

// endRecord has the record of a race say that it could not be carried out, and why.
func (e *Engine) endRecord(r *state.Race, why error) {
	r.State, r.Ended = api.RaceEnded, time.Now().UTC()
	if errors.Is(why, errInterrupted) {
		r.Cause, r.Why = cell.CauseInterrupted, interruptedWhy
		return
	}
	r.Error, r.Why = e.failure(why), "the race could not be carried out"
}

// asMade reports whether nothing was done in a cell since it was made, and no file was given to it.
func (e *Engine) asMade(c *state.Cell) bool {
	return e.reg.HeadNumber(c) == 1 && c.Runs == 0 && len(e.reg.Runs(c.ID)) == 0 && !e.steps.Any(c.ID)
}

// clearUp removes what a race needs no more: the cell of its source, and cells in which nothing was done. Of an interrupted
// race all ends that runs in the cells of attempts which that stopped. It may be repeated.
func (d *racing) clearUp(ctx context.Context, best *api.RaceAttempt) {
	warn := func(what string, id cell.ID, err error) {
		if err != nil && d.e.life.Err() == nil {
			d.e.log.Warn("cannot clear up after a race", "race", d.id, "cell", id, "what", what, "error", err)
		}
	}
	rec := d.record()
	for i := range d.list {
		a := d.attempt(i)
		c, err := d.e.reg.Cell(a.Cell)
		if err != nil || c.State == cell.Removed {
			continue
		}
		switch {
		case a.Starts == 0:
			if d.e.asMade(&c) {
				_, err := d.e.Remove(ctx, a.Cell, false)
				warn("remove", a.Cell, err)
			}
			continue
		case rec.Cause != "" && (a.Over == "" || a.Over == api.AttemptStopped):
			_, err := d.e.Stop(ctx, a.Cell)
			warn("stop", a.Cell, err)
		}
		if d.req.DiscardLosers && rec.Cause == "" && (best == nil || best.Number != a.Number) {
			if r, err := d.e.reg.Run(a.Run); err == nil && r.Verdict == cell.Pending {
				_, err := d.v.Discard(ctx, result.Target{Run: a.Run}, api.DiscardRequest{})
				warn("discard", a.Cell, err)
			}
		}
	}
	if c, err := d.e.reg.Cell(rec.Base); err == nil && c.State != cell.Removed && d.e.asMade(&c) {
		_, err := d.e.Remove(ctx, rec.Base, false)
		warn("remove", rec.Base, err)
	}
}

// removeUnknown removes the cells of attempts that do not know them yet: these know the race.
func (d *racing) removeUnknown(ctx context.Context) {
	for _, c := range d.e.reg.Cells() {
		if c.Race == d.id && c.State != cell.Removed && c.Serves == nil && d.e.asMade(&c) {
			if _, err := d.e.Remove(ctx, c.ID, false); err != nil {
				d.e.log.Warn("cannot remove the cell of a race", "race", d.id, "cell", c.ID, "error", err)
			}
		}
	}
}

// fail ends a race that could not be carried out.
func (d *racing) fail(ctx context.Context, why error) error {
	rec := d.record()
	if rec.State == api.RacePreparing {
		d.removeUnknown(ctx)
	}
	d.clearUp(ctx, nil)
	for i := range d.list {
		if d.attempt(i).Over == "" {
			if err := d.changeAttempt(i, func(a *state.Attempt) { a.Over = api.AttemptStopped }); err != nil {
				return err
			}
		}
	}
	return d.change(func(r *state.Race) { d.e.endRecord(r, why) })
}
