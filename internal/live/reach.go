package live

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A cell is unreached when its keeper did not answer as the daemon began: it is recorded as
// running, its processes may go on, and no instance of it is known. It is looked for again
// with each use, and each second, until its keeper answers or is gone.

// reachable refuses work in a cell that is unreached.
func (m *Manager) reachable(c *state.Cell) error {
	if why := m.whyUnreached(c.ID); why != nil {
		return unreachable(c, why)
	}
	return nil
}

// SameProtocol refuses work in a cell with a keeper that speaks another protocol: no later
// try reaches it.
func (m *Manager) SameProtocol(c *state.Cell) error {
	if err := m.reachable(c); cell.KindOf(err) == cell.Unsupported {
		return err
	}
	return nil
}

// Usable returns a cell that can be worked with.
func (m *Manager) Usable(id cell.ID) (state.Cell, error) {
	c, err := m.cfg.Registry.Cell(id)
	if err != nil {
		return c, err
	}
	switch c.State {
	case cell.Creating, cell.Removed:
		return c, cell.Errorf(cell.Conflict, "live", "", "cell %s is %s", c.Title(), c.State)
	}
	if err := c.ForkedOnly(); err != nil {
		return c, err
	}
	if err := m.SameProtocol(&c); err != nil {
		return c, err
	}
	if c.Head == "" {
		return c, cell.Errorf(cell.Conflict, "live", "remove it: pando rm "+c.Title(), "cell %s has no workspace: %s", c.Title(), cmp.Or(c.Cause, "it was never complete"))
	}
	return c, nil
}

// orEnded is err, of work in an instance. When that was taken away meanwhile, the end of the cell
// is the reason, whatever its keeper met with.
func (m *Manager) orEnded(id cell.ID, inst backend.Instance, err error) error {
	if err == nil || m.Instance(id) == inst {
		return err
	}
	c, why := m.Usable(id)
	if why == nil {
		why = m.notParked(&c)
	}
	if why != nil {
		return why
	}
	return cell.Errorf(cell.Conflict, "live", "try it again", "cannot work in cell %s: it was ended meanwhile: %w", c.Title(), err)
}

// MayWait refuses to wait for a run in an unreached cell.
func (m *Manager) MayWait(id cell.ID) error {
	if !m.Unreached(id) || !m.cfg.Working(id) {
		return nil
	}
	c, err := m.cfg.Registry.Cell(id)
	if err != nil {
		return err
	}
	return m.reachable(&c)
}

// Lock waits for a cell's lock, for a request. It fails at once while the command of a run goes on there, which
// may take hours.
func (m *Manager) Lock(ctx context.Context, id cell.ID, purpose string) (release func(), err error) {
	if err := m.MayWait(id); err != nil {
		return nil, err
	}
	release, err = m.cfg.Locks.AcquireUnlessRun(ctx, id, purpose)
	if by := (state.HeldByRun{}); errors.As(err, &by) {
		c, gone := m.cfg.Registry.Cell(id)
		if gone != nil {
			return nil, gone
		}
		err = cell.Errorf(cell.Conflict, "live.Lock", "wait until it has ended (pando logs -f "+c.Title()+"), or end it: pando stop "+c.Title(), "cannot %s cell %s: %w in it", purpose, c.Title(), err)
	}
	return release, err
}

// Within does something with a cell's lock, for a request. While the command of a run goes on there the run, which
// has the lock, does it, and is named.
func (m *Manager) Within(ctx context.Context, id cell.ID, purpose string, do func(run cell.RunID) error) error {
	for {
		if err := m.MayWait(id); err != nil {
			return err
		}
		release, err := m.cfg.Locks.AcquireUnlessRun(ctx, id, purpose)
		if by := (state.HeldByRun{}); errors.As(err, &by) {
			done, err := m.cfg.WithinRun(ctx, by.Run, func() error { return do(by.Run) })
			if done {
				return err
			}
			continue // its command has ended
		}
		if err != nil {
			return err
		}
		defer release()
		return do("")
	}
}

// InstanceOf returns a cell's instance, nil when it is at rest. It fails when the cell is unreached.
func (m *Manager) InstanceOf(c *state.Cell) (backend.Instance, error) {
	if inst := m.Instance(c.ID); inst != nil {
		return inst, nil
	}
	return nil, m.reachable(c)
}

// RefOf is InstanceOf, and keeps the cell from being put to rest until release is called.
func (m *Manager) RefOf(c *state.Cell) (inst backend.Instance, release func(), err error) {
	if inst, release = m.Ref(c.ID); inst != nil {
		return inst, release, nil
	}
	inst, err = m.InstanceOf(c)
	return inst, release, err
}

// Living returns a cell's instance, nil when it is at rest. When its keeper died it is taken
// away, and c, which is changed and committed, says so. The caller holds the cell's lock.
func (m *Manager) Living(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	inst := m.Instance(c.ID)
	if inst == nil && m.Unreached(c.ID) {
		return m.reach(ctx, c)
	}
	if inst == nil || !backend.Dead(ctx, inst) {
		return inst, nil
	}
	m.RecordEnd(c.ID, state.KeeperLost)
	if err := m.Deactivate(ctx, c.ID, cell.CauseKeeperLost); err != nil {
		return nil, err
	}
	if c.State != cell.Running && c.State != cell.Paused {
		return nil, nil // it is being made, or fails
	}
	if err := c.To(cell.Idle); err != nil {
		return nil, err
	}
	c.Cause = state.KeeperLost
	return nil, m.cfg.Registry.Commit(c)
}

// takeAway is Living for callers that do not hold the cell's lock: the instance is taken away
// if its keeper died.
func (m *Manager) takeAway(ctx context.Context, id cell.ID) error {
	release, err := m.cfg.Locks.Acquire(ctx, id, "clean up", nil)
	if err != nil {
		return err
	}
	defer release()
	c, err := m.cfg.Registry.Cell(id)
	if err != nil {
		return err
	}
	_, err = m.Living(ctx, &c)
	return err
}

// reach looks for the keeper of a cell that had processes, of which the daemon has no
// instance. It returns nil when there is none: c, which is changed and committed unless a
// run is under way, is at rest then. The caller holds the cell's lock.
func (m *Manager) reach(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	b, err := m.cfg.Backend(c.Backend)
	var inst backend.Instance
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, m.cfg.Reach)
		defer cancel()
		if inst, err = b.Attach(ctx, c.ID, c.Family); err == nil {
			if err = m.reached(ctx, c, inst); err != nil && backend.Dead(ctx, inst) {
				err = cell.Errorf(cell.NotFound, "live.Reach", "", "its keeper has ended: %w", err)
			}
			if err != nil {
				inst.Close()
			}
		}
	}
	var why error
	if cell.KindOf(err) != cell.NotFound {
		why = err
	}
	was := m.setUnreached(c.ID, why)
	switch {
	case why != nil:
		return nil, unreachable(c, err)
	case err == nil:
		if was { // what is allowed may have been changed meanwhile
			if err := m.cfg.Gateways.Refresh(ctx, c.ID); err != nil {
				m.cfg.Log.Error("cannot put into force what a cell is allowed now", "cell", c.ID, "error", err)
				return nil, err
			}
		}
		return inst, nil
	case was: // what the keeper left on the host would be in the way of the cell's next one
		if _, lerr := b.Leftovers(ctx, false); lerr != nil {
			m.cfg.Log.Warn("cannot clean up after a dead keeper", "cell", c.ID, "error", lerr)
		}
	}
	if m.cfg.Registry.InRun(c.ID) {
		return nil, nil // the run's end says what became of it
	}
	if err := c.To(cell.Idle); err != nil {
		return nil, err
	}
	c.Cause = state.KeeperLost + ", while no daemon was there"
	m.RecordEnd(c.ID, c.Cause)
	return nil, m.cfg.Registry.Commit(c)
}

func unreachable(c *state.Cell, err error) error {
	if cell.KindOf(err) == cell.Unsupported {
		return cell.Errorf(cell.Unsupported, "live.Reach", cell.HintOf(err), "cannot use cell %s: %w", c.Title(), err)
	}
	return cell.Errorf(cell.Unavailable, "live.Reach", "try again in a moment; if it never answers, end its process pando-keeper: the cell is at rest then",
		"cannot tell what goes on in cell %s: %w", c.Title(), err)
}

// reached makes the instance of a living cell known that an earlier daemon made, with what
// goes on in it. When its keeper does not tell, nothing is known.
func (m *Manager) reached(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	// It may have been frozen for a moment, or about to be.
	still := inst.Thaw
	if c.State == cell.Paused {
		still = inst.Freeze
	}
	if err := still(ctx); err != nil {
		return err
	}
	it, err := m.earlierInterp(ctx, c, inst)
	if err != nil {
		return err
	}
	execs, err := m.earlierExecs(ctx, inst)
	if err != nil {
		return err
	}
	m.putEarlier(c.ID, inst, it, execs)
	m.cfg.TakeUp(ctx, c, inst)
	if it != nil {
		m.FollowDeaths(it.Keeper)
	} else {
		m.watch(c.ID, inst)
	}
	return nil
}

// earlierInterp describes the interpreter of a living cell; nil if it has none any more. It
// fails when the cell's keeper does not answer.
func (m *Manager) earlierInterp(ctx context.Context, c *state.Cell, inst backend.Instance) (*Interp, error) {
	i := m.cfg.Registry.Interp(c.ID)
	if i == nil || i.Ended != "" {
		return nil, nil
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return nil, nil
	}
	st, err := Ask(ctx, inst, w.Warmth)
	if cell.KindOf(err) == cell.NotFound {
		m.RecordEnd(c.ID, "it ended while no daemon was there")
		return nil, nil
	}
	if silent(ctx, err) {
		return nil, err
	}
	if err != nil { // it lives, as far as is known: the next evaluation tells
		m.cfg.Log.Warn("cannot tell how an interpreter is", "cell", c.ID, "error", err)
	}
	return &Interp{Template: cmp.Or(c.Template, i.Template), Keeper: c.Keeper(), Sealed: st.Sealed, Used: time.Now()}, nil
}

// ReachAll looks for the cells that an earlier daemon left running. Keepers that don't
// answer delay the start of the daemon by Config.Reach, all together.
func (m *Manager) ReachAll(ctx context.Context) {
	left := m.cfg.Reach
	for _, c := range m.cfg.Registry.AllCells() {
		if c.State != cell.Running && c.State != cell.Paused {
			continue
		}
		began := time.Now()
		in, cancel := context.WithTimeout(ctx, max(left, m.cfg.Reach/20))
		_, err := m.reach(in, &c)
		cancel()
		if err == nil {
			continue
		}
		left -= time.Since(began)
		m.cfg.Log.Warn("cannot find out what goes on in a cell", "cell", c.ID, "error", err)
		if m.Unreached(c.ID) {
			m.cfg.Work(func(ctx context.Context) { m.keepReaching(ctx, c.ID) })
		}
	}
}

// reachAgain is how often an unreached cell is looked for.
const reachAgain = time.Second

// keepReaching looks for a cell until it is not unreached any more.
func (m *Manager) keepReaching(ctx context.Context, id cell.ID) {
	for m.Unreached(id) {
		select {
		case <-time.After(reachAgain):
		case <-ctx.Done():
			return
		}
		release, err := m.cfg.Locks.Acquire(ctx, id, "look for it", nil)
		if err != nil {
			return
		}
		if c, err := m.cfg.Registry.Cell(id); err == nil {
			m.Living(ctx, &c)
		}
		release()
	}
}

// AwaitReach is Living for the cell of a run that an earlier daemon began. It returns when
// the keeper has answered or is gone, or ctx has ended.
func (m *Manager) AwaitReach(ctx context.Context, c *state.Cell) backend.Instance {
	for {
		inst, err := m.Living(ctx, c)
		if err == nil || ctx.Err() != nil {
			return inst
		}
		select {
		case <-time.After(reachAgain):
		case <-ctx.Done():
			return nil
		}
	}
}
