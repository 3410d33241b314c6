package gc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// KeepUnused is how long the base of a source, or an image that no cell needs, stays after it
// was last used.
const KeepUnused = 30 * 24 * time.Hour

// KeepSteps is how many of the checkpoints that steps of a cell began with stay, at most.
const KeepSteps = 64

// RemovesAtOnce is how many cells are removed at a time. What they write down comes to the
// disk together.
const RemovesAtOnce = 16

// Collect removes what nothing needs any more: cells and checkpoints that have expired,
// layers and objects that no record names, sources and images that were not used for long,
// leftovers of keepers that died. With dry it only says what that is.
func (m *Manager) Collect(ctx context.Context, dry bool) (api.GCResult, error) {
	if dry {
		return m.collect(ctx, dry)
	}
	all := api.GCResult{Items: []api.GCItem{}}
	err := m.Freeing(func() error {
		res, err := m.collect(ctx, dry)
		all.Items, all.Bytes = append(all.Items, res.Items...), all.Bytes+res.Bytes
		return err
	})
	return all, err
}

// collect is Collect once.
func (m *Manager) collect(ctx context.Context, dry bool) (api.GCResult, error) {
	res := api.GCResult{DryRun: dry, Items: []api.GCItem{}}
	now := time.Now()
	for _, part := range []func() ([]api.GCItem, error){
		func() ([]api.GCItem, error) { return m.expireCells(ctx, dry, now) },
		func() ([]api.GCItem, error) { return m.expireCheckpoints(ctx, dry, now) },
		func() ([]api.GCItem, error) { return m.expireServices(ctx, dry, now) },
		func() ([]api.GCItem, error) { return m.cfg.ExpireEvidence(ctx, dry, now) },
		func() ([]api.GCItem, error) { return m.expireSources(dry, now) },
		func() ([]api.GCItem, error) { return m.expireImages(dry, now) },
		func() ([]api.GCItem, error) { return m.expireCaches(dry, now) },
		func() ([]api.GCItem, error) { return m.pruneEtc(dry) },
		func() ([]api.GCItem, error) { return m.collectLayers(dry) },
		func() ([]api.GCItem, error) { return m.collectObjects(dry) },
		func() ([]api.GCItem, error) { return m.collectRecords(dry, now) },
		func() ([]api.GCItem, error) { return m.leftovers(ctx, dry) },
	} {
		items, err := part()
		for _, i := range items {
			res.Items = append(res.Items, i)
			res.Bytes += i.Bytes
		}
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// expireCells removes the cells that are kept no longer, several at once.
func (m *Manager) expireCells(ctx context.Context, dry bool, now time.Time) (items []api.GCItem, err error) {
	cells := slices.DeleteFunc(m.cfg.Records.Cells(), func(c state.Cell) bool { return !m.over(&c, now) })
	why, used := make([]string, len(cells)), make([]bool, len(cells)) // used: it is worked in again
	for i := range cells {
		why[i] = m.whyOver(&cells[i], now)
	}
	if !dry {
		var workers errgroup.Group
		workers.SetLimit(RemovesAtOnce)
		for i, c := range cells {
			workers.Go(func() error {
				gone, err := m.removeOver(ctx, c.ID, now)
				used[i] = !gone
				return err
			})
		}
		if err := workers.Wait(); err != nil {
			return nil, err
		}
	}
	for i := range cells {
		if !used[i] {
			items = append(items, api.GCItem{What: "cell", Name: cells[i].Title(), Why: why[i]})
		}
	}
	return items, nil
}

// over reports whether a cell is kept no longer. That of a service goes with the cell that it serves.
func (m *Manager) over(c *state.Cell, now time.Time) bool {
	return c.Serves == nil && !m.held(c.ID) && (m.expired(c, now) || m.keptOut(c, now))
}

// held reports whether a hold keeps a cell and its checkpoints.
func (m *Manager) held(id cell.ID) bool {
	_, hold := m.cfg.Records.HoldOn(id)
	return hold != nil
}

// expired reports whether a cell has been kept for long enough, and nothing happens in it.
func (m *Manager) expired(c *state.Cell, now time.Time) bool {
	return !c.Expires.IsZero() && !m.held(c.ID) && now.After(c.Expires) && c.State != cell.Removed && m.cfg.AtRest(c.ID) && !m.cfg.Records.HasOpenRun(c.ID)
}

// keptOut reports whether a cell was paused for as long as its maker's ceilings keep it.
func (m *Manager) keptOut(c *state.Cell, now time.Time) bool {
	l := m.cfg.Records.Lease(c.ID)
	if l == nil || c.State == cell.Removed || !l.Parked && c.State != cell.Paused {
		return false
	}
	until := m.cfg.Records.KeptUntil(l)
	return !until.IsZero() && !now.Before(until) && !m.cfg.Records.HasOpenRun(c.ID)
}

// whyOver says why a cell is kept no longer.
func (m *Manager) whyOver(c *state.Cell, now time.Time) string {
	l := m.cfg.Records.Lease(c.ID)
	if l == nil || !m.keptOut(c, now) {
		return "expired"
	}
	d, by := m.cfg.Kept(l)
	return fmt.Sprintf("paused since %s, and kept for %s (%s)", l.ParkedAt.Local().Format(time.DateTime), d, by)
}

// removeOver removes a cell, with its lock, if it is still kept no longer.
func (m *Manager) removeOver(ctx context.Context, id cell.ID, now time.Time) (bool, error) {
	release, err := m.cfg.Lock(ctx, id, "gc")
	if errors.As(err, new(state.HeldByRun)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer release()
	c, err := m.cfg.Records.Cell(id)
	if err != nil || !m.over(&c, now) {
		return false, err
	}
	return true, m.cfg.Remove(ctx, id)
}

func (m *Manager) expireCheckpoints(ctx context.Context, dry bool, now time.Time) (items []api.GCItem, err error) {
	reg := m.cfg.Records
	cells := reg.Cells()
	inSource := map[cell.CheckpointID]bool{} // what was applied can be compared with, and taken back
	for _, c := range cells {
		for _, id := range c.KnownAt {
			inSource[id] = true
		}
	}
	for _, c := range cells {
		if m.held(c.ID) {
			continue
		}
		list := reg.Checkpoints(c.ID)
		many := manySteps(list)
		over := func(k *state.Checkpoint) bool {
			return !k.Expires.IsZero() && (!now.Before(k.Expires) || k.Kind == state.KindStep && many[k.ID])
		}
		for _, k := range list {
			if !over(&k) || k.ID == c.Head || inSource[k.ID] || m.beginsResult(c.ID, k.ID) || m.cfg.Records.IsPart(&c, k.ID) {
				continue
			}
			item := api.GCItem{What: "checkpoint", Name: selector(&c, &k), Why: "expired"}
			if now.Before(k.Expires) {
				item.Why = fmt.Sprintf("the cell has %d newer ones of steps", KeepSteps)
			}
			if dry {
				items = append(items, item)
				continue
			}
			release, err := m.cfg.Lock(ctx, c.ID, "gc")
			if errors.As(err, new(state.HeldByRun)) { // which begins at a checkpoint; the next collection looks again
				continue
			}
			if err != nil {
				return items, err
			}
			items = append(items, item)
			fresh, ferr := reg.Cell(c.ID)
			kk, kerr := reg.Checkpoint(k.ID)
			if ferr == nil && kerr == nil && fresh.Head != k.ID && over(&kk) && !m.held(c.ID) {
				kk.Gone = true
				err = reg.Commit(&kk)
			}
			release()
			if err != nil {
				return items, err
			}
		}
	}
	return items, nil
}

// expireServices gives up what services kept at checkpoints of their cells that are gone.
func (m *Manager) expireServices(ctx context.Context, dry bool, now time.Time) (items []api.GCItem, err error) {
	young := m.cfg.Pins.oldest() // a checkpoint under way names them when it is there
	for _, c := range m.cfg.Records.Cells() {
		list := m.unnamed(c.ID, young, now)
		if len(list) > 0 && !dry {
			release, err := m.cfg.Lock(ctx, c.ID, "gc")
			if errors.As(err, new(state.HeldByRun)) {
				continue
			}
			if err != nil {
				return items, err
			}
			var objects []any
			list = m.unnamed(c.ID, young, now)
			for i := range list {
				list[i].Gone = true
				objects = append(objects, &list[i])
			}
			err = m.cfg.Records.Commit(objects...)
			release()
			if err != nil {
				return items, err
			}
		}
		for _, k := range list {
			items = append(items, api.GCItem{What: "checkpoint", Name: selector(&c, &k), Why: "no checkpoint of the service's cell has it"})
		}
	}
	return items, nil
}

// manySteps are the checkpoints that steps of a cell began with, but for the newest.
func manySteps(list []state.Checkpoint) map[cell.CheckpointID]bool {
	var steps []state.Checkpoint
	for _, k := range list {
		if k.Kind == state.KindStep && !k.Gone {
			steps = append(steps, k)
		}
	}
	slices.SortFunc(steps, func(a, b state.Checkpoint) int { return b.Number - a.Number })
	many := map[cell.CheckpointID]bool{}
	for i, k := range steps {
		if i >= KeepSteps {
			many[k.ID] = true
		}
	}
	return many
}

// unnamed are the checkpoints of the cell of a service that were made for ones of the cell it serves, and that none of these
// has any more.
func (m *Manager) unnamed(id cell.ID, young, now time.Time) (list []state.Checkpoint) {
	c, err := m.cfg.Records.Cell(id)
	if err != nil || c.Serves == nil || c.State == cell.Removed {
		return nil
	}
	needed := map[cell.CheckpointID]bool{c.Head: true}
	for _, k := range m.cfg.Records.Checkpoints(c.Serves.Of) {
		needed[k.Services[c.Serves.Name]] = true
	}
	for _, k := range m.cfg.Records.Checkpoints(id) {
		if k.Kind == state.KindService && !needed[k.ID] && !k.Created.After(young) && now.Sub(k.Created) >= fresh {
			list = append(list, k)
		}
	}
	return list
}

// selector is how a checkpoint is written for people.
func selector(c *state.Cell, k *state.Checkpoint) string {
	return fmt.Sprintf("%s@%d", c.Title(), k.Number)
}

// expireSources forgets sources that no run has used for long.
func (m *Manager) expireSources(dry bool, now time.Time) (items []api.GCItem, err error) {
	list, err := m.cfg.Sources.Recorded()
	for _, s := range list {
		if now.Sub(s.Used) < KeepUnused {
			continue
		}
		if !dry {
			release, err := m.cfg.TryLock(ImportLock(s.Name), "gc")
			if err != nil {
				continue // it is used again
			}
			m.cfg.Sources.Forget(s.Name)
			release()
		}
		items = append(items, api.GCItem{What: "source", Name: s.Name, Why: "not used for 30 days"})
	}
	return items, err
}

// expireCaches removes the caches of sources that no cell had for long.
func (m *Manager) expireCaches(dry bool, now time.Time) (items []api.GCItem, failed error) {
	for _, k := range m.cfg.Records.Caches() {
		if now.Sub(k.Used) < KeepUnused {
			continue
		}
		items = append(items, api.GCItem{What: "kept cache", Name: k.Name + " of " + k.Source, Bytes: k.Bytes(), Why: "not used for 30 days"})
		if !dry {
			failed = errors.Join(failed, m.cfg.RemoveCache(k.ID))
		}
	}
	return items, failed
}

// expireImages removes images that no cell needs and nothing has used for long.
func (m *Manager) expireImages(dry bool, now time.Time) (items []api.GCItem, err error) {
	list, err := m.cfg.Images()
	for i := range list {
		img := &list[i]
		if now.Sub(img.Used) < KeepUnused || m.cfg.ImageNeeded(img) {
			continue
		}
		if !dry {
			if err := m.cfg.RemoveImage(img); cell.KindOf(err) == cell.Conflict {
				continue // it is used again
			} else if err != nil {
				return items, err
			}
		}
		items = append(items, api.GCItem{What: "image", Name: imageName(img), Bytes: img.Counts.Bytes, Why: "not used for 30 days"})
	}
	return items, err
}

// pruneEtc removes the copies of the host's /etc that no cell mounts and no new one would.
func (m *Manager) pruneEtc(dry bool) (items []api.GCItem, err error) {
	var use []string
	for _, c := range m.cfg.Records.Cells() {
		for _, mount := range c.Setup.Mounts {
			for _, at := range append([]string{mount.Source, mount.Upper}, mount.Lower...) {
				if rel, err := filepath.Rel(m.cfg.Etc, at); err == nil && filepath.IsLocal(rel) {
					use = append(use, filepath.Join(m.cfg.Etc, strings.Split(rel, "/")[0]))
				}
			}
		}
	}
	removed, err := image.PruneEtc(m.cfg.Etc, use, dry)
	for _, at := range removed {
		items = append(items, api.GCItem{What: "etc", Name: filepath.Base(at), Why: "no cell mounts it, and the host's /etc is another now"})
	}
	return items, err
}

// collectRecords drops the records of cells that were removed long ago and that no other
// record needs.
func (m *Manager) collectRecords(dry bool, now time.Time) (items []api.GCItem, err error) {
	n, before := 0, now.Add(-KeepRemoved)
	if dry {
		n = len(m.cfg.Records.Forgettable(nil, before, keptRemoved))
	} else {
		n, err = m.forget(nil, before)
	}
	if n > 0 {
		items = append(items, api.GCItem{What: "records", Name: strconv.Itoa(n), Why: "of cells that were removed, and that no run, fork or template names"})
	}
	return items, err
}

// leftovers removes what keepers that died left.
func (m *Manager) leftovers(ctx context.Context, dry bool) (items []api.GCItem, err error) {
	found, err := m.cfg.Leftovers(ctx, dry)
	for _, f := range found {
		items = append(items, api.GCItem{What: "leftover", Name: f, Why: "its keeper is gone"})
	}
	return items, err
}
