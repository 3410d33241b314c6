package live

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A cell that was frozen for an act goes on, however long its keeper takes to answer, unless its
// user paused it or the keeper is gone.
func TestUnfreeze(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // the act was given up
		f := b.alive("c-1", false)
		f.change(func() { f.runs, f.frozen, f.stuck = []cell.ProcessInfo{{PID: 7}}, true, true })
		began := time.Now()
		if err := b.Unfreeze(ctx, f); cell.KindOf(err) != cell.Unavailable || time.Since(began) != thawGrace {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		f.change(func() { f.stuck = false })
		b.pass(2 * thawAgain)
		if f.isFrozen() {
			t.Error("it does not go on")
		}
		for what, to := range map[string]func(){
			"paused": func() {
				if err := b.reg.Commit(state.StateChange{Cell: "c-1", From: cell.Running, To: cell.Paused}); err != nil {
					t.Fatal(err)
				}
			},
			"without a keeper": func() { f.change(func() { f.dead, f.stuck = true, true }) },
		} {
			f.change(func() { f.frozen, f.stuck, f.dead = true, false, false })
			to()
			if err := b.Unfreeze(ctx, f); err != nil || !f.isFrozen() {
				t.Errorf("one that is %s goes on: %v, %v", what, !f.isFrozen(), err)
			}
			if err := b.reg.Commit(state.StateChange{Cell: "c-1", From: cell.Paused, To: cell.Running}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A paused cell that comes to rest while it is resumed is there, and has no processes.
func TestResumeOfACellThatComesToRest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f := b.alive("c-1", false)
		if err := b.reg.Commit(state.StateChange{Cell: "c-1", From: cell.Running, To: cell.Paused}); err != nil {
			t.Fatal(err)
		}
		f.thawing = make(chan struct{})
		resumed := make(chan error, 1)
		go func() { resumed <- b.Resume(context.Background(), "c-1") }()
		synctest.Wait()
		b.Rest(context.Background(), "c-1")
		if !b.AtRest("c-1") {
			t.Fatal("it did not come to rest")
		}
		close(f.thawing)
		again := func() error { return b.Resume(context.Background(), "c-1") }
		if err := <-resumed; cell.KindOf(err) != cell.Conflict || err.Error() != again().Error() {
			t.Errorf("while it comes to rest: %v; later: %v", err, again())
		}
	})
}

// What no record names as running or paused is ended by the next daemon.
func TestEndUnknown(t *testing.T) {
	for name, x := range map[string]struct {
		state cell.State
		ends  bool
	}{"none": {"", true}, "idle": {cell.Idle, true}, "running": {cell.Running, false}, "paused": {cell.Paused, false}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				b.host.old = &fake{id: "c-1"}
				if x.state != "" {
					if err := b.reg.Commit(&state.Cell{ID: "c-1", State: x.state, Head: "k-1", Created: time.Now()}); err != nil {
						t.Fatal(err)
					}
				}
				b.EndUnknown(context.Background(), []backend.Backend{b.host})
				if ended := b.host.old.cause() != ""; ended != x.ends {
					t.Errorf("it was ended: %v", ended)
				}
			})
		})
	}
}

// A cell that was paused because nothing happened in it continues when something is to be done there;
// one that a user paused does not. A cell in use is not paused so.
func TestF31SleepAndRouse(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f := b.alive("c-1", false)
		f.change(func() { f.runs = []cell.ProcessInfo{{PID: 7}} })
		free := func() bool { return true }
		asleep := func() bool {
			l := b.reg.Lease("c-1")
			return l != nil && l.Idle && f.isFrozen() && b.state("c-1").State == cell.Paused
		}
		if err := b.Sleep(ctx, "c-1", free); err != nil || !asleep() {
			t.Fatalf("it is not asleep: %v", err)
		}
		if err := b.Rouse(ctx, "c-1"); err != nil || f.isFrozen() || b.state("c-1").State != cell.Running || b.reg.Lease("c-1").Idle {
			t.Fatalf("it does not go on: %v, %+v", err, b.reg.Lease("c-1"))
		}
		for what, sleep := range map[string]func() error{
			"a client": func() error { return b.Sleep(ctx, "c-1", func() bool { return false }) },
			"a command": func() error {
				_, release := b.Ref("c-1")
				defer release()
				return b.Sleep(ctx, "c-1", free)
			},
		} {
			if err := sleep(); cell.KindOf(err) != cell.Conflict || f.isFrozen() || b.state("c-1").State != cell.Running || b.reg.Lease("c-1").Idle {
				t.Errorf("with %s it sleeps: %v", what, err)
			}
		}
		if err := b.Sleep(ctx, "c-1", free); err != nil {
			t.Fatal(err)
		}
		if _, _, release, err := b.ensureLive(ctx, "c-1"); err != nil || f.isFrozen() {
			t.Errorf("what is to be done there does not rouse it: %v", err)
		} else {
			release()
		}
		if err := b.Pause(ctx, "c-1"); err != nil {
			t.Fatal(err)
		}
		if err := b.Sleep(ctx, "c-1", free); cell.KindOf(err) != cell.Conflict {
			t.Errorf("a paused cell sleeps: %v", err)
		}
		if err := b.Rouse(ctx, "c-1"); err != nil || !f.isFrozen() {
			t.Errorf("what a user paused was continued: %v", err)
		}
		if err := b.Resume(ctx, "c-1"); err != nil {
			t.Fatal(err)
		}
		if err := b.Sleep(ctx, "c-1", free); err != nil {
			t.Fatal(err)
		}
		if err := b.Pause(ctx, "c-1"); err != nil {
			t.Fatal(err)
		}
		if err := b.Rouse(ctx, "c-1"); err != nil || !f.isFrozen() {
			t.Errorf("what a user paused while it slept was continued: %v", err)
		}
	})
}

// A cell that is held stands still, whatever freezes it and lets it go on meanwhile, and goes on then.
func TestHold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		f := b.alive("c-1", false)
		first, err := b.Hold(t.Context(), "c-1")
		if err != nil || !f.isFrozen() {
			t.Fatalf("it stands still: %v, %v", f.isFrozen(), err)
		}
		second, err := b.Hold(t.Context(), "c-1")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Unfreeze(t.Context(), f); err != nil || !f.isFrozen() {
			t.Errorf("it goes on for another act: %v", err)
		}
		first()
		if !f.isFrozen() {
			t.Error("it goes on, and is held twice")
		}
		second()
		if f.isFrozen() {
			t.Error("it does not go on")
		}
		if release, err := b.Hold(t.Context(), "c-none"); err != nil {
			t.Errorf("one at rest: %v", err)
		} else {
			release()
		}
	})
}
