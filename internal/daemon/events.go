package daemon

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
)

// getEvents streams a run's events as JSON lines. An error after the first line is the last
// line.
func (d *Daemon) getEvents(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	var kinds []string
	if s := q.Get("kind"); s != "" {
		kinds = strings.Split(s, ",")
	}
	seen, err := lastSeen(r)
	if err != nil {
		return nil, err
	}
	if seen > 0 && !accepts(r, eventStream) {
		return nil, cell.Errorf(cell.Invalid, "daemon.getEvents", "send Accept: text/event-stream", "only server-sent events can be resumed")
	}
	if seen > 0 && q.Get("format") != "" && q.Get("format") != "json" {
		return nil, cell.Errorf(cell.Invalid, "daemon.getEvents", "leave format out", "events of another format have no numbers to resume from")
	}
	var since time.Time
	if s := q.Get("not_before"); s != "" {
		if since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return nil, cell.Errorf(cell.Invalid, "daemon.getEvents", "send it as 2026-01-31T15:04:05Z", "not_before is no time: %q", cell.Clip(s))
		}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	defer context.AfterFunc(life, func() { // a follower does not keep the daemon from ending
		cancel(cell.Errorf(cell.Unavailable, "daemon", "follow it again: pando events -f "+string(id), "the daemon has ended; run %s continues", id))
	})()
	events, err := d.cfg.Engine.Events(ctx, id, evidence.EventQuery{
		Kinds: kinds, Denied: queryBool(r, "denied"), Follow: queryBool(r, "follow"), Format: q.Get("format"), Since: since,
	})
	if err != nil {
		return nil, err
	}
	if accepts(r, eventStream) {
		return d.serveEvents(ctx, w, events, seen)
	}
	w.Header().Set("Content-Type", jsonLines)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	if queryBool(r, "follow") {
		out.Flush() // the client sees that the stream has begun
	}
	for line, err := range events {
		if err != nil {
			if r.Context().Err() != nil {
				return done{}, nil
			}
			line, _ = json.Marshal(api.EventError{Error: errorOf(err)})
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return done{}, nil
		}
		if err != nil {
			break
		}
		if queryBool(r, "follow") {
			out.Flush()
		}
	}
	return done{}, nil
}

// tellChanges streams what watch tells as server-sent events with numbers, until the caller hangs up. An error before
// the first is the answer, and a later one the last event: error. A watcher does not keep the daemon from ending.
func (d *Daemon) tellChanges(w http.ResponseWriter, r *http.Request, watch func(ctx context.Context, tell func(any) error) error) (any, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	defer context.AfterFunc(life, func() {
		cancel(cell.Errorf(cell.Unavailable, "daemon", "watch it again", "the daemon has ended"))
	})()
	var mu sync.Mutex // guards out: keep-alives come between events
	var out *eventWriter
	defer keepAlive(func() {
		mu.Lock()
		defer mu.Unlock()
		if out != nil {
			out.comment()
			out.flush()
		}
	})()
	n := int64(0)
	send := func(name string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if out == nil {
			out = newEventWriter(w)
		}
		out.event(name, n, b)
		n++
		return out.flush()
	}
	err := watch(ctx, func(v any) error { return send("", v) })
	if ctx.Err() != nil {
		if r.Context().Err() != nil {
			return done{}, nil
		}
		err = context.Cause(ctx)
	}
	if err != nil && n == 0 {
		return nil, err
	}
	if err != nil {
		send("error", errorOf(err))
	}
	return done{}, nil
}

// keepAlive calls beat now and then until end.
func keepAlive(beat func()) (end func()) {
	over := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		tick := time.NewTicker(opsBeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				beat()
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		beats.Wait()
	}
}

// serveEvents streams events as server-sent events, with their numbers as ids, after the last
// seen one; end says that no more of them come.
func (d *Daemon) serveEvents(ctx context.Context, w http.ResponseWriter, events iter.Seq2[json.RawMessage, error], seen int64) (any, error) {
	out := newEventWriter(w)
	out.flush() // the client sees that the stream has begun
	// Another goroutine writes the keep-alives between events.
	var mu sync.Mutex
	defer keepAlive(func() {
		mu.Lock()
		defer mu.Unlock()
		out.comment()
		out.flush()
	})()
	for line, err := range events {
		if err != nil {
			if ctx.Err() != nil && cell.KindOf(context.Cause(ctx)) != cell.Unavailable {
				return done{}, nil
			}
			line, _ = json.Marshal(errorOf(err))
			mu.Lock()
			out.event("error", seen, line)
			out.flush()
			mu.Unlock()
			return done{}, nil
		}
		var e struct {
			Seq int64 `json:"seq"`
		}
		if json.Unmarshal(line, &e) == nil && e.Seq > 0 {
			if e.Seq <= seen {
				continue
			}
			seen = e.Seq
		}
		mu.Lock()
		out.event("", seen, line)
		err = out.flush()
		mu.Unlock()
		if err != nil {
			return done{}, nil
		}
	}
	mu.Lock()
	defer mu.Unlock()
	out.event("end", seen, []byte("{}"))
	out.flush()
	return done{}, nil
}
