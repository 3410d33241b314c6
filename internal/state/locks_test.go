package state

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/internal/cell"
)

// One piece of work holds the lock of a cell; what else wants it is told for what it is held,
// waits until it is released, or gives up with its context. Nothing is left of locks that are
// not held.
func TestLockOfACell(t *testing.T) {
	t.Parallel()
	var l CellLocks
	ctx := context.Background()
	release, err := l.Acquire(ctx, "c-1", "run r-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Acquire(ctx, "c-2", "gc", nil)
	if err != nil {
		t.Fatal(err)
	}
	other()
	if _, err := l.TryAcquire("c-1", "gc"); cell.KindOf(err) != cell.Conflict {
		t.Errorf("the lock that is held was taken: %v", err)
	}
	gaveUp := errors.New("gave up")
	held, cancel := context.WithCancelCause(ctx)
	holder := ""
	_, err = l.Acquire(held, "c-1", "fork", func(purpose string) {
		holder = purpose
		cancel(gaveUp)
	})
	if !errors.Is(err, gaveUp) || holder != "run r-1" {
		t.Errorf("waited for %q, and got %v", holder, err)
	}
	again, err := l.Acquire(ctx, "c-1", "fork", func(string) {
		release()
		release() // has no second effect
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire("c-1", "gc"); cell.KindOf(err) != cell.Conflict {
		t.Errorf("the lock that is held again was taken: %v", err)
	}
	again()
	last, err := l.TryAcquire("c-1", "gc")
	if err != nil {
		t.Fatal(err)
	}
	last()
	if len(l.m) != 0 {
		t.Errorf("%d locks are left", len(l.m))
	}
}

// While a run serves with the lock until its command ends, what would not wait for that is told at once, also when
// it waits already; before and after, and from other work, it gets the lock in its turn.
func TestLockThatARunServesWith(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l CellLocks
		ctx := context.Background()
		release, err := l.Acquire(ctx, "c-1", "run r-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 1)
		go func() { _, err := l.AcquireUnlessRun(ctx, "c-1", "fork"); waits <- err }()
		synctest.Wait()
		select {
		case err := <-waits:
			t.Fatalf("a run that does not serve yet was not waited for: %v", err)
		default:
		}
		over := l.Serve("c-1", "r-1")
		if by := (HeldByRun{}); !errors.As(<-waits, &by) || by.Run != "r-1" {
			t.Errorf("it waits, and is told of %+v", by)
		}
		if _, err := l.AcquireUnlessRun(ctx, "c-1", "gc"); !errors.As(err, new(HeldByRun)) {
			t.Errorf("what comes is told %v", err)
		}
		over()
		got := make(chan func(), 1)
		go func() {
			release, err := l.AcquireUnlessRun(ctx, "c-1", "fork")
			if err != nil {
				t.Error(err)
			}
			got <- release
		}()
		synctest.Wait()
		release()
		(<-got)()
		if len(l.m) != 0 {
			t.Errorf("locks that are not held: %d", len(l.m))
		}
	})
}
