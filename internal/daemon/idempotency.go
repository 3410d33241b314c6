package daemon

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// Once implements idempotency keys: a request with an Idempotency-Key is done once, and
// repetitions get the same answer. The same key with another request is a conflict. Each token
// has its own keys.
//
// The beginning of a request is on disk before it runs, and its answer after it. A request that
// was in progress when the daemon ended is known as such, and not run again. A failed request
// has changed nothing, and may be repeated.
type Once struct {
	log *durable.Log

	mu    sync.Mutex // guards the fields below
	all   map[string]*keyedRequest
	bytes int // of kept answers
}

// keyedRequest is the record of a key.
type keyedRequest struct {
	At     time.Time `json:"at"`
	Key    string    `json:"key"`   // digest of the caller and the key
	Asked  string    `json:"asked"` // digest of the request
	Over   bool      `json:"over,omitempty"`
	Failed bool      `json:"failed,omitempty"` // the request may be repeated
	Kind   string    `json:"kind,omitempty"`   // content type of the answer
	Answer []byte    `json:"answer,omitempty"`
	Status int       `json:"status,omitempty"`   // of the answer; 0: 200
	Where  string    `json:"location,omitempty"` // its Location
	Large  bool      `json:"large,omitempty"`    // the answer was not kept

	done chan struct{} // closed at the end; nil if it was in progress when a daemon ended
}

// Limits on the age of keys, their number, and the size of answers. Above them the oldest keys
// are dropped, but none that is so young that a client may still repeat its request.
const (
	onceFor     = 24 * time.Hour
	onceLeast   = 10 * time.Minute
	onceKeys    = 100000
	onceBytes   = 64 << 20
	onceAnswer  = 1 << 20 // bytes of one answer
	onceJournal = 256 << 20
)

const onceHint = "check whether it was done, then use another key"

// OpenOnce reads the journal called name, and creates it if it does not exist.
func OpenOnce(fsys durable.FS, name string) (*Once, error) {
	o := &Once{all: map[string]*keyedRequest{}}
	log, err := durable.OpenLog(fsys, name, func(rec []byte) error {
		var d keyedRequest
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
func (o *Once) Close() error {
	if o == nil {
		return nil
	}
	return o.log.Close()
}

// take replaces an older record of the same key. The caller holds mu, or is OpenOnce.
func (o *Once) take(d *keyedRequest) {
	if old := o.all[d.Key]; old != nil {
		o.bytes -= len(old.Answer)
		delete(o.all, d.Key)
	}
	if !d.Failed {
		o.all[d.Key] = d
		o.bytes += len(d.Answer)
	}
}

// forget drops records older than onceFor. The caller holds mu.
func (o *Once) forget(now time.Time) {
	for _, d := range o.all {
		if now.Sub(d.At) > onceFor {
			o.drop(d)
		}
	}
}

// drop forgets a record, unless its request is in progress. The caller holds mu.
func (o *Once) drop(d *keyedRequest) {
	if d.done == nil || d.Over {
		o.bytes -= len(d.Answer)
		delete(o.all, d.Key)
	}
}

// room drops the oldest records until a tenth is free, and reports whether there is room. The
// caller holds mu.
func (o *Once) room(now time.Time) bool {
	full := func(part int) bool { return len(o.all) >= onceKeys/10*part || o.bytes >= onceBytes/10*part }
	if !full(10) {
		return true
	}
	for _, d := range slices.SortedFunc(maps.Values(o.all), func(a, b *keyedRequest) int { return a.At.Compare(b.At) }) {
		if !full(9) || now.Sub(d.At) < onceLeast {
			break
		}
		o.drop(d)
	}
	return !full(10)
}

// rewrite compacts the journal.
func (o *Once) rewrite() error {
	return o.log.Rewrite(iter.Seq[[]byte](func(yield func([]byte) bool) {
		for _, d := range o.all {
			b, err := json.Marshal(d)
			if err == nil && !yield(b) {
				return
			}
		}
	}))
}

// begin returns a new record, with mine for a request that the caller runs, or that of an ended
// request.
func (o *Once) begin(key, asked string, gone <-chan struct{}) (d *keyedRequest, mine bool, err error) {
	const op = "daemon.Once"
	for {
		o.mu.Lock()
		d = o.all[key]
		if d != nil && time.Since(d.At) > onceFor {
			o.drop(d)
			d = o.all[key]
		}
		switch {
		case d == nil:
			now := time.Now()
			if !o.room(now) {
				n := len(o.all)
				o.mu.Unlock()
				return nil, false, cell.Errorf(cell.Limited, op, "send it without Idempotency-Key, or later", "cannot store another key: there are %d of the last minutes", n)
			}
			if o.log.Size() > onceJournal {
				if err := o.rewrite(); err != nil {
					o.mu.Unlock()
					return nil, false, err
				}
			}
			d = &keyedRequest{At: now, Key: key, Asked: asked, done: make(chan struct{})}
			o.all[key] = d
			o.mu.Unlock()
			if err := o.keep(d); err != nil {
				o.end(d, nil)
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
			o.mu.Unlock()
			return nil, false, cell.Errorf(cell.Conflict, op, onceHint, "this request was in progress when the daemon ended, so its outcome is unknown")
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
func (o *Once) keep(d *keyedRequest) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return o.log.Append(b)
}

// end records the outcome of a request: its answer, or nil when it failed.
func (o *Once) end(d *keyedRequest, answer *recorded) error {
	next := &keyedRequest{At: d.At, Key: d.Key, Asked: d.Asked, Over: true, Failed: answer == nil, done: d.done}
	if answer != nil {
		next.Kind, next.Answer, next.Large = answer.kind, answer.body.Bytes(), answer.large
		next.Status, next.Where = answer.status, answer.Header().Get("Location")
	}
	err := o.keep(next)
	o.mu.Lock()
	o.take(next)
	o.mu.Unlock()
	close(d.done)
	return err
}

// once answers a request that has a key.
func (d *Daemon) once(w http.ResponseWriter, r *http.Request, route Route, key string) {
	fail := func(err error) {
		if v := requestRecordOf(r); v != nil {
			v.kind = string(cell.KindOf(err))
		}
		writeError(w, route.explain(r, err))
	}
	if len(key) > 255 {
		fail(cell.Errorf(cell.Invalid, "daemon.Once", "use at most 255 characters", "the Idempotency-Key is too long"))
		return
	}
	body, err := io.ReadAll(r.Body) // which answer has bounded
	if err != nil {
		fail(unread(err))
		return
	}
	p, _ := access.From(r.Context())
	how := r.Header.Get("Accept")
	if asksAsync(r) {
		how += "\nrespond-async"
	}
	asked := digest(r.Method, r.URL.Path, r.URL.RawQuery, how, string(body))
	keyedRequest, mine, err := d.cfg.Once.begin(digest(p.Name, p.Token, key), asked, r.Context().Done())
	if err != nil {
		fail(err)
		return
	}
	if !mine {
		w.Header().Set("Content-Type", keyedRequest.Kind)
		w.Header().Set("Idempotent-Replayed", "true")
		if keyedRequest.Where != "" {
			w.Header().Set("Location", keyedRequest.Where)
		}
		if keyedRequest.Status != 0 {
			w.WriteHeader(keyedRequest.Status)
		}
		w.Write(keyedRequest.Answer)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, tells := route.Out.(api.Token) // a secret is sent once, and stored nowhere
	rec := &recorded{ResponseWriter: w, large: tells}
	ok := false
	defer func() { // also when the handler panics
		var answer *recorded
		if ok {
			answer = rec
		}
		if err := d.cfg.Once.end(keyedRequest, answer); err != nil {
			d.cfg.Log.Error("cannot record an idempotency key", "error", err)
		}
	}()
	ok = d.reply(rec, r, route)
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256([]byte(p))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// recorded keeps a copy of an answer while it is written.
type recorded struct {
	http.ResponseWriter
	body   bytes.Buffer
	kind   string
	large  bool
	status int
}

func (w *recorded) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorded) Write(b []byte) (int, error) {
	if w.kind == "" {
		w.kind = w.Header().Get("Content-Type")
	}
	if w.body.Len()+len(b) > onceAnswer {
		w.large = true
		w.body.Reset()
	} else if !w.large {
		w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *recorded) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// OpenOnceOrNew is OpenOnce that starts with an empty journal when the old one is damaged: keys
// are a convenience, and the daemon is needed.
func OpenOnceOrNew(fsys durable.FS, name string, log *slog.Logger) (*Once, error) {
	o, err := OpenOnce(fsys, name)
	if cell.KindOf(err) != cell.Corrupt {
		return o, err
	}
	log.Error("the journal of idempotency keys is damaged: earlier keys are lost", "error", err)
	if err := errors.Join(fsys.Rename(name, name+".damaged"), fsys.SyncDir(".")); err != nil {
		return nil, err
	}
	return OpenOnce(fsys, name)
}
