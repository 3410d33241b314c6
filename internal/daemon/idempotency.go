package daemon

import (
	"bytes"
	"io"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// once answers a request that has a key.
func (d *Daemon) once(w http.ResponseWriter, r *http.Request, route Route, key string) {
	fail := func(err error) {
		if v := requestRecordOf(r); v != nil {
			v.kind = string(cell.KindOf(err))
		}
		writeError(w, route.explain(r, err))
	}
	switch n := len(r.Header.Values("Idempotency-Key")); {
	case n > 1:
		fail(cell.Errorf(cell.Invalid, "daemon", "send one", "there are %d headers Idempotency-Key", n))
		return
	case key == "":
		fail(cell.Errorf(cell.Invalid, "daemon", "give a key, new for each request, or leave it out", "the Idempotency-Key is empty"))
		return
	case len(key) > 255:
		fail(cell.Errorf(cell.Invalid, "daemon", "use at most 255 characters", "the Idempotency-Key is too long"))
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
	keyed, mine, err := d.cfg.Keys.Begin(p, key, r.Context().Done(), r.Method, r.URL.Path, r.URL.RawQuery, how, string(body))
	if err == nil && mine && keyed.Again() && !d.isKnown(r, route) {
		d.cfg.Keys.Leave(keyed)
		err = operation.BrokenOff()
	}
	if err != nil {
		fail(err)
		return
	}
	if !mine {
		w.Header().Set("Content-Type", keyed.Kind)
		w.Header().Set("Idempotent-Replayed", "true")
		if keyed.Location != "" {
			w.Header().Set("Location", keyed.Location)
		}
		if keyed.Status != 0 {
			w.WriteHeader(keyed.Status)
		}
		w.Write(keyed.Body)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r = r.WithContext(operation.WithRequest(r.Context(), keyed.ID))
	_, tells := route.Out.(api.Token) // a secret is sent once, and stored nowhere
	rec := &recorded{ResponseWriter: w, large: tells}
	ok := false
	defer func() { // also when the handler panics
		var answer *operation.Answer
		if ok {
			answer = rec.answer()
		}
		if err := d.cfg.Keys.End(keyed, answer); err != nil { // the next daemon looks for what it did
			d.cfg.Log.Error("cannot record an idempotency key", "error", err)
			return
		}
		if rec.status != http.StatusAccepted { // its operation goes on
			d.settle(keyed.ID)
		}
	}()
	if keyed.Again() {
		if ok = d.replyAgain(rec, r, route, keyed.ID); ok {
			return
		}
	}
	ok = d.reply(rec, r, route)
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
	if w.body.Len()+len(b) > operation.MaxAnswer {
		w.large = true
		w.body.Reset()
	} else if !w.large {
		w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *recorded) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorded) answer() *operation.Answer {
	return &operation.Answer{Kind: w.kind, Body: w.body.Bytes(), Status: w.status, Location: w.Header().Get("Location"), Large: w.large}
}
