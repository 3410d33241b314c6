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
	"github.com/pando-dev/pando/internal/operation"
)

// headersWithin bounds how long a streamed answer may be without headers.
const headersWithin = time.Second

// waitingLines is the number of lines buffered for a slow reader before the work blocks.
const waitingLines = 256

// stream runs the work and answers with its result or, with Accept: application/jsonl, with
// lines while it runs. The work is cancelled when the caller hangs up or the daemon ends. An
// early error before the first line is answered with its status, like any error. Work without a
// line for longer does not delay the headers, for which many clients and proxies have a time
// limit.
//
// With Prefer: respond-async the work becomes an operation, which is the answer; object is its
// object, "" for that of the path.
func (d *Daemon) stream(w http.ResponseWriter, r *http.Request, object string, do operation.Work) (any, error) {
	if v := requestRecordOf(r); asksAsync(r) && d.cfg.Operations != nil && v != nil && v.route != nil && v.route.Operation() != "" {
		return d.detach(r, v.route, object, do)
	}
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(life, func() {
		cancel(cell.Errorf(cell.Unavailable, "daemon", "repeat it: the next command starts a daemon", "the daemon has ended"))
	})()
	if !asksForLines(r) {
		return do(ctx, func(api.StreamLine) {})
	}
	s := &liner{w: w, cancel: cancel}
	late := time.AfterFunc(headersWithin, func() { s.send(nil) })
	res, err := do(ctx, s.out)
	late.Stop()
	s.wait()
	var b []byte
	if err == nil {
		b, err = json.Marshal(res)
	}
	switch {
	case err == nil: // also for a caller that has disconnected: its repetition gets what was recorded
		s.last = true
		s.put(&api.StreamLine{Result: b})
		return told{}, nil
	case !s.begun:
		return nil, err
	}
	return s, err
}

// asksForLines reports whether the caller can read a streamed answer.
func asksForLines(r *http.Request) bool { return accepts(r, jsonLines) }

// accepts reports whether the caller accepts a media type of the answer.
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

// liner writes lines, and flushes when no more of them are waiting. Most work has no line but
// its end.
type liner struct {
	w      http.ResponseWriter
	cancel context.CancelCauseFunc // when the reader has gone

	first sync.Once            // creates lines and starts the writer
	lines chan *api.StreamLine // nil: the headers alone
	end   chan struct{}        // closed at the end of the work
	gone  chan struct{}        // closed when writing has ended

	// Owned by write while it runs, then by the request.
	begun bool
	last  bool // no line follows
	err   error
}

// out passes on a line; lines after the end are dropped.
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

// wait returns when all lines are written and no more will be.
func (s *liner) wait() {
	s.first.Do(func() { // for lines that come too late
		s.gone = make(chan struct{})
		close(s.gone)
	})
	if s.end != nil {
		close(s.end)
		<-s.gone
	}
}

// write writes until the work ends, or writing fails.
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
