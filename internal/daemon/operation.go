package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/http"
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

// Operations are work that goes on without the request that asked for it:
//
//	POST … Prefer: respond-async ──▶ 202, an Operation
//	GET /v1/operations/ID/events ──▶ what it says on its way, from any line on
//	GET /v1/operations/ID?wait   ──▶ what came of it
//
// That one begins and ends is on disk, so that a new daemon knows which were
// under way when the old one ended. What they say and what comes of them is kept
// in memory alone: it may hold what no file must.
type Operations struct {
	log  *durable.Log
	says *slog.Logger

	mu    sync.Mutex // guards what follows, and what is said to be guarded by it
	all   map[string]*operation
	bytes int            // of lines and results
	open  map[string]int // how many go on, by owner
	work  sync.WaitGroup // of those that go on
}

// operation is one of them.
type operation struct {
	owner  string // digest of who asked
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it has ended
	life   context.Context

	// Guarded by Operations.mu.
	view    api.Operation // without progress and lines
	lines   [][]byte      // JSON, the last of those it told
	size    int           // bytes of lines and the result
	aborted bool
	more    chan struct{} // closed, and made anew, when there is a line more
}

// How many operations there may be, for how long, and how much of them is kept.
const (
	opsOpen  = 256              // under way
	opsOwn   = 64               // under way, of one caller
	opsKept  = 1000             // in all
	opsFor   = 24 * time.Hour   // after their end
	opsBytes = 64 << 20         // of lines and results of all
	opsSaid  = 1 << 20          // of one's lines
	opsLine  = opsSaid / 4      // of one line
	opsTold  = 4 << 20          // of one's result
	opsLog   = 8 << 20          // of the journal, which is then written anew
	opsBeat  = 15 * time.Second // between signs of life in a stream of events
)

// opRecord is what the journal holds of an operation.
type opRecord struct {
	ID      string    `json:"operation"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object,omitempty"`
	State   string    `json:"state"`
	By      string    `json:"by"`
	Owner   string    `json:"owner"`
	Request string    `json:"request"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"` // the kind of it
}

// OpenOperations reads the journal called name, and makes it when there is none.
// What was under way when it was written last is lost.
func OpenOperations(fsys durable.FS, name string, says *slog.Logger) (*Operations, error) {
	o := &Operations{says: says, all: map[string]*operation{}, open: map[string]int{}}
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

// OpenOperationsOrNew is OpenOperations that goes on with an empty journal when
// the old one is damaged: what it knows is over in any case.
func OpenOperationsOrNew(fsys durable.FS, name string, says *slog.Logger) (*Operations, error) {
	o, err := OpenOperations(fsys, name, says)
	if cell.KindOf(err) != cell.Corrupt {
		return o, err
	}
	says.Error("the journal of operations is damaged: earlier ones are not known any more", "error", err)
	if err := errors.Join(fsys.Rename(name, name+".damaged"), fsys.SyncDir(".")); err != nil {
		return nil, err
	}
	return OpenOperations(fsys, name, says)
}

// recalled is an operation of an earlier daemon.
func recalled(r opRecord) *operation {
	over := make(chan struct{})
	close(over)
	op := &operation{owner: r.Owner, done: over, cancel: func(error) {}, view: api.Operation{
		ID: r.ID, Kind: r.Kind, Object: r.Object, State: r.State, By: r.By, Request: r.Request, Began: r.Began, Ended: r.Ended}}
	switch {
	case r.State == api.OperationRunning:
		op.view.State, op.view.Ended = api.OperationLost, time.Now().UTC()
		op.view.Error = errorOf(cell.Errorf(cell.Unavailable, "daemon", "look whether it was done: what is there is whole",
			"cannot say what became of it: the daemon ended while it went on"))
	case r.Error != "":
		op.view.Error = &api.Error{Kind: api.Kind(r.Error), Message: "cannot say why any more: it ended before the daemon was started anew"}
	case r.State == api.OperationDone:
		op.view.Note = "the result was told until the daemon ended, and is not kept"
	}
	return op
}

// Close closes the journal. Nothing goes on any more.
func (o *Operations) Close() error {
	if o == nil {
		return nil
	}
	return o.log.Close()
}

// record is the line of the journal for an operation with the view v.
func (op *operation) record(v api.Operation) ([]byte, error) {
	r := opRecord{ID: v.ID, Kind: v.Kind, Object: v.Object, State: v.State, By: v.By, Owner: op.owner, Request: v.Request, Began: v.Began, Ended: v.Ended}
	if v.Error != nil {
		r.Error = string(v.Error.Kind)
	}
	return json.Marshal(r)
}

// rewrite has the journal hold what is known, and no more. The caller holds mu.
func (o *Operations) rewrite() error {
	return o.log.Rewrite(iter.Seq[[]byte](func(yield func([]byte) bool) {
		for _, op := range o.all {
			b, err := op.record(op.view)
			if err == nil && !yield(b) {
				return
			}
		}
	}))
}

// ended lists what has ended, the earliest first. The caller holds mu.
func (o *Operations) ended() (list []*operation) {
	for _, op := range o.all {
		if op.view.State != api.OperationRunning {
			list = append(list, op)
		}
	}
	slices.SortFunc(list, func(a, b *operation) int { return a.view.Ended.Compare(b.view.Ended) })
	return list
}

// forget drops what is too old or too much. The caller holds mu.
func (o *Operations) forget(now time.Time) {
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
		case o.bytes > opsBytes && i < len(list)-1: // the last that ended is what somebody waits for
			o.bytes -= op.size
			op.size, op.lines = 0, nil
			if op.view.Result != nil {
				op.view.Result, op.view.Note = nil, "the result was told, and is not kept any more: there were many others since"
			}
		}
	}
}

// ownerOf tells callers apart: two tokens are two, whatever their names.
func ownerOf(p access.Principal) string { return digest(p.Name, p.Token) }

// sees reports whether p may know of an operation.
func (op *operation) sees(p access.Principal) bool {
	return p.Level.Allows(Admin) && !p.Restricted() || op.owner == ownerOf(p)
}

// begin starts work as an operation.
func (o *Operations) begin(ctx context.Context, p access.Principal, view api.Operation, life context.Context, do func(context.Context, func(api.StreamLine)) (any, error), ended func(api.Operation)) (api.Operation, error) {
	const opName = "daemon.Operations"
	var b [8]byte
	rand.Read(b[:])
	view.ID, view.State, view.By, view.Began = "o-"+hex.EncodeToString(b[:]), api.OperationRunning, p.Name, time.Now().UTC()
	op := &operation{owner: ownerOf(p), view: view, life: life, done: make(chan struct{}), more: make(chan struct{})}
	ctx, op.cancel = context.WithCancelCause(context.WithValue(ctx, operationKey{}, namer{o, op}))
	o.mu.Lock()
	total := 0
	for _, n := range o.open {
		total += n
	}
	if total >= opsOpen || o.open[op.owner] >= opsOwn {
		n := o.open[op.owner]
		o.mu.Unlock()
		return view, cell.Errorf(cell.Limited, opName, "wait for some of them, or abort them: GET /v1/operations", "%d operations of yours are under way, %d in all", n, total)
	}
	o.forget(time.Now())
	o.open[op.owner]++
	o.all[view.ID] = op
	o.work.Add(1)
	rec, err := op.record(op.view)
	if err == nil && o.log.Size() > opsLog {
		err = o.rewrite()
	}
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
		defer op.cancel(nil)
		stop := context.AfterFunc(life, func() {
			op.cancel(cell.Errorf(cell.Unavailable, "daemon", "ask for it again", "the daemon has ended"))
		})
		defer stop()
		res, err := o.guard(func() (any, error) { return do(ctx, func(l api.StreamLine) { o.say(op, l) }) })
		ended(o.end(op, res, err))
	}()
	return view, nil
}

// guard makes an error of a defect, so that it ends nothing else.
func (o *Operations) guard(do func() (any, error)) (res any, err error) {
	defer func() {
		if p := recover(); p != nil {
			o.says.Error("an operation broke", "error", p, "stack", string(debug.Stack()))
			err = cell.Errorf(cell.Internal, "daemon", "look into the daemon's log", "cannot go on: this is a defect of pando")
		}
	}()
	return do()
}

// leave counts an operation out. The caller holds mu.
func (o *Operations) leave(op *operation) {
	if o.open[op.owner]--; o.open[op.owner] == 0 {
		delete(o.open, op.owner)
	}
}

// say keeps a line of an operation.
func (o *Operations) say(op *operation, l api.StreamLine) {
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

// errGoesOn is in the error of work that goes on although its operation ends.
var errGoesOn = errors.New("it goes on")

// end says what came of an operation.
func (o *Operations) end(op *operation, res any, err error) api.Operation {
	var result json.RawMessage
	if err == nil {
		result, err = json.Marshal(res)
	}
	o.mu.Lock()
	v := op.view
	v.Ended = time.Now().UTC()
	switch {
	case err == nil && len(result) > opsTold:
		v.State, v.Note = api.OperationDone, "the result is too long to be kept: look at what it is of"
	case err == nil:
		v.State, v.Result = api.OperationDone, result
	case errors.Is(err, errGoesOn):
		v.State, v.Error = api.OperationLost, errorOf(err)
	case op.aborted:
		v.State, v.Error = api.OperationAborted, errorOf(err)
	default:
		v.State, v.Error = api.OperationFailed, errorOf(err)
	}
	o.mu.Unlock()
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
	return v
}

// busy reports whether any goes on.
func (o *Operations) busy() bool { return o.working() > 0 }

// working returns how many go on.
func (o *Operations) working() int {
	if o == nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open)
}

// wait returns when none goes on.
func (o *Operations) wait() {
	if o != nil {
		o.work.Wait()
	}
}

// list returns what p may see, the latest first.
func (o *Operations) list(p access.Principal) []api.Operation {
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

// get returns an operation; for who may not see it there is none.
func (o *Operations) get(p access.Principal, id string) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[id]; op != nil && op.sees(p) {
		return op, nil
	}
	return nil, cell.Errorf(cell.NotFound, "daemon.Operations", "see GET /v1/operations for those there are; they are kept for a day", "there is no such operation of yours")
}

// look is an operation as it is now.
func (o *Operations) look(op *operation) api.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return op.view
}

// after returns what an operation has told behind line n, with the number of the
// first of it; and what says that there is more, unless it has ended.
func (o *Operations) after(op *operation, n int64) (lines [][]byte, first int64, more <-chan struct{}) {
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

// abort has an operation stopped.
func (o *Operations) abort(op *operation) {
	o.mu.Lock()
	if op.view.State == api.OperationRunning {
		op.aborted = true
	}
	o.mu.Unlock()
	op.cancel(cell.Errorf(cell.Interrupted, "daemon", "", "the operation was aborted"))
}

type operationKey struct{}

// namer is what the context of an operation's work has.
type namer struct {
	of *Operations
	op *operation
}

// named says what an operation's work is done with, once that is known.
func named(ctx context.Context, object string) {
	if n, ok := ctx.Value(operationKey{}).(namer); ok {
		n.of.mu.Lock()
		n.op.view.Object = object
		n.of.mu.Unlock()
	}
}

// asksAsync reports whether who asks does not want to wait (RFC 7240).
func asksAsync(r *http.Request) bool {
	for _, h := range r.Header.Values("Prefer") {
		for pref := range strings.SplitSeq(h, ",") {
			pref, _, _ = strings.Cut(pref, ";")
			if strings.EqualFold(strings.TrimSpace(pref), "respond-async") {
				return true
			}
		}
	}
	return false
}
