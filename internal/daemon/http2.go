package daemon

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// HTTP/2 carries many requests over one connection, so limits on connections do not bound them.
// They are counted by themselves:
//   - requests with a valid token by Limits.Flight and Limits.Rate, as any others;
//   - requests without one, in all as many as there may be connections, and of one peer
//     half of that: see slot.stream;
//   - on one connection maxStreams, above which net/http refuses them (RFC 9113, 5.1.2). It
//     also ends a connection on which requests are reset faster than their handlers end.
const (
	maxStreams    = 250
	streamBuffer  = 256 << 10 // unread bytes of a body
	connBuffer    = 512 << 10 // unread bytes of all bodies on a connection
	pingAfter     = time.Minute
	pingWithin    = 15 * time.Second
	strangerWrite = 2 * time.Second // time limit for sending a refusal
)

// protocols are the protocols of a server: HTTP/2 by ALPN or with prior knowledge.
func protocols(s *http.Server) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
		SendPingTimeout: pingAfter, PingTimeout: pingWithin}
}

// streams counts requests over HTTP/2 without a valid token. connLimit has one, guarded by its mu.
type streams struct {
	open int
	of   map[netip.Prefix]int // by peer
}

// stream counts a request without a valid token; false when there are too many. The caller must
// call leave at the end of the request.
func (s *slot) stream() (leave func(), ok bool) {
	f := s.of
	f.mu.Lock()
	defer f.mu.Unlock()
	n := &f.streams
	if n.open >= f.most || n.of[s.peer] >= max(1, f.most/2) {
		return nil, false
	}
	if n.of == nil {
		n.of = map[netip.Prefix]int{}
	}
	n.open++
	n.of[s.peer]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		n.open--
		if n.of[s.peer]--; n.of[s.peer] <= 0 {
			delete(n.of, s.peer)
		}
	}), true
}

// stranger counts a request over HTTP/2 that has no valid token. When there are too many it is
// refused with a header alone, since a body would wait for a client that does not read. The
// caller must call leave at the end of the request.
func (d *Daemon) stranger(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	s, counted := r.Context().Value(slotKey{}).(*slot)
	if r.ProtoMajor < 2 || !counted {
		return func() {}, true
	}
	if end, ok := s.stream(); ok {
		return func() {
			sent(w, r)
			end()
		}, true
	}
	if v := requestRecordOf(r); v != nil {
		v.kind = string(cell.Limited)
	}
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusTooManyRequests)
	return nil, false
}

// sent waits until a written answer was sent over HTTP/2. net/http would send it after the
// handler returns, when the request is no longer counted although its client may not read.
func sent(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor >= 2 {
		http.NewResponseController(w).Flush()
	}
}

// keepShared keeps a connection open after a refusal if it carries other requests: on HTTP/2,
// after a body that was too long, or when the connection has had a valid token.
func keepShared(w http.ResponseWriter, r *http.Request, err error) {
	if r.ProtoMajor < 2 {
		return
	}
	s, _ := r.Context().Value(slotKey{}).(*slot)
	if cell.KindOf(err) == cell.TooLarge || s != nil && s.good.Load() {
		w.Header().Del("Connection")
	}
}
