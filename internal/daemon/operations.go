package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// Operation returns the kind of operation that a request of the route can become; "" for none.
func (r Route) Operation() string {
	path, _ := r.Split()
	for _, k := range api.OperationKinds {
		if r.Method == http.MethodPost && k.Path == path {
			return k.Kind
		}
	}
	return ""
}

// accepted is an answer: the request continues as an operation.
type accepted struct{ api.Operation }

// send writes it.
func (a accepted) send(w http.ResponseWriter) {
	w.Header().Set("Location", operationPath(a.ID))
	w.Header().Set("Preference-Applied", "respond-async")
	writeJSON(w, http.StatusAccepted, a.Operation)
}

func operationPath(id string) string { return "/v1/operations/" + id }

// tokenLifetime is the lifetime of a caller's token.
type tokenLifetime struct {
	life    context.Context
	expires time.Time // zero: unlimited
}

type tokenLifetimeKey struct{}

// bind returns a context of work that was begun with a token, and ends with it.
func (s tokenLifetime) bind(ctx context.Context) (_ context.Context, free func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	timer := func() bool { return true }
	if !s.expires.IsZero() {
		timer = time.AfterFunc(time.Until(s.expires), func() {
			cancel(cell.Errorf(cell.Unauthenticated, "daemon", "", "the token has expired"))
		}).Stop
	}
	return ctx, func() {
		stop()
		timer()
		cancel(nil)
	}
}

// withToken is work that ends with the token that it was begun with, given by its id. If that is
// gone, the work ends at once.
func (d *Daemon) withToken(token string, do operation.Work) operation.Work {
	if token == "" {
		return do
	}
	return func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		if life, expires, err := d.cfg.Tokens.Life(token); err != nil {
			cancel(err)
		} else {
			bound, free := tokenLifetime{life, expires}.bind(ctx)
			defer free()
			ctx = bound
		}
		res, err := do(ctx, out)
		return res, orTokenEnded(ctx, err)
	}
}

// orTokenEnded is the error of work, or that its token has ended, which has ended it.
func orTokenEnded(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cell.KindOf(cause) == cell.Unauthenticated {
		return cause
	}
	return err
}

// detach runs work as an operation. Like everything begun with a token, it ends when the token
// expires.
func (d *Daemon) detach(r *http.Request, route *Route, object string, do operation.Work) (any, error) {
	p, _ := access.From(r.Context())
	v := requestRecordOf(r)
	if object == "" {
		object = objectOf(r, *route)
	}
	if object == "-" {
		object = ""
	}
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	ctx, free := context.WithoutCancel(r.Context()), func() {}
	if s, ok := ctx.Value(tokenLifetimeKey{}).(tokenLifetime); ok {
		ctx, free = s.bind(ctx)
	}
	explained := func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		res, err := do(ctx, out)
		if err = orTokenEnded(ctx, err); err != nil {
			err = route.explain(r, err)
		}
		return res, err
	}
	view := api.Operation{Kind: route.Operation(), Object: cell.Clip(object), Request: v.id}
	op, err := d.cfg.Operations.Begin(ctx, p, view, life, explained, func(o api.Operation, kept bool) {
		free()
		d.settleOperation(o, kept)
		d.cfg.Audit.ended(d, v, route, o)
	})
	if err != nil {
		free()
		return nil, err
	}
	return accepted{op}, nil
}

// operationOf resolves the operation in a path.
func (d *Daemon) operationOf(r *http.Request) (*operation.Operation, error) {
	if d.cfg.Operations == nil {
		return nil, cell.Errorf(cell.NotFound, "daemon", "", "there are no operations")
	}
	p, _ := access.From(r.Context())
	return d.cfg.Operations.Get(p, r.PathValue("operation"))
}

func (d *Daemon) listOperations(_ http.ResponseWriter, r *http.Request) (any, error) {
	if d.cfg.Operations == nil {
		return []api.Operation{}, nil
	}
	p, _ := access.From(r.Context())
	return d.cfg.Operations.List(p), nil
}

func (d *Daemon) getOperation(_ http.ResponseWriter, r *http.Request) (any, error) {
	op, err := d.operationOf(r)
	if err != nil {
		return nil, err
	}
	if queryBool(r, "wait") {
		if err := d.awaitOperation(r, op); err != nil {
			return nil, err
		}
	}
	return d.cfg.Operations.Look(op), nil
}

// awaitOperation returns when an operation has ended.
func (d *Daemon) awaitOperation(r *http.Request, op *operation.Operation) error {
	select {
	case <-op.Done():
		return nil
	case <-r.Context().Done():
		return cell.Errorf(cell.Interrupted, "daemon", "", "interrupted")
	}
}

func (d *Daemon) abortOperation(_ http.ResponseWriter, r *http.Request) (any, error) {
	op, err := d.operationOf(r)
	if err != nil {
		return nil, err
	}
	d.cfg.Operations.Abort(op)
	if err := d.awaitOperation(r, op); err != nil {
		return nil, err
	}
	return d.cfg.Operations.Look(op), nil
}

// opsBeat is the time between keep-alives in a stream of events.
const opsBeat = 15 * time.Second

// eventStream is the media type of server-sent events.
const eventStream = "text/event-stream"

// lastSeen returns the number of the last event that a client has received: from the header that
// browsers send when they reconnect, or from the query.
func lastSeen(r *http.Request) (int64, error) {
	s := r.Header.Get("Last-Event-ID")
	if s == "" {
		s = r.URL.Query().Get("after")
	}
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, cell.Errorf(cell.Invalid, "daemon", "give the id of the last event received", "%s is no number of an event", strconv.Quote(cell.Clip(s)))
	}
	return n, nil
}

// operationEvents streams an operation as server-sent events: each line with its number as id, a
// gap where lines are no longer kept, and at its end the operation.
func (d *Daemon) operationEvents(w http.ResponseWriter, r *http.Request) (any, error) {
	op, err := d.operationOf(r)
	if err != nil {
		return nil, err
	}
	seen, err := lastSeen(r)
	if err != nil {
		return nil, err
	}
	if seen > d.cfg.Operations.Look(op).Lines {
		seen = 0 // it counted the lines of an earlier daemon: those of this one begin anew
	}
	out := newEventWriter(w)
	beat := time.NewTicker(opsBeat)
	defer beat.Stop()
	for {
		lines, first, more := d.cfg.Operations.After(op, seen)
		if gap := first - seen - 1; gap > 0 && seen < first {
			out.event("gap", first-1, fmt.Appendf(nil, `{"lines":%d}`, gap))
		}
		for i, l := range lines {
			seen = first + int64(i)
			out.event("", seen, l)
		}
		if more == nil {
			v := d.cfg.Operations.Look(op)
			b, err := json.Marshal(v)
			if err != nil {
				return done{}, nil
			}
			out.event("end", v.Lines, b)
			out.flush()
			return done{}, nil
		}
		if out.flush() != nil {
			return done{}, nil
		}
		select {
		case <-more:
		case <-op.Done():
		case <-beat.C:
			out.comment()
		case <-r.Context().Done():
			return done{}, nil
		}
	}
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w   http.ResponseWriter
	out *http.ResponseController
	err error
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	return &eventWriter{w: w, out: http.NewResponseController(w)}
}

// event writes one; data is JSON, which has no line break.
func (e *eventWriter) event(name string, id int64, data []byte) {
	if e.err != nil {
		return
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	_, e.err = fmt.Fprintf(e.w, "%sid: %d\ndata: %s\n\n", name, id, data)
}

// comment writes a keep-alive.
func (e *eventWriter) comment() {
	if e.err == nil {
		_, e.err = fmt.Fprint(e.w, ": still there\n\n")
	}
}

func (e *eventWriter) flush() error {
	if e.err == nil {
		e.err = e.out.Flush()
	}
	return e.err
}

// asksAsync reports whether the caller does not want to wait (RFC 7240).
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
