package gc

import (
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// Pins stands before the objects and knows what work under way has made and no record names
// yet, so that a collection leaves it alone. Neither waits for the other: all that was put,
// and every layer that was made, since the oldest pin began is kept.
type Pins struct {
	store.Store

	mu         sync.Mutex // guards what follows
	pins       map[*Pin]bool
	puts       map[cell.Digest]uint64 // when each object was put last, counted in puts
	count      uint64
	collecting int // while there are any, no put is forgotten
}

// Pin is of one piece of work: from before the first thing is made until all of it is
// recorded, or given up.
type Pin struct {
	of    *Pins
	since uint64 // the next put is its own, or a later one
	began time.Time
	// What follows is guarded by of.mu.
	uses   []*workspace.Imported
	images []cell.Digest
}

// NewPins returns a store that is objs, with pins.
func NewPins(objs store.Store) *Pins {
	return &Pins{Store: objs, pins: map[*Pin]bool{}, puts: map[cell.Digest]uint64{}}
}

// Begin makes a pin.
func (p *Pins) Begin() *Pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &Pin{of: p, since: p.count, began: time.Now()}
	p.pins[w] = true
	return w
}

// Use keeps an import's layers and tree, however old they are.
func (w *Pin) Use(im *workspace.Imported) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.uses = append(w.uses, im)
}

// UseImage keeps an OCI image.
func (w *Pin) UseImage(id cell.Digest) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.images = append(w.images, id)
}

// UsesImage reports whether work under way needs an OCI image.
func (p *Pins) UsesImage(id cell.Digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.pins {
		if slices.Contains(w.images, id) {
			return true
		}
	}
	return false
}

// End may be called more than once.
func (w *Pin) End() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.pins, w)
	w.of.forget()
}

// Put implements store.Store.
func (p *Pins) Put(d cell.Digest, b []byte) error {
	p.mu.Lock()
	p.puts[d] = p.count
	p.count++
	p.mu.Unlock()
	return p.Store.Put(d, b)
}

// forget drops the puts that no pin needs. The caller holds p.mu.
func (p *Pins) forget() {
	if p.collecting > 0 {
		return
	}
	if len(p.pins) == 0 {
		clear(p.puts)
		return
	}
	if len(p.puts) < 4096 { // not worth the looking
		return
	}
	oldest := p.count
	for w := range p.pins {
		oldest = min(oldest, w.since)
	}
	for d, at := range p.puts {
		if at < oldest {
			delete(p.puts, d)
		}
	}
}

// collect begins a collection. From here on nothing is forgotten that was put, so that what
// is recorded meanwhile is known from one side or the other.
func (p *Pins) collect() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.collecting++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.collecting--
		p.forget()
	}
}

// recent reports whether an object was put under a pin that there is, or was when the
// collection began.
func (p *Pins) recent(d cell.Digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.puts[d]
	return ok
}

// oldest is when the oldest pin began, or now.
func (p *Pins) oldest() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := time.Now()
	for w := range p.pins {
		if w.began.Before(t) {
			t = w.began
		}
	}
	return t
}

// imports are those that pins use.
func (p *Pins) imports() (list []*workspace.Imported) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.pins {
		list = append(list, w.uses...)
	}
	return list
}
