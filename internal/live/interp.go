package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// FreeKeeper is the family of a cell that comes to life anew, with a keeper of
// its own: a name of its own while the one that it had, with its name, holds
// branches of it.
func (m *Manager) FreeKeeper(id cell.ID) cell.ID {
	if m.cfg.Registry.HoldsOthers(id) {
		return cell.NewID()
	}
	return ""
}

// FollowDeaths makes sure that the interpreters of a family are watched: one look for all of
// them, whatever their number. At least one is in the table.
func (m *Manager) FollowDeaths(keeper cell.ID) {
	if m.cfg.Life.Err() == nil && m.follow(keeper) {
		m.cfg.Follow(func(ctx context.Context) { m.deaths(ctx, keeper) })
	}
}

// deaths waits for ends of interpreters in a family, until none is left.
func (m *Manager) deaths(ctx context.Context, keeper cell.ID) {
	var since int64
	for {
		w := m.anyOf(keeper)
		if w == nil {
			return
		}
		list, version, err := w.Deaths(ctx, since)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // its cell was removed, or the keeper is gone
			if cell.KindOf(err) != cell.NotFound {
				m.endLost(ctx, keeper)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		}
		for _, d := range list {
			if w, ok := m.Instance(d.Cell).(backend.Warmer); ok {
				if _, err := Ask(ctx, w, w.Warmth); cell.KindOf(err) != cell.NotFound && !backend.Dead(ctx, w) {
					continue // an earlier one ended, which a daemon before this one was told
				}
			}
			m.InterpEnded(d.Cell, d.Cause)
		}
		since = version
	}
}

// endLost looks which cells of a family are gone with their keeper.
func (m *Manager) endLost(ctx context.Context, keeper cell.ID) {
	for _, id := range m.interpsOf(keeper) {
		if inst := m.Instance(id); inst != nil && backend.Dead(ctx, inst) {
			m.InterpEnded(id, state.KeeperLost)
		}
	}
}

// InterpEnded records that a cell's interpreter is gone, and why. The cell
// rests, if nothing else runs in it.
func (m *Manager) InterpEnded(id cell.ID, cause string) {
	it, lived := m.takeInterp(id)
	if !lived {
		return
	}
	m.RecordEnd(id, cause)
	m.cfg.Work(func(ctx context.Context) {
		for m.restAfter(ctx, id, it, cause) { // what uses it now ends in a moment, or starts something
			select {
			case <-ctx.Done():
				return
			case <-time.After(restRetry):
			}
		}
	})
}

// restRetry is the poll interval while a cell is still in use after the end of its interpreter.
const restRetry = 5 * time.Millisecond

// restAfter takes a cell down in which nothing runs after the end of its interpreter, which it
// was. It reports that something refers to the instance, and may start something in it: the
// cell is to be looked at again.
func (m *Manager) restAfter(ctx context.Context, id cell.ID, it Interp, cause string) (again bool) {
	release, err := m.cfg.Locks.Acquire(ctx, id, "clean up", nil)
	if err != nil {
		return false
	}
	defer release()
	c, err := m.cfg.Registry.Cell(id)
	if err != nil || c.State == cell.Removed || m.HasInterp(id) {
		return false
	}
	if it.Sealed {
		m.cfg.Drain(m.cfg.Life, it.Template, "its template went cold")
	}
	inst := m.Instance(id)
	switch {
	case inst == nil:
		return false
	case it.Sealed:
		m.Take(id)
	case !backend.NothingRuns(ctx, inst):
		m.watch(id, inst)
		return false
	case !m.takeUnused(id):
		return true
	}
	if err := m.takeDown(ctx, inst, cause); err != nil {
		m.cfg.Log.Warn("cannot take down a cell after the end of its interpreter", "cell", id, "error", err)
	}
	if c.State == cell.Running || c.State == cell.Paused {
		if err := c.To(cell.Idle); err != nil {
			m.cfg.Log.Error("cannot put a cell to rest", "cell", id, "error", err)
		}
		c.Cause = "its interpreter ended: " + cause
		if it.Sealed { // it is warmed again when it is used, perhaps days later
			c.Cause = fmt.Sprintf("its interpreter ended at %s: %s", time.Now().Format(time.DateTime), cause)
		}
	}
	if err := m.cfg.Registry.Commit(&c); err != nil {
		m.cfg.Log.Error("cannot record a cell", "cell", id, "error", err)
	}
	return false
}

// RecordEnd records why a cell's interpreter is gone, if it has one.
func (m *Manager) RecordEnd(id cell.ID, cause string) {
	defer m.recording.lock(id)()
	i := m.cfg.Registry.Interp(id)
	if i == nil || i.Ended != "" {
		return
	}
	i.Ended = cause
	if err := m.cfg.Registry.Commit(i); err != nil {
		m.cfg.Log.Error("cannot record the end of an interpreter", "cell", id, "error", err)
	}
}

// recordInterp records an interpreter that was found living.
func (m *Manager) recordInterp(c *state.Cell, st cell.Warmth) error {
	defer m.recording.lock(c.ID)()
	i := m.cfg.Registry.Interp(c.ID)
	if i == nil || i.Ended != "" || !i.Started.Equal(st.Started) {
		former := ""
		if i != nil {
			former = cmp.Or(i.Template, i.Former)
		}
		i = &state.Interp{Cell: c.ID, Kind: st.Kind, Version: st.Version, Started: st.Started, Depth: st.Depth, Former: former}
		if err := m.cfg.Registry.Commit(i); err != nil {
			return err
		}
	}
	m.PutInterp(c.ID, Interp{Template: i.Template, Keeper: c.Keeper(), Used: time.Now()})
	m.FollowDeaths(c.Keeper())
	return nil
}

// dismiss ends the interpreter of a cell, if one lives, for a new one. What runs
// beside it goes on, but in a cell that was forked or branched: there the
// interpreter is the first process, and all others end with it. The cell rests
// then; its files stay.
func (m *Manager) dismiss(ctx context.Context, c *state.Cell) (notes []string, err error) {
	const cause = "a new one was asked for"
	refuse := func(hint string, why error) error {
		return cell.Errorf(cell.Conflict, "live.Dismiss", hint, "cannot begin with a new interpreter in %s: %w", c.Title(), why)
	}
	inst, release := m.Ref(c.ID)
	defer release()
	if inst == nil || backend.Dead(ctx, inst) {
		return nil, nil
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return nil, err
	}
	st, err := w.Warmth(ctx)
	if cell.KindOf(err) == cell.NotFound || cell.KindOf(err) == cell.Unavailable && deadSoon(ctx, inst) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if c.State == cell.Paused {
		return nil, refuse("run `pando resume "+c.Title()+"` first", errors.New("the cell is paused"))
	}
	if st.IsCell {
		if m.cfg.Working(c.ID) {
			return nil, refuse("wait for it, or end all that runs in the cell: pando stop "+c.Title(), errors.New("a run is under way in it, which would end with the old one"))
		}
		unlock, err := m.cfg.Locks.Acquire(ctx, c.ID, "begin anew", nil)
		if err != nil {
			return nil, err
		}
		defer unlock()
		notes = endedWith(ctx, inst, st.PID)
	}
	was := m.cfg.Registry.Interp(c.ID)
	m.RecordEnd(c.ID, cause) // before it has ended: a daemon that comes next must not take a new one for it
	if err := w.Dismiss(ctx); err != nil && cell.KindOf(err) != cell.NotFound {
		if was != nil {
			unlock := m.recording.lock(c.ID)
			err = errors.Join(err, m.cfg.Registry.Commit(was))
			unlock()
		}
		if cell.KindOf(err) == cell.Conflict {
			return nil, refuse(cell.HintOf(err)+", or end all that runs in the cell: pando stop "+c.Title(), err)
		}
		return nil, err
	}
	m.takeInterp(c.ID)
	if !st.IsCell {
		return nil, nil
	}
	if err := m.Deactivate(ctx, c.ID, cause); err != nil {
		return nil, err
	}
	now, err := m.cfg.Registry.Cell(c.ID)
	if err != nil {
		return nil, err
	}
	if now.State == cell.Running {
		if err := now.To(cell.Idle); err != nil {
			return notes, err
		}
	}
	return notes, m.cfg.Registry.Commit(&now)
}

// endedWith says which commands are in a cell beside its interpreter.
func endedWith(ctx context.Context, inst backend.Instance, pid int) []string {
	list, err := inst.List(ctx)
	var names []string
	for _, p := range list {
		if p.PID != pid {
			names = append(names, p.Command)
		}
	}
	if err != nil || len(names) == 0 {
		return nil
	}
	const shown = 5
	if n := len(names) - shown; n > 0 {
		names = append(names[:shown], "and "+strconv.Itoa(n)+" more")
	}
	return []string{"what ran in the cell ended with its old interpreter: " + strings.Join(names, ", ")}
}
