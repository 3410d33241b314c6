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
