// Package cache keeps caches of sources: what tools wrote to directories like Go's module cache, in cells
// of one source, for later cells of that source.
//
// It promises that what a run wrote reaches other cells only when the run was accepted, or at once where the
// caller asked for that; that caches of two sources never meet; and that what cells write never comes to the
// caches of the host, which lie below, read-only. It leaves to its caller where in a cell a cache is
// (image.HostRequest), when a cell's caches are mounted and no longer, and when a run is accepted.
//
// Each directory is a stack of layers in the provider's format: those of the source, then those that the
// cell wrote in earlier instances, then a writable one, which Unmounted takes. The layers that a record
// names are there (state.Cache, state.CellCaches). A Manager has one lock, under which what a source's
// cache has is read and changed; it is taken after the lock of a cell.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a Manager is made of.
type Config struct {
	Records *state.Registry
	Log     *slog.Logger
	State   string // the directory of the state, which has those below
	Empty   string // an empty directory, in place of a cache that the host has not
	Private func(cell.ID) string
	// Provider returns a provider of layers by its name.
	Provider func(name string) (workspace.Provider, error)
	// DropLayer removes a layer that nothing names.
	DropLayer func(provider, layer string)
	// Pin keeps layers that no record names yet from garbage collection until end.
	Pin func() (end func())
	// Background starts work that outlives its request.
	Background func(func(context.Context))
	// Sync makes all layers survive power loss.
	Sync func() error
	// Most bounds a cache of a source on disk, in bytes.
	Most int64
}

// Manager keeps caches. It is safe for concurrent use.
type Manager struct {
	cfg Config
	mu  sync.Mutex // guards what caches have, from reading a record to committing it
}

// New makes a Manager.
func New(cfg Config) *Manager { return &Manager{cfg: cfg} }

// Words of a request for what is kept when.
const (
	Accepted = "accepted" // what accepted runs wrote
	Always   = "always"   // all, when a run ends
)

// maxLayers bounds the layers of a source's cache; above it they are squashed.
const maxLayers = 8

// maxOwn bounds those that a cell wrote and that are not kept; above it the oldest go.
const maxOwn = 24

// Squasher is a provider that can join layers.
type Squasher interface {
	workspace.Provider
	// Squash makes one layer of several, bottom first.
	Squash(ctx context.Context, layers []string) (layer string, err error)
}

// Upper is where the writable layer of a cell over a cache is, as cell.Mount.Upper: private is the cell's own
// folder, and roots counts the layers that it has used up.
func Upper(private string, roots int, target string) string {
	sum := sha256.Sum256([]byte(target))
	return filepath.Join(folder(private, roots), hex.EncodeToString(sum[:8]))
}

func folder(private string, roots int) string {
	name := "cache"
	if roots > 0 {
		name += "-" + strconv.Itoa(roots)
	}
	return filepath.Join(private, name)
}

// Lay points the mounts of a cell that begins an instance at its source's caches as they are now, with what the
// cell has of its own, and records that. The caller holds the cell's lock; c is in the registry.
func (m *Manager) Lay(c *state.Cell, mounts []cell.Mount) (err error) {
	if !slices.ContainsFunc(mounts, isKept) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, _ := m.cfg.Records.CellCaches(c.ID)
	boot := linux.BootID()
	if old.Boot != boot { // the host ended with what was not written to its disk
		for i := range old.Dirs {
			old.Dirs[i].Own = nil
		}
	}
	now := state.CellCaches{Cell: c.ID, Boot: boot, Answered: old.Answered, Always: c.Setup.Kept.CacheWrite == Always}
	for i, r := range m.cfg.Records.Runs(c.ID) { // newest first
		if i == 0 {
			now.Since = r.RunID()
		}
		if r.Phase != cell.Ended {
			now.Open = append(now.Open, r.RunID())
		}
	}
	caches := map[string]*state.Cache{}
	for i := range mounts {
		at := &mounts[i]
		if !isKept(*at) {
			continue
		}
		id := state.CacheID(c, at.Kept)
		if caches[id] == nil {
			k, err := m.current(id, boot)
			if err != nil {
				return err
			}
			caches[id] = &k
		}
		if at.Source == "" {
			if err := os.MkdirAll(m.cfg.Empty, 0o755); err != nil {
				return err
			}
			at.Source = m.cfg.Empty
		}
		d := state.CellCacheDir{Cache: id, Name: at.Kept, Target: at.Target, Host: at.Source}
		if has := caches[id].Dir(at.Target); has != nil {
			d.Layers = slices.Clone(has.Layers)
		}
		for _, was := range old.Dirs {
			if was.Cache == id && was.Target == at.Target {
				d.Own = slices.DeleteFunc(was.Own, func(o state.CacheLayer) bool { return !o.Always && m.refused(o.Runs) })
			}
		}
		for _, o := range d.Own {
			if !slices.Contains(d.Layers, o.Layer) {
				d.Layers = append(d.Layers, o.Layer)
			}
		}
		if d.Layers, err = m.there(c, d.Layers); err != nil {
			return err
		}
		if err := m.show(c, at, d.Layers); err != nil {
			return err
		}
		now.Dirs = append(now.Dirs, d)
	}
	objects := []any{&now}
	hour := time.Now().UTC().Truncate(time.Hour)
	for _, k := range caches {
		if len(k.Dirs) > 0 && !k.Used.Equal(hour) {
			k.Used = hour
			objects = append(objects, k)
		}
	}
	return m.cfg.Records.Commit(objects...)
}

// refused reports whether something that is behind a layer was decided against.
func (m *Manager) refused(runs []cell.RunID) bool {
	return slices.ContainsFunc(runs, func(run cell.RunID) bool {
		r, err := m.cfg.Records.Run(run)
		return err != nil || r.Verdict == cell.Restored || r.Verdict == cell.Discarded
	})
}

// there leaves out the layers that are gone: a cache is worth less than a start.
func (m *Manager) there(c *state.Cell, layers []string) ([]string, error) {
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(layers, func(l string) bool {
		_, err := os.Lstat(layerDir(p, l))
		return errors.Is(err, os.ErrNotExist)
	}), nil
}

func isKept(m cell.Mount) bool { return m.Kind == cell.Cache && m.Kept != "" }

// current is a source's cache, if it can be trusted to be whole. The caller holds m.mu.
func (m *Manager) current(id, boot string) (state.Cache, error) {
	k, err := m.cfg.Records.Cache(id)
	if cell.KindOf(err) == cell.NotFound {
		return state.Cache{ID: id}, nil
	}
	if err == nil && k.Boot != "" && k.Boot != boot {
		m.cfg.Log.Warn("a cache begins anew: the host ended before it was on the disk", "cache", k.Name, "source", k.Source)
		k = state.Cache{ID: id}
	}
	return k, err
}

// show points a mount at layers, bottom first, above what the host has.
func (m *Manager) show(c *state.Cell, at *cell.Mount, layers []string) error {
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	at.Lower = nil
	for _, l := range slices.Backward(layers) {
		at.Lower = append(at.Lower, layerDir(p, l))
	}
	return nil
}

// Unmounted takes what an instance of a cell wrote to kept caches, and removes its writable layers over all caches. What
// it can't take is lost, and logged: it is a cache.
func (m *Manager) Unmounted(ctx context.Context, id cell.ID) error {
	if rec, ok := m.cfg.Records.CellCaches(id); ok {
		if err := m.unmounted(ctx, &rec); err != nil {
			m.cfg.Log.Warn("what a cell wrote to its caches is lost", "cell", id, "error", err)
		}
	}
	return m.Clear(id)
}

// Clear removes the writable layers of a cell over caches, which nothing has mounted. Those of before it was branched
// stay as long as its folder: its branches have them.
func (m *Manager) Clear(id cell.ID) error {
	roots := 0
	if c, err := m.cfg.Records.Cell(id); err == nil {
		roots = c.Roots
	}
	return workspace.RemoveTree(folder(m.cfg.Private(id), roots))
}

func (m *Manager) unmounted(ctx context.Context, rec *state.CellCaches) (err error) {
	c, err := m.cfg.Records.Cell(rec.Cell)
	if err != nil || c.State == cell.Removed {
		return err
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	defer m.cfg.Pin()()
	made := map[string]string{} // by target
	defer func() {
		if err != nil {
			for _, l := range made {
				m.cfg.DropLayer(p.Name(), l)
			}
		}
	}()
	for _, d := range rec.Dirs {
		layer, err := m.take(ctx, p, filepath.Join(Upper(m.cfg.Private(c.ID), c.Roots, d.Target), "fs"))
		if err != nil {
			return err
		}
		if layer != "" {
			made[d.Target] = layer
		}
	}
	if len(made) > 0 {
		if err := m.own(rec, made); err != nil {
			return err
		}
	}
	clear(made)
	return m.Keep(ctx, rec.Cell, "") // what was accepted while the cell lived
}

// own records layers, by target, as what a cell wrote.
func (m *Manager) own(was *state.CellCaches, made map[string]string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, ok := m.cfg.Records.CellCaches(was.Cell)
	if !ok {
		return cell.Errorf(cell.NotFound, "cache.Unmounted", "", "cell %s was removed", was.Cell)
	}
	runs := m.behind(was)
	// A caller that may accept no results brings nothing into caches either.
	always := was.Always && !slices.ContainsFunc(runs, func(run cell.RunID) bool {
		r, err := m.cfg.Records.Run(run)
		return err != nil || r.In.Confined
	})
	for i := range rec.Dirs {
		d := &rec.Dirs[i]
		if made[d.Target] == "" {
			continue
		}
		all := slices.Clone(runs)
		for _, o := range d.Own { // what is copied up from there comes along
			all = append(all, o.Runs...)
		}
		slices.Sort(all)
		d.Own = append(d.Own, state.CacheLayer{Layer: made[d.Target], Runs: slices.Compact(all), Always: always})
		if over := len(d.Own) - maxOwn; over > 0 {
			d.Own = d.Own[over:]
		}
	}
	failpoint.Step("record what a cell wrote to caches")
	return m.cfg.Records.Commit(&rec)
}

// behind lists the runs that may have to do with what a cell wrote since its caches were mounted: those that were in it, and
// those with results in it that waited for a decision. What ran there may have run what they made.
func (m *Manager) behind(rec *state.CellCaches) (runs []cell.RunID) {
	newer := true // than Since
	for _, r := range m.cfg.Records.Runs(rec.Cell) {
		newer = newer && r.RunID() != rec.Since
		if (newer || slices.Contains(rec.Open, r.RunID())) && !r.NeverStarted() || r.Undecided() {
			runs = append(runs, r.RunID())
		}
	}
	return runs
}

// take makes a writable layer that nothing has mounted any more an immutable one; "" if it is empty.
func (m *Manager) take(ctx context.Context, p workspace.Provider, upper string) (layer string, err error) {
	dir, err := os.Open(upper)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if _, err := dir.Readdirnames(1); err != nil {
		if err == io.EOF {
			err = nil
		}
		return "", err
	}
	g, err := p.Begin(ctx, workspace.State{}, workspace.Entry{Type: workspace.Folder, Mode: 0o755, MTime: time.Now().UnixNano()}, "")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			m.cfg.DropLayer(p.Name(), g.Layer)
		}
	}()
	to := p.Mount(g, "/").Upper
	failpoint.Step("take a layer of a cache")
	err = move(ctx, m.cfg.State, upper, to)
	if err == nil {
		_, err = p.Freeze(ctx, g)
	}
	return g.Layer, err
}

// move brings a directory to where an empty one is, on another file system by copying it.
func move(ctx context.Context, state, from, to string) error {
	relFrom, err := filepath.Rel(state, from)
	if err != nil {
		return err
	}
	relTo, err := filepath.Rel(state, to)
	if err != nil {
		return err
	}
	if err = volume.Move(state, relFrom, relTo); errors.Is(err, unix.EXDEV) || errors.Is(err, os.ErrNotExist) {
		err = workspace.CopyLayer(ctx, from, to)
	}
	return err
}

// keeps reports whether a layer of a cell may be kept now: it was asked for at once; or also, a run that is accepted by itself
// and of which the registry does not know it yet, is alone behind it; or all behind it were accepted, and a person accepted
// what the cell is after them. That is an answer for a run of another cell, too, which this one was forked from.
func (m *Manager) keeps(rec *state.CellCaches, o *state.CacheLayer, also cell.RunID) bool {
	if o.Always {
		return true
	}
	if also != "" {
		return slices.Equal(o.Runs, []cell.RunID{also})
	}
	return m.accepted(rec.Cell, o.Runs) && m.answered(rec, o.Runs)
}

// accepted reports whether all of the runs behind a layer of a cell are.
func (m *Manager) accepted(id cell.ID, runs []cell.RunID) bool {
	return len(runs) > 0 && !slices.ContainsFunc(runs, func(run cell.RunID) bool {
		r, err := m.cfg.Records.Run(run)
		return err != nil || r.Verdict != cell.Accepted && (r.Verdict != cell.Forked || r.CellID() == id)
	})
}

// answered reports whether a person has accepted what a cell is since it had some runs.
func (m *Manager) answered(rec *state.CellCaches, runs []cell.RunID) bool {
	for _, r := range m.cfg.Records.Runs(rec.Cell) { // newest first
		if r.RunID() == rec.Answered {
			return true
		}
		if slices.Contains(runs, r.RunID()) {
			break
		}
	}
	return false
}

// Answer notes that a person has just accepted what a cell is. Keep heeds it, whenever it is.
func (m *Manager) Answer(id cell.ID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, ok := m.cfg.Records.CellCaches(id)
	runs := m.cfg.Records.Runs(id)
	if !ok || len(runs) == 0 || rec.Answered == runs[0].RunID() {
		return nil
	}
	rec.Answered = runs[0].RunID()
	return m.cfg.Records.Commit(&rec)
}

// of returns a cell's caches, the cell and the provider of their layers; ok is false if it has none.
func (m *Manager) of(id cell.ID) (rec state.CellCaches, c state.Cell, p workspace.Provider, ok bool, err error) {
	if rec, ok = m.cfg.Records.CellCaches(id); !ok {
		return rec, c, p, false, nil
	}
	if c, err = m.cfg.Records.Cell(id); err == nil {
		p, err = m.cfg.Provider(c.Provider)
	}
	return rec, c, p, err == nil, err
}

// Keep makes what a cell wrote to caches, in runs that were accepted (see keeps), the caches of its source.
func (m *Manager) Keep(ctx context.Context, id cell.ID, also cell.RunID) error {
	rec, c, p, ok, err := m.of(id)
	if !ok || !slices.ContainsFunc(rec.Dirs, func(d state.CellCacheDir) bool { return len(d.Own) > 0 }) {
		return err
	}
	defer m.cfg.Pin()()
	if c.Guest { // it is of a caller that may accept no results
		return nil
	}
	cleaned, err := m.clean(ctx, p, &rec, also)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if rec, ok = m.cfg.Records.CellCaches(id); !ok || rec.Boot != linux.BootID() { // what is not on the disk is not trusted
		return nil
	}
	g := growth{m: m, ctx: ctx, p: p, c: &c, run: also, caches: map[string]*state.Cache{}}
	for i := range rec.Dirs {
		d := &rec.Dirs[i]
		var rest []state.CacheLayer
		for _, o := range d.Own {
			if !cleaned[o.Layer] || !m.keeps(&rec, &o, also) {
				rest = append(rest, o)
				continue
			}
			if err := g.add(d, &o); err != nil {
				return errors.Join(err, g.undo())
			}
		}
		d.Own = rest
	}
	if len(g.caches) == 0 {
		return nil
	}
	if err := g.bound(); err != nil {
		return errors.Join(err, g.undo())
	}
	objects := []any{&rec}
	for _, k := range g.caches {
		objects = append(objects, k)
	}
	failpoint.Step("keep a cache")
	if err := m.cfg.Records.Commit(objects...); err != nil {
		return errors.Join(err, g.undo())
	}
	m.drop(p.Name(), g.replaced)
	m.syncLater(g.caches)
	return nil
}

// clean takes out of what is to be kept the files that are not what their names say, and returns the layers that it looked at.
func (m *Manager) clean(ctx context.Context, p workspace.Provider, rec *state.CellCaches, also cell.RunID) (map[string]bool, error) {
	cleaned := map[string]bool{}
	for _, d := range rec.Dirs {
		for i, o := range d.Own {
			if !m.keeps(rec, &o, also) {
				continue
			}
			found, err := checkLayer(ctx, d.Name, layerDir(p, o.Layer), m.below(p, &d, i), m.cfg.Most)
			if err != nil {
				return nil, err
			}
			for _, b := range found.Bad {
				m.cfg.Log.Warn("left out of a cache: it is not what its name says", "cache", d.Name, "cell", rec.Cell, "path", b)
				if err := workspace.RemoveTree(filepath.Join(layerDir(p, o.Layer), b)); err != nil {
					return nil, err
				}
			}
			cleaned[o.Layer] = true
		}
	}
	return cleaned, nil
}

// below lists the directories under a layer of a cell's own, topmost first.
func (m *Manager) below(p workspace.Provider, d *state.CellCacheDir, own int) (dirs []string) {
	for _, o := range slices.Backward(d.Own[:own]) {
		dirs = append(dirs, layerDir(p, o.Layer))
	}
	for _, l := range slices.Backward(d.Layers) {
		if !slices.ContainsFunc(d.Own, func(o state.CacheLayer) bool { return o.Layer == l }) {
			dirs = append(dirs, layerDir(p, l))
		}
	}
	return append(dirs, d.Host)
}

// layerDir is where the files of a layer are.
func layerDir(p workspace.Provider, layer string) string {
	return p.Mount(workspace.Generation{Layer: layer}, "/").Upper
}

// growth is what one Keep adds.
type growth struct {
	m        *Manager
	ctx      context.Context
	p        workspace.Provider
	c        *state.Cell
	run      cell.RunID
	caches   map[string]*state.Cache
	made     []string // layers that no record names yet
	replaced []string
}

// add puts a layer on top of a cache's directory, without what is not what its name says.
func (g *growth) add(d *state.CellCacheDir, o *state.CacheLayer) error {
	k := g.caches[d.Cache]
	now := time.Now().UTC()
	if k == nil {
		has, err := g.m.current(d.Cache, linux.BootID())
		if err != nil {
			return err
		}
		k = &has
		if k.Source == "" {
			*k = state.Cache{ID: d.Cache, Source: g.c.Source, Image: g.c.Image, Name: d.Name, Created: now, Used: now.Truncate(time.Hour)}
		}
		k.Provider, k.Boot = g.p.Name(), linux.BootID()
		g.caches[d.Cache] = k
	}
	size, err := g.p.Size(o.Layer)
	if err != nil {
		return err
	}
	at := k.Dir(d.Target)
	if at == nil {
		k.Dirs = append(k.Dirs, state.CacheDir{Target: d.Target})
		at = &k.Dirs[len(k.Dirs)-1]
	}
	at.Host = d.Host
	below := []string{d.Host}
	for _, l := range at.Layers {
		below = append(below, layerDir(g.p, l))
	}
	if err := prune(g.ctx, layerDir(g.p, o.Layer), below); err != nil {
		return err
	}
	if !slices.Contains(at.Layers, o.Layer) {
		at.Put(o.Layer, size)
	}
	k.Written = now
	if k.Run = g.run; g.run == "" && len(o.Runs) > 0 {
		k.Run = o.Runs[len(o.Runs)-1]
	}
	return nil
}

// bound has the caches within their limits of layers and of space: one that would be too large begins anew
// with what was written last.
func (g *growth) bound() error {
	for _, k := range g.caches {
		if k.Bytes() > g.m.cfg.Most {
			for i := range k.Dirs {
				d := &k.Dirs[i]
				if all := d.Cut(0); len(all) > 0 {
					last := len(all) - 1
					size, err := g.p.Size(all[last])
					if err != nil {
						return err
					}
					d.Put(all[last], size)
					g.replaced = append(g.replaced, all[:last]...)
				}
			}
			for i := range k.Dirs {
				if k.Bytes() > g.m.cfg.Most {
					g.replaced = append(g.replaced, k.Dirs[i].Cut(0)...)
				}
			}
			g.m.cfg.Log.Info("a cache was larger than it may be, and begins anew", "cache", k.Name, "source", k.Source, "bytes", g.m.cfg.Most)
		}
		for i := range k.Dirs {
			if err := g.squash(&k.Dirs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// squash joins the newest layers of a directory, if it has too many: as many as have together what those below them have,
// so that large ones are seldom joined again.
func (g *growth) squash(d *state.CacheDir) error {
	s, ok := g.p.(Squasher)
	if !ok || len(d.Layers) <= maxLayers {
		return nil
	}
	first, sum := len(d.Layers)-1, d.Sizes[len(d.Layers)-1]
	for first > 0 && (len(d.Layers)-first < maxLayers/2 || d.Sizes[first-1] <= 2*sum) {
		first--
		sum += d.Sizes[first]
	}
	failpoint.Step("squash a cache")
	layer, err := s.Squash(g.ctx, d.Layers[first:])
	if err != nil { // a file with too many names, for example
		if g.ctx.Err() != nil {
			return g.ctx.Err()
		}
		g.m.cfg.Log.Warn("a cache begins anew: its layers cannot be joined", "target", d.Target, "error", err)
		last, size := d.Layers[len(d.Layers)-1], d.Sizes[len(d.Sizes)-1]
		g.replaced = append(g.replaced, d.Cut(0)...)
		d.Put(last, size)
		return nil
	}
	g.made = append(g.made, layer)
	below := []string{}
	for _, l := range d.Layers[:first] {
		below = append(below, layerDir(g.p, l))
	}
	if err := prune(g.ctx, layerDir(g.p, layer), append(below, d.Host)); err != nil {
		return err
	}
	size, err := g.p.Size(layer)
	if err != nil {
		return err
	}
	g.replaced = append(g.replaced, d.Cut(first)...)
	d.Put(layer, size)
	return nil
}

func (g *growth) undo() error {
	g.m.drop(g.p.Name(), g.made)
	return nil
}

// drop removes those of some layers that nothing names. The caller holds m.mu.
func (m *Manager) drop(provider string, layers []string) {
	for _, l := range layers {
		if !m.cfg.Records.NamesLayer(l, "") {
			m.cfg.DropLayer(provider, l)
		}
	}
}

// syncLater makes caches survive power loss, and says so in their records.
func (m *Manager) syncLater(caches map[string]*state.Cache) {
	var ids []string
	for id := range caches {
		ids = append(ids, id)
	}
	m.cfg.Background(func(ctx context.Context) {
		if err := m.cfg.Sync(); err != nil {
			m.cfg.Log.Warn("cannot write caches to the disk", "error", err)
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, id := range ids {
			k, err := m.cfg.Records.Cache(id)
			if was := caches[id]; err != nil || !k.Written.Equal(was.Written) { // there is more by now
				continue
			}
			k.Boot = ""
			if err := m.cfg.Records.Commit(&k); err != nil {
				m.cfg.Log.Warn("cannot record that a cache is on the disk", "cache", k.Name, "error", err)
			}
		}
	})
}
