package state

import (
	"cmp"
	"iter"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
)

// index finds cells by what requests ask for, so that a request costs what it finds and
// not what there is. The registry keeps it beside its records, under the same lock: see
// reindex. What is here is derived from records, and is in no journal.
type index struct {
	walked *atomic.Int64 // entries that walks have visited, for tests

	places   map[cell.ID]*place        // of every record
	listed   *shelf                    // that are listed: not removed, and no template's own
	labels   map[label]*shelf          // the same, by label
	ids      ordered[cell.ID]          // that are not removed
	owners   map[string]int            // how many are not removed, by the token that made them
	active   map[scope]int             // how many are listed and not paused, of each door and each token
	states   map[stateKey]int          // how many are listed
	awake    map[cell.ID]group         // that run or are paused in another's family, by the family
	children map[cell.ID]group         // removed ones too, by the cell they were forked from
	kids     map[cell.ID]int           // how many of them are no template's own
	forks    map[string]group          // listed, by the template they were forked from
	images   map[string]group          // that are not removed, by image
	lowers   map[cell.ID]int           // how many need layers in another's own folder, by that cell
	due      ordered[dueKey]           // leases that end
	numbers  map[string]*numbering     // of names
	runIDs   ordered[cell.RunID]       // of all runs
	sources  map[string]ordered[runAt] // runs by their source, newest first
	pendings map[string]ordered[runAt] // those of them that wait for a person
	digests  ordered[digestKey]        // checkpoints by their ids and tree digests
	noted    ordered[notedKey]         // checkpoints with a message, newest first
	own      group                     // templates' own cells that are not removed
	layers   map[string]int            // how often each is named: see layer.go
	held     map[cell.CheckpointID]int // by how many cells that are not removed: see layer.go
	unnamed  map[cell.ID]removedKey    // removed cells that no other record needs: see forget.go
	removals ordered[removedKey]       // the same, by the time of their removal
}

type group = map[cell.ID]bool

// label is a label of cells; any stands for every value.
type label struct {
	name, value string
	any         bool
}

type stateKey struct{ state, backend string }

// scope is a door, or a token by its id or name.
type scope struct{ door, token string }

type dueKey struct {
	until time.Time
	id    cell.ID
}

type runAt struct {
	at time.Time
	id cell.RunID
}

type digestKey struct {
	hex string
	id  cell.CheckpointID
}

type notedKey struct {
	at time.Time
	id cell.CheckpointID
}

// cellKey is a cell's place in lists: newest first, those that were made together by
// their names.
type cellKey struct {
	made time.Time
	name string
	id   cell.ID
}

func (a cellKey) Compare(b cellKey) int {
	return cmp.Or(b.made.Compare(a.made), cell.CompareNames(a.name, b.name), strings.Compare(string(a.id), string(b.id)))
}

// Classes of cells, which lists can be bounded to.
const (
	ClassRunning = iota // neither of the others
	classPaused
	classMaking
	classes
)

// place is what the index has of one cell.
type place struct {
	cellKey
	class  int
	there  bool // not removed
	listed bool
	labels map[string]string
	owner  string
	door   string
	// ownerName is the name of the token owner.
	ownerName string
	state     stateKey
	family    cell.ID // that it is awake in; "" for none but its own
	parent    cell.ID
	own       bool // a template's own
	of        string
	image     string
	lower     []cell.ID
	until     time.Time
	head      cell.CheckpointID
	founder   cell.CheckpointID
	known     []cell.CheckpointID
	layers    []string // of its writable layers, and below them
}

// LabelBuild is the label of cells that a door builds templates in. One that is built is
// there to be forked, and does not count among the cells there are at once.
const (
	LabelBuild    = "e2b:build"
	BuildWaiting  = "waiting"
	BuildBuilding = "building"
)

// takesPart reports whether a cell counts among those there are at once.
func (p *place) takesPart() bool {
	if p == nil || !p.listed || p.class == classPaused {
		return false
	}
	build, ok := p.labels[LabelBuild]
	return !ok || build == BuildWaiting || build == BuildBuilding
}

func newIndex(walked *atomic.Int64) *index {
	x := &index{walked: walked,
		places: map[cell.ID]*place{}, labels: map[label]*shelf{}, owners: map[string]int{}, active: map[scope]int{}, states: map[stateKey]int{},
		awake: map[cell.ID]group{}, children: map[cell.ID]group{}, kids: map[cell.ID]int{}, forks: map[string]group{}, images: map[string]group{}, lowers: map[cell.ID]int{},
		numbers: map[string]*numbering{}, sources: map[string]ordered[runAt]{}, pendings: map[string]ordered[runAt]{},
		own: group{}, layers: map[string]int{}, held: map[cell.CheckpointID]int{}, unnamed: map[cell.ID]removedKey{},
	}
	x.listed = x.shelf()
	x.ids = newOrdered(walked, func(a, b cell.ID) int { return strings.Compare(string(a), string(b)) })
	x.due = newOrdered(walked, func(a, b dueKey) int {
		return cmp.Or(a.until.Compare(b.until), strings.Compare(string(a.id), string(b.id)))
	})
	x.runIDs = newOrdered(walked, func(a, b cell.RunID) int { return strings.Compare(string(a), string(b)) })
	x.digests = newOrdered(walked, func(a, b digestKey) int {
		return cmp.Or(strings.Compare(a.hex, b.hex), strings.Compare(string(a.id), string(b.id)))
	})
	x.noted = newOrdered(walked, func(a, b notedKey) int {
		return cmp.Or(b.at.Compare(a.at), strings.Compare(string(a.id), string(b.id)))
	})
	x.removals = newOrdered(walked, func(a, b removedKey) int {
		return cmp.Or(a.at.Compare(b.at), strings.Compare(string(a.id), string(b.id)))
	})
	return x
}

// shelf holds cells in the order of lists, by their class.
type shelf [classes]ordered[cellKey]

func (x *index) shelf() *shelf {
	var s shelf
	for i := range s {
		s[i] = newOrdered(x.walked, cellKey.Compare)
	}
	return &s
}

func (s *shelf) size() (n int) {
	for i := range s {
		n += s[i].Len()
	}
	return n
}

// labelsOf are the shelves that a cell with these labels stands on.
func labelsOf(labels map[string]string) iter.Seq[label] {
	return func(yield func(label) bool) {
		for k, v := range labels {
			if !yield(label{name: k, value: v}) || !yield(label{name: k, any: true}) {
				return
			}
		}
	}
}

// settle brings the index to what was applied. The caller holds r.mu.
func (r *Registry) settle() {
	for id := range r.stale {
		r.reindex(id)
	}
	clear(r.stale)
}

// reindex brings the index to what is recorded of a cell. The caller holds r.mu.
func (r *Registry) reindex(id cell.ID) {
	now, old := r.placeOf(id), r.x.places[id]
	r.hold(now, 1)
	r.hold(old, -1)
	if old != nil {
		r.x.put(old, false)
		delete(r.x.places, id)
	}
	if now != nil {
		r.x.places[id] = now
		r.x.put(now, true)
	}
	r.indexRemoved(id)
	for _, p := range []*place{old, now} {
		if p != nil && p.parent != "" {
			r.indexRemoved(p.parent)
		}
	}
	if old.takesPart() && !now.takesPart() {
		r.freed()
	}
}

// placeOf is what the records say of a cell now; nil when there is none.
func (r *Registry) placeOf(id cell.ID) *place {
	c := r.cells.at(id)
	if c == nil {
		return nil
	}
	p := &place{cellKey: cellKey{c.Created, c.Name, id}, there: c.State != cell.Removed, parent: c.parent()}
	p.own = c.Template != ""
	if !p.there {
		return p
	}
	p.listed = !p.own
	r.placeLayers(p, c)
	p.state = stateKey{string(c.State), c.Backend}
	if c.State == cell.Running || c.State == cell.Paused {
		if k := c.Keeper(); k != id {
			p.family = k
		}
	}
	switch c.State {
	case cell.Paused:
		p.class = classPaused
	case cell.Creating:
		p.class = classMaking
	}
	if l := r.leases.at(id); l != nil {
		p.labels, p.owner, p.ownerName, p.door = l.Labels, l.Owner, l.OwnerName, l.Door
		if l.Parked && p.class == ClassRunning {
			p.class = classPaused
		}
		if l.Ends() {
			p.until = l.Until
		}
		if kept := r.KeptUntil(l); p.class == classPaused && !kept.IsZero() && (p.until.IsZero() || kept.Before(p.until)) {
			p.until = kept
		}
	}
	if p.listed {
		p.of = c.Of
	}
	p.image = imageOf(c)
	at := r.home.Cells() + "/"
	for i := range c.Setup.Mounts {
		for _, l := range c.Setup.Mounts[i].Lower {
			if rest, ok := strings.CutPrefix(l, at); ok {
				if owner, below, _ := strings.Cut(rest, "/"); below != "" && cell.ID(owner) != id {
					p.lower = append(p.lower, cell.ID(owner))
				}
			}
		}
	}
	return p
}

// imageOf is by what the index has a cell's image: the key by which it is kept, or its
// name while that is not known; "" for one that is not kept.
func imageOf(c *Cell) string {
	switch {
	case !c.ImageKey.IsZero():
		return c.ImageKey.String()
	case strings.HasPrefix(c.Image, image.KindOCI+":"):
		return c.Image
	}
	return ""
}

// put adds a place, or takes it away.
func (x *index) put(p *place, add bool) {
	toggle := func(o ordered[cellKey]) {
		if add {
			o.ReplaceOrInsert(p.cellKey)
		} else {
			o.Delete(p.cellKey)
		}
	}
	step := 1
	if !add {
		step = -1
	}
	if p.parent != "" {
		member(x.children, p.parent, p.id, add)
		if !p.own {
			tally(x.kids, p.parent, step)
		}
	}
	if !p.there {
		return
	}
	if add {
		x.ids.ReplaceOrInsert(p.id)
	} else {
		x.ids.Delete(p.id)
	}
	tally(x.owners, p.owner, step)
	if p.family != "" {
		member(x.awake, p.family, p.id, add)
	}
	if p.image != "" {
		member(x.images, p.image, p.id, add)
	}
	for _, l := range p.lower {
		tally(x.lowers, l, step)
	}
	for _, l := range p.layers {
		tally(x.layers, l, step)
	}
	if p.own && add {
		x.own[p.id] = true
	} else {
		delete(x.own, p.id)
	}
	if !p.until.IsZero() {
		if k := (dueKey{p.until, p.id}); add {
			x.due.ReplaceOrInsert(k)
		} else {
			x.due.Delete(k)
		}
	}
	if !p.listed {
		return
	}
	tally(x.states, p.state, step)
	if p.takesPart() {
		tally(x.active, scope{door: p.door}, step)
		tally(x.active, scope{token: p.owner}, step)
		if p.ownerName != p.owner {
			tally(x.active, scope{token: p.ownerName}, step)
		}
	}
	if p.of != "" {
		member(x.forks, p.of, p.id, add)
	}
	toggle(x.listed[p.class])
	for l := range labelsOf(p.labels) {
		s := x.labels[l]
		if s == nil {
			s = x.shelf()
			x.labels[l] = s
		}
		if toggle(s[p.class]); s.size() == 0 {
			delete(x.labels, l)
		}
	}
}

// member adds a cell to a group, or takes it away.
func member[K comparable](groups map[K]group, k K, id cell.ID, add bool) {
	g := groups[k]
	switch {
	case add && g == nil:
		groups[k] = group{id: true}
	case add:
		g[id] = true
	default:
		if delete(g, id); len(g) == 0 {
			delete(groups, k)
		}
	}
}

// tally adds to a count.
func tally[K comparable](counts map[K]int, k K, step int) {
	if counts[k] += step; counts[k] == 0 {
		delete(counts, k)
	}
}

// members are the cells of a group. The caller holds r.mu.
func (r *Registry) members(g group) iter.Seq[*Cell] {
	return func(yield func(*Cell) bool) {
		for id := range g {
			r.walked.Add(1)
			if c := r.cells.at(id); c != nil && !yield(c) {
				return
			}
		}
	}
}

// indexRun adds a run to the index, or takes it away. The caller holds r.mu.
func (r *Registry) indexRun(v *Run, add bool) {
	k := runAt{v.Created, v.RunID()}
	in := func(to map[string]ordered[runAt], add bool) {
		for _, source := range append([]string{v.Source}, v.Repositories...) {
			o, ok := to[source]
			switch {
			case add && !ok:
				o = newOrdered(r.walked, newestFirst)
				to[source] = o
				fallthrough
			case add:
				o.ReplaceOrInsert(k)
			case ok:
				if o.Delete(k); o.Len() == 0 {
					delete(to, source)
				}
			}
		}
	}
	in(r.x.sources, add)
	in(r.x.pendings, add && v.Verdict == cell.Pending)
	if add {
		r.x.runIDs.ReplaceOrInsert(k.id)
	} else {
		r.x.runIDs.Delete(k.id)
	}
}

// indexCheckpoint adds a checkpoint to the index, or takes it away. The caller holds r.mu.
func (r *Registry) indexCheckpoint(k *Checkpoint, add bool) {
	if step := map[bool]int{true: 1, false: -1}[add]; !k.Gone || r.x.held[k.ID] > 0 {
		r.x.name(k, step)
	}
	keys := []digestKey{{strings.TrimPrefix(string(k.ID), "k-"), k.ID}, {strings.TrimPrefix(k.Tree.String(), "sha256:"), k.ID}}
	for _, key := range keys {
		if add && !k.Gone {
			r.x.digests.ReplaceOrInsert(key)
		} else {
			r.x.digests.Delete(key)
		}
	}
	if at := (notedKey{k.Created, k.ID}); add && !k.Gone && k.Message != "" {
		r.x.noted.ReplaceOrInsert(at)
	} else {
		r.x.noted.Delete(at)
	}
}

// Key is the cell's place in lists.
func (c *Cell) Key() cellKey { return cellKey{c.Created, c.Name, c.ID} }

// CellsBeginning returns the cells that are not removed with ids that begin with s.
func (r *Registry) CellsBeginning(s string) (out []Cell) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for id := range r.x.ids.from(cell.ID(s)) {
		if !strings.HasPrefix(string(id), s) {
			break
		}
		out = append(out, *r.cells.at(id))
	}
	return out
}

// RunsBeginning returns the runs with ids that begin with s.
func (r *Registry) RunsBeginning(s string) (out []Run) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for id := range r.x.runIDs.from(cell.RunID(s)) {
		if !strings.HasPrefix(string(id), s) {
			break
		}
		out = append(out, *r.runs.at(id))
	}
	return out
}

// DigestsBeginning returns the checkpoints of cells that are not removed with ids or tree
// digests that begin with hex.
func (r *Registry) DigestsBeginning(hex string) map[cell.CheckpointID]Checkpoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := map[cell.CheckpointID]Checkpoint{}
	for key := range r.x.digests.from(digestKey{hex: hex}) {
		if !strings.HasPrefix(key.hex, hex) {
			break
		}
		k := r.checkpoints.at(key.id)
		if c := r.cells.at(k.Cell); c != nil && c.State != cell.Removed {
			out[k.ID] = *k
		}
	}
	return out
}

// RunsFrom yields the runs that have dir or a directory above it as their source, newest
// first.
func (r *Registry) RunsFrom(dir string) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		r.mu.Lock() // clones write
		var seqs []iter.Seq[runAt]
		for _, d := range above(dir) {
			if of, ok := r.x.sources[d]; ok {
				seqs = append(seqs, ordered[runAt]{of.Clone(), of.compare, of.walked}.each())
			}
		}
		r.mu.Unlock()
		for k := range merged(newestFirst, seqs...) {
			if v, err := r.Run(k.id); err == nil && !yield(v) {
				return
			}
		}
	}
}

func newestFirst(a, b runAt) int {
	return cmp.Or(b.at.Compare(a.at), strings.Compare(string(a.id), string(b.id)))
}

// above are a directory and those above it.
func above(dir string) (list []string) {
	for {
		list = append(list, dir)
		up := filepath.Dir(dir)
		if up == dir {
			return list
		}
		dir = up
	}
}

// Marked yields the checkpoints with a message that begins with mark, newest first, of
// cells that are not removed.
func (r *Registry) Marked(mark string) (out []Checkpoint) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for at := range r.x.noted.each() {
		k := r.checkpoints.at(at.id)
		if c := r.cells.at(k.Cell); strings.HasPrefix(k.Message, mark) && c != nil && c.State != cell.Removed {
			out = append(out, *k)
		}
	}
	return out
}
