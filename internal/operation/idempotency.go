package operation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// Keys implements idempotency keys: a request with an Idempotency-Key is done once, and
// repetitions get the same answer. The same key with another request is a conflict. Each token
// has its own keys.
//
// The beginning of a request is on disk before it runs, and its answer after it. A request that
// was in progress when the daemon ended is known as such: its repetition finds out what became of
// it. A failed request has changed nothing, and may be repeated.
//
// Lock order: 1. rewriting, 2. mu.
type Keys struct {
	log *durable.Log

	// rewriting is held for reading while the end of a request is written and then applied, so
	// that a rewrite of the journal does not replace that end by the record before it.
	rewriting sync.RWMutex

	mu    sync.Mutex // guards the fields below
	all   map[string]*Keyed
	bytes int // of kept answers
}

// Keyed is a request with a key: its journal record.
type Keyed struct {
	At     time.Time `json:"at"`
	ID     string    `json:"id"`    // of this try: see WithRequest
	Key    string    `json:"key"`   // digest of the caller and the key
	Asked  string    `json:"asked"` // digest of the request
	Over   bool      `json:"over,omitempty"`
	Failed bool      `json:"failed,omitempty"` // the request may be repeated
	Answer

	done  chan struct{} // closed at the end; nil if it was in progress when a daemon ended
	again bool
}

// Again reports whether an earlier daemon began the request: it may have been done.
func (d *Keyed) Again() bool { return d.again }

// BrokenOff is the error for a repeated request with an outcome that no record tells.
func BrokenOff() error {
	return cell.Errorf(cell.Conflict, "operation.Keys", onceHint, "this request was in progress when the daemon ended, and what it did is in no record")
}

// Answer is what a request was answered.
type Answer struct {
	Kind     string `json:"kind,omitempty"` // content type
	Body     []byte `json:"answer,omitempty"`
	Status   int    `json:"status,omitempty"` // 0: 200
	Location string `json:"location,omitempty"`
	Large    bool   `json:"large,omitempty"` // it was not kept
}

// Limits on the age of keys, their number, and the size of answers. Above them the oldest keys
// are dropped, but none that is so young that a client may still repeat its request.
const (
	onceFor     = 24 * time.Hour
	onceLeast   = 10 * time.Minute
	onceKeys    = 100000
	onceBytes   = 64 << 20
	onceJournal = 256 << 20
)

// MaxAnswer is the length of the longest answer that is kept, in bytes.
const MaxAnswer = 1 << 20

const onceHint = "look at what it would have changed, then use another key"

// OpenKeys reads the journal called name, and creates it if it does not exist.
func OpenKeys(fsys durable.FS, name string) (*Keys, error) {
	o := &Keys{all: map[string]*Keyed{}}
	log, err := durable.OpenLog(fsys, name, func(rec []byte) error {
		var d Keyed
		if err := json.Unmarshal(rec, &d); err != nil {
			return err
		}
		o.take(&d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	o.log = log
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(time.Now())
	return o, o.rewrite()
}

// Close closes the journal.
func (o *Keys) Close() error {
	if o == nil {
		return nil
	}
	return o.log.Close()
}

// take replaces an older record of the same key. The caller holds mu, or is OpenKeys.
func (o *Keys) take(d *Keyed) {
	if old := o.all[d.Key]; old != nil {
		o.bytes -= len(old.Body)
		delete(o.all, d.Key)
	}
	if !d.Failed {
		o.all[d.Key] = d
		o.bytes += len(d.Body)
	}
}

// forget drops records older than onceFor. The caller holds mu.
func (o *Keys) forget(now time.Time) {
	for _, d := range o.all {
		if now.Sub(d.At) > onceFor {
			o.drop(d)
		}
	}
}

// drop forgets a record, unless its request is in progress. The caller holds mu.
func (o *Keys) drop(d *Keyed) {
	if d.done == nil || d.Over {
		o.bytes -= len(d.Body)
		delete(o.all, d.Key)
	}
}

// room drops the oldest records until a tenth is free, and reports whether there is room. The
// caller holds mu.
func (o *Keys) room(now time.Time) bool {
	full := func(part int) bool { return len(o.all) >= onceKeys/10*part || o.bytes >= onceBytes/10*part }
	if !full(10) {
		return true
	}
	for _, d := range slices.SortedFunc(maps.Values(o.all), func(a, b *Keyed) int { return a.At.Compare(b.At) }) {
		if !full(9) || now.Sub(d.At) < onceLeast {
			break
		}
		o.drop(d)
	}
	return !full(10)
}

// compact rewrites a journal that is longer than most bytes.
func (o *Keys) compact(most int64) error {
	o.rewriting.Lock()
	defer o.rewriting.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log.Size() <= most {
		return nil
	}
	return o.rewrite()
}

// rewrite compacts the journal. The caller holds rewriting and mu, or is OpenKeys.
func (o *Keys) rewrite() error {
	return o.log.Rewrite(iter.Seq[[]byte](func(yield func([]byte) bool) {
		for _, d := range o.all {
			b, err := json.Marshal(d)
			if err == nil && !yield(b) {
				return
			}
		}
	}))
}

// Begin returns a new record, with mine for a request that the caller runs and then gives to
// End, or that of an ended request. request is all that the answer depends on. It waits for a
// request with the same key that is in progress, until gone is closed. A request that an earlier
// daemon began is mine and Again, and may be given to Leave instead.
func (o *Keys) Begin(p access.Principal, key string, gone <-chan struct{}, request ...string) (d *Keyed, mine bool, err error) {
	return o.begin(digest(p.Name, p.Token, key), digest(request...), gone)
}

func (o *Keys) begin(key, asked string, gone <-chan struct{}) (d *Keyed, mine bool, err error) {
	const op = "operation.Keys"
	for compacted := false; ; {
		o.mu.Lock()
		d = o.all[key]
		if d != nil && time.Since(d.At) > onceFor {
			o.drop(d)
			d = o.all[key]
		}
		switch {
		case d == nil && !compacted && o.log.Size() > onceJournal:
			o.mu.Unlock()
			if err := o.compact(onceJournal); err != nil {
				return nil, false, err
			}
			compacted = true
			continue
		case d == nil:
			now := time.Now()
			if !o.room(now) {
				n := len(o.all)
				o.mu.Unlock()
				return nil, false, cell.Errorf(cell.Limited, op, "send it without Idempotency-Key, or later", "cannot store another key: there are %d of the last minutes", n)
			}
			d = &Keyed{At: now, ID: NewID(), Key: key, Asked: asked, done: make(chan struct{})}
			o.all[key] = d
			o.mu.Unlock()
			if err := o.keep(d); err != nil {
				o.End(d, nil)
				return nil, false, err
			}
			return d, true, nil
		case d.Asked != asked:
			o.mu.Unlock()
			return nil, false, cell.Errorf(cell.Conflict, op, "use another key for another request", "this Idempotency-Key was used for another request")
		case d.Over:
			o.mu.Unlock()
			if d.Large {
				return nil, false, cell.Errorf(cell.Conflict, op, onceHint, "this request was done, and its answer was not kept: it is long, or a secret")
			}
			return d, false, nil
		case d.done == nil:
			d = &Keyed{At: d.At, ID: d.ID, Key: key, Asked: asked, done: make(chan struct{}), again: true}
			o.all[key] = d
			o.mu.Unlock()
			return d, true, nil
		}
		done := d.done
		o.mu.Unlock()
		select {
		case <-done: // check again: if it failed, it is ours now
		case <-gone:
			return nil, false, cell.Errorf(cell.Interrupted, op, "", "interrupted")
		}
	}
}

// keep writes a record to the journal.
func (o *Keys) keep(d *Keyed) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return o.log.Append(b)
}

// End records the outcome of a request: its answer, or nil when it failed.
func (o *Keys) End(d *Keyed, answer *Answer) error {
	next := &Keyed{At: d.At, ID: d.ID, Key: d.Key, Asked: d.Asked, Over: true, Failed: answer == nil, done: d.done}
	if answer != nil {
		next.Answer = *answer
	}
	err := o.end(next)
	close(d.done)
	return err
}

// end writes the record of an ended request, and applies it.
func (o *Keys) end(next *Keyed) error {
	o.rewriting.RLock()
	defer o.rewriting.RUnlock()
	err := o.keep(next)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.take(next)
	return err
}

// EndOpen ends those requests that an earlier daemon began and did not end for which find returns
// an answer. It is called before any of them is repeated.
func (o *Keys) EndOpen(find func(id string) *Answer) (err error) {
	for _, d := range o.open() {
		if a := find(d.ID); a != nil {
			err = errors.Join(err, o.end(&Keyed{At: d.At, ID: d.ID, Key: d.Key, Asked: d.Asked, Over: true, Answer: *a}))
		}
	}
	return err
}

// Leave gives back a request that an earlier daemon began, and of which nothing is known.
func (o *Keys) Leave(d *Keyed) {
	o.mu.Lock()
	o.all[d.Key] = &Keyed{At: d.At, ID: d.ID, Key: d.Key, Asked: d.Asked}
	o.mu.Unlock()
	close(d.done)
}

// Open lists the requests that an earlier daemon began and did not end.
func (o *Keys) Open() (ids []string) {
	for _, d := range o.open() {
		ids = append(ids, d.ID)
	}
	return ids
}

func (o *Keys) open() (list []*Keyed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.all {
		if d.done == nil && !d.Over {
			list = append(list, d)
		}
	}
	return list
}

// OpenKeysOrNew is OpenKeys that starts with an empty journal when the old one is damaged: keys
// are a convenience, and the daemon is needed.
func OpenKeysOrNew(fsys durable.FS, name string, log *slog.Logger) (*Keys, error) {
	o, err := OpenKeys(fsys, name)
	if cell.KindOf(err) != cell.Corrupt {
		return o, err
	}
	log.Error("the journal of idempotency keys is damaged: earlier keys are lost", "error", err)
	if err := errors.Join(fsys.Rename(name, name+".damaged"), fsys.SyncDir(".")); err != nil {
		return nil, err
	}
	return OpenKeys(fsys, name)
}

// digest is one digest of several texts.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256([]byte(p))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
