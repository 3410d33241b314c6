package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/engine"
)

// getEvents streams a run's events as JSON lines. What goes wrong after the
// first of them is the last line.
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
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	defer context.AfterFunc(life, func() { // whoever follows does not keep the daemon from ending
		cancel(cell.Errorf(cell.Unavailable, "daemon", "follow it again: pando events -f "+string(id), "the daemon has ended; run %s goes on", id))
	})()
	events, err := d.cfg.Engine.Events(ctx, id, engine.EventQuery{
		Kinds: kinds, Denied: queryBool(r, "denied"), Follow: queryBool(r, "follow"), Format: q.Get("format"),
	})
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", jsonLines)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	out.Flush() // whoever follows sees that it has begun
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
