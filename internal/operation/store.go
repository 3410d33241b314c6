// Package operation keeps work that outlives a request: operations, which continue without
// their caller and are followed later, and idempotency keys, with which a request that comes
// twice is done once. Both have a journal, so that the next daemon answers as this one would.
package operation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// Store keeps operations, which are long work that continues without its request:
//
//	POST … Prefer: respond-async ──▶ 202, an Operation
//	GET /v1/operations/ID/events ──▶ its progress, from any line on
//	GET /v1/operations/ID?wait   ──▶ its result
//
// The beginning and end of each are on disk, so that a new daemon knows which were in progress
// when the old one ended. Their lines and results are kept in memory alone, since they may
// contain secrets.
//
// Lock order: 1. rewriting, 2. mu.
type Store struct {
	log  *durable.Log
	says *slog.Logger

	// rewriting is held for reading while the beginning or end of an operation is written and
	// applied, so that a rewrite of the journal has both or neither.
	rewriting sync.RWMutex

	mu    sync.Mutex // guards the fields below, and those marked so
	all   map[string]*Operation
	bytes int            // of lines and results
	open  map[string]int // operations in progress, by owner
	work  sync.WaitGroup // of operations in progress
}

// Operation is one operation.
type Operation struct {
	owner  string // digest of the caller
	token  string // the id of the caller's token
	cancel context.CancelCauseFunc
	done   chan struct{} // closed at its end
	life   context.Context

	// Guarded by Store.mu.
	view    api.Operation // without progress and lines
	lines   [][]byte      // JSON, the latest lines
	size    int           // bytes of lines and the result
	aborted bool
	bound   bool          // its caller sees a part of what there is
	broken  bool          // its daemon ended while it ran, and what became of it is not known yet
	resumed bool          // a later daemon than its own has ended it, or is to
	more    chan struct{} // closed and replaced at each new line
}

// Limits on the number of operations, their age, and their size.
const (
	opsOpen  = 256            // in progress
	opsOwn   = 64             // in progress, of one caller
	opsKept  = 1000           // in all
	opsFor   = 24 * time.Hour // after their end
	opsBytes = 64 << 20       // of lines and results of all
	opsSaid  = 1 << 20        // of the lines of one
	opsLine  = opsSaid / 4    // of one line
	opsTold  = 4 << 20        // of the result of one
	opsLog   = 8 << 20        // of the journal, which is then compacted
)

// opRecord is an operation in the journal.
type opRecord struct {
	ID      string    `json:"operation"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object,omitempty"`
	State   string    `json:"state"`
	By      string    `json:"by"`
	Owner   string    `json:"owner"`
	Token   string    `json:"token,omitempty"` // its id
	Request string    `json:"request"`
	Bound   bool      `json:"bound,omitempty"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"` // the kind of the error
	// Message and Hint are those of the error by which a later daemon ended it. Other errors may
	// have something of the caller's in them.
	Message string `json:"message,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Open reads the journal called name, and creates it if it does not exist. Operations
// that were in progress are lost, unless Resume knows more.
func Open(fsys durable.FS, name string, says *slog.Logger) (*Store, error) {
	o := &Store{says: says, all: map[string]*Operation{}, open: map[string]int{}}
	log, err := durable.OpenLog(fsys, name, func(rec []byte) error {
		var r opRecord
		if err := json.Unmarshal(rec, &r); err != nil {
			return err
		}
		o.all[r.ID] = recalled(r)
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

// OpenOrNew is Open that starts with an empty journal when the old one is
// damaged: its operations have ended in any case.
func OpenOrNew(fsys durable.FS, name string, says *slog.Logger) (*Store, error) {
	o, err := Open(fsys, name, says)
	if cell.KindOf(err) != cell.Corrupt {
		return o, err
	}
	says.Error("the journal of operations is damaged: earlier ones are lost", "error", err)
	if err := errors.Join(fsys.Rename(name, name+".damaged"), fsys.SyncDir(".")); err != nil {
		return nil, err
	}
	return Open(fsys, name, says)
}

// recalled is an operation of an earlier daemon.
func recalled(r opRecord) *Operation {
	over := make(chan struct{})
	close(over)
	op := &Operation{owner: r.Owner, token: r.Token, done: over, cancel: func(error) {}, bound: r.Bound, broken: r.State == api.OperationRunning, view: api.Operation{
		ID: r.ID, Kind: r.Kind, Object: r.Object, State: r.State, By: r.By, Request: r.Request, Began: r.Began, Ended: r.Ended}}
	switch {
	case r.State == api.OperationRunning, r.State == api.OperationLost:
		if op.view.State = api.OperationLost; r.Ended.IsZero() {
			op.view.Ended = time.Now().UTC()
		}
		op.view.Error = apiError(cell.Errorf(cell.Unavailable, "operation", "look at what it would have changed, then send it again if need be",
			"the daemon ended while it ran, and what it did is in no record"))
	case r.Message != "":
		op.resumed, op.view.Error = true, &api.Error{Kind: api.Kind(r.Error), Message: r.Message, Hint: r.Hint}
	case r.Error != "":
		op.view.Error = &api.Error{Kind: api.Kind(r.Error), Message: "its error is lost: it ended before the daemon was restarted"}
	case r.State == api.OperationDone:
		op.view.Note = "the result was kept only until the daemon ended"
	}
	return op
}

// Close closes the journal. No operation is in progress any more.
func (o *Store) Close() error {
	if o == nil {
		return nil
	}
	return o.log.Close()
}

// record is the line of the journal for an operation with the view v.
func (op *Operation) record(v api.Operation) ([]byte, error) {
	r := opRecord{ID: v.ID, Kind: v.Kind, Object: v.Object, State: v.State, By: v.By, Owner: op.owner, Token: op.token, Request: v.Request, Bound: op.bound, Began: v.Began, Ended: v.Ended}
	if op.broken {
		r.State, r.Ended = api.OperationRunning, time.Time{}
	} else if v.Error != nil {
		r.Error = string(v.Error.Kind)
		if op.resumed {
			r.Message, r.Hint = v.Error.Message, v.Error.Hint
		}
	}
	return json.Marshal(r)
}

// compact rewrites a journal that is longer than most bytes.
func (o *Store) compact(most int64) error {
	o.rewriting.Lock()
	defer o.rewriting.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log.Size() <= most {
		return nil
	}
	return o.rewrite()
}

// rewrite compacts the journal. The caller holds rewriting and mu, or is Open.
func (o *Store) rewrite() error {
	return o.log.Rewrite(iter.Seq[[]byte](func(yield func([]byte) bool) {
		for _, op := range o.all {
			b, err := op.record(op.view)
			if err == nil && !yield(b) {
				return
			}
		}
	}))
}

// ended lists ended operations, the earliest first. The caller holds mu.
func (o *Store) ended() (list []*Operation) {
	for _, op := range o.all {
		if op.view.State != api.OperationRunning {
			list = append(list, op)
		}
	}
	slices.SortFunc(list, func(a, b *Operation) int { return a.view.Ended.Compare(b.view.Ended) })
	return list
}

// forget drops operations that are too old or too many. The caller holds mu.
func (o *Store) forget(now time.Time) {
	if o.bytes <= opsBytes && len(o.all) < opsKept {
		oldest := now.Add(-opsFor)
		for id, op := range o.all {
			if op.view.State != api.OperationRunning && op.view.Ended.Before(oldest) {
				o.bytes -= op.size
				delete(o.all, id)
			}
		}
		return
	}
	list := o.ended()
	for i, op := range list {
		switch {
		case now.Sub(op.view.Ended) > opsFor || len(o.all) >= opsKept:
			o.bytes -= op.size
			delete(o.all, op.view.ID)
		case o.bytes > opsBytes && i < len(list)-1: // a caller waits for the latest one
			o.bytes -= op.size
			op.size, op.lines = 0, nil
			if op.view.Result != nil {
				op.view.Result, op.view.Note = nil, "the result is no longer kept: there were many others since"
			}
		}
	}
}

// ownerOf identifies a caller: two tokens differ, whatever their names.
func ownerOf(p access.Principal) string { return digest(p.Name, p.Token) }

func apiError(err error) *api.Error {
	return &api.Error{Kind: api.Kind(cell.KindOf(err)), Message: err.Error(), Hint: cell.HintOf(err)}
}

// sees reports whether p may see an operation.
func (op *Operation) sees(p access.Principal) bool {
	return p.Level.Allows(access.Admin) && !p.Restricted() || op.owner == ownerOf(p)
}

// Work reports its progress with out, which it may call from several goroutines until it returns.
type Work func(ctx context.Context, out func(api.StreamLine)) (any, error)

// Begin starts work of p as an operation, until life or ctx ends. view has its kind, its object
// and its request. ended is called with the outcome, and whether the journal has it. It fails with Limited when too many
// operations are in progress. The operation's id is that of the request (see WithRequest), if
// ctx has one, and becomes it otherwise.
func (o *Store) Begin(ctx context.Context, p access.Principal, view api.Operation, life context.Context, do Work, ended func(o api.Operation, kept bool)) (api.Operation, error) {
	const opName = "operation"
	if o.log.Size() > opsLog {
		if err := o.compact(opsLog); err != nil {
			return view, err
		}
	}
	o.rewriting.RLock()
	defer o.rewriting.RUnlock()
	view.ID, view.State, view.By, view.Began = cmp.Or(RequestOf(ctx), NewID()), api.OperationRunning, p.Name, time.Now().UTC()
	op := &Operation{owner: ownerOf(p), token: p.Token, bound: p.Restricted(), view: view, life: life, done: make(chan struct{}), more: make(chan struct{})}
	ctx, op.cancel = context.WithCancelCause(o.naming(WithRequest(ctx, view.ID), op))
	o.mu.Lock()
	total := 0
	for _, n := range o.open {
		total += n
	}
	if total >= opsOpen || o.open[op.owner] >= opsOwn {
		n := o.open[op.owner]
		o.mu.Unlock()
		return view, cell.Errorf(cell.Limited, opName, "wait for some of them, or abort them: GET /v1/operations", "%d operations of yours are in progress, %d in all", n, total)
	}
	o.forget(time.Now())
	o.open[op.owner]++
	o.all[view.ID] = op
	o.work.Add(1)
	rec, err := op.record(op.view)
	o.mu.Unlock()
	if err == nil {
		err = o.log.Append(rec)
	}
	if err != nil {
		o.mu.Lock()
		delete(o.all, view.ID)
		o.leave(op)
		o.mu.Unlock()
		o.work.Done()
		return view, err
	}
	go func() {
		defer o.work.Done()
		ended(o.carryOut(ctx, op, do))
	}()
	return view, nil
}

// carryOut does the work of an operation, and records its outcome: see end.
func (o *Store) carryOut(ctx context.Context, op *Operation, do Work) (v api.Operation, kept bool) {
	defer op.cancel(nil)
	stop := context.AfterFunc(op.life, func() {
		op.cancel(cell.Errorf(cell.Unavailable, "operation", "repeat the request", "the daemon has ended"))
	})
	defer stop()
	res, err := o.guard(func() (any, error) { return do(ctx, func(l api.StreamLine) { o.say(op, l) }) })
	return o.end(op, res, err)
}

// Resume takes up the operations that an earlier daemon did not end, until life ends. find
// returns the work that tells what became of one, which was begun with a token; nil where nothing
// can: it stays lost. ended is called with each outcome, as by Begin.
func (o *Store) Resume(life context.Context, find func(o api.Operation, token string) Work, ended func(o api.Operation, token string, kept bool)) error {
	o.mu.Lock()
	var lost [][]byte
	var found []func()
	for id, old := range o.all {
		if !old.broken {
			continue
		}
		do := find(old.view, old.token)
		if do == nil {
			old.broken = false
			rec, err := old.record(old.view)
			if err != nil {
				o.mu.Unlock()
				return err
			}
			lost = append(lost, rec)
			continue
		}
		op := &Operation{owner: old.owner, token: old.token, bound: old.bound, resumed: true, view: old.view, life: life, done: make(chan struct{}), more: make(chan struct{})}
		op.view.State, op.view.Ended, op.view.Error = api.OperationRunning, time.Time{}, nil
		var ctx context.Context
		ctx, op.cancel = context.WithCancelCause(o.naming(life, op))
		o.all[id] = op
		o.open[op.owner]++
		o.work.Add(1)
		if op.bound { // what is found is what the user sees
			do = withoutResult(do)
		}
		found = append(found, func() {
			v, kept := o.carryOut(ctx, op, do)
			ended(v, op.token, kept)
		})
	}
	o.mu.Unlock()
	for _, f := range found {
		go func() {
			defer o.work.Done()
			f()
		}()
	}
	return o.log.Append(lost...)
}

// withoutResult is work that is done without telling what came of it.
func withoutResult(do Work) Work {
	return func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		_, err := do(ctx, out)
		return nil, err
	}
}

// Open lists the operations that an earlier daemon did not end.
func (o *Store) Open() (ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, op := range o.all {
		if op.broken {
			ids = append(ids, id)
		}
	}
	return ids
}

// guard turns a panic into an error, so that the daemon survives it.
func (o *Store) guard(do func() (any, error)) (res any, err error) {
	defer func() {
		if p := recover(); p != nil {
			o.says.Error("an operation panicked", "error", p, "stack", string(debug.Stack()))
			err = cell.Errorf(cell.Internal, "operation", "read the daemon's log", "cannot continue: this is a bug in pando")
		}
	}()
	return do()
}

// leave counts an operation out. The caller holds mu.
func (o *Store) leave(op *Operation) {
	if o.open[op.owner]--; o.open[op.owner] == 0 {
		delete(o.open, op.owner)
	}
}

// say adds a line to an operation.
func (o *Store) say(op *Operation, l api.StreamLine) {
	b, err := json.Marshal(l)
	if err != nil {
		return
	}
	if len(b) > opsLine {
		b = []byte(`{"progress":{"step":"","note":"a line that is too long to be kept"}}`)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if op.view.State != api.OperationRunning {
		return // said too late
	}
	if l.Progress != nil {
		p := *l.Progress
		op.view.Progress = &p
	}
	op.view.Lines++
	op.lines = append(op.lines, b)
	op.size, o.bytes = op.size+len(b), o.bytes+len(b)
	for op.size > opsSaid {
		op.size, o.bytes = op.size-len(op.lines[0]), o.bytes-len(op.lines[0])
		op.lines = op.lines[1:]
	}
	close(op.more)
	op.more = make(chan struct{})
}

// ErrContinues is in the error of work that continues although its operation ends.
var ErrContinues = errors.New("it continues")

// end records the outcome of an operation. kept says that the journal has it: otherwise the next
// daemon takes the operation for broken off.
func (o *Store) end(op *Operation, res any, err error) (v api.Operation, kept bool) {
	var result json.RawMessage
	if err == nil {
		result, err = json.Marshal(res)
	}
	o.mu.Lock()
	v = op.view
	v.Ended = time.Now().UTC()
	switch {
	case err == nil && len(result) > opsTold:
		v.State, v.Note = api.OperationDone, "the result is too long to be kept: read its object"
	case err == nil && res == nil:
		v.State, v.Note = api.OperationDone, "the result was kept only until the daemon ended: read its object"
	case err == nil:
		v.State, v.Result = api.OperationDone, result
	case errors.Is(err, ErrContinues): // the next daemon resumes it
		v.State, v.Error, op.broken = api.OperationLost, apiError(err), true
	case op.aborted:
		v.State, v.Error = api.OperationAborted, apiError(err)
	default:
		v.State, v.Error = api.OperationFailed, apiError(err)
	}
	o.mu.Unlock()
	o.rewriting.RLock()
	defer o.rewriting.RUnlock()
	// Callers are told when the journal has it, so that the next daemon says the same.
	rec, rerr := op.record(v)
	if rerr == nil {
		rerr = o.log.Append(rec)
	}
	if rerr != nil { // after a restart it is lost, which is said
		o.says.Error("cannot keep the end of an operation", "operation", v.ID, "error", rerr)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	v.Lines, v.Progress, v.Object = op.view.Lines, op.view.Progress, op.view.Object
	op.view = v
	op.size, o.bytes = op.size+len(v.Result), o.bytes+len(v.Result)
	o.leave(op)
	o.forget(v.Ended)
	close(op.done)
	return v, rerr == nil
}

// Busy reports whether any operation is in progress.
func (o *Store) Busy() bool { return o.Working() > 0 }

// Working returns the number of operations in progress.
func (o *Store) Working() int {
	if o == nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open)
}

// Wait returns when no operation is in progress.
func (o *Store) Wait() {
	if o != nil {
		o.work.Wait()
	}
}

// List returns the operations that p may see, the latest first.
func (o *Store) List(p access.Principal) []api.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := []api.Operation{}
	for _, op := range o.all {
		if op.sees(p) {
			v := op.view
			v.Result = nil
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b api.Operation) int {
		return cmp.Or(b.Began.Compare(a.Began), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Get returns an operation; those that p may not see do not exist for it.
func (o *Store) Get(p access.Principal, id string) (*Operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[id]; op != nil && op.sees(p) {
		return op, nil
	}
	return nil, cell.Errorf(cell.NotFound, "operation", "GET /v1/operations lists them; they are kept for a day", "there is no such operation of yours")
}

// Look returns the present state of an operation.
func (o *Store) Look(op *Operation) api.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return op.view
}

// After returns the lines of an operation after line n, with the number of the first, and a
// channel that is closed at the next line; nil at the end.
func (o *Store) After(op *Operation, n int64) (lines [][]byte, first int64, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first = op.view.Lines - int64(len(op.lines)) + 1
	lines = op.lines
	if skip := n + 1 - first; skip > 0 {
		skip = min(skip, int64(len(lines)))
		lines, first = lines[skip:], first+skip
	}
	if op.view.State == api.OperationRunning {
		more = op.more
	}
	return slices.Clone(lines), first, more
}

// Abort stops an operation.
func (o *Store) Abort(op *Operation) {
	o.mu.Lock()
	if op.view.State == api.OperationRunning {
		op.aborted = true
	}
	o.mu.Unlock()
	op.cancel(cell.Errorf(cell.Interrupted, "operation", "", "the operation was aborted"))
}

// Done is closed when the operation has ended.
func (op *Operation) Done() <-chan struct{} { return op.done }

type operationKey struct{}

// naming returns the context of an operation's work: see Name.
func (o *Store) naming(ctx context.Context, op *Operation) context.Context {
	return context.WithValue(ctx, operationKey{}, namer{o, op})
}

// namer is the context value of an operation's work.
type namer struct {
	of *Store
	op *Operation
}

// Name records the object of an operation's work, once it is known.
func Name(ctx context.Context, object string) {
	if n, ok := ctx.Value(operationKey{}).(namer); ok {
		n.of.mu.Lock()
		n.op.view.Object = object
		n.of.mu.Unlock()
	}
}
