package gc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// The state has a budget of disk space. At nine tenths of it, answers name what is
// removed next; above it, that is removed, the oldest first, until the state fits. What
// waits for a verdict, what is in use, and what has no expiry is never removed for it.

// budget is how much the state may hold, in bytes.
func (m *Manager) budget() (int64, error) {
	if m.cfg.MaxState > 0 {
		return m.cfg.MaxState, nil
	}
	_, size, err := m.disk()
	if err != nil {
		return 0, cell.Errorf(cell.Unavailable, "gc.budget", "", "cannot find out how large the disk with %s is: %w", m.cfg.Home.State, err)
	}
	return size / 10, nil
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
func (m *Manager) lookAtSpace() {
	if !m.mayBeNear() {
		return
	}
	m.mu.Lock()
	busy := m.looking
	m.looking = true
	m.mu.Unlock()
	if busy {
		return
	}
	m.cfg.Background(func(ctx context.Context) {
		defer func() {
			m.mu.Lock()
			m.looking = false
			m.mu.Unlock()
		}()
		if err := m.fitBudget(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("cannot look at what the state holds", "error", err)
		}
	})
}

// mayBeNear reports whether the state may be near its budget: that costs no walk.
func (m *Manager) mayBeNear() bool {
	budget, err := m.budget()
	free, _, ferr := m.disk()
	if err != nil || ferr != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usage == nil || m.usage.held+m.grown(free) >= nearBudget(budget)
}

// grown is how much the state may have grown since it was measured, in bytes. What the file
// system has less free may all be the state's; what runs have made is, also while other
// programs free space. The caller holds m.mu.
func (m *Manager) grown(free int64) int64 { return max(m.usage.free-free, m.made, 0) }

// fitBudget measures the state, removes what an earlier warning has named if the state is
// over its budget, and says what is next.
func (m *Manager) fitBudget(ctx context.Context) error {
	m.trimming.Lock()
	defer m.trimming.Unlock()
	budget, err := m.budget()
	if err != nil {
		return err
	}
	u, err := m.measureDisk(ctx)
	if err != nil {
		return err
	}
	if u.held > budget { // what nothing needs was promised to no caller
		if _, err := m.collectLayers(false); err != nil {
			return err
		}
		if _, err := m.collectObjects(false); err != nil {
			return err
		}
		if u, err = m.measureDisk(ctx); err != nil {
			return err
		}
	}
	list := oldest(u)
	for u.held > budget {
		i := slices.IndexFunc(list, func(h *holding) bool { return m.wasNamed(h.id) })
		if i < 0 {
			break
		}
		h := list[i]
		list = slices.Delete(list, i, i+1)
		before := u.held
		if err := h.drop(ctx); err != nil {
			m.cfg.Log.Warn("cannot remove what the state holds too much", "kind", h.Kind, "name", h.Name, "error", err)
			continue
		}
		if u, err = m.measureDisk(ctx); err != nil {
			return err
		}
		if slices.ContainsFunc(u.things, func(t *holding) bool { return t.id == h.id }) {
			continue // it was needed again
		}
		m.cfg.Log.Warn("removed to keep the state within its budget", "kind", h.Kind, "name", h.Name, "bytes", before-u.held, "held", u.held, "budget", budget)
		h.Bytes = before - u.held
		m.mu.Lock()
		delete(m.warned, h.id)
		delete(m.warnings, h.id)
		m.removed = append([]api.DiskObject{h.DiskObject}, m.removed...)
		m.removed = m.removed[:min(len(m.removed), keptRemovals)]
		m.mu.Unlock()
	}
	m.announce(budget)
	return nil
}

// worthwhile is how much the removal of a thing must free, in bytes.
const worthwhile = 64 << 10

// oldest lists what may be removed, the longest unused first.
func oldest(u *usage) []*holding {
	list := slices.DeleteFunc(slices.Clone(u.things), func(h *holding) bool { return h.drop == nil || h.Bytes < worthwhile && !h.holds })
	slices.SortStableFunc(list, func(a, b *holding) int { return a.Used.Compare(b.Used) })
	return list
}

// wasNamed reports whether it was told that a thing would be removed.
func (m *Manager) wasNamed(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, logged := m.warnings[id]
	return m.warned[id] || logged && time.Since(at) >= logNotice
}

// announce decides by the newest measurement what is removed next, and writes it into the log
// once. An older one would take back what an answer has named by the newest.
func (m *Manager) announce(budget int64) {
	m.mu.Lock()
	u := m.usage
	next := nextOf(u, budget)
	m.next = next
	fresh := len(next) == 0 && u.held > budget
	was := m.warnings
	m.warnings = map[string]time.Time{}
	warned := map[string]bool{}
	for _, h := range next {
		at, logged := was[h.id]
		if !logged {
			at, fresh = time.Now(), true
		}
		m.warnings[h.id] = at
		warned[h.id] = m.warned[h.id]
	}
	m.warned = warned // what is no longer next is named anew before it goes
	m.mu.Unlock()
	if fresh {
		m.cfg.Log.Warn(spaceWords(u, budget, next))
	}
}

// nextOf is what is removed next of what was measured; none far from the budget.
func nextOf(u *usage, budget int64) (next []*holding) {
	if u.held >= nearBudget(budget) {
		want := max(u.held-budget, 0) + budget/10
		for _, h := range oldest(u) {
			if want <= 0 {
				break
			}
			next = append(next, h)
			want -= h.Bytes
		}
	}
	return next
}

// spaceWords says how full the state is and what is removed next.
func spaceWords(u *usage, budget int64, next []*holding) string {
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

// Warning is what an answer says of the state when it is near its budget: "" when it is not.
// What it names has been told.
func (m *Manager) Warning() string {
	budget, err := m.budget()
	if err != nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil || m.usage.held < nearBudget(budget) {
		return ""
	}
	if m.warned == nil {
		m.warned = map[string]bool{}
	}
	for _, h := range m.next {
		m.warned[h.id] = true
	}
	return spaceWords(m.usage, budget, m.next)
}

// Note is Warning after something was made that has at least so many bytes. What it names
// stays until something else begins.
func (m *Manager) Note(ctx context.Context, made int64) string {
	m.mu.Lock()
	m.made += made
	m.mu.Unlock()
	budget, err := m.budget()
	free, _, ferr := m.disk()
	if err != nil || ferr != nil || !m.mayBeNear() {
		return ""
	}
	m.mu.Lock()
	measured := m.usage != nil
	grown := measured && m.grown(free) >= budget/100
	m.mu.Unlock()
	switch {
	case !measured: // that takes long in a large state
		m.lookAtSpace()
		return ""
	case grown:
		if _, err := m.measureDisk(ctx); err != nil {
			m.cfg.Log.Warn("cannot look at what the state holds", "error", err)
			return ""
		}
		m.announce(budget)
	}
	return m.Warning()
}

// forgetCell removes an anonymous cell that is kept for a while, as its expiry would.
func (m *Manager) forgetCell(ctx context.Context, id cell.ID) error {
	release, err := m.cfg.TryLock(id, "making room")
	if err != nil {
		return err
	}
	defer release()
	c, err := m.cfg.Records.Cell(id)
	if err != nil || !m.expired(&c, c.Expires.Add(1)) {
		return err
	}
	return m.cfg.Remove(ctx, id)
}

// forgetResult removes a checkpoint that is kept for a while, as its expiry would.
func (m *Manager) forgetResult(id cell.ID, at cell.CheckpointID) error {
	release, err := m.cfg.TryLock(id, "making room")
	if err != nil {
		return err
	}
	defer release()
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return err
	}
	k, err := m.cfg.Records.Checkpoint(at)
	if err != nil || k.Gone || k.Expires.IsZero() || m.held(id) || c.Head == at || slices.Contains(c.KnownAt, at) || m.beginsResult(id, at) || m.cfg.Records.IsPart(&c, at) {
		return err
	}
	k.Gone = true
	if err := m.Freeing(func() error { return m.cfg.Records.Commit(&k) }); err != nil {
		return err
	}
	_, err = m.DropStates(&k, false)
	return err
}

// forgetSource drops what is known of a source, with the layers that nothing else names.
func (m *Manager) forgetSource(name string, s workspace.State) error {
	release, err := m.cfg.TryLock(ImportLock(name), "making room")
	if err != nil {
		return err
	}
	defer release()
	m.cfg.Sources.Forget(name)
	_, err = m.DropStates(&state.Checkpoint{State: s}, false)
	return err
}
