package daemon

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
)

// Limits apply to callers over the network, except Body, which applies to all. 0 is unlimited; a
// zero Body is that of DefaultLimits.
type Limits struct {
	Rate   float64 // requests per second, of each token; twice as many in a burst
	Flight int     // requests in progress, of each token
	Conns  int     // connections at all addresses together
	// Failures is the burst of requests without a valid token of a peer; a tenth of it is added
	// per second. 0 is unlimited.
	Failures int
	Body     int64 // bytes of a JSON body
	Upload   int64 // bytes of any other body
}

// DefaultLimits are the limits of a daemon without a configuration.
var DefaultLimits = Limits{Rate: 500, Flight: 1000, Conns: 4096, Failures: 100, Body: 16 << 20, Upload: 4 << 30}

// maxBody bounds JSON bodies, in bytes.
func (d *Daemon) maxBody() int64 {
	if d.limit == nil || d.limit.of.Body <= 0 {
		return DefaultLimits.Body
	}
	return d.limit.of.Body
}

// limiter counts the requests of tokens.
type limiter struct {
	of Limits

	mu     sync.Mutex // guards the fields below
	tokens map[string]*flow
}

type flow struct {
	rate *rate.Limiter
	open int
	last time.Time
}

// unknown is the flow of requests without a token of pando from one peer: no peer can use up the
// share of others.
func unknown(r *http.Request) string { return "from " + peerOf(r.RemoteAddr).String() }

// enter admits a request of a token, or returns the reason for refusing it. own is the token's
// limit of requests per second; 0 for the limit of all. The caller must call leave at the end of
// the request.
func (l *limiter) enter(token string, own float64) (leave func(), err error) {
	limit := l.of.Rate
	if own > 0 && (limit <= 0 || own < limit) {
		limit = own
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.tokens[token]
	if f == nil {
		l.forget()
		f = &flow{rate: rate.NewLimiter(rate.Inf, 0)}
		if limit > 0 {
			f.rate = rate.NewLimiter(rate.Limit(limit), max(1, int(2*limit)))
		}
		l.tokens[token] = f
	}
	f.last = time.Now()
	if !f.rate.Allow() {
		return nil, cell.Errorf(cell.Limited, "daemon", "retry after a second, and less often", "cannot answer now: too many requests with this token: its limit is %g per second", limit)
	}
	if l.of.Flight > 0 && f.open >= l.of.Flight {
		return nil, cell.Errorf(cell.Limited, "daemon", "wait for some of them", "cannot answer now: %d requests with this token are in progress", f.open)
	}
	f.open++
	return func() {
		l.mu.Lock()
		f.open--
		l.mu.Unlock()
	}, nil
}

// forget drops entries without information. The caller holds mu.
func (l *limiter) forget() {
	for k, f := range l.tokens {
		if f.open == 0 && time.Since(f.last) > time.Minute && f.rate.Tokens() >= float64(f.rate.Burst()) {
			delete(l.tokens, k)
		}
	}
}

// connLimit bounds the connections at all addresses together. At most half of them may belong to
// one peer without a valid token, so that other peers find room.
type connLimit struct {
	most int

	mu      sync.Mutex // guards the fields below
	open    int
	unknown map[netip.Prefix]int // connections without a valid token, by peer
	streams streams
}

// newConnLimit returns a bound of n connections; nil, which bounds nothing, for 0.
func newConnLimit(n int) *connLimit {
	if n <= 0 {
		return nil
	}
	return &connLimit{most: n, unknown: map[netip.Prefix]int{}}
}

// few is a listener that closes connections beyond a bound, which other listeners share.
type few struct {
	net.Listener
	*connLimit
}

// on returns a listener that keeps the bound.
func (f *connLimit) on(l net.Listener) net.Listener {
	if f == nil {
		return l
	}
	return &few{l, f}
}

// enter returns the slot of a connection; false when there is none.
func (f *connLimit) enter(c net.Conn) (*slot, bool) {
	peer := peerOf(c.RemoteAddr().String())
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open >= f.most || f.unknown[peer] >= max(1, f.most/2) {
		return nil, false
	}
	f.open++
	f.unknown[peer]++
	known := sync.OnceFunc(func() {
		if f.unknown[peer]--; f.unknown[peer] <= 0 {
			delete(f.unknown, peer)
		}
	})
	return &slot{
		Conn: c, of: f, peer: peer,
		known: func() { f.mu.Lock(); defer f.mu.Unlock(); known() },
		leave: sync.OnceFunc(func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.open--
			known()
		}),
	}, true
}

func (f *few) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if s, ok := f.enter(c); ok {
			return s, nil
		}
		c.Close()
	}
}

// slot is a counted connection.
type slot struct {
	net.Conn
	of    *connLimit
	peer  netip.Prefix
	known func()      // removes it from those without a valid token
	good  atomic.Bool // the connection has had a valid token
	leave func()
}

type slotKey struct{}

// connContext is http.Server.ConnContext: it adds the slot of the connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	switch c := c.(type) {
	case *slot:
		return context.WithValue(ctx, slotKey{}, c)
	case *localConn:
		process := 0
		if cred, err := peer(c.UnixConn); err == nil {
			process = int(cred.Pid)
		}
		return context.WithValue(context.WithValue(ctx, localConnKey{}, c), processKey{}, process)
	}
	return ctx
}

type processKey struct{}

type localConnKey struct{}

// headerDoor names the door for which a program of ours asks. It is used on the unix socket
// alone, where the caller is the daemon's user or the daemon itself.
const headerDoor = "Pando-Door"

// withProcess adds the caller's process and door to p, for a call on the unix socket.
func withProcess(r *http.Request, p access.Principal) access.Principal {
	p.Process, p.Here = r.Context().Value(processKey{}).(int)
	if p.Here && r.Header.Get(headerDoor) == ceiling.MCP {
		p.Door = ceiling.MCP
	}
	return p
}

// markAuthenticated notes that the connection of a request has had a valid token.
func markAuthenticated(ctx context.Context) {
	if s, ok := ctx.Value(slotKey{}).(*slot); ok {
		s.good.Store(true)
		s.known()
	}
}

// noise limits the log lines of net/http about broken connections (mostly failed handshakes): a
// number of lines per minute, and then a count. Unauthenticated peers can't fill the daemon's
// log.
type noise struct {
	log *slog.Logger

	mu    sync.Mutex // guards the fields below
	since time.Time
	n     int
}

const noiseMost = 20 // lines per minute

func (x *noise) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now := time.Now(); now.Sub(x.since) >= time.Minute {
		if left := x.n - noiseMost; left > 0 {
			x.log.Warn("connections broke", "left_out", left)
		}
		x.since, x.n = now, 0
	}
	if x.n++; x.n <= noiseMost {
		x.log.Warn(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

func (s *slot) Close() error {
	defer s.leave()
	return s.Conn.Close()
}

// ReadFrom keeps the short way of files to sockets.
func (s *slot) ReadFrom(r io.Reader) (int64, error) { return io.Copy(s.Conn, r) }

// After a grace period a body must arrive at this average rate at least.
const (
	bodyGrace = 30 * time.Second
	bodyPace  = 8 << 10 // bytes per second
)

// paced reads a body and enforces a minimum rate.
type paced struct {
	io.ReadCloser
	out   *http.ResponseController
	began time.Time
	n     int64
	done  bool
}

func pace(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	if body == http.NoBody {
		return body
	}
	return &paced{ReadCloser: body, out: http.NewResponseController(w), began: time.Now()}
}

func (p *paced) Read(b []byte) (int, error) {
	if p.done {
		return 0, io.EOF
	}
	p.out.SetReadDeadline(p.began.Add(bodyGrace + time.Duration(p.n)*time.Second/bodyPace))
	n, err := p.ReadCloser.Read(b)
	p.n += int64(n)
	if err == io.EOF {
		p.done = true
		p.out.SetReadDeadline(time.Time{})
	}
	return n, err
}

// refuseAndClose ends the connection of a refused caller soon, without reading the rest of its
// request.
func closeSoon(w http.ResponseWriter, err error) {
	h := w.Header()
	switch cell.KindOf(err) {
	case cell.Limited:
		h.Set("Retry-After", strconv.Itoa(cell.RetryAfter(err)))
	case cell.Unauthenticated, cell.TooLarge:
		h.Set("Connection", "close")
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(2 * time.Second))
	}
}
