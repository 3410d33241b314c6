package engine

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// turns lets one piece of work at a time change a cell; others wait in line.
type turns struct {
	mu sync.Mutex // guards m
	m  map[cell.ID]*turn
}

type turn struct {
	free    chan struct{} // holds one token
	waiting int
	holder  string
}

func newTurns() *turns { return &turns{m: map[cell.ID]*turn{}} }

// take waits for the turn of a cell. who says what the turn is for, for those
// who wait. busy, if not nil, is told whom it waits for, once.
func (t *turns) take(ctx context.Context, id cell.ID, who string, busy func(holder string)) (release func(), err error) {
	t.mu.Lock()
	k := t.m[id]
	if k == nil {
		k = &turn{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		t.m[id] = k
	}
	k.waiting++
	holder := k.holder
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		k.waiting--
		if k.waiting == 0 {
			delete(t.m, id)
		}
	}
	select {
	case <-k.free:
	default:
		if busy != nil {
			busy(holder)
		}
		select {
		case <-k.free:
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	t.mu.Lock()
	k.holder = who
	t.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			k.holder = ""
			t.mu.Unlock()
			k.free <- struct{}{}
			leave()
		})
	}, nil
}

// try takes the turn of a cell that has no work; a Conflict error names the work that it has.
func (t *turns) try(id cell.ID, who string) (release func(), err error) {
	t.mu.Lock()
	k := t.m[id]
	t.mu.Unlock()
	if k != nil {
		return nil, cell.Errorf(cell.Conflict, "engine.turns", "try again later", "%s is in use", id)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	return t.take(ctx, id, who, func(holder string) { // it was taken meanwhile
		cancel(cell.Errorf(cell.Conflict, "engine.turns", "try again later", "%s is in use: %s", id, holder))
	})
}

// cellLocks are locks of cells. Some cells share one: nobody holds those of two cells.
type cellLocks [64]sync.Mutex

var cellLockSeed = maphash.MakeSeed()

// of is that of a cell.
func (l *cellLocks) of(id cell.ID) *sync.Mutex {
	return &l[maphash.String(cellLockSeed, string(id))%uint64(len(l))]
}

// lock takes that of a cell, until unlock is called.
func (l *cellLocks) lock(id cell.ID) (unlock func()) {
	m := l.of(id)
	m.Lock()
	return m.Unlock
}
