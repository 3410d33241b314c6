package state

import (
	"context"
	"errors"
	"testing"

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
