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

// Limits are for callers from elsewhere, but for Body, which is for all. What is 0
// is not limited; Body is DefaultLimits' then.
type Limits struct {
	Rate   float64 // requests in a second, for each token; for a moment, twice as many
	Flight int     // requests under way, for each token
	Conns  int     // connections at one address
	// Failures is how many requests without a good token a peer may send at once; a
	// tenth of that in a second is added. 0 is no limit.
	Failures int
	Body     int64 // bytes of a JSON body
	Upload   int64 // bytes of a body that is no JSON
}

// DefaultLimits are those of a daemon that was told none.
var DefaultLimits = Limits{Rate: 500, Flight: 1000, Conns: 4096, Failures: 100, Body: 16 << 20, Upload: 4 << 30}

// maxBody bounds JSON bodies, in bytes.
func (d *Daemon) maxBody() int64 {
	if d.limit == nil || d.limit.of.Body <= 0 {
		return DefaultLimits.Body
	}
	return d.limit.of.Body
}

// limiter counts what tokens ask for.
type limiter struct {
	of Limits

	mu     sync.Mutex // guards what follows
	tokens map[string]*flow
}

type flow struct {
	rate *rate.Limiter
	open int
	last time.Time
}

// unknown is the flow of requests from one peer that show no token of pando's: no
// peer can use up what others have.
func unknown(r *http.Request) string { return "from " + peerOf(r.RemoteAddr).String() }

// enter lets a request of a token in, or says why not. own is how many requests
// in a second the token may send; 0 for the limit of all. leave must be called when
// the request has ended.
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
		return nil, cell.Errorf(cell.Limited, "daemon", "ask again a second later, or less often", "cannot answer now: too many requests with this token: its limit is %g per second", limit)
	}
	if l.of.Flight > 0 && f.open >= l.of.Flight {
		return nil, cell.Errorf(cell.Limited, "daemon", "wait for some of them", "cannot answer now: %d requests with this token are under way", f.open)
	}
	f.open++
	return func() {
		l.mu.Lock()
		f.open--
		l.mu.Unlock()
	}, nil
}

// forget drops what says nothing any more. The caller holds mu.
func (l *limiter) forget() {
	for k, f := range l.tokens {
		if f.open == 0 && time.Since(f.last) > time.Minute && f.rate.Tokens() >= float64(f.rate.Burst()) {
			delete(l.tokens, k)
		}
	}
}

// few is a listener with at most so many connections; more of them are closed. Half of
// them may be connections of one peer on which no good token was shown yet: then there
// is room for the other peers.
type few struct {
	net.Listener
	most int

	mu      sync.Mutex // guards what follows
	open    int
	unknown map[netip.Prefix]int // connections without a good token, by peer
	streams streams
}

func limited(l net.Listener, n int) net.Listener {
	if n <= 0 {
		return l
	}
	return &few{Listener: l, most: n, unknown: map[netip.Prefix]int{}}
}

// enter gives a connection its slot; false when there is none.
func (f *few) enter(c net.Conn) (*slot, bool) {
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

// slot is a connection that is counted.
type slot struct {
	net.Conn
	of    *few
	peer  netip.Prefix
	known func()      // takes it off those without a good token
	good  atomic.Bool // a good token was shown on it
	leave func()
}

type slotKey struct{}

// connContext is http.Server.ConnContext: it adds what is known of the connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	switch c := c.(type) {
	case *slot:
		return context.WithValue(ctx, slotKey{}, c)
	case *net.UnixConn:
		process := 0
		if cred, err := peer(c); err == nil {
			process = int(cred.Pid)
		}
		return context.WithValue(ctx, processKey{}, process)
	}
	return ctx
}

type processKey struct{}

// headerDoor names the door for which a program of ours asks. It counts on the unix socket
// alone: there the caller is the daemon's user, or the daemon itself.
const headerDoor = "Pando-Door"

// withProcess adds the caller's process and door to p, for a call on the unix socket.
func withProcess(r *http.Request, p access.Principal) access.Principal {
	p.Process, p.Here = r.Context().Value(processKey{}).(int)
	if p.Here && r.Header.Get(headerDoor) == ceiling.MCP {
		p.Door = ceiling.MCP
	}
	return p
}

// recognisedOn notes that a good token was shown on the connection of a request.
func recognisedOn(ctx context.Context) {
	if s, ok := ctx.Value(slotKey{}).(*slot); ok {
		s.good.Store(true)
		s.known()
	}
}

// noise passes on what net/http logs of connections that break (failed handshakes,
// above all): so many lines in a minute, and then how many were left out. Strangers
// can't fill the daemon's log.
type noise struct {
	log *slog.Logger

	mu    sync.Mutex // guards what follows
	since time.Time
	n     int
}

const noiseMost = 20 // lines in a minute

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

// A body must come, on the whole, at least this fast once its grace is over.
const (
	bodyGrace = 30 * time.Second
	bodyPace  = 8 << 10 // bytes in a second
)

// paced reads a body that has to come at some pace.
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

// turnAway makes the connection of somebody who was refused end soon, whatever
// else they mean to send.
func turnAway(w http.ResponseWriter, err error) {
	h := w.Header()
	switch cell.KindOf(err) {
	case cell.Limited:
		h.Set("Retry-After", strconv.Itoa(cell.RetryAfter(err)))
	case cell.Unauthenticated, cell.TooLarge:
		h.Set("Connection", "close")
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(2 * time.Second))
	}
}
