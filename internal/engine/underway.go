package engine

import (
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// underway stands before the objects and knows what work that is under way
// has made and not recorded yet, so that a collection of garbage leaves it
// alone. Neither waits for the other: what was put since the oldest work began
// is kept, and what is younger than that, too.
type underway struct {
	store.Store

	mu         sync.Mutex // guards what follows
	works      map[*work]bool
	puts       map[cell.Digest]uint64 // when each object was put last, counted in puts
	count      uint64
	collecting int // while there are any, no put is forgotten
}

// work is one piece of it: from before the first thing is made until all of it
// is recorded, or given up.
type work struct {
	u     *underway
	since uint64 // the next put is its own, or a later one
	began time.Time
	uses  []*workspace.Imported // guarded by u.mu
}

func newUnderway(objs store.Store) *underway {
	return &underway{Store: objs, works: map[*work]bool{}, puts: map[cell.Digest]uint64{}}
}

func (u *underway) begin() *work {
	u.mu.Lock()
	defer u.mu.Unlock()
	w := &work{u: u, since: u.count, began: time.Now()}
	u.works[w] = true
	return w
}

// use keeps an import's layers and tree, however old they are.
func (w *work) use(im *workspace.Imported) {
	w.u.mu.Lock()
	defer w.u.mu.Unlock()
	w.uses = append(w.uses, im)
}

// end may be called more than once.
func (w *work) end() {
	w.u.mu.Lock()
	defer w.u.mu.Unlock()
	delete(w.u.works, w)
	w.u.forget()
}

// Put implements store.Store.
func (u *underway) Put(d cell.Digest, b []byte) error {
	u.mu.Lock()
	u.puts[d] = u.count
	u.count++
	u.mu.Unlock()
	return u.Store.Put(d, b)
}

// forget drops the puts that no work needs. The caller holds u.mu.
func (u *underway) forget() {
	if u.collecting > 0 {
		return
	}
	if len(u.works) == 0 {
		clear(u.puts)
		return
	}
	if len(u.puts) < 4096 { // not worth the looking
		return
	}
	oldest := u.count
	for w := range u.works {
		oldest = min(oldest, w.since)
	}
	for d, at := range u.puts {
		if at < oldest {
			delete(u.puts, d)
		}
	}
}

// collect begins a collection. From here on nothing is forgotten that was put,
// so that what is recorded meanwhile is known from one side or the other.
func (u *underway) collect() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.collecting++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.collecting--
		u.forget()
	}
}

// recent reports whether an object was put by work that is under way, or was
// when the collection began.
func (u *underway) recent(d cell.Digest) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.puts[d]
	return ok
}

// oldest is when the oldest work began, or now.
func (u *underway) oldest() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := time.Now()
	for w := range u.works {
		if w.began.Before(t) {
			t = w.began
		}
	}
	return t
}

// imports are those that work under way uses.
func (u *underway) imports() (list []*workspace.Imported) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for w := range u.works {
		list = append(list, w.uses...)
	}
	return list
}
