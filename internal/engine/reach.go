package engine

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A cell whose keeper did not answer when the daemon began is unreached: it is recorded as
// running, its processes may go on, and no instance of it is known. It is looked for again
// with each use, and each second, until its keeper answers or is gone.

// isUnreached reports whether a cell is.
func (e *Engine) isUnreached(id cell.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unreached[id] != nil
}

// outOfReach refuses work in a cell that is unreached.
func (e *Engine) outOfReach(c *state.Cell) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if why := e.unreached[c.ID]; why != nil {
		return unreachable(c, why)
	}
	return nil
}

// foreign refuses work in a cell whose keeper speaks another protocol: no later try reaches it.
func (e *Engine) foreign(c *state.Cell) error {
	if err := e.outOfReach(c); cell.KindOf(err) == cell.Unsupported {
		return err
	}
	return nil
}

// atRest reports whether a cell has no processes: no instance of it is there, or to be
// reached.
func (e *Engine) atRest(id cell.ID) bool { return e.instance(id) == nil && !e.isUnreached(id) }

// heldUnreached refuses to wait for a run in an unreached cell.
func (e *Engine) heldUnreached(id cell.ID) error {
	if !e.isUnreached(id) || e.runIn(id) == nil {
		return nil
	}
	c, err := e.reg.Cell(id)
	if err != nil {
		return err
	}
	return e.outOfReach(&c)
}

// lock waits for a cell's lock, for a request. It fails at once in an unreached cell
// whose lock a run has.
func (e *Engine) lock(ctx context.Context, id cell.ID, purpose string) (release func(), err error) {
	if err := e.heldUnreached(id); err != nil {
		return nil, err
	}
	return e.locks.Acquire(ctx, id, purpose, nil)
}

// instanceOf returns a cell's instance, nil when it is at rest. It fails when the cell is unreached.
func (e *Engine) instanceOf(c *state.Cell) (backend.Instance, error) {
	if inst := e.instance(c.ID); inst != nil {
		return inst, nil
	}
	return nil, e.outOfReach(c)
}

// holdOf is instanceOf, and keeps the cell from being put to rest until release is called.
func (e *Engine) holdOf(c *state.Cell) (inst backend.Instance, release func(), err error) {
	if inst, release = e.hold(c.ID); inst != nil {
		return inst, release, nil
	}
	inst, err = e.instanceOf(c)
	return inst, release, err
}

// reach looks for the keeper of a cell that had processes, of which the daemon has no
// instance. It returns nil when there is none: c, which is changed and committed unless a
// run is under way, is at rest then. The caller holds the cell's lock.
func (e *Engine) reach(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	b, err := e.backend(c.Backend)
	var inst backend.Instance
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.ReachGrace)
		defer cancel()
		if inst, err = b.Attach(ctx, c.ID, c.Family); err == nil {
			if err = e.reached(ctx, c, inst); err != nil && dead(ctx, inst) {
				err = cell.Errorf(cell.NotFound, "engine.reach", "", "its keeper has ended: %w", err)
			}
			if err != nil {
				inst.Close()
			}
		}
	}
	unreached := err != nil && cell.KindOf(err) != cell.NotFound
	e.mu.Lock()
	was := e.unreached[c.ID] != nil
	if delete(e.unreached, c.ID); unreached {
		e.unreached[c.ID] = err
	}
	e.mu.Unlock()
	switch {
	case unreached:
		return nil, unreachable(c, err)
	case err == nil:
		if was { // what is allowed may have been changed meanwhile
			if err := e.regovern(ctx, c.ID); err != nil {
				e.log.Error("cannot put into force what a cell is allowed now", "cell", c.ID, "error", err)
				return nil, err
			}
		}
		return inst, nil
	case was: // what the keeper left on the host would be in the way of the cell's next one
		if _, lerr := b.Leftovers(ctx, false); lerr != nil {
			e.log.Warn("cannot clean up after a dead keeper", "cell", c.ID, "error", lerr)
		}
	}
	if e.inRun(c.ID) {
		return nil, nil // the run's end says what became of it
	}
	if err := c.To(cell.Idle); err != nil {
		return nil, err
	}
	c.Cause = causeKeeperLost + ", while no daemon was there"
	e.endInterp(c.ID, c.Cause)
	return nil, e.reg.Commit(c)
}

func unreachable(c *state.Cell, err error) error {
	if cell.KindOf(err) == cell.Unsupported {
		return cell.Errorf(cell.Unsupported, "engine.reach", cell.HintOf(err), "cannot use cell %s: %w", c.Title(), err)
	}
	return cell.Errorf(cell.Unavailable, "engine.reach", "try again in a moment; if it never answers, end its process pando-keeper: the cell is at rest then",
		"cannot tell what goes on in cell %s: %w", c.Title(), err)
}

// reached makes the instance of a living cell known that an earlier daemon made, with what
// goes on in it. When its keeper does not tell, nothing is known.
func (e *Engine) reached(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	// It may have been frozen for a moment, or about to be.
	still := inst.Thaw
	if c.State == cell.Paused {
		still = inst.Freeze
	}
	if err := still(ctx); err != nil {
		return err
	}
	it, err := e.earlierInterp(ctx, c, inst)
	if err != nil {
		return err
	}
	execs, err := e.earlierExecs(ctx, inst)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.instances[c.ID] = inst
	if it != nil {
		e.interps[c.ID] = it
		if it.sealed && e.warmParentOf(c) {
			e.poolOf(c.Template, c.ID)
		}
	}
	e.mu.Unlock()
	if it != nil {
		e.followDeaths(c)
	} else {
		e.watch(inst)
	}
	e.followEarlier(inst, execs)
	if c.Talks() {
		e.countRefused(ctx, inst, true)
		e.followAsks(inst)
	}
	return nil
}

// reachAll looks for the cells that an earlier daemon left running. Keepers that don't
// answer delay the start of the daemon by ReachGrace, all together.
func (e *Engine) reachAll(ctx context.Context) {
	left := e.cfg.ReachGrace
	for _, c := range e.reg.AllCells() {
		if c.State != cell.Running && c.State != cell.Paused {
			continue
		}
		began := time.Now()
		in, cancel := context.WithTimeout(ctx, max(left, e.cfg.ReachGrace/20))
		_, err := e.reach(in, &c)
		cancel()
		if err == nil {
			continue
		}
		left -= time.Since(began)
		e.log.Warn("cannot find out what goes on in a cell", "cell", c.ID, "error", err)
		if e.isUnreached(c.ID) {
			e.background(func(ctx context.Context) { e.keepReaching(ctx, c.ID) })
		}
	}
}

// reachAgain is how often an unreached cell is looked for.
const reachAgain = time.Second

// keepReaching looks for a cell until it is not unreached any more.
func (e *Engine) keepReaching(ctx context.Context, id cell.ID) {
	for e.isUnreached(id) {
		select {
		case <-time.After(reachAgain):
		case <-ctx.Done():
			return
		}
		release, err := e.locks.Acquire(ctx, id, "look for it", nil)
		if err != nil {
			return
		}
		if c, err := e.reg.Cell(id); err == nil {
			e.living(ctx, &c)
		}
		release()
	}
}

// reachOfRun is reach for the cell of a run that an earlier daemon began. It returns when
// the keeper has answered or is gone.
func (e *Engine) reachOfRun(ctx context.Context, c *state.Cell) backend.Instance {
	for {
		inst, err := e.living(ctx, c)
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
