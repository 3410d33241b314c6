package state

import (
	"context"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// CellLocks has a lock for each cell, so that one piece of work at a time changes it. Others
// wait in a queue. The zero value has no locks that are held.
type CellLocks struct {
	mu sync.Mutex // guards m
	m  map[cell.ID]*cellLock
}

type cellLock struct {
	free    chan struct{} // holds one token
	waiting int
	purpose string        // of the holder
	run     cell.RunID    // see Serve
	served  chan struct{} // closed when run is set
}

// HeldByRun is the error for a lock that a run has until its command ends. See CellLocks.Serve.
type HeldByRun struct{ Run cell.RunID }

func (e HeldByRun) Error() string { return "run " + string(e.Run) + " is under way" }

// Acquire waits for the lock of a cell. purpose says what it is held for, to others that wait.
// busy, if not nil, is called once with the purpose of the holder when there is one.
func (l *CellLocks) Acquire(ctx context.Context, id cell.ID, purpose string, busy func(holder string)) (release func(), err error) {
	return l.acquire(ctx, id, purpose, busy, false)
}

// AcquireUnlessRun is Acquire, and fails with HeldByRun when a run has the lock until its command ends, now or while
// it is waited for.
func (l *CellLocks) AcquireUnlessRun(ctx context.Context, id cell.ID, purpose string) (release func(), err error) {
	return l.acquire(ctx, id, purpose, nil, true)
}

// Serve says of the lock of a cell that a run has it until its command ends, and does the work of others meanwhile
// (run.Live.Within). over is called at that end.
func (l *CellLocks) Serve(id cell.ID, run cell.RunID) (over func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.m[id]
	k.run = run
	close(k.served)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		k.run, k.served = "", make(chan struct{})
	}
}

func (l *CellLocks) acquire(ctx context.Context, id cell.ID, purpose string, busy func(holder string), unlessRun bool) (release func(), err error) {
	l.mu.Lock()
	k := l.m[id]
	if k == nil {
		if l.m == nil {
			l.m = map[cell.ID]*cellLock{}
		}
		k = &cellLock{free: make(chan struct{}, 1), served: make(chan struct{})}
		k.free <- struct{}{}
		l.m[id] = k
	}
	k.waiting++
	holder := k.purpose
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		k.waiting--
		if k.waiting == 0 {
			delete(l.m, id)
		}
	}
	select {
	case <-k.free:
	default:
		if busy != nil {
			busy(holder)
		}
		for taken := false; !taken; {
			var served chan struct{}
			if unlessRun {
				l.mu.Lock()
				run := k.run
				served = k.served
				l.mu.Unlock()
				if run != "" {
					leave()
					return nil, HeldByRun{run}
				}
			}
			select {
			case <-k.free:
				taken = true
			case <-served:
			case <-ctx.Done():
				leave()
				return nil, context.Cause(ctx)
			}
		}
	}
	l.mu.Lock()
	k.purpose = purpose
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		k.purpose = ""
		l.mu.Unlock()
		k.free <- struct{}{}
		leave()
	}), nil
}

// TryAcquire takes the lock of a cell that has no work; a Conflict error names the work that
// it has.
func (l *CellLocks) TryAcquire(id cell.ID, purpose string) (release func(), err error) {
	l.mu.Lock()
	k := l.m[id]
	l.mu.Unlock()
	if k != nil {
		return nil, cell.Errorf(cell.Conflict, "state.CellLocks", "try again later", "%s is in use", id)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	return l.Acquire(ctx, id, purpose, func(holder string) { // it was taken meanwhile
		cancel(cell.Errorf(cell.Conflict, "state.CellLocks", "try again later", "%s is in use: %s", id, holder))
	})
}
