package gc

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// The kinds of what is on disk, in the order in which they are shown.
const (
	diskCell       = "cell"
	diskResult     = "result" // of a run that was restored or discarded, and is kept for a while
	diskCheckpoint = "checkpoint"
	diskTemplate   = "template"
	diskMemory     = "memory" // images of memory
	diskSource     = "source" // what was imported
	diskImage      = "image"
	diskKeptCache  = "kept cache" // of a source: pando run --cache
	diskRun        = "run"        // output, events and patches
	diskReceipts   = "receipts"
	diskTrees      = "trees" // digests of files
	diskLog        = "log"
	diskCache      = "cache"
	diskUnneeded   = "unneeded" // what gc frees
	diskShared     = "shared"   // what several of the above have in common
	diskOther      = "other"
)

var diskKinds = []string{diskCell, diskResult, diskCheckpoint, diskTemplate, diskMemory, diskSource, diskImage, diskKeptCache, diskRun, diskReceipts, diskTrees, diskLog, diskCache, diskUnneeded, diskShared, diskOther}

// madeAhead names what no record names yet, or any more.
const madeAhead = "work under way, forks made ahead, and files of removed cells that others need"

const inCommon = "what several of the above have in common"

// A holding is one thing on disk. drop removes it if nothing needs it by then; nil: it is
// never removed but by request.
type holding struct {
	api.DiskObject
	id   string // tells it from all others
	cell cell.ID
	drop func(context.Context) error
	// holds says that something else can be removed when it is gone, however little it has itself.
	holds bool
}

// usage is what there is on disk, as it was measured.
type usage struct {
	held     int64
	free     int64 // of the file system then
	freeable int64 // by gc
	things   []*holding
}

// meter collects a usage.
type meter struct {
	mgr    *Manager
	cfg    *Config
	things map[string]*holding
	owners map[string]map[string]bool // ids of things, by layer
	frozen map[string]bool            // layers that nothing writes to
}

func (m *meter) thing(kind, id, name string) *holding {
	id = kind + " " + id
	h := m.things[id]
	if h == nil {
		h = &holding{DiskObject: api.DiskObject{Kind: kind, Name: name}, id: id}
		m.things[id] = h
	}
	return h
}

// uses notes that a thing needs the layers of a state.
func (m *meter) uses(h *holding, s workspace.State) {
	for _, l := range s.Layers {
		m.frozen[l] = true
		m.own(h, l)
	}
}

func (m *meter) own(h *holding, layer string) {
	if m.owners[layer] == nil {
		m.owners[layer] = map[string]bool{}
	}
	m.owners[layer][h.id] = true
}

// measureDisk finds out what is on disk. The sizes of layers that nothing writes to are
// measured once.
func (m *Manager) measureDisk(ctx context.Context) (*usage, error) {
	m.measuring.Lock()
	defer m.measuring.Unlock()
	m.mu.Lock()
	made := m.made
	m.mu.Unlock()
	x := &meter{mgr: m, cfg: &m.cfg, things: map[string]*holding{}, owners: map[string]map[string]bool{}, frozen: map[string]bool{}}
	gone, err := m.collect(ctx, true)
	if err != nil {
		return nil, err
	}
	u := &usage{freeable: gone.Bytes}
	if u.free, _, err = m.disk(); err != nil {
		return nil, err
	}
	x.registry()
	x.caches()
	x.sources()
	if err := x.layers(gone); err != nil {
		return nil, err
	}
	x.memories()
	if err := x.images(); err != nil {
		return nil, err
	}
	x.folders()
	for _, h := range x.things {
		u.held += h.Bytes
	}
	order := func(h *holding) int { return slices.Index(diskKinds, h.Kind) }
	u.things = slices.SortedFunc(maps.Values(x.things), func(a, b *holding) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.id, b.id))
	})
	m.mu.Lock()
	m.usage = u
	m.made -= made
	m.mu.Unlock()
	return u, nil
}

// registry notes cells, templates and checkpoints, and which layers each needs.
func (m *meter) registry() {
	inSource := map[cell.CheckpointID]bool{}
	cells := map[cell.ID]*state.Cell{}
	for _, c := range m.cfg.Records.Cells() {
		for _, id := range c.KnownAt {
			inSource[id] = true
		}
		cells[c.ID] = &c
	}
	for _, c := range cells {
		h := m.cell(c)
		for _, g := range c.Gens() {
			m.own(h, g.Layer)
			m.uses(h, g.Base)
		}
		if k, ok := m.cfg.Records.CellCaches(c.ID); ok {
			m.uses(h, workspace.State{Layers: k.Layers()})
		}
		if c.Template != "" {
			for _, s := range m.cfg.Above(c.ID) {
				m.uses(h, s)
			}
		}
		for _, id := range append([]cell.CheckpointID{c.Head}, c.KnownAt...) {
			if k, err := m.cfg.Records.Checkpoint(id); err == nil {
				for _, s := range k.States() {
					m.uses(h, s)
				}
			}
		}
		if k, ok := m.cfg.Records.FounderOf(c.Head); ok {
			m.uses(h, k.State)
		}
	}
	for _, c := range cells {
		for _, k := range m.cfg.Records.Checkpoints(c.ID) {
			if k.Gone || k.ID == c.Head {
				continue
			}
			m.checkpoint(c, &k, inSource[k.ID])
		}
		for _, g := range c.Gens() { // it is written to, whatever names it
			delete(m.frozen, g.Layer)
		}
	}
}

// removal is the command that removes a cell, or the template that it is of.
func removal(c *state.Cell) string {
	if c.Template != "" {
		return "pando template rm " + c.Template
	}
	return "pando rm " + c.Title()
}

func (m *meter) cell(c *state.Cell) *holding {
	kind := diskCell
	if c.Template != "" {
		kind = diskTemplate
	}
	h := m.thing(kind, string(c.ID), c.Title())
	h.cell, h.Used, h.Command = c.ID, c.Created, removal(c)
	if r := m.cfg.Records.LatestResult(c.ID); r != nil {
		h.Used = r.Created
	}
	switch {
	case c.Template != "" || !m.cfg.AtRest(c.ID):
		h.State = "in use"
	case m.cfg.Records.HasOpenRun(c.ID):
		h.State = "pending"
	case c.Expires.IsZero():
		h.State = "kept"
	default:
		h.State, h.Expires = "kept for a while", c.Expires
		h.drop = func(ctx context.Context) error { return m.mgr.forgetCell(ctx, c.ID) }
	}
	return h
}

func (m *meter) checkpoint(c *state.Cell, k *state.Checkpoint, inSource bool) {
	kind, command := diskCheckpoint, removal(c)
	if r, err := m.cfg.Records.Run(k.Run); err == nil && r.In.After == k.ID && (r.Verdict == cell.Restored || r.Verdict == cell.Discarded) {
		kind, command = diskResult, "pando discard "+r.ID+" --yes"
	}
	h := m.thing(kind, string(k.ID), selector(c, k))
	h.cell, h.Used, h.State, h.Command = c.ID, k.Created, "kept", command
	if !k.Expires.IsZero() && !inSource {
		h.State, h.Expires = "kept for a while", k.Expires
		h.drop = func(context.Context) error { return m.mgr.forgetResult(c.ID, k.ID) }
	}
	for _, s := range k.States() {
		m.uses(h, s)
	}
}

// caches notes what is kept for sources.
func (m *meter) caches() {
	for _, k := range m.cfg.Records.Caches() {
		h := m.thing(diskKeptCache, k.ID, k.Name+" of "+k.Source)
		h.Used, h.State, h.Command = k.Used, "made again when needed", "pando cache rm "+k.ID
		h.drop = func(context.Context) error { return m.cfg.RemoveCache(k.ID) }
		m.uses(h, workspace.State{Layers: k.Layers()})
	}
}

// sources notes what was imported.
func (m *meter) sources() {
	list, _ := m.cfg.Sources.Recorded()
	for _, s := range list {
		if s.Path == "" {
			continue
		}
		h := m.thing(diskSource, s.Name, s.Path)
		h.Used, h.State = s.Used, "made again when needed"
		h.drop = func(context.Context) error { return m.mgr.forgetSource(s.Name, s.State) }
		m.uses(h, s.State)
		for _, f := range s.Files {
			n, _ := workspace.DiskUse(f)
			h.Bytes += n
		}
	}
	for _, im := range m.cfg.Pins.imports() {
		m.uses(m.thing(diskOther, "ahead", madeAhead), im.State)
	}
}

// layers shares out the layers' sizes.
func (m *meter) layers(gone api.GCResult) error {
	unneeded := map[string]bool{}
	for _, i := range gone.Items {
		if i.What == "layer" {
			unneeded[i.Name] = true
		}
	}
	sizes := map[string]int64{}
	for _, p := range m.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			return err
		}
		for _, l := range all {
			size, known := m.mgr.layerSizes[l]
			if !known || !m.frozen[l] {
				if size, err = p.Size(l); err != nil {
					continue // gone meanwhile
				}
			}
			if m.frozen[l] {
				sizes[l] = size
			}
			m.attribute(l, size, unneeded[l])
		}
	}
	m.mgr.layerSizes = sizes
	return nil
}

// attribute counts a layer for the thing that alone needs it. A cell and its own
// checkpoints are one in that, unless a checkpoint alone needs it.
func (m *meter) attribute(layer string, size int64, unneeded bool) {
	owners := slices.Sorted(maps.Keys(m.owners[layer]))
	switch {
	case unneeded:
		h := m.thing(diskUnneeded, "layers", "layers that nothing names")
		h.Bytes += size
		h.Command = "pando gc --yes"
		return
	case len(owners) == 0:
		m.thing(diskOther, "ahead", madeAhead).Bytes += size
		return
	case len(owners) == 1:
		m.things[owners[0]].Bytes += size
		return
	}
	first := m.things[owners[0]]
	together := first.cell != ""
	for _, o := range owners[1:] {
		together = together && m.things[o].cell == first.cell
	}
	if c := m.ofCell(first.cell); together && c != nil {
		c.Bytes += size
		return
	}
	m.thing(diskShared, "", inCommon).Bytes += size
	for _, o := range owners {
		m.things[o].Shared += size
	}
}

// ofCell is the thing that a cell itself is.
func (m *meter) ofCell(id cell.ID) *holding {
	if h := m.things[diskCell+" "+string(id)]; h != nil {
		return h
	}
	return m.things[diskTemplate+" "+string(id)]
}

// memories shares out the store of objects: what images of memory have, and the rest.
func (m *meter) memories() {
	sized, ok := m.cfg.Pins.Store.(interface {
		store.Sized
		Length(cell.Digest) int64 // of an object
	})
	if !ok {
		return
	}
	_, all := sized.Size()
	users := map[cell.Digest][]*holding{}
	for _, c := range m.cfg.Records.Cells() {
		for _, k := range m.cfg.Records.Checkpoints(c.ID) {
			if k.Gone || k.Memory == nil {
				continue
			}
			reach := map[cell.Digest]bool{}
			memory.Reach(m.cfg.Pins, k.Memory.Root, reach) // as far as it is whole
			name := selector(&c, &k)
			if c.Template != "" {
				name = c.Template
			}
			h := m.thing(diskMemory, string(k.ID), name)
			h.Used, h.State, h.Expires, h.Command = k.Created, "kept", k.Expires, removal(&c)
			for d := range reach {
				users[d] = append(users[d], h)
			}
		}
	}
	for d, list := range users {
		n := sized.Length(d)
		all -= n
		if len(list) == 1 {
			list[0].Bytes += n
			continue
		}
		m.thing(diskShared, "", inCommon).Bytes += n
		for _, h := range list {
			h.Shared += n
		}
	}
	h := m.thing(diskTrees, "", "digests of files")
	h.Bytes += max(all, 0)
	h.State = "needed by checkpoints"
}

func (m *meter) images() error {
	list, err := m.cfg.Images()
	if err != nil {
		return err
	}
	// An image that was made of another has the files of that one, which count there.
	slices.SortStableFunc(list, func(a, b oci.Image) int { return cmp.Compare(a.Layers, b.Layers) })
	type kept struct {
		*oci.Image
		*holding
		needed bool
		over   int // images that were made of it
	}
	seen, all := map[string]bool{}, map[cell.Digest]*kept{}
	for i := range list {
		img := &list[i]
		name := imageName(img)
		h := m.thing(diskImage, img.ID.String(), name)
		h.Bytes, _ = workspace.DiskUseBeside(filepath.Dir(img.Root), seen)
		h.Used, h.State, h.Command = img.Used, "in use", "pando image rm "+name
		all[img.ID] = &kept{Image: img, holding: h, needed: m.cfg.ImageNeeded(img)}
	}
	below := func(k *kept) *kept {
		if k.Made == nil {
			return nil
		}
		return all[k.Made.From]
	}
	for _, k := range all {
		if b := below(k); b != nil {
			b.over++
		}
	}
	for _, k := range all {
		if k.needed {
			continue
		}
		if k.over > 0 { // without it, its files would be those of what was made of it
			k.State = "another image was made of it"
			continue
		}
		// What it was made of goes with it, as far as nothing else needs that.
		gone := []*oci.Image{k.Image}
		at := below(k)
		for ; at != nil && !at.needed && at.over == 1 && at.Made != nil && len(at.Refs) == 0; at = below(at) { // what has a name is named before it goes
			gone = append(gone, at.Image)
			k.Bytes, at.Bytes = k.Bytes+at.Bytes, 0
			if at.holding.Used.After(k.holding.Used) {
				k.holding.Used = at.holding.Used
			}
		}
		k.State, k.holds = "no cell needs it", at != nil && !at.needed
		k.drop = func(context.Context) error {
			for n, img := range gone {
				if err := m.cfg.RemoveImage(img); n > 0 && cell.KindOf(err) == cell.Conflict {
					break // it is used again
				} else if err != nil {
					return err
				}
			}
			return nil
		}
	}
	return nil
}

// imageName is how an image is written for people.
func imageName(img *oci.Image) string {
	if len(img.Refs) > 0 {
		return img.Refs[0]
	}
	return img.ID.Short()
}

// folders measures what is not in layers and objects.
func (m *meter) folders() {
	h := m.cfg.Home
	each := func(dir string, what func(name string) *holding) {
		list, _ := os.ReadDir(dir)
		for _, f := range list {
			if t := what(f.Name()); t != nil {
				n, _ := workspace.DiskUse(filepath.Join(dir, f.Name()))
				t.Bytes += n
			}
		}
	}
	each(h.Cells(), func(id string) *holding {
		if t := m.ofCell(cell.ID(id)); t != nil {
			return t
		}
		return m.thing(diskOther, "ahead", madeAhead)
	})
	each(h.Runs(), func(id string) *holding {
		t := m.thing(diskRun, id, id)
		t.State = "evidence"
		return t
	})
	each(h.Memory(), func(id string) *holding {
		t := m.thing(diskMemory, "live", "memory of cells that live")
		t.State = "in use"
		return t
	})
	each(h.State, func(name string) *holding {
		switch filepath.Join(h.State, name) {
		case h.Layers(), h.Cells(), h.Runs(), h.Memory(), h.Trees(), h.Sources(), h.Run:
			return nil
		case h.Ledger():
			t := m.thing(diskReceipts, "", "receipts")
			t.State = "evidence"
			return t
		}
		if base, _, _ := strings.Cut(name, "."); base == "daemon" || base == "audit" || base == "audit-refused" {
			return m.thing(diskLog, base, base)
		}
		return m.thing(diskOther, "records", "records, keys and a reserve")
	})
	caches := func(dir string, skip func(string) bool) {
		each(dir, func(name string) *holding {
			if skip(name) {
				return nil
			}
			t := m.thing(diskCache, name, name)
			t.State = "made again when needed"
			return t
		})
	}
	caches(h.Cache, func(n string) bool { return filepath.Join(h.Cache, n) == h.Images() })
	isImage := map[string]bool{}
	for _, t := range m.things {
		if t.Kind == diskImage {
			isImage[strings.TrimPrefix(strings.TrimPrefix(t.id, diskImage+" "), "sha256:")] = true
		}
	}
	caches(h.Images(), func(n string) bool { return isImage[n] })
}

// Disk says what pando holds on disk; with objects, each thing.
func (m *Manager) Disk(ctx context.Context, objects bool) (api.Disk, error) {
	u, err := m.measureDisk(ctx)
	if err != nil {
		return api.Disk{}, err
	}
	d := api.Disk{State: m.cfg.Home.State, Held: u.held, Free: u.free, Freeable: u.freeable, Kinds: []api.DiskKind{}, Next: []api.DiskObject{}, Removed: []api.DiskObject{}}
	if d.Budget, err = m.budget(); err != nil {
		return d, err
	}
	kinds := map[string]*api.DiskKind{}
	for _, h := range u.things {
		k := kinds[h.Kind]
		if k == nil {
			k = &api.DiskKind{Kind: h.Kind}
			kinds[h.Kind] = k
		}
		k.Count++
		k.Bytes += h.Bytes
		if h.drop != nil || h.Kind == diskUnneeded {
			k.Freeable += h.Bytes
		}
		if objects {
			d.Objects = append(d.Objects, h.DiskObject)
		}
	}
	for _, name := range diskKinds {
		if k := kinds[name]; k != nil && (k.Bytes > 0 || k.Kind != diskShared) {
			d.Kinds = append(d.Kinds, *k)
		}
	}
	d.Warning = m.Warning()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.next {
		d.Next = append(d.Next, h.DiskObject)
	}
	d.Removed = append(d.Removed, m.removed...)
	return d, nil
}
