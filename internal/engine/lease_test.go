package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Leases end when their time is over, whatever it is changed to meanwhile, and what
// nothing is to become of is not waited for.
func TestLeasesEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		v := b.All()
		until := func() time.Time { _, next := b.reg.LeasesOver(time.Now()); return next }
		first, second := cell.ID(b.makes(v, "first").ID), cell.ID(b.makes(v, "second").ID)
		if !until().IsZero() {
			t.Fatalf("something ends at %s", until())
		}
		lease := func(id cell.ID, req api.LeaseRequest) {
			t.Helper()
			_, err := v.Lease(b.ctx, id, req)
			b.must(err)
		}
		paused := func(id cell.ID) bool { l := b.reg.Lease(id); return l != nil && l.Parked }
		lease(first, api.LeaseRequest{For: "1h"})
		lease(second, api.LeaseRequest{For: "2h"})
		if d := time.Until(until()); d < 59*time.Minute || d > time.Hour {
			t.Errorf("it is looked after %s", d)
		}
		began := time.Now()
		lease(second, api.LeaseRequest{For: "300ms"}) // whoever waits for the first hears of it
		b.until("the second is paused", func() bool { return paused(second) })
		if took := time.Since(began); took < 300*time.Millisecond || took > 400*time.Millisecond || paused(first) {
			t.Errorf("it took %s; the first is paused: %v", took, paused(first))
		}
		if d := time.Until(until()); d < 59*time.Minute {
			t.Errorf("it is looked after %s: for the one that is paused already", d)
		}
		if _, err := v.Unpark(b.ctx, second); err != nil { // its time is over all the same
			t.Fatal(err)
		}
		b.until("the second is paused again", func() bool { return paused(second) })
		lease(first, api.LeaseRequest{For: "10ms", Then: api.LeaseRemove})
		b.until("the first is removed", func() bool { c, err := b.reg.Cell(first); return err != nil || c.State == cell.Removed })
		if !until().IsZero() {
			t.Errorf("something ends at %s", until())
		}
		lease(second, api.LeaseRequest{For: "1h"})
		if _, err := v.Unpark(b.ctx, second); err != nil {
			t.Fatal(err)
		}
		b.reopen()
		if d := time.Until(until()); d < 59*time.Minute {
			t.Errorf("after a restart it is looked after %s", d)
		}
	})
}

// slowToFreeze is an instance that stands still only when it may.
type slowToFreeze struct {
	backend.Instance
	asked, may chan struct{}
}

func (i *slowToFreeze) Freeze(ctx context.Context) error {
	close(i.asked)
	<-i.may
	return i.Instance.Freeze(ctx)
}

// A cell that is resumed while it is being paused runs when the caller is answered, and
// one whose lease is extended while its end was decided goes on.
func TestResumedWhileItIsPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		v := b.All()
		id := cell.ID(b.makes(v, "web").ID)
		if _, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "30000"}}); err != nil {
			t.Fatal(err)
		}
		runs := func(when string) {
			t.Helper()
			c, err := b.reg.Cell(id)
			b.must(err)
			if l := b.reg.Lease(id); c.State != cell.Running || l != nil && l.Parked {
				t.Errorf("%s the cell is %s, its lease %+v", when, c.State, l)
			}
		}
		slow := &slowToFreeze{b.alive.Instance(id), make(chan struct{}), make(chan struct{})}
		b.alive.Put(id, slow, nil)
		told := make(chan error, 2)
		go func() { _, err := v.Park(b.ctx, id); told <- err }()
		<-slow.asked
		go func() {
			_, err := v.Unpark(b.ctx, id)
			runs("when the caller is told that it was resumed")
			told <- err
		}()
		synctest.Wait()
		close(slow.may)
		b.must(<-told)
		b.must(<-told)

		b.must(b.changeLease(id, func(l *state.Lease) error { l.Until = time.Now().Add(time.Second); return nil }))
		over := *b.reg.Lease(id)
		over.Until = time.Now()
		b.endLease(over)
		runs("after an end of its lease that was decided before it was extended")
	})
}
