package state

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
)

// Registry keeps records: in maps, with an index, and in a journal on disk. It is safe for
// concurrent use.
type Registry struct {
	log *durable.Log
	// home is where the files are that records are about. Records do not say it (see
	// portable): in a copy of the state they would lead to the files of the original.
	home paths.Home

	// rewriting is held for reading by commits, so that a rewrite of the
	// journal sees everything that was appended.
	rewriting sync.RWMutex

	mu          sync.RWMutex // guards what follows
	cells       table[cell.ID, Cell]
	names       map[string]cell.ID
	checkpoints table[cell.CheckpointID, Checkpoint]
	numbered    map[cell.ID]map[int]cell.CheckpointID
	runs        table[cell.RunID, Run]
	runsOf      map[cell.ID][]cell.RunID        // oldest first
	pending     map[cell.RunID]bool             // runs that wait for a person
	lent        map[cell.ID]map[string]*Lending // by handle
	ops         map[string]*operation.Redo
	outcomes    map[string]*operation.Redo // that are over, of requests in progress
	approvals   map[string]*Approval
	execs       map[cell.ID]int64 // commands outside of runs, where they are counted
	budgets     map[cell.ID]*Budget
	counted     map[cell.ID]*Counted
	interps     table[cell.ID, Interp]
	caches      map[string]*Cache // by id
	cellCaches  map[cell.ID]*CellCaches
	leases      table[cell.ID, Lease]
	retained    map[string]*Retained // by the id of a run or a cell
	templates   map[string]*Template
	shared      map[cell.Digest]*Shared
	races       map[cell.RaceID]*Race
	attempts    map[cell.RaceID]map[int]*Attempt // by number
	leased      chan struct{}                    // says that a lease which ends was changed
	alive       int                              // cells that are not removed
	claims      map[*Claim]bool                  // cells that are going to be made: see Claim
	appended    int64                            // bytes since the last rewrite
	x           *index
	stale       map[cell.ID]bool           // of these the place in x is not that of their records; empty between commits
	keeps       func(*Lease) time.Duration // how long a paused cell is kept; 0: for ever
	free        chan struct{}              // closed when there may be room for another claim

	walked *atomic.Int64 // records and entries of the index that walks have visited, for tests
}

// rewriteAfter is how much the journal grows before it is written anew.
const rewriteAfter = 16 << 20

// Open reads the journal called name, and creates it if there is none. h is where the files
// are that records speak of.
func Open(fsys durable.FS, name string, h paths.Home) (*Registry, error) {
	walked := new(atomic.Int64)
	r := &Registry{
		home: h, walked: walked, x: newIndex(walked), stale: map[cell.ID]bool{}, free: make(chan struct{}),
		cells: newTable[cell.ID, Cell](walked), names: map[string]cell.ID{},
		checkpoints: newTable[cell.CheckpointID, Checkpoint](walked), numbered: map[cell.ID]map[int]cell.CheckpointID{},
		runs: newTable[cell.RunID, Run](walked), runsOf: map[cell.ID][]cell.RunID{}, pending: map[cell.RunID]bool{}, lent: map[cell.ID]map[string]*Lending{}, ops: map[string]*operation.Redo{}, outcomes: map[string]*operation.Redo{},
		approvals: map[string]*Approval{}, execs: map[cell.ID]int64{}, budgets: map[cell.ID]*Budget{}, counted: map[cell.ID]*Counted{}, interps: newTable[cell.ID, Interp](walked), caches: map[string]*Cache{}, cellCaches: map[cell.ID]*CellCaches{}, retained: map[string]*Retained{}, leases: newTable[cell.ID, Lease](walked), templates: map[string]*Template{}, shared: map[cell.Digest]*Shared{}, races: map[cell.RaceID]*Race{}, attempts: map[cell.RaceID]map[int]*Attempt{}, claims: map[*Claim]bool{}, leased: make(chan struct{}, 1),
	}
	empty := true
	var err error
	r.log, err = durable.OpenLog(fsys, name, func(b []byte) error {
		if empty {
			empty = false
			return readable(name, b)
		}
		var rec Record
		if err := json.Unmarshal(b, &rec); err != nil {
			return fmt.Errorf("cannot read the registry: %w", err)
		}
		r.locate(&rec)
		r.apply(&rec)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if empty {
		if err := r.log.Append(versionLine()); err != nil {
			r.log.Close()
			return nil, err
		}
	}
	r.settle()
	return r, nil
}

// versionLine is the first record of a journal.
func versionLine() []byte {
	b, _ := json.Marshal(Record{Version: version}) // a number can be marshalled
	return b
}

// readable refuses a journal with a first record that does not say this version: the others
// may mean something else, and what is appended would spoil it for the pando that wrote it.
func readable(name string, first []byte) error {
	var has struct{ Version int }
	err := json.Unmarshal(first, &has)
	if err == nil && has.Version == version {
		return nil
	}
	says := fmt.Sprintf("has version %d", has.Version)
	if err != nil || has.Version == 0 {
		says = "does not say its version"
	}
	return cell.Errorf(cell.Unsupported, "state.Open", "run the pando that wrote it, or begin anew: set PANDO_HOME to an empty directory",
		"cannot read %s: it %s, and this pando reads version %d", name, says, version)
}

// Close closes the journal.
func (r *Registry) Close() error { return r.log.Close() }

// Commit makes objects durable and visible.
func (r *Registry) Commit(objects ...any) error {
	objects = r.WithLeases(objects)
	recs := make([]Record, len(objects))
	lines := make([][]byte, len(objects))
	for i, o := range objects {
		switch v := o.(type) {
		case *Cell:
			c := *v
			c.Replaces = ""
			recs[i].Cell = &c
		case *Checkpoint:
			c := *v
			recs[i].Checkpoint = &c
		case *Run:
			c := *v
			recs[i].Run = &c
		case *operation.Redo:
			c := *v
			recs[i].Op = &c
		case *Lending:
			c := *v
			recs[i].Lending = &c
		case *Approval:
			c := *v
			recs[i].Approval = &c
		case *Spent:
			c := *v
			recs[i].Spent = &c
		case *Budget:
			c := *v
			recs[i].Budget = &c
		case *Counted:
			c := *v
			recs[i].Counted = &c
		case *Template:
			c := *v
			recs[i].Template = &c
		case *Interp:
			c := *v
			recs[i].Interp = &c
		case *Lease:
			c := *v
			recs[i].Lease = &c
		case *Cache:
			c := v.clone()
			recs[i].Cache = &c
		case *CellCaches:
			c := v.clone()
			recs[i].CellCaches = &c
		case *Retained:
			c := v.clone()
			recs[i].Retained = &c
		case *Shared:
			recs[i].Shared = v
		case *Race:
			c := *v
			recs[i].Race = &c
		case *Attempt:
			c := *v
			recs[i].Attempt = &c
		case StateChange:
			if _, err := v.From.To(v.To); err != nil {
				return err
			}
			recs[i].Change = &v
		case Forget:
			recs[i].Forget = string(v)
		default:
			return fmt.Errorf("cannot commit a %T", o)
		}
		b, err := r.encode(recs[i])
		if err != nil {
			return err
		}
		lines[i] = b
	}
	recs, lines = r.withoutLate(recs, lines)
	full, err := r.append(recs, lines)
	if err != nil {
		hint := "check the disk that holds pando's state"
		if durable.IsFull(err) {
			hint = "free some space (`pando gc` shows what pando can free), then try again"
		}
		return cell.Errorf(cell.Unavailable, "state.commit", hint, "cannot write the registry: %w", err)
	}
	if full {
		return r.Rewrite()
	}
	return nil
}

// withoutLate leaves out checkpoints of cells that have no record, nor get one now: what was worked
// out of a checkpoint, such as its digest, came after its cell had gone.
func (r *Registry) withoutLate(recs []Record, lines [][]byte) ([]Record, [][]byte) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	for i, rec := range recs {
		if k := rec.Checkpoint; k != nil && r.cells.of[k.Cell] == nil &&
			!slices.ContainsFunc(recs, func(o Record) bool { return o.Cell != nil && o.Cell.ID == k.Cell }) {
			continue
		}
		recs[n], lines[n] = rec, lines[i]
		n++
	}
	return recs[:n], lines[:n]
}

func (r *Registry) append(recs []Record, lines [][]byte) (full bool, err error) {
	r.rewriting.RLock()
	defer r.rewriting.RUnlock()
	if err := r.log.Append(lines...); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range recs {
		r.apply(&recs[i])
		r.appended += int64(len(lines[i]))
	}
	r.settle()
	full = r.appended > rewriteAfter
	if full {
		r.appended = 0
	}
	return full, nil
}

// Rewrite makes the journal as short as what it says.
func (r *Registry) Rewrite() error {
	r.rewriting.Lock()
	defer r.rewriting.Unlock()
	return r.log.Rewrite(r.all())
}

// Write implements operation.Journal.
func (r *Registry) Write(rec operation.Redo) error { return r.Commit(&rec) }

// apply makes a record what is recorded. settle is called after the last of several.
func (r *Registry) apply(rec *Record) {
	switch {
	case rec.Cell != nil:
		c := rec.Cell
		if s := r.shared[c.Shared]; s != nil {
			c.Setup, c.LeftOut = s.Setup, s.LeftOut
		}
		old := r.cells.of[c.ID]
		if old != nil && old.Name != "" && r.names[old.Name] == c.ID {
			r.unname(old.Name)
		}
		if c.Maker != nil && c.Maker.Claim != nil {
			c.Maker.Claim.made[c.ID] = true
		}
		c.Maker = nil
		if c.Hold, c.Acts = nil, nil; r.retained[string(c.ID)] != nil {
			c.Hold, c.Acts = r.retained[string(c.ID)].Hold, r.retained[string(c.ID)].Receipts
		}
		if old == nil || old.State == cell.Removed {
			r.alive++
		}
		if c.State == cell.Removed {
			r.alive--
		}
		if old != nil && pausable(old.State) && pausable(c.State) {
			c.State = old.State
		}
		r.cells.of[c.ID] = c
		if c.Name != "" && c.State != cell.Removed {
			r.names[c.Name] = c.ID
			r.renumber(c.Name, true)
		}
		r.stale[c.ID] = true
		if c.State == cell.Removed {
			r.applyCellCaches(c.ID, nil)
		}
	case rec.Checkpoint != nil:
		k := rec.Checkpoint
		if c := r.cells.of[k.Cell]; c != nil && c.State == cell.Removed {
			k.Gone = true // committed late, from a record of before
		}
		if old := r.checkpoints.at(k.ID); old != nil {
			k.Gone = k.Gone || old.Gone
			r.indexCheckpoint(old, false)
		} else {
			r.stale[k.Cell] = true // its head may be of now
		}
		r.checkpoints.of[k.ID] = k
		r.indexCheckpoint(k, true)
		if r.numbered[k.Cell] == nil {
			r.numbered[k.Cell] = map[int]cell.CheckpointID{}
		}
		r.numbered[k.Cell][k.Number] = k.ID
	case rec.Run != nil:
		v := rec.Run
		v.Folder = filepath.Join(r.home.Runs(), filepath.Base(v.ID))
		v.retain(r.retained[v.ID])
		if old := r.runs.at(v.RunID()); old != nil {
			r.indexRun(old, false)
		} else {
			r.runsOf[v.CellID()] = append(r.runsOf[v.CellID()], v.RunID())
		}
		r.runs.of[v.RunID()] = v
		r.indexRun(v, true)
		r.indexRemoved(v.CellID())
		if v.Verdict == cell.Pending {
			r.pending[v.RunID()] = true
		} else {
			delete(r.pending, v.RunID())
		}
	case rec.Op != nil:
		r.applyOp(rec.Op)
	case rec.Lending != nil:
		l := rec.Lending
		if r.lent[l.Cell] == nil {
			r.lent[l.Cell] = map[string]*Lending{}
		}
		r.lent[l.Cell][l.Handle] = l
	case rec.Approval != nil:
		r.approvals[rec.Approval.Ask.ID] = rec.Approval
	case rec.Spent != nil:
		r.execs[rec.Spent.Cell] = rec.Spent.Execs
	case rec.Budget != nil:
		r.budgets[rec.Budget.ID] = rec.Budget
	case rec.Counted != nil:
		r.counted[rec.Counted.Cell] = rec.Counted
	case rec.Template != nil:
		r.staleTemplate(rec.Template.Name)
		r.stale[rec.Template.Cell] = true
		if old := r.templates[rec.Template.Name]; old != nil { // of forks at once, the one recorded last may have counted first
			rec.Template.Forks = max(rec.Template.Forks, old.Forks)
		}
		r.templates[rec.Template.Name] = rec.Template
	case rec.Interp != nil:
		r.interps.of[rec.Interp.Cell] = rec.Interp
		r.stale[rec.Interp.Cell] = true
	case rec.Lease != nil:
		l := rec.Lease
		r.leases.of[l.Cell] = l
		r.stale[l.Cell] = true
		if l.Ends() || !l.ParkedAt.IsZero() {
			select {
			case r.leased <- struct{}{}:
			default:
			}
		}
	case rec.Race != nil:
		r.races[rec.Race.ID] = rec.Race
	case rec.Attempt != nil:
		a := rec.Attempt
		if r.attempts[a.Race] == nil {
			r.attempts[a.Race] = map[int]*Attempt{}
		}
		r.attempts[a.Race][a.Number] = a
	case rec.Shared != nil:
		r.shared[rec.Shared.Digest] = rec.Shared
	case rec.Cache != nil:
		r.applyCache(rec.Cache.ID, rec.Cache)
	case rec.CellCaches != nil:
		r.applyCellCaches(rec.CellCaches.Cell, rec.CellCaches)
	case rec.Retained != nil:
		r.applyRetained(rec.Retained)
	case rec.Change != nil:
		if c := r.cells.of[rec.Change.Cell]; c != nil && c.State == rec.Change.From {
			now := *c
			now.State = rec.Change.To
			r.cells.of[now.ID] = &now
			r.stale[now.ID] = true
		}
	case rec.Forget != "":
		r.drop(rec.Forget)
	}
}

// pausable reports whether a cell in this state has processes, which stand still or go on.
// Between the two a cell changes by StateChange alone: a whole record may be that of a run,
// which read it before a pause.
func pausable(s cell.State) bool { return s == cell.Running || s == cell.Paused }

// unname gives a name back.
func (r *Registry) unname(name string) {
	delete(r.names, name)
	r.renumber(name, false)
}

func (r *Registry) drop(id string) {
	delete(r.approvals, id)
	delete(r.races, cell.RaceID(id))
	delete(r.attempts, cell.RaceID(id))
	if name, ok := strings.CutPrefix(id, ForgetTemplate); ok {
		r.staleTemplate(name)
		delete(r.templates, name)
	}
	if cache, ok := strings.CutPrefix(id, ForgetCache); ok {
		r.applyCache(cache, nil)
	}
	if of, ok := strings.CutPrefix(id, ForgetBudget); ok {
		delete(r.budgets, cell.ID(of))
	}
	if c := r.cells.of[cell.ID(id)]; c != nil {
		if c.Name != "" && r.names[c.Name] == c.ID {
			r.unname(c.Name)
		}
		if c.State != cell.Removed {
			r.alive--
		}
		r.applyCellCaches(c.ID, nil)
		delete(r.cells.of, c.ID)
		r.reindex(c.ID)
		delete(r.numbered, c.ID)
		delete(r.runsOf, c.ID)
		delete(r.execs, c.ID)
		delete(r.counted, c.ID)
		delete(r.interps.of, c.ID)
		delete(r.leases.of, c.ID)
		delete(r.lent, c.ID)
	}
	if k := r.checkpoints.of[cell.CheckpointID(id)]; k != nil {
		r.indexCheckpoint(k, false)
		delete(r.checkpoints.of, k.ID)
		delete(r.numbered[k.Cell], k.Number)
	}
	if v := r.runs.of[cell.RunID(id)]; v != nil {
		r.indexRun(v, false)
		delete(r.runs.of, v.RunID())
		delete(r.pending, v.RunID())
		list := r.runsOf[v.CellID()]
		for i, x := range list {
			if x == v.RunID() {
				r.runsOf[v.CellID()] = append(append([]cell.RunID(nil), list[:i]...), list[i+1:]...)
				break
			}
		}
		r.indexRemoved(v.CellID())
	}
}

// staleTemplate has the cell of a template indexed anew.
func (r *Registry) staleTemplate(name string) {
	if t := r.templates[name]; t != nil {
		r.stale[t.Cell] = true
	}
}

// Cell returns the cell of an id, also a removed one.
func (r *Registry) Cell(id cell.ID) (Cell, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c := r.cells.of[id]; c != nil {
		return *c, nil
	}
	return Cell{}, NoCell(id)
}

// NoCell is the error for a cell that there is not.
func NoCell(id cell.ID) error {
	return cell.Errorf(cell.NotFound, "engine.cell", "run `pando ls` to see the cells there are", "no cell %s", id)
}

// NoRun is the error for a run that there is not.
func NoRun(id cell.RunID) error {
	return cell.Errorf(cell.NotFound, "engine.run", "run `pando runs` to see the runs there are", "no run %s", id)
}

// Interp returns the latest interpreter of a cell; nil if it never had one.
func (r *Registry) Interp(id cell.ID) *Interp {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if i := r.interps.of[id]; i != nil {
		c := *i
		return &c
	}
	return nil
}

// Named returns the cell that has a name.
func (r *Registry) Named(name string) (Cell, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	id, ok := r.names[name]
	if !ok {
		return Cell{}, false
	}
	return *r.cells.of[id], true
}

// Checkpoint returns the checkpoint of an id, also a collected one.
func (r *Registry) Checkpoint(id cell.CheckpointID) (Checkpoint, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.checkpoints.of[id]; k != nil {
		return *k, nil
	}
	return Checkpoint{}, cell.Errorf(cell.NotFound, "engine.checkpoint", "run `pando history CELL` to see its checkpoints", "no checkpoint %s", id)
}

// founder is the checkpoint that a state goes back to in the end: what a source
// was imported into. It may be another cell's, which is gone. nil when it is not
// known. The caller holds r.mu.
func (r *Registry) founder(id cell.CheckpointID) *Checkpoint {
	k := r.checkpoints.of[id]
	for k != nil && r.checkpoints.of[k.Parent] != nil {
		k = r.checkpoints.of[k.Parent]
	}
	return k
}

// Numbered returns a cell's checkpoint of a number.
func (r *Registry) Numbered(id cell.ID, n int) (Checkpoint, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.checkpoints.of[r.numbered[id][n]]; k != nil {
		return *k, nil
	}
	of := string(id)
	if c := r.cells.of[id]; c != nil {
		of = c.Title()
	}
	return Checkpoint{}, cell.Errorf(cell.NotFound, "engine.checkpoint", "run `pando history "+of+"` to see its checkpoints", "no checkpoint %s@%d", of, n)
}

// Run returns the run of an id.
func (r *Registry) Run(id cell.RunID) (Run, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if v := r.runs.of[id]; v != nil {
		return *v, nil
	}
	return Run{}, NoRun(id)
}

// Cells returns the cells that are not removed, newest first, those that were
// made together by their names.
func (r *Registry) Cells() []Cell {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Cell
	for _, c := range r.cells.each() {
		if c.State != cell.Removed {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b Cell) int { return a.Key().Compare(b.Key()) })
	return out
}

// AllCells returns all cells, removed ones too.
func (r *Registry) AllCells() []Cell {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Cell, 0, len(r.cells.of))
	for _, c := range r.cells.each() {
		out = append(out, *c)
	}
	return out
}

// Checkpoints returns a cell's checkpoints that still have their layers,
// by number.
func (r *Registry) Checkpoints(id cell.ID) []Checkpoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Checkpoint
	for _, k := range r.numbered[id] {
		if c := r.checkpoints.of[k]; c != nil && !c.Gone {
			out = append(out, *c)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Number < out[j].Number })
	return out
}

// CheckpointIDs returns all checkpoints a cell ever had.
func (r *Registry) CheckpointIDs(id cell.ID) []cell.CheckpointID {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []cell.CheckpointID
	for _, k := range r.numbered[id] {
		out = append(out, k)
	}
	return out
}

// Runs returns runs of a cell, or of all cells for "", newest first.
func (r *Registry) Runs(id cell.ID) []Run {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Run
	if id != "" {
		list := r.runsOf[id]
		for i := len(list) - 1; i >= 0; i-- {
			out = append(out, *r.runs.of[list[i]])
		}
		return out
	}
	for _, v := range r.runs.each() {
		out = append(out, *v)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Created.After(out[j].Created) })
	return out
}

// InRun reports whether a run in a cell has not ended.
func (r *Registry) InRun(id cell.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.ContainsFunc(r.runsOf[id], func(run cell.RunID) bool { return r.runs.of[run].Phase != cell.Ended })
}

// Lending returns what is recorded of a credential in a cell's hands.
func (r *Registry) Lending(id cell.ID, handle string) (Lending, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if l := r.lent[id][handle]; l != nil {
		return *l, true
	}
	return Lending{}, false
}

// Lendings returns what was lent to a cell, by handle.
func (r *Registry) Lendings(id cell.ID) (out []Lending) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, l := range r.lent[id] {
		out = append(out, *l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Handle < out[j].Handle })
	return out
}

// LentOf returns the lendings of a credential, oldest first.
func (r *Registry) LentOf(handle string) (out []Lending) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, of := range r.lent {
		if l := of[handle]; l != nil {
			out = append(out, *l)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Since.Before(out[j].Since) })
	return out
}

// OpenOps returns the operations that are not over.
func (r *Registry) OpenOps() []operation.Redo {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []operation.Redo
	for _, o := range r.ops {
		out = append(out, *o)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

// NoTemplate is the error for a template that there is not.
func NoTemplate(name string) error {
	return cell.Errorf(cell.NotFound, "engine.template", "run `pando template ls` to see the templates there are", "no template %.80s", strings.ToValidUTF8(name, "\ufffd"))
}

// Unfinished is a Conflict when a run of the cell, other than but, has ended
// and could not be recorded: the workspace is still that run's. The caller
// holds the cell's lock, so that none is under way.
func (r *Registry) Unfinished(c *Cell, but cell.RunID) error {
	for _, run := range r.Runs(c.ID) {
		if p := run.Phase; (p == cell.Executing || p == cell.Finishing) && run.RunID() != but {
			return cell.Errorf(cell.Conflict, "state.Unfinished", "free some space; it is finished as soon as that works",
				"run %s in cell %s could not be finished", run.ID, c.Title())
		}
	}
	return nil
}
