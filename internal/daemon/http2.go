package daemon

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// HTTP/2 carries many requests over one connection. What bounds connections does not bound
// them, so they are counted by themselves:
//   - those with a good token by Limits.Flight and Limits.Rate, as any others;
//   - those without, in all as many as there may be connections and of one peer half of
//     that: see slot.stream;
//   - on one connection maxStreams, which net/http refuses beyond (RFC 9113, 5.1.2). It
//     also ends a connection whose requests are reset faster than their handlers end.
const (
	maxStreams    = 250
	streamBuffer  = 256 << 10 // bytes of a body that may come before they are read
	connBuffer    = 512 << 10 // the same of all bodies on a connection
	pingAfter     = time.Minute
	pingWithin    = 15 * time.Second
	strangerWrite = 2 * time.Second // how long a refusal may take to be sent
)

// protocols are what a server speaks: HTTP/2 where the client knows it, by ALPN or because
// it begins with it.
func protocols(s *http.Server) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
		SendPingTimeout: pingAfter, PingTimeout: pingWithin}
}

// streams counts requests over HTTP/2 without a good token. few has one, guarded by its mu.
type streams struct {
	open int
	of   map[netip.Prefix]int // by peer
}

// stream counts a request without a good token; false when there are too many. leave must be
// called when the request has ended.
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

// stranger counts a request that shows no good token, if its connection does not: over
// HTTP/2. When there are too many it is refused with a header alone, because a body would
// wait for a client that takes none. leave must be called when the request has ended.
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
	if v := visitOf(r); v != nil {
		v.kind = string(cell.Limited)
	}
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusTooManyRequests)
	return nil, false
}

// sent waits until what was written over HTTP/2 is sent. net/http would do so when the
// handler has returned, and then the request would not be counted any more, however long
// its client takes nothing.
func sent(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor >= 2 {
		http.NewResponseController(w).Flush()
	}
}

// keepShared takes back that a connection ends with a refusal, where it carries requests of
// others: on HTTP/2, if the body was too long or a good token was shown on it.
func keepShared(w http.ResponseWriter, r *http.Request, err error) {
	if r.ProtoMajor < 2 {
		return
	}
	s, _ := r.Context().Value(slotKey{}).(*slot)
	if cell.KindOf(err) == cell.TooLarge || s != nil && s.good.Load() {
		w.Header().Del("Connection")
	}
}
