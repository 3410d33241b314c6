package receipt

import (
	"runtime"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// An item is one envelope that is being verified.
type item struct {
	leaf    tlog.Hash
	id      cell.Digest // only of those that others refer to
	binding Binding
	index   int64 // as it says itself, -1 when it can't be read
	fault   fault
}

type fault byte

const (
	genuine    fault = iota
	unreadable       // not an envelope or not a statement
	unsigned         // the signature is wrong
	foreign          // signed by another key than that which signed there
	withdrawn        // signed by a key that was revoked
	apart            // a change of keys that is not in the history
)

// check examines one envelope. room is used and returned for the next.
func check(rec []byte, keys *Keys, room *[]byte) item {
	it := item{leaf: tlog.RecordHash(rec), index: -1}
	e, err := parseEnvelopeInto(rec, *room)
	if err == nil {
		*room = e.signed
	}
	if err != nil {
		it.fault = unreadable
		return it
	}
	kind, binding, _, err := parseBinding(e.payload)
	if it.binding = binding; err == nil {
		it.index = it.binding.Ledger.Index
	}
	key := keys.at(max(it.index, 0))
	signed := e.signedBy(key)
	switch {
	case signed && e.keyid == key.ID():
		switch {
		case err != nil: // genuine, but nothing that pando wrote
			it.fault = unreadable
		case kind == PredicateKey:
			if !keys.changes(cell.Sum(rec)) {
				it.fault = apart
			}
		case !keys.counts(e.keyid, it.index):
			it.fault = withdrawn
		}
	case !signed && e.keyid != key.ID():
		it.fault = foreign
	default:
		it.fault = unsigned
	}
	if it.binding.Incomplete || !it.binding.Completes.IsZero() {
		it.id = cell.Sum(rec)
	}
	return it
}

// A checker examines envelopes on all processors.
type checker struct {
	keys  *Keys
	batch []([]byte)
	work  chan func()
	wg    sync.WaitGroup
	parts []*[]item
}

// checkBatch is how many envelopes are handed over at once.
const checkBatch = 128

func newChecker(keys *Keys) *checker {
	n := runtime.GOMAXPROCS(0)
	c := &checker{keys: keys, work: make(chan func(), 2*n)}
	for range n {
		c.wg.Go(func() {
			for f := range c.work {
				f()
			}
		})
	}
	return c
}

// add hands over one envelope, which must not be changed afterwards.
func (c *checker) add(rec []byte) {
	if c.batch = append(c.batch, rec); len(c.batch) == checkBatch {
		c.flush()
	}
}

func (c *checker) flush() {
	batch, out := c.batch, new([]item)
	c.batch = nil
	c.parts = append(c.parts, out)
	c.work <- func() {
		var room []byte
		*out = make([]item, len(batch))
		for i, rec := range batch {
			(*out)[i] = check(rec, c.keys, &room)
		}
	}
}

// wait returns what was found, in the order of add. The checker can't be used
// any more.
func (c *checker) wait() []item {
	c.flush()
	close(c.work)
	c.wg.Wait()
	items := make([]item, 0, len(c.parts)*checkBatch)
	for _, p := range c.parts {
		items = append(items, *p...)
	}
	return items
}
