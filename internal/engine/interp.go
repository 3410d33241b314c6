package engine

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// interp is what is known of an interpreter that lives. What is not here is
// gone, or was never there.
type interp struct {
	template string // that it was forked from, or is the warm parent of
	sealed   bool   // a template's: it is only forked
	whole    bool   // a template's that is an image: nothing of it lives
	used     time.Time
}

// family is a keeper whose interpreters are followed.
type family struct {
	stop context.CancelFunc
}

// causeAtRest is why a cell at rest has no interpreter.
const causeAtRest = "the cell was put to rest"

// warmer is the part of an instance that keeps an interpreter.
func (e *Engine) warmer(inst backend.Instance) (backend.Warmer, error) {
	if w, ok := inst.(backend.Warmer); ok {
		return w, nil
	}
	return nil, cell.Errorf(cell.Unsupported, "engine.warmer", cell.Isolated, "cannot keep an interpreter: this backend has none")
}

// interpreter reports whether an interpreter is known to live in a cell.
func (e *Engine) interpreter(id cell.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.interps[id] != nil
}

// freeKeeper is the family of a cell that comes to life anew, with a keeper of
// its own: a name of its own while the one that it had, with its name, holds
// branches of it.
func (e *Engine) freeKeeper(id cell.ID) cell.ID {
	if e.reg.HoldsOthers(id) {
		return cell.NewID()
	}
	return ""
}

// followDeaths makes sure that the interpreters of a cell's family are watched:
// one look for all of them, whatever their number.
func (e *Engine) followDeaths(c *state.Cell) {
	id := c.Keeper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.families[id] != nil || e.life.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(e.life)
	e.families[id] = &family{stop}
	e.watching.Go(func() {
		defer stop()
		e.deaths(ctx, id)
	})
}

// deaths waits for ends of interpreters in a family, until none is left.
func (e *Engine) deaths(ctx context.Context, id cell.ID) {
	var since int64
	for {
		w := e.anyOf(id)
		if w == nil {
			return
		}
		list, version, err := w.Deaths(ctx, since)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // its cell was removed, or the keeper is gone
			if cell.KindOf(err) != cell.NotFound {
				e.lostFamily(ctx, id)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		}
		for _, d := range list {
			if w, ok := e.instance(d.Cell).(backend.Warmer); ok {
				if _, err := hear(ctx, w, w.Warmth); cell.KindOf(err) != cell.NotFound && !dead(ctx, w) {
					continue // an earlier one ended, which a daemon before this one was told
				}
			}
			e.interpreterEnded(ctx, d.Cell, d.Cause)
		}
		since = version
	}
}

// anyOf returns the instance of some cell of a family that has an interpreter;
// nil, and forgets the family, when there is none.
func (e *Engine) anyOf(id cell.ID) backend.Warmer {
	e.mu.Lock()
	defer e.mu.Unlock()
	for cid := range e.interps {
		inst := e.instances[cid]
		if inst == nil {
			continue
		}
		if c, err := e.reg.Cell(cid); err != nil || c.Keeper() != id {
			continue
		}
		if w, ok := inst.(backend.Warmer); ok {
			return w
		}
	}
	delete(e.families, id)
	return nil
}

// lostFamily looks which cells of a family are gone with their keeper.
func (e *Engine) lostFamily(ctx context.Context, id cell.ID) {
	e.mu.Lock()
	var list []cell.ID
	for cid := range e.interps {
		if c, err := e.reg.Cell(cid); err == nil && c.Keeper() == id {
			list = append(list, cid)
		}
	}
	e.mu.Unlock()
	for _, cid := range list {
		if inst := e.instance(cid); inst != nil && dead(ctx, inst) {
			e.interpreterEnded(ctx, cid, causeKeeperLost)
		}
	}
}

// interpreterEnded records that a cell's interpreter is gone, and why. The cell
// rests, if nothing else runs in it.
func (e *Engine) interpreterEnded(ctx context.Context, id cell.ID, cause string) {
	e.mu.Lock()
	it := e.interps[id]
	delete(e.interps, id)
	e.mu.Unlock()
	if it == nil {
		return
	}
	e.endInterp(id, cause)
	e.background(func(ctx context.Context) {
		for e.cleanUp(ctx, id, it, cause) { // whoever uses it just now is done in a moment, or starts something
			select {
			case <-ctx.Done():
				return
			case <-time.After(cleanUpAgain):
			}
		}
	})
}

// cleanUpAgain is how long it is waited for who uses a cell whose interpreter ended.
const cleanUpAgain = 5 * time.Millisecond

// cleanUp takes down a cell whose interpreter it ended, and in which nothing else
// runs. It reports that the cell is used, and that it is to be looked at again: whoever
// holds an instance may start something in it.
func (e *Engine) cleanUp(ctx context.Context, id cell.ID, it *interp, cause string) (again bool) {
	release, err := e.locks.Acquire(ctx, id, "clean up", nil)
	if err != nil {
		return false
	}
	defer release()
	c, err := e.reg.Cell(id)
	if err != nil || c.State == cell.Removed || e.interpreter(id) {
		return false
	}
	if it.sealed {
		e.drain(e.life, it.template, "its template went cold")
	}
	inst := e.instance(id)
	if inst == nil {
		return false
	}
	if !it.sealed && !nothingRuns(ctx, inst) {
		e.watch(inst)
		return false
	}
	e.mu.Lock()
	if !it.sealed && e.uses[id] > 0 {
		e.mu.Unlock()
		return true
	}
	delete(e.instances, id) // nobody can come any more
	e.mu.Unlock()
	if err := e.takeDown(ctx, inst, cause); err != nil {
		e.log.Warn("cannot take down a cell whose interpreter ended", "cell", id, "error", err)
	}
	if c.State == cell.Running || c.State == cell.Paused {
		if err := c.To(cell.Idle); err != nil {
			e.log.Error("cannot put a cell to rest", "cell", id, "error", err)
		}
		c.Cause = "its interpreter ended: " + cause
		if it.sealed { // it is warmed again when it is used, perhaps days later
			c.Cause = fmt.Sprintf("its interpreter ended at %s: %s", time.Now().Format(time.DateTime), cause)
		}
	}
	if err := e.reg.Commit(&c); err != nil {
		e.log.Error("cannot record a cell", "cell", id, "error", err)
	}
	return false
}

// endInterp writes down why a cell's interpreter is gone, if it has one.
func (e *Engine) endInterp(id cell.ID, cause string) {
	defer e.interping.lock(id)()
	i := e.reg.Interp(id)
	if i == nil || i.Ended != "" {
		return
	}
	i.Ended = cause
	if err := e.reg.Commit(i); err != nil {
		e.log.Error("cannot record the end of an interpreter", "cell", id, "error", err)
	}
}

// cellLocks are locks of cells for moments. Some cells share one: no caller holds those of two.
type cellLocks [64]sync.Mutex

var cellLockSeed = maphash.MakeSeed()

// of is that of a cell.
func (l *cellLocks) of(id cell.ID) *sync.Mutex {
	return &l[maphash.String(cellLockSeed, string(id))%uint64(len(l))]
}

// lock takes that of a cell, until unlock is called.
func (l *cellLocks) lock(id cell.ID) (unlock func()) {
	m := l.of(id)
	m.Lock()
	return m.Unlock
}
