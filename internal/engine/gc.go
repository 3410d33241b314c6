package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// keepSource is how long the base of a source stays after it was last used.
const keepSource = 30 * 24 * time.Hour

// GC removes what nothing needs any more: cells and checkpoints that have
// expired, layers that no state names, bases of sources that were not used
// for long, leftovers of keepers that died. It never removes what a living
// cell, a pending run, a checkpoint or a fork needs.
func (e *Engine) GC(ctx context.Context, dry bool) (res api.GCResult, err error) {
	if !dry {
		var a *act
		ctx, a = e.act(ctx, "gc", "")
		defer a.over(&err)
		defer func() {
			if err == nil {
				e.figures.collected(res.Bytes)
			}
		}()
	}
	if dry {
		return e.collect(ctx, dry)
	}
	all := api.GCResult{Items: []api.GCItem{}}
	err = e.freeing(func() (err error) {
		res, err = e.collect(ctx, dry)
		all.Items, all.Bytes = append(all.Items, res.Items...), all.Bytes+res.Bytes
		return err
	})
	return all, err
}

// collect is GC once.
func (e *Engine) collect(ctx context.Context, dry bool) (res api.GCResult, err error) {
	res = api.GCResult{DryRun: dry, Items: []api.GCItem{}}
	add := func(items ...api.GCItem) {
		for _, i := range items {
			res.Items = append(res.Items, i)
			res.Bytes += i.Bytes
		}
	}
	now := time.Now()
	cells := e.reg.Cells()
	cells = slices.DeleteFunc(cells, func(c state.Cell) bool { return !e.expired(&c, now) && !e.keptOut(&c, now) })
	why := map[cell.ID]string{}
	for _, c := range cells {
		why[c.ID] = e.whyExpired(&c, now)
	}
	used := make([]bool, len(cells)) // somebody works in it again
	if !dry {
		var workers errgroup.Group
		workers.SetLimit(removesAtOnce)
		for i, c := range cells {
			workers.Go(func() error {
				gone, err := e.removeExpired(ctx, c.ID, now)
				used[i] = !gone
				return err
			})
		}
		if err := workers.Wait(); err != nil {
			return res, err
		}
	}
	for i, c := range cells {
		if !used[i] {
			add(api.GCItem{What: "cell", Name: c.Title(), Why: why[c.ID]})
		}
	}
	items, err := e.expireCheckpoints(ctx, dry, now)
	if err != nil {
		return res, err
	}
	add(items...)
	if items, err = e.expireSources(dry, now); err != nil {
		return res, err
	}
	add(items...)
	if items, err = e.expireImages(dry, now); err != nil {
		return res, err
	}
	add(items...)
	if items, err = e.pruneEtc(dry); err != nil {
		return res, err
	}
	add(items...)
	if items, err = e.collectLayers(dry, nil); err != nil {
		return res, err
	}
	add(items...)
	if !dry {
		freed, err := e.collectObjects()
		if err != nil {
			return res, err
		}
		if freed > 0 {
			add(api.GCItem{What: "trees", Name: "objects", Bytes: freed, Why: "no checkpoint names them"})
		}
	}
	said := map[string]bool{}
	for _, b := range e.cfg.Backends {
		found, err := b.Leftovers(ctx, dry)
		for _, f := range found {
			if said[f] { // backends whose cells live in keepers share their folder
				continue
			}
			said[f] = true
			add(api.GCItem{What: "leftover", Name: f, Why: "its keeper is gone"})
		}
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// pruneEtc removes the copies of the host's /etc that no cell mounts and no new one would.
func (e *Engine) pruneEtc(dry bool) (items []api.GCItem, err error) {
	dir := e.etcDir()
	var use []string
	for _, c := range e.reg.AllCells() {
		if c.State == cell.Removed {
			continue
		}
		for _, m := range c.Setup.Mounts {
			for _, at := range append([]string{m.Source, m.Upper}, m.Lower...) {
				if rel, err := filepath.Rel(dir, at); err == nil && filepath.IsLocal(rel) {
					use = append(use, filepath.Join(dir, strings.Split(rel, "/")[0]))
				}
			}
		}
	}
	removed, err := image.PruneEtc(dir, use, dry)
	for _, at := range removed {
		items = append(items, api.GCItem{What: "etc", Name: filepath.Base(at), Why: "no cell mounts it, and the host's /etc is another now"})
	}
	return items, err
}

// etcDir holds filtered copies of the host's /etc.
func (e *Engine) etcDir() string { return filepath.Join(e.cfg.Home.Images(), "etc") }

// expired reports whether a cell has been kept for long enough, and nothing
// happens in it.
func (e *Engine) expired(c *state.Cell, now time.Time) bool {
	return !c.Expires.IsZero() && now.After(c.Expires) && c.State != cell.Removed && e.alive.AtRest(c.ID) && !e.hasPending(c.ID)
}

// keptOut reports whether a cell was paused for as long as it is kept, by the ceilings of
// who made it.
func (e *Engine) keptOut(c *state.Cell, now time.Time) bool {
	l := e.reg.Lease(c.ID)
	return l != nil && c.State != cell.Removed && (l.Parked || c.State == cell.Paused) && e.reg.Overkept(l, now) && !e.hasPending(c.ID)
}

// whyExpired says why gc removes a cell.
func (e *Engine) whyExpired(c *state.Cell, now time.Time) string {
	l := e.reg.Lease(c.ID)
	if l == nil || !e.keptOut(c, now) {
		return "expired"
	}
	d, by := e.keep(l)
	return fmt.Sprintf("paused since %s, and kept for %s (%s)", l.ParkedAt.Local().Format(time.DateTime), d, by)
}

// removeExpired removes a cell that is still expired when its lock is held.
func (e *Engine) removeExpired(ctx context.Context, id cell.ID, now time.Time) (bool, error) {
	release, err := e.locks.Acquire(ctx, id, "gc", nil)
	if err != nil {
		return false, err
	}
	defer release()
	c, err := e.reg.Cell(id)
	if err != nil || !e.expired(&c, now) && !e.keptOut(&c, now) {
		return false, err
	}
	return true, e.operate(ctx, opRemove, removeArgs{Cell: id}, func(ctx context.Context) error { return e.doRemove(ctx, id) })
}

// hasPending reports whether a cell has a run that waits for a person.
func (e *Engine) hasPending(id cell.ID) bool {
	for _, r := range e.reg.Runs(id) {
		if r.Verdict == cell.Pending || r.Phase != cell.Ended {
			return true
		}
	}
	return false
}

func (e *Engine) expireCheckpoints(ctx context.Context, dry bool, now time.Time) ([]api.GCItem, error) {
	var items []api.GCItem
	inSource := map[cell.CheckpointID]bool{} // what was applied can be compared with, and taken back
	for _, c := range e.reg.Cells() {
		for _, id := range c.KnownAt {
			inSource[id] = true
		}
	}
	for _, c := range e.reg.Cells() {
		for _, k := range e.reg.Checkpoints(c.ID) {
			if k.Expires.IsZero() || now.Before(k.Expires) || k.ID == c.Head || inSource[k.ID] {
				continue
			}
			items = append(items, api.GCItem{What: "checkpoint", Name: e.selector(&c, &k), Why: "expired"})
			if dry {
				continue
			}
			release, err := e.locks.Acquire(ctx, c.ID, "gc", nil)
			if err != nil {
				return items, err
			}
			fresh, ferr := e.reg.Cell(c.ID)
			kk, kerr := e.reg.Checkpoint(k.ID)
			if ferr == nil && kerr == nil && fresh.Head != k.ID && !kk.Expires.IsZero() && now.After(kk.Expires) {
				kk.Gone = true
				err = e.reg.Commit(&kk)
			}
			release()
			if err != nil {
				return items, err
			}
		}
	}
	return items, nil
}

// expireSources forgets sources that no run has used for long.
func (e *Engine) expireSources(dry bool, now time.Time) ([]api.GCItem, error) {
	var items []api.GCItem
	names, err := filepath.Glob(filepath.Join(e.cfg.Home.Sources(), "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		st, err := os.Stat(path)
		if err != nil || now.Sub(st.ModTime()) < keepSource {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		items = append(items, api.GCItem{What: "source", Name: name, Why: "not used for 30 days"})
		if !dry {
			e.dropSource(name)
		}
	}
	return items, nil
}

// dropSource drops what is known of a source: its next import reads all of it.
func (e *Engine) dropSource(name string) {
	os.Remove(e.sourcePath(name, "json"))
	os.Remove(e.sourcePath(name, "index"))
	e.mu.Lock()
	delete(e.sources, name)
	e.mu.Unlock()
}

// needed returns every layer that something names, and the trees: by digest,
// and those that are in memory.
func (e *Engine) needed() (layers map[string]bool, trees map[cell.Digest]bool, held []*workspace.Tree) {
	return e.neededBut("")
}

// neededBut is needed as if a checkpoint were gone.
func (e *Engine) neededBut(but cell.CheckpointID) (layers map[string]bool, trees map[cell.Digest]bool, held []*workspace.Tree) {
	layers, trees = map[string]bool{}, map[cell.Digest]bool{}
	need := func(s workspace.State) {
		for _, l := range s.Layers {
			layers[l] = true
		}
	}
	var parents []cell.ID        // of templates
	imports := e.under.imports() // before the records, which what ends meanwhile is in
	e.reg.Look(func(now state.Records) {
		for k := range now.Checkpoints() {
			if !k.Gone && k.ID != but {
				for _, s := range k.States() {
					need(s)
				}
				trees[k.Tree] = true
			}
		}
		for c := range now.Cells() {
			trees[c.Known] = true
			for _, a := range c.Applied {
				trees[a.Before], trees[a.After] = true, true
			}
			if c.State == cell.Removed {
				continue
			}
			for _, g := range c.Gens() {
				layers[g.Layer] = true
				need(g.Base)
			}
			if c.Template != "" {
				parents = append(parents, c.ID)
			}
			// What its source was, in whatever cell that was recorded: without it
			// the changes of a fork would be changes of nothing.
			if k := now.Founder(c.Head); k != nil {
				need(k.State)
				trees[k.Tree] = true
			}
			for _, id := range c.KnownAt {
				if k := now.Checkpoint(id); k != nil {
					need(k.State)
					trees[k.Tree] = true
				}
			}
		}
		for o := range now.Ops() {
			var a branchArgs
			if o.Kind != opBranch || json.Unmarshal(o.Args, &a) != nil {
				continue
			}
			for _, g := range a.Source.Gens() { // it may be there already
				layers[g.Layer] = true
				need(g.Base)
			}
		}
	})
	for _, id := range parents {
		if x, err := e.readWhole(id); err == nil {
			for _, s := range x.Above {
				need(s)
			}
		}
	}
	e.mu.Lock()
	for _, im := range e.sources {
		imports = append(imports, im)
	}
	e.mu.Unlock()
	imports = append(imports, e.under.imports()...) // what began meanwhile
	for _, im := range imports {
		need(im.State)
		held = append(held, im.Tree)
	}
	names, _ := filepath.Glob(filepath.Join(e.cfg.Home.Sources(), "*.json"))
	for _, n := range names {
		var rec sourceRecord
		if b, err := readState(n); err == nil && json.Unmarshal(b, &rec) == nil {
			need(rec.State)
			trees[rec.Tree] = true
		}
	}
	return layers, trees, held
}

// fresh is how old a layer must be to be collected, so that a clock that is
// set doesn't make one look older than the work that makes it.
const fresh = 10 * time.Minute

// collectLayers removes layers that nothing names. With owned set, only those
// of checkpoints whose cell it accepts, whatever their age.
func (e *Engine) collectLayers(dry bool, owned func(cell.ID) bool) ([]api.GCItem, error) {
	var items []api.GCItem
	var failed error
	young := e.under.oldest() // before what is needed is found out: see there
	layers, _, _ := e.needed()
	candidates := map[string]bool{}
	if owned != nil {
		e.reg.Look(func(now state.Records) {
			for k := range now.Checkpoints() {
				if owned(k.Cell) {
					for _, s := range k.States() {
						for _, l := range s.Layers {
							candidates[l] = true
						}
					}
				}
			}
		})
	}
	for _, p := range e.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			return items, err
		}
		for _, l := range all {
			if layers[l] || (owned != nil && !candidates[l]) {
				continue
			}
			if owned == nil {
				st, err := os.Lstat(filepath.Join(e.cfg.Home.Layers(), l))
				if err != nil || st.ModTime().After(young) || time.Since(st.ModTime()) < fresh {
					continue
				}
			}
			var size int64
			if owned == nil {
				size, _ = p.Size(l)
			}
			items = append(items, api.GCItem{What: "layer", Name: l, Bytes: size, Why: "no checkpoint names it"})
			if !dry {
				if err := p.Drop(l); err != nil {
					failed = errors.Join(failed, err) // the others go all the same
				}
			}
		}
	}
	return items, failed
}

// memories are the roots of the images that checkpoints name.
func (e *Engine) memories() (roots []cell.Digest) {
	e.reg.Look(func(now state.Records) {
		for k := range now.Checkpoints() {
			if !k.Gone && k.Memory != nil {
				roots = append(roots, k.Memory.Root)
			}
		}
	})
	return roots
}

// collectObjects drops the objects that no tree and no memory image reaches.
func (e *Engine) collectObjects() (int64, error) {
	done := e.under.collect()
	defer done()
	_, trees, held := e.needed()
	reach := map[cell.Digest]bool{}
	for d := range trees {
		if d.IsZero() {
			continue
		}
		t, err := e.trees.get(d)
		if err != nil {
			continue // computed again when it is needed
		}
		reach[d] = true
		held = append(held, t)
	}
	for _, t := range held {
		err := t.Reach(reach)
		if k := cell.KindOf(err); k == cell.NotFound || k == cell.Corrupt {
			delete(reach, t.Digest()) // a part of it is lost: it is computed again, too
		} else if err != nil {
			return 0, err
		}
	}
	for _, root := range e.memories() {
		if err := memory.Reach(e.cfg.Objects, root, reach); err != nil {
			if k := cell.KindOf(err); k != cell.NotFound && k != cell.Corrupt {
				return 0, err
			}
			e.log.Warn("a memory image is damaged", "root", root, "error", err)
		}
	}
	defer e.trees.forget()
	return e.cfg.Objects.Keep(func(d cell.Digest) bool { return reach[d] || e.under.recent(d) })
}
