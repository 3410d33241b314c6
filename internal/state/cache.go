package state

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Cache is a cache that is kept for a source: what commands in its cells wrote there, in runs that
// were accepted.
type Cache struct {
	ID       string     `json:"id"` // see CacheID
	Source   string     `json:"source"`
	Image    string     `json:"image"` // of the cells, as their records have it
	Name     string     `json:"name"`  // "go", or a path
	Provider string     `json:"provider"`
	Dirs     []CacheDir `json:"dirs"`
	Created  time.Time  `json:"created"`
	Written  time.Time  `json:"written"`
	Used     time.Time  `json:"used"`          // to the hour
	Run      cell.RunID `json:"run,omitempty"` // the last that wrote it
	// Boot is the start of the host since which its layers may not be on the disk; "": they are.
	Boot string `json:"boot,omitempty"`
}

// CacheDir is one directory of a cache.
type CacheDir struct {
	Target string   `json:"target"` // where it is in cells
	Host   string   `json:"host"`   // the directory of the host below all layers
	Layers []string `json:"layers"` // bottom first
	Sizes  []int64  `json:"sizes"`  // of these on disk, in bytes
}

// Bytes is what it takes on disk.
func (d *CacheDir) Bytes() (n int64) {
	for _, s := range d.Sizes {
		n += s
	}
	return n
}

// Put puts a layer on top.
func (d *CacheDir) Put(layer string, size int64) {
	d.Layers, d.Sizes = append(d.Layers, layer), append(d.Sizes, size)
}

// Cut takes away all layers from the nth on, and returns them.
func (d *CacheDir) Cut(n int) (layers []string) {
	layers = slices.Clone(d.Layers[n:])
	d.Layers, d.Sizes = d.Layers[:n], d.Sizes[:n]
	return layers
}

// CacheID is the id of the cache of a cell's source, for its image.
func CacheID(c *Cell, name string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{c.Source, c.Image, c.ImageID, name}, "\x00")))
	return "k-" + hex.EncodeToString(sum[:8])
}

// Dir returns the directory at a target; nil if the cache has none.
func (c *Cache) Dir(target string) *CacheDir {
	for i := range c.Dirs {
		if c.Dirs[i].Target == target {
			return &c.Dirs[i]
		}
	}
	return nil
}

// Bytes is what it takes on disk.
func (c *Cache) Bytes() (n int64) {
	for _, d := range c.Dirs {
		n += d.Bytes()
	}
	return n
}

// Layers are all that it needs.
func (c *Cache) Layers() (list []string) {
	for _, d := range c.Dirs {
		list = append(list, d.Layers...)
	}
	return list
}

// CellCaches is what a cell has of kept caches. It is a record of its own: instances come and go
// without their cell's record.
type CellCaches struct {
	Cell   cell.ID `json:"cell"`
	Always bool    `json:"always,omitempty"` // what it writes is kept at once
	Boot   string  `json:"boot"`             // the start of the host since which layers of its own may not be on the disk
	// Since is the newest run of the cell when its caches were mounted, and Open are those that had not ended by then.
	Since cell.RunID   `json:"since,omitempty"`
	Open  []cell.RunID `json:"open,omitempty"`
	// Answered is the newest run of the cell when a person last accepted what the cell is.
	Answered cell.RunID     `json:"answered,omitempty"`
	Dirs     []CellCacheDir `json:"dirs"`
}

// CellCacheDir is a directory of a cache, as one cell has it.
type CellCacheDir struct {
	Cache  string `json:"cache"` // id
	Name   string `json:"name"`
	Target string `json:"target"`
	Host   string `json:"host"` // the directory below all layers
	// Layers are those it was last mounted with, bottom first, without its own writable one.
	Layers []string `json:"layers,omitempty"`
	// Own are layers that commands in the cell, or in one that it was forked from, wrote, and that are
	// not kept for the source: oldest first.
	Own []CacheLayer `json:"own,omitempty"`
}

// CacheLayer is a layer that was written to a cache. Runs are behind it: those in the instance of the cell that wrote it,
// those with results there that waited for a decision, and those behind the layers of the cell's own below it; none if
// other commands wrote it.
type CacheLayer struct {
	Layer  string       `json:"layer"`
	Runs   []cell.RunID `json:"runs,omitempty"`
	Always bool         `json:"always,omitempty"` // it is kept whatever becomes of them
}

// Layers are all that a cell needs of its caches.
func (c *CellCaches) Layers() (list []string) {
	for _, d := range c.Dirs {
		list = append(list, d.Layers...)
		for _, o := range d.Own {
			list = append(list, o.Layer)
		}
	}
	return list
}

// clone is a copy that shares nothing which is changed in place.
func (c CellCaches) clone() CellCaches {
	c.Dirs = slices.Clone(c.Dirs)
	for i := range c.Dirs {
		c.Dirs[i].Layers, c.Dirs[i].Own = slices.Clone(c.Dirs[i].Layers), slices.Clone(c.Dirs[i].Own)
	}
	return c
}

func (c Cache) clone() Cache {
	c.Dirs = slices.Clone(c.Dirs)
	for i := range c.Dirs {
		c.Dirs[i].Layers, c.Dirs[i].Sizes = slices.Clone(c.Dirs[i].Layers), slices.Clone(c.Dirs[i].Sizes)
	}
	return c
}

// ForgetCache begins the id of a cache that is forgotten.
const ForgetCache = "cache "

// Cache returns a source's cache, by its id.
func (r *Registry) Cache(id string) (Cache, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.caches[id]; c != nil {
		return c.clone(), nil
	}
	return Cache{}, cell.Errorf(cell.NotFound, "state.Cache", "run `pando cache ls` to see the caches there are", "no cache %s", cell.Clip(id))
}

// Caches returns all caches that are kept, by source and name.
func (r *Registry) Caches() []Cache {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Cache, 0, len(r.caches))
	for _, c := range r.caches {
		out = append(out, c.clone())
	}
	slices.SortFunc(out, func(a, b Cache) int {
		return strings.Compare(a.Source+"\x00"+a.Name+"\x00"+a.Image, b.Source+"\x00"+b.Name+"\x00"+b.Image)
	})
	return out
}

// CellCaches returns what a cell has of kept caches.
func (r *Registry) CellCaches(id cell.ID) (CellCaches, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.cellCaches[id]; c != nil {
		return c.clone(), true
	}
	return CellCaches{}, false
}

// applyCache makes a cache what is recorded, or nothing. The caller holds r.mu.
func (r *Registry) applyCache(id string, now *Cache) {
	if old := r.caches[id]; old != nil {
		r.x.tallyAll(old.Layers(), -1)
		delete(r.caches, id)
	}
	if now != nil {
		r.x.tallyAll(now.Layers(), 1)
		r.caches[id] = now
	}
}

// applyCellCaches is applyCache for those of a cell. A cell that is removed has none.
func (r *Registry) applyCellCaches(id cell.ID, now *CellCaches) {
	if old := r.cellCaches[id]; old != nil {
		r.x.tallyAll(old.Layers(), -1)
		delete(r.cellCaches, id)
	}
	if c := r.cells.at(id); now != nil && c != nil && c.State != cell.Removed {
		r.x.tallyAll(now.Layers(), 1)
		r.cellCaches[id] = now
	}
}

func (x *index) tallyAll(layers []string, step int) {
	for _, l := range layers {
		tally(x.layers, l, step)
	}
}
