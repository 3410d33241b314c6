package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// The state has a budget of disk space. At nine tenths of it, answers name what is
// removed next; above it, that is removed, the oldest first, until the state fits. What
// waits for a verdict, what is in use, and what has no expiry is never removed for it.

// stateBudget is how much the state may hold, in bytes.
func (e *Engine) stateBudget() (int64, error) {
	if e.cfg.MaxState > 0 {
		return e.cfg.MaxState, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(e.cfg.Home.State, &st); err != nil {
		return 0, cell.Errorf(cell.Unavailable, "engine.stateBudget", "", "cannot find out how large the disk with %s is: %w", e.cfg.Home.State, err)
	}
	return int64(st.Blocks) * st.Bsize / 10, nil
}

// logNotice is how long before it is removed the log alone must have named a thing, when
// no answer has.
const logNotice = time.Hour

// keptRemovals is how many of the latest removals are told.
const keptRemovals = 20

// nearBudget is from where on what is removed next is named.
func nearBudget(budget int64) int64 { return budget / 10 * 9 }

// lookAtSpace measures the state in the background when it may have come near its
// budget, and makes it fit.
func (e *Engine) lookAtSpace() {
	if !e.mayBeNear() {
		return
	}
	e.mu.Lock()
	busy := e.looking
	e.looking = true
	e.mu.Unlock()
	if busy {
		return
	}
	e.background(func(ctx context.Context) {
		defer func() {
			e.mu.Lock()
			e.looking = false
			e.mu.Unlock()
		}()
		if err := e.fitBudget(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("cannot look at what the state holds", "error", err)
		}
	})
}

// mayBeNear reports whether the state may be near its budget: that costs no walk. What
// the file system has less free than at the last measurement may all be the state's.
func (e *Engine) mayBeNear() bool {
	budget, err := e.stateBudget()
	free, _, ferr := e.free()
	if err != nil || ferr != nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.usage == nil || e.usage.held+max(e.usage.free-free, 0) >= nearBudget(budget)
}

// fitBudget measures the state, removes what an earlier warning has named if the state is
// over its budget, and says what is next.
func (e *Engine) fitBudget(ctx context.Context) error {
	e.trimming.Lock()
	defer e.trimming.Unlock()
	budget, err := e.stateBudget()
	if err != nil {
		return err
	}
	u, err := e.measureDisk(ctx)
	if err != nil {
		return err
	}
	if u.held > budget { // what nothing needs was promised to nobody
		if _, err := e.collectLayers(false, nil); err != nil {
			return err
		}
		if _, err := e.collectObjects(); err != nil {
			return err
		}
		if u, err = e.measureDisk(ctx); err != nil {
			return err
		}
	}
	list := oldest(u)
	for u.held > budget {
		i := slices.IndexFunc(list, func(h *holding) bool { return e.wasNamed(h.id) })
		if i < 0 {
			break
		}
		h := list[i]
		list = slices.Delete(list, i, i+1)
		before := u.held
		if err := h.drop(ctx); err != nil {
			e.log.Warn("cannot remove what the state holds too much", "kind", h.Kind, "name", h.Name, "error", err)
			continue
		}
		if u, err = e.measureDisk(ctx); err != nil {
			return err
		}
		if slices.ContainsFunc(u.things, func(t *holding) bool { return t.id == h.id }) {
			continue // it was needed again
		}
		e.log.Warn("removed to keep the state within its budget", "kind", h.Kind, "name", h.Name, "bytes", before-u.held, "held", u.held, "budget", budget)
		h.Bytes = before - u.held
		e.mu.Lock()
		delete(e.warned, h.id)
		delete(e.warnings, h.id)
		e.removedForSpace = append([]api.DiskObject{h.DiskObject}, e.removedForSpace...)
		e.removedForSpace = e.removedForSpace[:min(len(e.removedForSpace), keptRemovals)]
		e.mu.Unlock()
	}
	e.announce(u, oldest(u), budget)
	return nil
}

// worthwhile is how much the removal of a thing must free, in bytes.
const worthwhile = 64 << 10

// oldest lists what may be removed, the longest unused first.
func oldest(u *usage) []*holding {
	list := slices.DeleteFunc(slices.Clone(u.things), func(h *holding) bool { return h.drop == nil || h.Bytes < worthwhile })
	slices.SortStableFunc(list, func(a, b *holding) int { return a.Used.Compare(b.Used) })
	return list
}

// wasNamed reports whether it was told that a thing would be removed.
func (e *Engine) wasNamed(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, logged := e.warnings[id]
	return e.warned[id] || logged && time.Since(at) >= logNotice
}

// announce decides what is removed next, and writes it into the log once.
func (e *Engine) announce(u *usage, list []*holding, budget int64) {
	var next []*holding
	if u.held >= nearBudget(budget) {
		want := max(u.held-budget, 0) + budget/10
		for _, h := range list {
			if want <= 0 {
				break
			}
			next = append(next, h)
			want -= h.Bytes
		}
	}
	e.mu.Lock()
	e.next = next
	fresh := len(next) == 0 && u.held > budget
	was := e.warnings
	e.warnings = map[string]time.Time{}
	warned := map[string]bool{}
	for _, h := range next {
		at, logged := was[h.id]
		if !logged {
			at, fresh = time.Now(), true
		}
		e.warnings[h.id] = at
		warned[h.id] = e.warned[h.id]
	}
	e.warned = warned // what is no longer next is named anew before it goes
	e.mu.Unlock()
	if fresh {
		e.log.Warn(e.spaceWords(u, budget, next))
	}
}

// spaceWords says how full the state is and what is removed next.
func (e *Engine) spaceWords(u *usage, budget int64, next []*holding) string {
	text := fmt.Sprintf("the state holds %s of %s", policy.FormatSize(u.held), policy.FormatSize(budget))
	if len(next) == 0 {
		return text + "; nothing of it is removed without being asked for: pando df -v shows what holds how much, and how to free it"
	}
	const shown = 3
	var names []string
	for _, h := range next[:min(len(next), shown)] {
		names = append(names, fmt.Sprintf("%s %s (%s)", h.Kind, h.Name, policy.FormatSize(h.Bytes)))
	}
	if n := len(next) - shown; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return text + "; removed next if it grows: " + strings.Join(names, ", ") + " (pando df)"
}

// spaceWarning is what an answer says of the state when it is near its budget: "" when it
// is not. What it names has been told.
func (e *Engine) spaceWarning() string {
	budget, err := e.stateBudget()
	if err != nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.usage == nil || e.usage.held < nearBudget(budget) {
		return ""
	}
	if e.warned == nil {
		e.warned = map[string]bool{}
	}
	for _, h := range e.next {
		e.warned[h.id] = true
	}
	return e.spaceWords(e.usage, budget, e.next)
}

// SpaceWarning says that the state is near its budget, and what is removed next; "" when
// it is not, or the caller doesn't see the whole installation.
func (v *View) SpaceWarning() string {
	if v.restricted() {
		return ""
	}
	return v.e.spaceWarning()
}

// noteSpace adds to a run what its caller has to know of the space that the state has
// left, now that its result is kept. What it names stays until something else begins.
func (x *execution) noteSpace(ctx context.Context) {
	e := x.e
	budget, err := e.stateBudget()
	free, _, ferr := e.free()
	if err != nil || ferr != nil || x.p != nil && x.p.made.restricted() || !e.mayBeNear() {
		return
	}
	e.mu.Lock()
	known, was := e.usage != nil, int64(0)
	if known {
		was = e.usage.free
	}
	e.mu.Unlock()
	switch {
	case !known: // that takes long in a large state
		e.lookAtSpace()
		return
	case was-free >= budget/100:
		u, err := e.measureDisk(ctx)
		if err != nil {
			e.log.Warn("cannot look at what the state holds", "error", err)
			return
		}
		e.announce(u, oldest(u), budget)
	}
	if w := e.spaceWarning(); w != "" {
		x.run.Notes = append(x.run.Notes, w)
	}
}

// forgetCell removes an anonymous cell that is kept for a while, as its expiry would.
func (e *Engine) forgetCell(ctx context.Context, id cell.ID) error {
	release, err := e.locks.TryAcquire(id, "making room")
	if err != nil {
		return err
	}
	defer release()
	c, err := e.reg.Cell(id)
	if err != nil || !e.expired(&c, c.Expires.Add(1)) {
		return err
	}
	return e.operate(ctx, opRemove, removeArgs{Cell: id}, func(ctx context.Context) error { return e.doRemove(ctx, id) })
}

// forgetResult removes a checkpoint that is kept for a while, as its expiry would.
func (e *Engine) forgetResult(ctx context.Context, id cell.ID, at cell.CheckpointID) error {
	release, err := e.locks.TryAcquire(id, "making room")
	if err != nil {
		return err
	}
	defer release()
	c, err := e.reg.Cell(id)
	if err != nil {
		return err
	}
	k, err := e.reg.Checkpoint(at)
	if err != nil || k.Gone || k.Expires.IsZero() || c.Head == at || slices.Contains(c.KnownAt, at) {
		return err
	}
	k.Gone = true
	if err := e.freeing(func() error { return e.reg.Commit(&k) }); err != nil {
		return err
	}
	_, err = e.dropStates(&k, false)
	return err
}

// forgetSource drops what is known of a source, with the layers that nothing else names.
func (e *Engine) forgetSource(ctx context.Context, name string, s workspace.State) error {
	release, err := e.locks.TryAcquire(cell.ID("source "+name), "making room")
	if err != nil {
		return err
	}
	defer release()
	e.dropSource(name)
	_, err = e.dropStates(&state.Checkpoint{State: s}, false)
	return err
}
