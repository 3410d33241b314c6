package daemon

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// requestRecord is the record of one request, for the audit log and the metrics.
type requestRecord struct {
	id    string
	began time.Time
	from  string // address of the caller; "socket" for the unix socket
	w     *recordedWriter

	// Set while the request is handled, by its goroutine.
	who    access.Principal
	route  *Route // nil when no route matched
	front  bool   // another API answered
	object string
	kind   string // kind of the error
}

type requestRecordKey struct{}

func requestRecordOf(r *http.Request) *requestRecord {
	v, _ := r.Context().Value(requestRecordKey{}).(*requestRecord)
	return v
}

// know records the caller.
func (v *requestRecord) know(p access.Principal) {
	if v != nil {
		v.who = p
	}
}

// requestID matches valid request ids of callers.
var requestID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`) })

// withRecord gives each request an id, and logs it.
func (d *Daemon) withRecord(local bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &requestRecord{id: r.Header.Get("X-Request-Id"), began: time.Now(), from: "socket"}
		if !requestID().MatchString(v.id) {
			var b [8]byte
			rand.Read(b[:])
			v.id = "req-" + hex.EncodeToString(b[:])
		}
		if !local {
			v.from = r.RemoteAddr
			if len(r.TransferEncoding) > 0 {
				// The request may have had a length, too, by which a proxy saw its end
				// elsewhere: the rest of the connection is not read (RFC 9112, 6.1).
				w.Header().Set("Connection", "close")
			}
		}
		v.w = &recordedWriter{ResponseWriter: w}
		if done, ok := r.Context().Value(underKey{}).(func()); ok {
			v.w.stream = func() {
				if l, ok := d.cfg.Audit.line(v, r); ok {
					d.streams.begin(v, l)
				}
				done()
			}
		}
		w.Header().Set("X-Request-Id", v.id)
		defer func() {
			d.met.count(v, local)
			if !d.streams.ended(v) {
				d.cfg.Audit.note(d, v, r)
			}
		}()
		defer d.recoverPanic(v, r)
		h.ServeHTTP(v.w, r.WithContext(context.WithValue(r.Context(), requestRecordKey{}, v)))
	})
}

// openStreams are the requests that have become streams, with the lines that the audit log gets of those
// that last until the daemon's end, which does not wait for them.
type openStreams struct {
	mu      sync.Mutex // guards what follows
	open    map[*requestRecord]auditLine
	written map[*requestRecord]bool // those that were open at the end
}

func (s *openStreams) begin(v *requestRecord, l auditLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*requestRecord]auditLine{}
	}
	s.open[v] = l
}

// ended forgets a request that has ended. It reports whether the audit log has its line.
func (s *openStreams) ended(v *requestRecord) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, v)
	return s.written[v]
}

// writeDown has the lines of those that are open written.
func (s *openStreams) writeDown(write func(auditLine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = map[*requestRecord]bool{}
	for v, l := range s.open {
		s.written[v] = true
		l.TookMS = float64(time.Since(v.began).Microseconds()) / 1000
		write(l)
	}
}

// recoverPanic is deferred: after a panic it answers with an error, unless the answer has begun, and
// the daemon survives.
func (d *Daemon) recoverPanic(v *requestRecord, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		v.kind = string(cell.Internal)
		d.cfg.Log.Error("request panicked", "request", v.id, "method", r.Method, "path", cell.Clip(r.URL.Path), "error", p, "stack", string(debug.Stack()))
		if v.w.status == 0 {
			if r.ProtoMajor < 2 { // over HTTP/2 the connection has other requests
				v.w.Header().Set("Connection", "close")
			}
			writeError(v.w, cell.Errorf(cell.Internal, "daemon", "search for "+v.id+" in the daemon's log", "cannot answer: this is a bug in pando"))
			return
		}
	}
	panic(http.ErrAbortHandler)
}

// recordedWriter records the status and the length of an answer.
type recordedWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
	gone   atomic.Bool // a write failed: the client has disconnected
	stream func()      // called when the answer becomes a stream of another protocol; may be nil
}

func (w *recordedWriter) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recordedWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	if err != nil {
		w.gone.Store(true)
	}
	return n, err
}

// ReadFrom keeps the short way of files to sockets.
func (w *recordedWriter) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// Flush implements http.Flusher, for handlers that assert it.
func (w *recordedWriter) Flush() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for handlers that assert it.
func (w *recordedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.status = http.StatusSwitchingProtocols
	if w.stream != nil {
		w.stream()
	}
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *recordedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
