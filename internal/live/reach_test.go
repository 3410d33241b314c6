package live

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

func (f *fake) Names(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.named)), f.silent
}

func (f *fake) Process(_ context.Context, name string) (backend.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.named[name]; p != nil {
		return p, nil
	}
	return nil, cell.Errorf(cell.NotFound, "fake", "", "no process %s", name)
}

func (p *process) Status(context.Context) (cell.Status, error) {
	return cell.Status{Args: []string{"sleep", "300"}, Started: time.Now()}, nil
}

func (f *fake) Close() {}

// left makes a cell that an earlier daemon left running, with a command in it.
func (b *bed) left(id cell.ID) (*fake, *process) {
	b.Helper()
	p := &process{over: make(chan struct{})}
	f := &fake{id: id, runs: []cell.ProcessInfo{{PID: 7}}, named: map[string]*process{"e-1": p, "r-1": nil}}
	if err := b.reg.Commit(&state.Cell{ID: id, State: cell.Running, Head: "k-1", Created: time.Now()}); err != nil {
		b.Fatal(err)
	}
	b.host.old = f
	return f, p
}

// A cell that an earlier daemon left running is found, with its command, and rests after that.
func TestReach(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f, p := b.left("c-1")
		b.ReachAll(context.Background())
		if list, err := b.Execs("c-1"); err != nil || len(list) != 1 || list[0].ID != "e-1" || !slices.Equal(list[0].Command, []string{"sleep", "300"}) {
			t.Errorf("its commands are %+v, %v", list, err)
		}
		if b.takeUnused("c-1") {
			t.Error("nothing refers to the instance")
		}
		b.pass(3 * watchTick)
		if b.Instance("c-1") != f || f.cause() != "" {
			t.Errorf("it was removed for %q", f.cause())
		}
		f.change(func() { f.runs = nil })
		p.end(cell.Exit{})
		b.pass(moment)
		if !b.AtRest("c-1") || b.state("c-1").State != cell.Idle {
			t.Errorf("the cell is %s", b.state("c-1").State)
		}
	})
}

// A cell is unreached while its keeper does not answer: what it would be asked is refused. It
// is found when the keeper answers.
func TestUnreached(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f, _ := b.left("c-1")
		f.change(func() { f.silent = &cell.NoAnswer{Err: context.DeadlineExceeded} })
		b.ReachAll(ctx)
		c := b.state("c-1")
		if _, err := b.InstanceOf(&c); cell.KindOf(err) != cell.Unavailable || b.AtRest("c-1") || !b.Busy() || c.State != cell.Running {
			t.Errorf("an unreached cell is %s, %v", c.State, err)
		}
		f.change(func() { f.silent = nil })
		b.pass(2 * reachAgain)
		if inst, err := b.InstanceOf(&c); inst != f || err != nil || b.governed.Load() != 1 {
			t.Errorf("it is %v, %v, governed %d times", inst, err, b.governed.Load())
		}
	})
}
