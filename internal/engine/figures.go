package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
)

// Bounds are the upper ends of the buckets of Timing, in seconds.
var Bounds = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Timing is how long things of one kind took.
type Timing struct {
	Act     string // "run", "exec", "eval", "create", "fork", "branch", "checkpoint", "restore", "template"
	Backend string // "" when it never came to one
	From    string // of forks, where each came from: "pool", "template", "checkpoint"
	Result  string // "ok", "refused" for what was wrong to ask, "failed"
	Count   uint64
	Seconds float64             // of all
	Buckets [len(Bounds)]uint64 // how many were in each, and in none below
}

// Figures are what the engine counts while it lives, and the size of what it
// keeps. Nothing in them names a cell.
type Figures struct {
	Acts     []Timing         // whole acts; a run is over with its verdict
	Forks    []Timing         // one for each cell that came of a fork, to the moment it was ready
	Pauses   []Timing         // for how long cells stood still while they were branched
	Refused  []cell.Refused   // what cells were refused on the network
	Stored   bool             // the next two are known
	Objects  int              // in the store of trees
	Bytes    int64            // of them, on disk
	Free     int64            // bytes that the state's file system has left
	Total    int64            // bytes that it has
	GCs      uint64           // collections of this daemon
	GCFreed  int64            // bytes that they freed
	LastGC   time.Time        // zero: none
	Receipts int64            // in the ledger
	Sealed   time.Time        // when this daemon last sealed a receipt; zero: not yet
	Unsealed uint64           // receipts that could not be sealed
	Runs     map[string]int64 // runs under way: by phase
}

type timingKey struct{ act, backend, from, result string }

// figures is what is counted.
type figures struct {
	mu      sync.Mutex // guards what follows
	acts    map[timingKey]*Timing
	forks   map[timingKey]*Timing
	pauses  map[timingKey]*Timing
	refused map[cell.Refusal]int64
	seen    map[cell.ID]map[cell.Refusal]int64 // of refused, what living instances have told
	gcs     uint64
	freed   int64
	lastGC  time.Time
}

func newFigures() *figures {
	return &figures{acts: map[timingKey]*Timing{}, forks: map[timingKey]*Timing{}, pauses: map[timingKey]*Timing{},
		refused: map[cell.Refusal]int64{}, seen: map[cell.ID]map[cell.Refusal]int64{}}
}

// note adds a duration to one of the maps of f.
func (f *figures) note(m map[timingKey]*Timing, k timingKey, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := m[k]
	if t == nil {
		t = &Timing{Act: k.act, Backend: k.backend, From: k.from, Result: k.result}
		m[k] = t
	}
	t.Count++
	t.Seconds += took.Seconds()
	if i, _ := slices.BinarySearch(Bounds[:], took.Seconds()); i < len(Bounds) {
		t.Buckets[i]++
	}
}

// Where forks come from, in figures.
const (
	fromPool       = "pool"
	fromTemplate   = "template"
	fromCheckpoint = "checkpoint"
)

// forked counts the cells that came of a template.
func (f *figures) forked(res api.WarmForkResult) {
	for _, x := range res.Forks {
		from := fromTemplate
		if x.Hit {
			from = fromPool
		}
		if x.Cell.ID != "" {
			f.note(f.forks, timingKey{backend: x.Cell.Backend, from: from}, millis(res.ReadyMS))
		}
	}
}

// paused counts for how long a cell stood still, in milliseconds.
func (f *figures) paused(reg *state.Registry, id cell.ID, gap float64) {
	if c, err := reg.Cell(id); err == nil {
		f.note(f.pauses, timingKey{backend: c.Backend}, millis(gap))
	}
}

func millis(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

func (f *figures) sorted(m map[timingKey]*Timing) (list []Timing) {
	for _, t := range m {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b Timing) int {
		return cmp.Or(cmp.Compare(a.Act, b.Act), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.From, b.From), cmp.Compare(a.Result, b.Result))
	})
	return list
}

// collected counts a collection of garbage.
func (f *figures) collected(freed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gcs++
	f.freed += freed
	f.lastGC = time.Now()
}

// Figures: see Engine. They are about the whole installation.
func (v *View) Figures(ctx context.Context) Figures { return v.e.Figures(ctx) }

// Figures tells what there is to measure.
func (e *Engine) Figures(ctx context.Context) Figures {
	e.countAllRefused(ctx)
	f := e.figures
	f.mu.Lock()
	out := Figures{Acts: f.sorted(f.acts), Forks: f.sorted(f.forks), Pauses: f.sorted(f.pauses), GCs: f.gcs, GCFreed: f.freed, LastGC: f.lastGC, Runs: map[string]int64{}}
	for r, n := range f.refused {
		out.Refused = append(out.Refused, cell.Refused{Refusal: r, Count: n})
	}
	f.mu.Unlock()
	slices.SortFunc(out.Refused, func(a, b cell.Refused) int {
		return cmp.Or(cmp.Compare(a.Act, b.Act), cmp.Compare(a.Reason, b.Reason))
	})
	if s, ok := e.pins.Store.(store.Sized); ok {
		out.Objects, out.Bytes = s.Size()
		out.Stored = true
	}
	var st unix.Statfs_t
	if unix.Statfs(e.cfg.Home.State, &st) == nil {
		out.Free, out.Total = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	}
	out.Receipts = e.cfg.Ledger.Len()
	out.Sealed, out.Unsealed = e.cfg.Ledger.Sealed()
	for _, id := range e.runs.IDs() {
		if r, err := e.reg.Run(id); err == nil {
			out.Runs[string(r.Phase)]++
		}
	}
	return out
}

// act is one use case on its way: counted, and a span of the trace that its
// context belongs to, if there is one. Its methods may be called on nil.
type act struct {
	e       *Engine
	what    string
	cell    cell.ID
	backend string
	began   time.Time
	span    trace.Span
	once    sync.Once
}

// act begins one, in a cell that may be "".
func (e *Engine) act(ctx context.Context, what string, id cell.ID) (context.Context, *act) {
	a := &act{e: e, what: what, cell: id, began: time.Now()}
	if !a.counted() {
		e.acts.Add(1)
	}
	ctx, a.span = tracer(ctx).Start(ctx, "pando."+what)
	if id != "" && a.span.IsRecording() {
		a.span.SetAttributes(attribute.String("pando.cell", string(id)))
	}
	return ctx, a
}

// counted reports whether Working counts an act by what it is the beginning of: runs and
// commands may go on from an earlier daemon.
func (a *act) counted() bool { return a.what == "run" || a.what == "exec" }

// Working returns how much is under way: runs, commands, evaluations, and what makes or
// changes cells; at least the operations, most of which are one of these. Below a token's
// labels nothing is told of that.
func (v *View) Working(operations int) int {
	if v.restricted() {
		return 0
	}
	e := v.e
	n := int(e.acts.Load()) + e.alive.Running() + len(e.runs.IDs())
	return max(n, operations)
}

// tracer is that of the trace which ctx is part of; without one its spans are
// nothing.
func tracer(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/pando-dev/pando")
}

// say adds facts to the span: identities and numbers, never what was typed,
// shown or lent.
func (a *act) say(facts ...attribute.KeyValue) {
	if a != nil && a.span.IsRecording() {
		a.span.SetAttributes(facts...)
	}
}

// over ends it, once.
func (a *act) over(err *error) {
	if a == nil {
		return
	}
	a.once.Do(func() {
		if !a.counted() {
			a.e.acts.Add(-1)
		}
		if a.backend == "" && a.cell != "" {
			if c, err := a.e.reg.Cell(a.cell); err == nil {
				a.backend = c.Backend
			}
		}
		a.say(attribute.String("pando.backend", a.backend))
		a.e.figures.note(a.e.figures.acts, timingKey{act: a.what, backend: a.backend, result: resultOf(*err)}, time.Since(a.began))
		endSpan(a.span, *err)
	})
}

// resultOf sorts an end: well, badly, or not begun because of what was asked.
func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	switch cell.KindOf(err) {
	case cell.Invalid, cell.NotFound, cell.Exists, cell.Conflict, cell.Denied, cell.Unsupported, cell.Unauthenticated:
		return "refused"
	}
	return "failed"
}

// endSpan ends a span. Of an error it has the kind alone: the text may have in it
// what was typed.
func endSpan(s trace.Span, err error) {
	if err != nil && s.IsRecording() {
		kind := string(cell.KindOf(err))
		s.SetAttributes(attribute.String("error.type", kind))
		s.SetStatus(codes.Error, kind)
	}
	s.End()
}

// stage begins a part of an act, which is a span and is not counted.
func stage(ctx context.Context, what string) (context.Context, func(error)) {
	ctx, span := tracer(ctx).Start(ctx, "pando."+what)
	return ctx, func(err error) { endSpan(span, err) }
}

// alongside is ctx as part of the trace that of belongs to: for work that
// outlives its request.
func alongside(ctx, of context.Context) context.Context {
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(of))
}

// countRefused adds to the figures what an instance has been refused since it was
// looked at last. With quietly it is only remembered: an earlier daemon counted it.
func (e *Engine) countRefused(ctx context.Context, inst backend.Instance, quietly bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	list, err := inst.Refused(ctx)
	if err != nil {
		return // it has no gateway, or is gone
	}
	f := e.figures
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.seen[inst.ID()]
	if seen == nil {
		seen = map[cell.Refusal]int64{}
		f.seen[inst.ID()] = seen
	}
	for _, x := range list {
		if n := x.Count - seen[x.Refusal]; n > 0 {
			if !quietly {
				f.refused[x.Refusal] += n
			}
			seen[x.Refusal] = x.Count
		}
	}
}

// leaving counts what is in an instance that is about to be gone.
func (e *Engine) leaving(ctx context.Context, inst backend.Instance) {
	e.countLastRefused(ctx, inst)
	e.govern.CountLast(ctx, inst)
	if c, err := e.reg.Cell(inst.ID()); err == nil {
		e.services.Follow(&c)
	}
}

// countLastRefused is countRefused for an instance that is about to be gone.
func (e *Engine) countLastRefused(ctx context.Context, inst backend.Instance) {
	if e.mayTalk(inst.ID()) {
		e.countRefused(ctx, inst, false)
	}
	e.figures.mu.Lock()
	defer e.figures.mu.Unlock()
	delete(e.figures.seen, inst.ID())
}

func (e *Engine) mayTalk(id cell.ID) bool {
	c, err := e.reg.Cell(id)
	return err == nil && c.Talks()
}

// refusedAtOnce is how many keepers are asked at a time.
const refusedAtOnce = 16

func (e *Engine) countAllRefused(ctx context.Context) {
	room := make(chan struct{}, refusedAtOnce)
	var all sync.WaitGroup
	for _, i := range e.alive.Instances() {
		if !e.mayTalk(i.ID()) {
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			e.countRefused(ctx, i, false)
		})
	}
	all.Wait()
}
