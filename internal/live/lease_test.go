package live

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// lease asks for a lease as it may be.
func (b *bed) lease(id cell.ID, req api.LeaseRequest) {
	b.Helper()
	if err := b.Lease(id, nil, req, func() error { return nil }); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) parked(id cell.ID) bool {
	l := b.reg.Lease(id)
	return l != nil && l.Parked
}

// Leases end when their time is over, whatever it is changed to meanwhile, and what
// nothing is to become of is not waited for.
func TestLeasesEndInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.cfg.Follow(func(context.Context) { b.KeepLeases() })
		until := func() time.Time { _, next := b.reg.LeasesOver(time.Now()); return next }
		b.atRest("c-1", nil)
		b.atRest("c-2", nil)
		if !until().IsZero() {
			t.Fatalf("something ends at %s", until())
		}
		b.lease("c-1", api.LeaseRequest{For: "1h"})
		b.lease("c-2", api.LeaseRequest{For: "2h"})
		if d := time.Until(until()); d < 59*time.Minute || d > time.Hour {
			t.Errorf("it is looked after %s", d)
		}
		b.lease("c-2", api.LeaseRequest{For: "300ms"}) // what waits for the first is told of it
		b.pass(299 * time.Millisecond)
		if b.parked("c-2") {
			t.Error("the second is paused before its time is over")
		}
		b.pass(leaseLeast)
		if !b.parked("c-2") || b.parked("c-1") {
			t.Errorf("the second is paused: %v, the first: %v", b.parked("c-2"), b.parked("c-1"))
		}
		if d := time.Until(until()); d < 59*time.Minute {
			t.Errorf("it is looked after %s: for the one that is paused already", d)
		}
		if was, err := b.Unpark(context.Background(), "c-2"); err != nil || !was { // its time is over all the same
			t.Errorf("it was paused: %v, %v", was, err)
		}
		b.pass(2 * leaseLeast)
		if !b.parked("c-2") {
			t.Error("the second is not paused again")
		}
		b.lease("c-1", api.LeaseRequest{For: "10ms", Then: api.LeaseRemove})
		b.pass(2 * leaseLeast)
		if c := b.state("c-1"); c.State != cell.Removed {
			t.Errorf("the first is %s", c.State)
		}
		if !until().IsZero() {
			t.Errorf("something ends at %s", until())
		}
	})
}

// A cell that is taken down while it is resumed is resumed at rest.
func TestResumedWhileItComesToRest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f := b.alive("c-1", false)
		f.change(func() { f.runs = []cell.ProcessInfo{{PID: 7}} })
		if _, err := b.Park(ctx, "c-1"); err != nil || b.state("c-1").State != cell.Paused {
			t.Fatalf("%s, %v", b.state("c-1").State, err)
		}
		f.thawing = make(chan struct{})
		told := make(chan error, 1)
		go func() { _, err := b.Unpark(ctx, "c-1"); told <- err }()
		synctest.Wait()
		if err := b.Deactivate(ctx, "c-1", "a test"); err != nil {
			t.Error(err)
		}
		close(f.thawing)
		if err := <-told; err != nil || b.parked("c-1") {
			t.Errorf("%v, its lease %+v", err, b.reg.Lease("c-1"))
		}
	})
}

// A cell that is resumed while it is being paused runs when the caller is answered, and
// one with a lease that is extended while its end was decided goes on.
func TestResumedWhileItIsPaused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f := b.alive("c-1", false)
		f.change(func() { f.runs = []cell.ProcessInfo{{PID: 7}} })
		f.freezing, f.mayFreeze = make(chan struct{}), make(chan struct{})
		runs := func(when string) {
			t.Helper()
			if c := b.state("c-1"); c.State != cell.Running || f.isFrozen() || b.parked("c-1") {
				t.Errorf("%s the cell is %s, its lease %+v", when, c.State, b.reg.Lease("c-1"))
			}
		}
		told := make(chan error, 2)
		go func() { _, err := b.Park(ctx, "c-1"); told <- err }()
		<-f.freezing
		go func() {
			_, err := b.Unpark(ctx, "c-1")
			runs("when the caller is told that it was resumed")
			told <- err
		}()
		synctest.Wait()
		close(f.mayFreeze)
		for range 2 {
			if err := <-told; err != nil {
				t.Error(err)
			}
		}
		b.lease("c-1", api.LeaseRequest{For: "1s"})
		over := *b.reg.Lease("c-1")
		over.Until = time.Now()
		b.endLease(over)
		runs("after an end of its lease that was decided before it was extended")
	})
}

// Variables that look like secrets are given to commands, and are in no record; the bounds of
// a caller hold for how long its cell lives.
func TestLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		b.atRest("c-2", nil)
		const secret = "B=correct-horse-battery-staple"
		if err := b.cfg.Redactor.Add("correct-horse-battery-staple"); err != nil {
			t.Fatal(err)
		}
		by := &state.Maker{TTL: time.Hour, Labels: map[string]string{"team": "a"}}
		if err := b.Lease("c-1", by, api.LeaseRequest{For: "2h", Env: []string{"A=1", secret}}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if err := b.LeaseLike("c-1", by, "3h", "c-2"); err != nil {
			t.Fatal(err)
		}
		for _, id := range []cell.ID{"c-1", "c-2"} {
			l := b.reg.Lease(id)
			if d := time.Until(l.Until); d != time.Hour || len(l.Env) != 1 || len(l.Unkept) != 1 || l.Unkept[0] != "B" {
				t.Errorf("%s has %+v", id, l)
			}
			if env := b.LeasedEnv(id); len(env) != 2 || env[0] != "A=1" || env[1] != secret {
				t.Errorf("commands in %s find %q", id, env)
			}
		}
		if l := b.reg.Lease("c-2"); l.Labels["team"] != "a" {
			t.Errorf("labels are %v", l.Labels)
		}
		refused := cell.Errorf(cell.Conflict, "test", "", "it was changed")
		if err := b.Lease("c-1", nil, api.LeaseRequest{For: "1m"}, func() error { return refused }); err != refused || time.Until(b.reg.Lease("c-1").Until) != time.Hour {
			t.Errorf("%v, and it lives for %s", err, time.Until(b.reg.Lease("c-1").Until))
		}
		for _, req := range []api.LeaseRequest{{Then: "burn"}, {For: "x"}, {Env: []string{"=1"}}} {
			if err := b.Lease("c-1", nil, req, func() error { return nil }); cell.KindOf(err) != cell.Invalid {
				t.Errorf("%+v: %v", req, err)
			}
		}
	})
}
