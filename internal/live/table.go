package live

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Interp is an interpreter that is known to live.
type Interp struct {
	Template string  // that it was forked from, or is the warm parent of
	Keeper   cell.ID // the family that it is in
	Sealed   bool    // a template's: it is only forked
	Image    bool    // a template's that is an image: nothing of it lives
	Used     time.Time
}

// Table has what is known of each cell that is alive, unreached or ending.
type Table struct {
	unused func(id cell.ID) // called when nothing refers to an instance any more: see Ref

	mu        sync.Mutex // guards what follows
	instances map[cell.ID]backend.Instance
	arrived   chan struct{}             // closed when a cell comes to have an instance; nil: nothing waits for that
	refs      map[cell.ID]int           // to instances
	idle      map[cell.ID]bool          // cells that unused was called for, until claimIdle
	unreached map[cell.ID]error         // why they are
	ending    map[cell.ID]chan struct{} // instances that are being taken down; closed when they are gone
	execs     map[string]*Exec          // that run, or have ended a moment ago
	interps   map[cell.ID]Interp
	followed  map[cell.ID]bool // families of which the ends of interpreters are followed
	held      map[cell.ID]int  // cells that stand still for an act, which ends that: see Manager.Hold
}

func newTable(unused func(id cell.ID)) Table {
	return Table{
		unused: unused, instances: map[cell.ID]backend.Instance{}, refs: map[cell.ID]int{}, idle: map[cell.ID]bool{}, unreached: map[cell.ID]error{},
		ending: map[cell.ID]chan struct{}{}, execs: map[string]*Exec{}, interps: map[cell.ID]Interp{}, followed: map[cell.ID]bool{}, held: map[cell.ID]int{},
	}
}

// hold counts the acts for which a cell stands still.
func (t *Table) hold(id cell.ID, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[id] += n; t.held[id] == 0 {
		delete(t.held, id)
	}
}

func (t *Table) isHeld(id cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[id] > 0
}

// Instance is the instance of a cell; nil if it has none.
func (t *Table) Instance(id cell.ID) backend.Instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.instances[id]
}

// Instances are all there are, in no order.
func (t *Table) Instances() []backend.Instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.instances))
}

// Count is how many instances there are.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.instances)
}

// Busy reports whether a cell is alive, unreached or ending, or a command can be asked for.
func (t *Table) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.instances) > 0 || len(t.unreached) > 0 || len(t.ending) > 0 || len(t.execs) > 0
}

// put has an instance be that of a cell, with the interpreter that lives in it, if one does, and
// the commands in it. Each of them refers to the instance.
func (t *Table) put(id cell.ID, inst backend.Instance, it *Interp, execs ...*Exec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.instances[id] = inst
	if t.arrived != nil {
		close(t.arrived)
		t.arrived = nil
	}
	if it != nil {
		t.interps[id] = *it
	}
	for _, x := range execs {
		t.execs[x.id] = x
		t.refs[id]++
	}
}

// Take takes the instance of a cell out of the table, for its end or its capture, and what is
// known of its interpreter.
func (t *Table) Take(id cell.ID) (inst backend.Instance, interp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inst = t.instances[id]
	_, interp = t.interps[id]
	delete(t.instances, id)
	delete(t.interps, id)
	return inst, interp
}

// arrival is closed when a cell comes to have an instance from now on.
func (t *Table) arrival() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.arrived == nil {
		t.arrived = make(chan struct{})
	}
	return t.arrived
}

// takeUnused is Take, unless the cell has no instance or something refers to it.
func (t *Table) takeUnused(id cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.instances[id] == nil || t.refs[id] > 0 {
		return false
	}
	delete(t.instances, id)
	return true
}

// Ref returns the instance of a cell, nil if it has none, and keeps it from being put to rest
// until release is called.
func (t *Table) Ref(id cell.ID) (inst backend.Instance, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if inst = t.instances[id]; inst == nil {
		return nil, func() {}
	}
	t.refs[id]++
	return inst, sync.OnceFunc(func() { t.release(id) })
}

// used reports whether something refers to the instance of a cell.
func (t *Table) used(id cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refs[id] > 0
}

func (t *Table) release(id cell.ID) {
	t.mu.Lock()
	t.refs[id]--
	unused := t.refs[id] == 0
	if unused {
		delete(t.refs, id)
	}
	if _, lives := t.interps[id]; lives || t.idle[id] { // its end puts the cell to rest; it is looked at once more anyway
		unused = false
	}
	if unused {
		t.idle[id] = true
	}
	t.mu.Unlock()
	if unused {
		t.unused(id)
	}
}

// claimIdle has the next release call unused again, and reports whether nothing refers to the
// instance of a cell now.
func (t *Table) claimIdle(id cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.idle, id)
	return t.refs[id] == 0
}

// unreferenced is the instance of a cell if nothing refers to it; else nil.
func (t *Table) unreferenced(id cell.ID) backend.Instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refs[id] > 0 {
		return nil
	}
	return t.instances[id]
}

// whyUnreached is why a cell is unreached; nil if it is not.
func (t *Table) whyUnreached(id cell.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unreached[id]
}

// Unreached reports whether a cell is unreached.
func (t *Table) Unreached(id cell.ID) bool { return t.whyUnreached(id) != nil }

// setUnreached says why a cell is unreached, nil if it is not, and reports whether it was.
func (t *Table) setUnreached(id cell.ID, why error) (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.unreached[id] != nil
	if delete(t.unreached, id); why != nil {
		t.unreached[id] = why
	}
	return was
}

// AtRest reports whether a cell has no processes: no instance of it is there, or to be reached.
func (t *Table) AtRest(id cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.instances[id] == nil && t.unreached[id] == nil
}

// end says that the instance of a cell is being taken down, until gone is called.
func (t *Table) end(id cell.ID) (gone func()) {
	done := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ending[id] = done
	return func() {
		t.mu.Lock()
		delete(t.ending, id)
		t.mu.Unlock()
		close(done)
	}
}

// noteTaken notes why an instance is taken down with what runs in it.
func (t *Table) noteTaken(inst backend.Instance, cause string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.execs {
		if x.inst == inst {
			x.taken = cause
		}
	}
}

// takenDown is why the instance of a command was taken down; "" if it was not.
func (t *Table) takenDown(x *Exec) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return x.taken
}

// AwaitGone waits until an instance that is being taken down is gone.
func (t *Table) AwaitGone(ctx context.Context, id cell.ID) error {
	t.mu.Lock()
	done := t.ending[id]
	t.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Interp is what is known of the interpreter of a cell; false if none is known to live.
func (t *Table) Interp(id cell.ID) (Interp, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	it, lives := t.interps[id]
	return it, lives
}

// HasInterp reports whether an interpreter is known to live in a cell.
func (t *Table) HasInterp(id cell.ID) bool {
	_, lives := t.Interp(id)
	return lives
}

// PutInterp says that an interpreter lives in a cell.
func (t *Table) PutInterp(id cell.ID, it Interp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interps[id] = it
}

// PutSealed says that the interpreter of a template's cell lives, or that the template is an image.
func (t *Table) PutSealed(c *state.Cell, image bool) {
	t.PutInterp(c.ID, Interp{Template: c.Template, Keeper: c.Keeper(), Sealed: true, Image: image, Used: time.Now()})
}

// SealedUse is when the template of a cell was used last, and whether it is an image; lives is
// false if no template is known to live there.
func (t *Table) SealedUse(id cell.ID) (last time.Time, image, lives bool) {
	it, lives := t.Interp(id)
	return it.Used, it.Image, lives && it.Sealed
}

// UseInterp notes that the interpreter of a cell was used.
func (t *Table) UseInterp(id cell.ID, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if it, lives := t.interps[id]; lives {
		it.Used = now
		t.interps[id] = it
	}
}

// takeInterp takes the interpreter of a cell out of the table.
func (t *Table) takeInterp(id cell.ID) (Interp, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	it, lived := t.interps[id]
	delete(t.interps, id)
	return it, lived
}

// follow reports whether the caller is to follow the ends of interpreters in a family: nothing
// does yet.
func (t *Table) follow(keeper cell.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.followed[keeper] {
		return false
	}
	t.followed[keeper] = true
	return true
}

// anyOf is an instance of a family that has an interpreter. When there is none it is nil, and
// the family is followed no more.
func (t *Table) anyOf(keeper cell.ID) backend.Warmer {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, it := range t.interps {
		if w, ok := t.instances[id].(backend.Warmer); ok && it.Keeper == keeper {
			return w
		}
	}
	delete(t.followed, keeper)
	return nil
}

// interpsOf are the cells of a family that have interpreters.
func (t *Table) interpsOf(keeper cell.ID) (out []cell.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, it := range t.interps {
		if it.Keeper == keeper {
			out = append(out, id)
		}
	}
	return out
}
