package live

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// fake is an instance with an interpreter, of which only what is asked here can be asked.
type fake struct {
	backend.Warmer
	id cell.ID

	mu      sync.Mutex // guards what follows
	dead    bool
	runs    []cell.ProcessInfo
	silent  error // in place of every answer
	refusal error // of every start
	removed string
	frozen  bool
	stuck   bool // it can't be thawed
	started []*process
	named   map[string]*process // that an earlier daemon started
	answer  cell.Evaluated
	warm    *cell.Warmth // of an interpreter that was started in it
	deaths  chan cell.Death
	// freezing is closed when it is to be frozen, which it is when mayFreeze is closed.
	freezing, mayFreeze chan struct{}
	thawing             chan struct{} // closed when it answers that it is gone; nil: it can be thawed
}

func (f *fake) ID() cell.ID { return f.id }

func (f *fake) Alive(context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.dead
}

func (f *fake) List(context.Context) ([]cell.ProcessInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs, f.silent
}

func (f *fake) KillAll(context.Context, string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.runs)
	f.runs = nil
	return n, nil
}

func (f *fake) Remove(_ context.Context, cause string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = cause
	return nil
}

func (f *fake) Freeze(context.Context) error {
	if f.freezing != nil {
		close(f.freezing)
		<-f.mayFreeze
	}
	f.change(func() { f.frozen = true })
	return nil
}

func (f *fake) Thaw(context.Context) error {
	if f.thawing != nil {
		<-f.thawing
		return cell.Errorf(cell.NotFound, "fake", "", "no cell %s", f.id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck {
		return cell.Errorf(cell.Timeout, "fake", "", "no answer in time")
	}
	f.frozen = false
	return nil
}

func (f *fake) isFrozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen
}

func (f *fake) Warm(_ context.Context, w cell.Warm, _ func(cell.Output)) (cell.Warmth, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warm = &cell.Warmth{Kind: w.Kind, Started: time.Now()}
	return *f.warm, nil
}

func (f *fake) Warmth(context.Context) (cell.Warmth, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.warm != nil {
		return *f.warm, nil
	}
	return cell.Warmth{}, cell.Errorf(cell.NotFound, "fake", "", "it has ended")
}

func (f *fake) Deaths(ctx context.Context, since int64) ([]cell.Death, int64, error) {
	select {
	case d := <-f.deaths:
		return []cell.Death{d}, since + 1, nil
	case <-ctx.Done():
		return nil, since, context.Cause(ctx)
	}
}

func (f *fake) change(to func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to()
}

func (f *fake) cause() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.removed
}

// allowing are policies that allow everything.
type allowing struct{}

func (allowing) MayStart(*state.Cell) error { return nil }
func (allowing) Spend(*state.Cell) error    { return nil }
func (allowing) Env(*state.Cell) []string   { return []string{"PATH=/bin"} }

// Refresh and FollowAsks are those of gateways.
func (b *bed) Refresh(context.Context, cell.ID) error { b.governed.Add(1); return nil }
func (b *bed) FollowAsks(backend.Instance)            {}

// bed is a manager with a registry in memory.
type bed struct {
	*testing.T
	*Manager
	reg      *state.Registry
	host     *host
	working  atomic.Bool  // a run is under way
	governed atomic.Int64 // how often what a cell is allowed was put into force
	drained  []string
	end      context.CancelCauseFunc // of the daemon
	pass     func(d time.Duration)   // returns when nothing more happens in the time
}

// inBubble calls test with a bed in a bubble of synctest.
func inBubble(t *testing.T, test func(t *testing.T, b *bed)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.pass = func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		test(t, b)
	})
}

func newBed(t *testing.T) *bed {
	reg, err := state.Open(durabletest.New(), "registry.log", paths.Home{State: "/state", Cache: "/cache"})
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancelCause(context.Background())
	var work sync.WaitGroup
	start := func(f func(context.Context)) { work.Go(func() { f(life) }) }
	b := &bed{T: t, reg: reg, host: &host{}, end: end}
	b.Manager = New(Config{
		Registry: reg, Locks: new(state.CellLocks), Log: slog.New(slog.DiscardHandler), Unmounted: func(context.Context, cell.ID) error { return nil }, ClearCaches: func(cell.ID) error { return nil }, Life: life, Work: start, Follow: start,
		Backend: func(string) (backend.Backend, error) { return b.host, nil }, Policies: allowing{}, Gateways: b, Services: noServices{},
		Prepare:  func(context.Context, *state.Cell) ([]any, func(), error) { return nil, func() {}, nil },
		Specify:  func(c *state.Cell) (cell.Spec, error) { return cell.Spec{ID: c.ID}, nil },
		Redactor: new(receipt.Redactor), AttachGrace: 10 * time.Second,
		Reach: time.Second, TakeUp: func(context.Context, *state.Cell, backend.Instance) {},
		Stage:      func(ctx context.Context, _ string) (context.Context, func(error)) { return ctx, func(error) {} },
		StartNotes: func(cell.ID) []string { return nil },
		Ended:      func(api.Exec) {},
		EndNotes: func(context.Context, cell.ID, string, backend.Instance, backend.Process, backend.Done) []string {
			return nil
		},
		RemoveCell: func(_ context.Context, id cell.ID) error {
			c, err := reg.Cell(id)
			if err == nil {
				err = c.To(cell.Removed)
			}
			if err != nil {
				return err
			}
			return reg.Commit(&c)
		},
		Woken:   func(context.Context, *state.Cell, backend.Instance) {},
		Working: func(cell.ID) bool { return b.working.Load() }, Leaving: func(context.Context, backend.Instance) {},
		Drain: func(_ context.Context, template, _ string) { b.drained = append(b.drained, template) },
	})
	t.Cleanup(func() {
		end(ErrClosing)
		work.Wait()
		reg.Close()
	})
	return b
}

// alive makes a cell with an instance, and an interpreter if it is asked for.
func (b *bed) alive(id cell.ID, interp bool) *fake {
	b.Helper()
	f := &fake{id: id, deaths: make(chan cell.Death)}
	c := &state.Cell{ID: id, State: cell.Running, Head: "k-1", Created: time.Now()}
	var i *state.Interp
	objects := []any{c}
	if interp {
		i = &state.Interp{Cell: id, Kind: "python", Started: time.Now()}
		objects = append(objects, i)
	}
	if err := b.reg.Commit(objects...); err != nil {
		b.Fatal(err)
	}
	b.Add(c, f, i)
	return f
}

func (b *bed) state(id cell.ID) state.Cell {
	b.Helper()
	c, err := b.reg.Cell(id)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// moment is long enough for what is to happen soon, and too short for the watch of a cell.
const moment = watchTick / 4

// A cell in which nothing runs is put to rest when the last reference to its instance is
// released, and not before; nor is one in which something runs, or with an interpreter.
func TestUnusedCellIsPutToRest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f, busy, warm := b.alive("c-1", false), b.alive("c-2", false), b.alive("c-3", true)
		busy.runs = []cell.ProcessInfo{{PID: 7}}
		var releases []func()
		for _, id := range []cell.ID{"c-1", "c-1", "c-2", "c-3"} {
			inst, release := b.Ref(id)
			if inst == nil {
				t.Fatalf("%s has no instance", id)
			}
			releases = append(releases, release)
		}
		releases[0]()
		releases[0]() // has no second effect
		releases[2]()
		releases[3]()
		b.pass(moment)
		if f.cause() != "" || b.AtRest("c-1") {
			t.Error("a cell was put to rest while it was used")
		}
		releases[1]()
		b.pass(moment)
		if c := b.state("c-1"); f.cause() != "nothing runs in it" || !b.AtRest("c-1") || c.State != cell.Idle {
			t.Errorf("removed for %q, the cell is %s", f.cause(), c.State)
		}
		if inst, _ := b.Ref("c-1"); inst != nil {
			t.Error("a cell at rest has an instance")
		}
		b.Rest(context.Background(), "c-3")
		if busy.cause() != "" || warm.cause() != "" || b.AtRest("c-2") || b.AtRest("c-3") {
			t.Error("a cell was put to rest in which something runs")
		}
		busy.change(func() { busy.runs = nil })
		b.pass(2 * watchTick)
		if busy.cause() == "" || !b.AtRest("c-2") {
			t.Error("a cell was not put to rest after its last process ended")
		}
	})
}

// A cell is put to rest with the end of its interpreter, which is recorded with its cause, as
// soon as nothing refers to the instance.
func TestEndOfAnInterpreter(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f, used := b.alive("c-1", true), b.alive("c-2", true)
		_, release := b.Ref("c-2")
		f.deaths <- cell.Death{Cell: "c-1", Cause: "out of memory"}
		used.deaths <- cell.Death{Cell: "c-2", Cause: "killed"}
		b.pass(moment)
		if i := b.reg.Interp("c-1"); i.Ended != "out of memory" || b.HasInterp("c-1") {
			t.Errorf("its end is recorded as %q", i.Ended)
		}
		if c := b.state("c-1"); f.cause() != "out of memory" || c.State != cell.Idle || c.Cause != "its interpreter ended: out of memory" {
			t.Errorf("removed for %q, the cell is %s (%s)", f.cause(), c.State, c.Cause)
		}
		if i := b.reg.Interp("c-2"); i.Ended != "killed" || used.cause() != "" || b.AtRest("c-2") {
			t.Errorf("the end is recorded as %q, the cell that is used was removed for %q", i.Ended, used.cause())
		}
		release()
		b.pass(moment)
		if c := b.state("c-2"); used.cause() == "" || !b.AtRest("c-2") || c.State != cell.Idle {
			t.Errorf("the cell is %s", c.State)
		}
	})
}

// A template that goes cold takes the forks with it that were made ahead, whatever refers to
// its instance.
func TestEndOfATemplate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f := b.alive("c-1", true)
		b.PutInterp("c-1", Interp{Template: "warm", Keeper: "c-1", Sealed: true})
		_, release := b.Ref("c-1")
		defer release()
		f.deaths <- cell.Death{Cell: "c-1", Cause: "killed"}
		b.pass(moment)
		if len(b.drained) != 1 || b.drained[0] != "warm" || f.cause() != "killed" {
			t.Errorf("drained %q, removed for %q", b.drained, f.cause())
		}
	})
}

// Only the known death of a keeper ends what it held: that it does not answer says nothing.
func TestKeepersThatDoNotAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f := b.alive("c-1", true)
		f.change(func() { f.silent = &cell.NoAnswer{Err: errors.New("too many open files")} })
		b.endLost(ctx, "c-1")
		if backend.NothingRuns(ctx, f) || !b.HasInterp("c-1") {
			t.Error("a cell was given up since its keeper does not answer")
		}
		c := b.state("c-1")
		if inst, err := b.Living(ctx, &c); inst != f || err != nil {
			t.Errorf("its instance is %v (%v)", inst, err)
		}
		f.change(func() { f.dead = true })
		b.endLost(ctx, "c-1")
		b.pass(moment)
		if i := b.reg.Interp("c-1"); i.Ended != state.KeeperLost || !b.AtRest("c-1") || b.state("c-1").State != cell.Idle {
			t.Errorf("the end of the keeper is recorded as %q, the cell is %s", i.Ended, b.state("c-1").State)
		}
	})
}

// What refers to an instance keeps it in the table, also from an act that looked just before.
func TestReferredInstanceIsNotTaken(t *testing.T) {
	t.Parallel()
	tab := newTable(func(cell.ID) {})
	tab.put("c-1", &fake{id: "c-1"}, nil)
	if tab.unreferenced("c-1") == nil {
		t.Error("something refers to it")
	}
	_, release := tab.Ref("c-1")
	if tab.takeUnused("c-1") || tab.unreferenced("c-1") != nil {
		t.Error("it was taken while it was used")
	}
	release()
	if !tab.takeUnused("c-1") || tab.takeUnused("c-1") {
		t.Error("it was not taken once")
	}
}

// A family is followed once, as long as it has an interpreter, and again when it comes to have
// another.
func TestFamilyIsFollowedOnce(t *testing.T) {
	t.Parallel()
	tab := newTable(func(cell.ID) {})
	f := &fake{id: "c-2"}
	tab.put("c-2", f, &Interp{Keeper: "c-1"})
	if !tab.follow("c-1") || tab.follow("c-1") {
		t.Error("it is not followed once")
	}
	if tab.anyOf("c-1") != f || tab.anyOf("c-3") != nil {
		t.Error("another family was asked")
	}
	tab.Take("c-2")
	if tab.anyOf("c-1") != nil || !tab.follow("c-1") {
		t.Error("a family without interpreters is followed")
	}
}

// A cell has the same lock each time, and others have others: the ends of many interpreters
// are recorded together.
func TestLocksAreOfCells(t *testing.T) {
	t.Parallel()
	var l stripes
	locks := map[*sync.Mutex]bool{}
	for range 1000 {
		id := cell.NewID()
		lock := l.of(id)
		locks[lock] = true
		if again := l.of(id); again != lock {
			t.Fatalf("cell %s has two locks", id)
		}
	}
	if len(locks) < len(l)/2 {
		t.Errorf("a thousand cells have %d locks", len(locks))
	}
}

// noServices are those of cells without any.
type noServices struct{}

func (noServices) Start(context.Context, *state.Cell) error                     { return nil }
func (noServices) Connect(context.Context, *state.Cell, backend.Instance) error { return nil }
func (noServices) Follow(*state.Cell)                                           {}
