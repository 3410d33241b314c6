package engine

import (
	"context"
	"maps"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// At returns a copy of the View for callers that come by a door.
func (v *View) At(door string) *View {
	own := *v
	own.door = door
	return &own
}

// doorOf is by which door a caller came.
func doorOf(p access.Principal) string {
	switch {
	case p.Door != "":
		return p.Door
	case p.Here && p.Token == "":
		return ceiling.Local
	}
	return ceiling.REST
}

// For is the engine for a request for cells with labels: what holds for those labels holds
// for it.
func (v *View) For(labels map[string]string) *View {
	own := *v
	own.asked = labels
	return &own
}

// caller is the caller of a ceiling, for cells that also carry labels.
func (v *View) caller(labels map[string]string) ceiling.Caller {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, v.asked)
	maps.Copy(all, v.required())
	return ceiling.Caller{Door: v.door, Token: v.token, TokenName: v.tokenName, Labels: all}
}

// ceilings are what holds for the caller; nothing for nil.
func (v *View) ceilings(labels map[string]string) ceiling.Bounds {
	if v == nil {
		return ceiling.Bounds{}
	}
	return v.e.govern.Bounds(v.caller(labels))
}

// endKept removes a paused cell that was kept for as long as it may. One with a result that
// waits for a verdict is asked about again after a day.
func (e *Engine) endKept(l state.Lease) {
	again := 30 * time.Second
	var err error
	if e.reg.HasOpenRun(l.Cell) {
		again, err = 24*time.Hour, cell.Errorf(cell.Conflict, "engine.endKept", "", "a result in it waits for a verdict")
	} else {
		_, err = e.Remove(e.life, l.Cell, false)
	}
	d, by := e.govern.Keep(&l)
	switch {
	case err == nil:
		e.log.Info("removed a cell that was paused for longer than it is kept", "cell", l.Cell, "paused", l.ParkedAt, "kept", d, "by", by)
	case e.life.Err() == nil:
		e.log.Warn("cannot remove a cell that was paused for longer than it is kept", "cell", l.Cell, "error", err)
		e.alive.ChangeLease(l.Cell, func(l *state.Lease) error {
			if !l.ParkedAt.IsZero() {
				l.ParkedAt = time.Now().UTC().Add(again - d)
			}
			return nil
		})
	}
}

// goingOn claims room among the cells there are at once for a paused one. done gives it back,
// when the cell itself is counted again, or is not to be.
func (v *View) goingOn(ctx context.Context, id cell.ID) (done func(), err error) {
	labels, uncounted := v.e.reg.Uncounted(id)
	if !uncounted {
		return func() {}, nil
	}
	_, done, err = v.e.govern.Admit(ctx, state.ClaimRequest{Caller: v.caller(labels), N: 1, Counts: v.ceilings(labels).Counts})
	return done, err
}

// goesOn does what ends the pause of a cell, if it is paused: that claims room as going on
// with it does.
func goesOn[T any](ctx context.Context, v *View, id cell.ID, do func() (T, error)) (out T, err error) {
	done, err := v.goingOn(ctx, id)
	if err != nil {
		return out, err
	}
	defer done()
	return do()
}

// Drain: see govern.Manager.
func (v *View) Drain(on bool) { v.e.govern.Drain(on) }

// Ceilings: see govern.Manager. A caller that is restricted to labels is told what holds for them.
func (v *View) Ceilings() (list []api.Ceiling, waiting int) {
	return v.e.govern.Ceilings(v.caller(nil), !v.restricted())
}

// SetCeilings puts other ceilings in force: for what is made from now on, and for how many
// cells there are at once.
func (e *Engine) SetCeilings(s *ceiling.Set) {
	e.govern.SetCeilings(s)
	e.reg.Recount()
}
