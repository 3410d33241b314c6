package live

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// host is a backend of fakes.
type host struct {
	backend.Backend
	may chan struct{} // closed when instances may be made; nil: they may

	mu   sync.Mutex // guards what follows
	made []*fake
	old  *fake // of an earlier daemon, which has the cell's name until it is removed
}

func (h *host) Create(_ context.Context, s cell.Spec) (backend.Instance, error) {
	if h.may != nil {
		<-h.may
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.old != nil && h.old.cause() == "" {
		return nil, cell.Errorf(cell.Exists, "fake", "", "cell %s exists", s.ID)
	}
	f := &fake{id: s.ID, runs: []cell.ProcessInfo{{PID: 1}}, deaths: make(chan cell.Death)}
	h.made = append(h.made, f)
	return f, nil
}

func (h *host) Attach(_ context.Context, id, _ cell.ID) (backend.Instance, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.old == nil {
		return nil, cell.Errorf(cell.NotFound, "fake", "", "no cell %s", id)
	}
	return h.old, nil
}

func (h *host) Living(context.Context) ([]cell.Held, error) {
	return []cell.Held{{ID: h.old.id}}, nil
}

// instances is how many were made.
func (h *host) instances() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.made)
}

// atRest makes a cell in which nothing runs.
func (b *bed) atRest(id cell.ID, l *state.Lease) {
	b.Helper()
	objects := []any{&state.Cell{ID: id, State: cell.Idle, Head: "k-1", Created: time.Now()}}
	if l != nil {
		l.Cell = id
		objects = append(objects, l)
	}
	if err := b.reg.Commit(objects...); err != nil {
		b.Fatal(err)
	}
}

// A cell at rest comes to have one instance, however many ask for it at once, and a new one
// when its keeper has died.
func TestEnsureLive(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		b.host.may = make(chan struct{})
		b.atRest("c-1", nil)
		ensure := func() {
			inst, c, release, err := b.ensureLive(ctx, "c-1")
			if err != nil || inst == nil || c.State != cell.Running {
				t.Errorf("%v, the cell is %s, %v", inst, c.State, err)
				return
			}
			release()
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(ensure)
		}
		b.pass(moment)
		close(b.host.may)
		all.Wait()
		if n := b.host.instances(); n != 1 {
			t.Errorf("it came to have %d instances", n)
		}
		b.host.made[0].change(func() { b.host.made[0].dead = true })
		ensure()
		if n := b.host.instances(); n != 2 || b.Instance("c-1") != b.host.made[1] {
			t.Errorf("after the death of its keeper it came to have %d instances", n)
		}
	})
}

// A request for a cell in which a run starts waits for the instance, and not for the end of the
// run, which holds the lock of the cell.
func TestEnsureLiveWhileARunStarts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		b.atRest("c-1", nil)
		unlock, err := b.cfg.Locks.Acquire(ctx, "c-1", "run r-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		got := make(chan time.Time)
		go func() {
			inst, _, release, err := b.ensureLive(ctx, "c-1")
			if err != nil || inst == nil {
				t.Errorf("%v, %v", inst, err)
			} else {
				release()
			}
			got <- time.Now()
		}()
		b.pass(unreachedTick / 2)
		c := b.state("c-1")
		if err := c.To(cell.Running); err != nil {
			t.Fatal(err)
		}
		if err := b.reg.Commit(&c); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Activate(ctx, &c); err != nil {
			t.Fatal(err)
		}
		made := time.Now()
		if at := <-got; at != made {
			t.Errorf("it waited for %s longer", at.Sub(made))
		}
	})
}

// Work in a cell that is being made waits until it is there; when its making fails, that is the
// answer.
func TestWorkWaitsForCellsInTheMaking(t *testing.T) {
	test := func(fails bool) func(*testing.T, *bed) {
		return func(t *testing.T, b *bed) {
			ctx := context.Background()
			unlock, err := b.cfg.Locks.Acquire(ctx, "c-1", "run r-1", nil)
			if err != nil {
				t.Fatal(err)
			}
			c := state.Cell{ID: "c-1", State: cell.Creating, Created: time.Now()}
			if err := b.reg.Commit(&c); err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, _, release, err := b.ensureLive(ctx, "c-1")
				if err == nil {
					release()
				}
				got <- err
			}()
			b.pass(moment)
			if len(got) > 0 {
				t.Fatalf("it did not wait: %v", <-got)
			}
			next := cell.Idle
			if fails {
				next = cell.Removed
			}
			if err := c.To(next); err != nil {
				t.Fatal(err)
			}
			c.Head = "k-1"
			if err := b.reg.Commit(&c); err != nil {
				t.Fatal(err)
			}
			unlock()
			if err := <-got; (err != nil) != fails {
				t.Errorf("its making fails: %t, and it says %v", fails, err)
			}
		}
	}
	t.Run("is made", func(t *testing.T) { inBubble(t, test(false)) })
	t.Run("fails", func(t *testing.T) { inBubble(t, test(true)) })
}

// What waits for a run in a cell is refused when that is unreached.
func TestEnsureLiveOfAnUnreachedCell(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f, _ := b.left("c-1")
		f.change(func() { f.silent = &cell.NoAnswer{Err: context.DeadlineExceeded} })
		b.ReachAll(ctx)
		unlock, err := b.cfg.Locks.Acquire(ctx, "c-1", "run r-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		got := make(chan error, 1)
		go func() { _, _, _, err := b.ensureLive(ctx, "c-1"); got <- err }()
		b.pass(time.Second)
		if len(got) > 0 {
			t.Fatalf("nothing is under way in it yet, and it was refused: %v", <-got)
		}
		b.working.Store(true)
		b.pass(2 * unreachedTick)
		if len(got) == 0 {
			t.Fatal("it still waits")
		}
		if err := <-got; cell.KindOf(err) != cell.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}

// Nothing is started for a cell that is paused.
func TestEnsureLiveOfAPausedCell(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", &state.Lease{Parked: true})
		if _, _, _, err := b.ensureLive(context.Background(), "c-1"); cell.KindOf(err) != cell.Conflict {
			t.Errorf("got %v", err)
		}
		if n := b.host.instances(); n != 0 || !b.AtRest("c-1") || b.state("c-1").State != cell.Idle {
			t.Errorf("%d instances were made, the cell is %s", n, b.state("c-1").State)
		}
	})
}

// The instance that a dead daemon made, and that is found only when the cell is used, is ended
// when it is not gone after a moment.
func TestActivateEndsWhatADeadDaemonLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.host.old = &fake{id: "c-1"}
		b.atRest("c-1", nil)
		c := b.state("c-1")
		began := time.Now()
		inst, err := b.Activate(context.Background(), &c)
		synctest.Wait()
		if err != nil || inst != b.host.made[0] || b.host.old.cause() != "its end was interrupted" {
			t.Errorf("%v, the old one was removed for %q, %v", inst, b.host.old.cause(), err)
		}
		if d := time.Since(began); d < leavingSelf || d > 2*leavingSelf {
			t.Errorf("it took %s", d)
		}
	})
}
