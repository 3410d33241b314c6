package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// work is what a route does that can tell how far it is. out may be called from
// several goroutines, until work returns.
type work func(ctx context.Context, out func(api.StreamLine)) (any, error)

// headersWithin is how long an answer that streams may be without headers.
const headersWithin = time.Second

// waitingLines is how many lines wait for a slow reader before the work does.
const waitingLines = 256

// stream does the work and answers as the caller asked: with what came of it,
// or, with Accept: application/jsonl, in lines while it goes on. The work is
// cancelled when the caller hangs up or the daemon ends. What goes wrong before
// the first line, and soon, is answered with its status, like any error; work that has
// nothing to tell for longer is no reason to let the caller wait for the headers, which
// many clients and proxies bound.
//
// With Prefer: respond-async it goes on as an operation, which is answered with;
// object is what it is done with, "" for what the path names.
func (d *Daemon) stream(w http.ResponseWriter, r *http.Request, object string, do work) (any, error) {
	if v := visitOf(r); asksAsync(r) && d.cfg.Operations != nil && v != nil && v.route != nil && v.route.Operation() != "" {
		return d.detach(r, v.route, object, do)
	}
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(life, func() {
		cancel(cell.Errorf(cell.Unavailable, "daemon", "do it again: the next command starts a daemon", "the daemon has ended"))
	})()
	if !asksForLines(r) {
		return do(ctx, func(api.StreamLine) {})
	}
	s := &liner{w: w, cancel: cancel}
	late := time.AfterFunc(headersWithin, func() { s.send(nil) })
	res, err := do(ctx, s.out)
	late.Stop()
	s.wait()
	switch {
	case s.err != nil || r.Context().Err() != nil:
		return done{}, nil // nobody is there to be told
	case err != nil && !s.begun:
		return nil, err
	case err != nil:
		return s, err
	}
	b, err := json.Marshal(res)
	if err != nil {
		return s, err
	}
	s.last = true
	s.put(&api.StreamLine{Result: b})
	return done{}, nil
}

// asksForLines reports whether the caller can read an answer that streams.
func asksForLines(r *http.Request) bool { return accepts(r, jsonLines) }

// accepts reports whether the caller names a media type that the answer may have.
func accepts(r *http.Request, media string) bool {
	for _, h := range r.Header.Values("Accept") {
		for kind := range strings.SplitSeq(h, ",") {
			kind, _, _ = strings.Cut(kind, ";")
			if strings.TrimSpace(kind) == media {
				return true
			}
		}
	}
	return false
}

// liner writes lines, and flushes when no more of them are waiting. Most work
// has none to tell but its end.
type liner struct {
	w      http.ResponseWriter
	cancel context.CancelCauseFunc // when nobody reads

	first sync.Once            // makes what follows, and has somebody write
	lines chan *api.StreamLine // nil: the headers alone
	end   chan struct{}        // closed when the work is done
	gone  chan struct{}        // closed when nothing is written any more

	// Of write while that goes on, then of the request.
	begun bool
	last  bool // nothing follows
	err   error
}

// out hands over a line; what comes after the end is dropped.
func (s *liner) out(l api.StreamLine) { s.send(&l) }

func (s *liner) send(l *api.StreamLine) {
	s.first.Do(func() {
		s.lines, s.end, s.gone = make(chan *api.StreamLine, waitingLines), make(chan struct{}), make(chan struct{})
		go func() {
			if s.write() != nil {
				s.cancel(cell.Errorf(cell.Interrupted, "daemon", "", "the caller has hung up"))
			}
			close(s.gone)
		}()
	})
	select {
	case s.lines <- l:
	case <-s.gone:
	}
}

// wait returns when everything is written, and nothing will be any more.
func (s *liner) wait() {
	s.first.Do(func() { // for whoever speaks too late
		s.gone = make(chan struct{})
		close(s.gone)
	})
	if s.end != nil {
		close(s.end)
		<-s.gone
	}
}

// write writes until the work is done, or nothing can be written.
func (s *liner) write() error {
	for s.err == nil {
		select {
		case l := <-s.lines:
			s.put(l)
			continue
		default:
		}
		select {
		case l := <-s.lines:
			s.put(l)
		case <-s.end:
			if len(s.lines) == 0 {
				return nil
			}
		}
	}
	return s.err
}

// put writes one line, or the headers alone.
func (s *liner) put(l *api.StreamLine) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", jsonLines)
		s.w.Header().Set("X-Content-Type-Options", "nosniff")
		s.w.WriteHeader(http.StatusOK)
	}
	var err error
	if l != nil {
		var b []byte
		if b, err = json.Marshal(l); err == nil {
			_, err = s.w.Write(append(b, '\n'))
		}
	}
	if err == nil && len(s.lines) == 0 && !s.last { // the last goes with the end of the answer
		err = http.NewResponseController(s.w).Flush()
	}
	s.err = err
}
