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

// visit is one request, as it is written down: see Audit and metrics.
type visit struct {
	id    string
	began time.Time
	from  string // address of the caller; "socket" for the unix socket
	w     *watched

	// What is learned on the way; of the request's goroutine.
	who    access.Principal
	route  *Route // nil when it never came to one
	front  bool   // another API answered
	object string
	kind   string // of the error
}

type visitKey struct{}

func visitOf(r *http.Request) *visit {
	v, _ := r.Context().Value(visitKey{}).(*visit)
	return v
}

// know notes who asks.
func (v *visit) know(p access.Principal) {
	if v != nil {
		v.who = p
	}
}

// requestID is what a caller may call a request.
var requestID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`) })

// visited gives each request an id, and has it written down.
func (d *Daemon) visited(local bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{id: r.Header.Get("X-Request-Id"), began: time.Now(), from: "socket"}
		if !requestID().MatchString(v.id) {
			var b [8]byte
			rand.Read(b[:])
			v.id = "req-" + hex.EncodeToString(b[:])
		}
		if !local {
			v.from = r.RemoteAddr
			if len(r.TransferEncoding) > 0 {
				// It may have had a length, too, by which something between the caller and
				// here saw its end elsewhere: what follows it is not read (RFC 9112, 6.1).
				w.Header().Set("Connection", "close")
			}
		}
		v.w = &watched{ResponseWriter: w}
		v.w.stream, _ = r.Context().Value(underKey{}).(func())
		w.Header().Set("X-Request-Id", v.id)
		defer func() {
			d.met.saw(v, local)
			d.cfg.Audit.note(d, v, r)
		}()
		defer d.broke(v, r)
		h.ServeHTTP(v.w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// broke is deferred: a defect that ends a request is told to who asked, unless the
// answer has begun, and ends nothing else.
func (d *Daemon) broke(v *visit, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		v.kind = string(cell.Internal)
		d.cfg.Log.Error("request broke", "request", v.id, "method", r.Method, "path", clip(r.URL.Path), "error", p, "stack", string(debug.Stack()))
		if v.w.status == 0 {
			if r.ProtoMajor < 2 { // else it carries other requests, too
				v.w.Header().Set("Connection", "close")
			}
			writeError(v.w, cell.Errorf(cell.Internal, "daemon", "look for "+v.id+" in the daemon's log", "cannot answer: this is a defect of pando"))
			return
		}
	}
	panic(http.ErrAbortHandler)
}

// watched notes the status of an answer, and how long it is.
type watched struct {
	http.ResponseWriter
	status int
	bytes  int64
	gone   atomic.Bool // it could not be written: the caller is gone
	stream func()      // is told when it becomes a stream of another protocol; nil for nobody
}

func (w *watched) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(b []byte) (int, error) {
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
func (w *watched) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// Flush implements http.Flusher, for who asks for it by name.
func (w *watched) Flush() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for who asks for it by name.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.status = http.StatusSwitchingProtocols
	if w.stream != nil {
		w.stream()
	}
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
