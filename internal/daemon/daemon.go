// Package daemon is the HTTP server over the engine: one table of routes with the access that
// each needs, and one file per resource. It translates between requests and use cases and
// decides nothing else.
//
// One daemon runs per installation and holds a lock while it does. It listens on a unix socket
// that only its user and root can connect to, and ends after being idle for a while with no work
// left.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
)

// IdleAfter is how long a daemon without requests and work keeps running.
const IdleAfter = 10 * time.Minute

// Config configures a Daemon.
type Config struct {
	Home    paths.Home
	Engine  *engine.View
	Log     *slog.Logger
	Version string
	Doctor  Doctor
	Idle    time.Duration // 0: IdleAfter
	// Tokens identify the callers of Listen.
	Tokens *access.Store
	// Listen are the addresses besides the socket. A daemon with any does not end when it is
	// idle.
	Listen []Open
	Limits *Limits         // nil: DefaultLimits
	Audit  *Audit          // nil: no audit log
	Keys   *operation.Keys // nil: idempotency keys are ignored
	// Operations run requests with Prefer: respond-async; nil: no request becomes an operation.
	Operations *operation.Store
	// Settle is told of each request that has its answer and an idempotency key, or was an
	// operation; nil: nothing asks.
	Settle func(request string)
	// Orphaned reports whether the process has ended that the daemon ends with; nil if there is
	// none.
	Orphaned func() bool
	// Fronts are other APIs at the same addresses.
	Fronts []Front
	// Tracer makes spans of requests; nil: none.
	Tracer trace.TracerProvider
}

// Daemon serves the API, to all callers or to one: see as.
type Daemon struct {
	cfg Config
	*common
}

// common is the state that all callers share.
type common struct {
	started time.Time
	mux     *http.ServeMux
	limit   *limiter

	hostKeys     sync.Mutex // held while the key of SSH servers is read or made
	authFailures *authFailures
	compressors  compressors
	met          *metrics
	writers      nameLocks      // of single files
	under        sync.WaitGroup // requests in progress
	streams      openStreams

	mu       sync.Mutex // guards the fields below
	open     int        // requests in progress
	draining bool       // new work is refused
	lastSeen time.Time
	stop     context.CancelFunc
	life     context.Context // of Serve
}

// New makes a daemon.
func New(cfg Config) *Daemon {
	if cfg.Idle == 0 {
		cfg.Idle = IdleAfter
	}
	d := &Daemon{cfg, &common{started: time.Now(), lastSeen: time.Now(), life: context.Background()}}
	d.limit = &limiter{of: DefaultLimits, tokens: map[string]*flow{}}
	if cfg.Limits != nil {
		d.limit.of = *cfg.Limits
	}
	d.authFailures = &authFailures{burst: float64(d.limit.of.Failures)}
	d.met = newMetrics()
	d.mux = d.routes(Routes)
	return d
}

// A program that checks whether the lock is free (paths.Locked) holds it for an instant. Lock
// retries for as long.
const (
	lockTries = 5
	lockPause = 5 * time.Millisecond
)

// Lock takes the lock of a state. The returned file holds the lock and contains a paths.Holder
// of this process. If another daemon holds it, the error is Exists; if that daemon runs, or ran
// a moment ago, on another host, Unavailable with the name of the host.
func Lock(h paths.Home) (*os.File, error) {
	f, err := os.OpenFile(h.Lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; err == unix.EWOULDBLOCK && try < lockTries; try++ {
		time.Sleep(lockPause)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if away := elsewhere(h, f, time.Now()); away != nil {
		f.Close()
		return nil, away
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, cell.Errorf(cell.Exists, "daemon.Lock", "", "another daemon is running")
		}
		return nil, os.NewSyscallError("flock", err)
	}
	if err := sign(h, f, false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sign writes a paths.Holder of this process into the lock.
func sign(h paths.Home, lock *os.File, ended bool) error {
	name, _ := os.Hostname()
	b, err := json.Marshal(paths.Holder{PID: os.Getpid(), Host: paths.Host(), HostName: name, State: h.State, Run: h.Run, Ended: ended})
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt(append(b, '\n'), 0)
	}
	return err
}

// A file system shared by several hosts may not enforce locks between them. There the daemon
// touches the lock as long as it runs, and an old time means that the lock is free.
const (
	lockTouched = 30 * time.Second
	lockStale   = 4 * lockTouched
)

// elsewhere is the error for a state in use by a daemon on another host.
func elsewhere(h paths.Home, lock *os.File, now time.Time) error {
	o := h.Holder()
	if o.Host == "" || o.Host == paths.Host() || o.Ended {
		return nil
	}
	if st, err := lock.Stat(); err != nil || now.Sub(st.ModTime()) > lockStale {
		return nil
	}
	return cell.Errorf(cell.Unavailable, "daemon.Lock", "end it there: pando daemon stop; or give this host a state of its own with PANDO_HOME",
		"the state %s is used by daemon %d on host %s", h.State, o.PID, o.HostName)
}

// KeepLock touches the lock until ctx ends.
func KeepLock(ctx context.Context, h paths.Home) {
	tick := time.NewTicker(lockTouched)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			os.Chtimes(h.Lock(), now, now)
		}
	}
}

// Unlock releases the lock, and notes in it for other hosts that its daemon has ended.
func Unlock(h paths.Home, lock *os.File) {
	sign(h, lock, true)
	lock.Close()
}

// Listen makes the socket. It removes an old one, which belongs to no daemon since the caller
// holds the lock.
func Listen(h paths.Home) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(h.Socket()))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	os.Remove(h.Socket())
	// By descriptor: the path may be longer than a socket address can be.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(h.Socket()))})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(h.Socket(), 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return &guarded{l}, nil
}

// guarded accepts only connections of the daemon's user and of root.
type guarded struct{ *net.UnixListener }

func (g *guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if ours(c) {
			return c, nil
		}
		c.Close()
	}
}

// ours reports whether the daemon's user or root connected.
func ours(c *net.UnixConn) bool {
	cred, err := peer(c)
	return err == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0)
}

// peer returns the user and process that connected (unix(7), SO_PEERCRED).
func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, cerr)
}

// Serve answers requests until ctx ends, a request stops it, or it has been idle.
func (d *Daemon) Serve(ctx context.Context, l net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.mu.Lock()
	d.stop, d.life = stop, ctx
	d.mu.Unlock()
	var wg sync.WaitGroup
	if len(d.cfg.Listen) == 0 {
		wg.Go(func() { d.watchIdle(ctx) })
	}
	if g, ok := l.(*guarded); ok {
		l = &localListener{guarded: g, ending: d.ending}
	}
	if err := d.resumeOperations(ctx); err != nil {
		return err
	}
	err := d.serve(ctx, stop, l)
	wg.Wait()
	d.cfg.Operations.Wait()
	return err
}

// count counts requests in progress, so that the daemon knows when it is idle.
func (d *Daemon) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.open++
		d.mu.Unlock()
		d.under.Add(1)
		done := sync.OnceFunc(d.under.Done)
		defer done()
		defer func() {
			d.mu.Lock()
			d.open--
			d.lastSeen = time.Now()
			d.mu.Unlock()
		}()
		if c, ok := r.Context().Value(localConnKey{}).(*localConn); ok {
			defer c.handle()()
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), underKey{}, done)))
	})
}

// underKey is the context key of a function that takes a request out of those that the daemon's
// end waits for: its connection has become a stream, which ends with the process.
type underKey struct{}

// starting bounds how long an ending daemon waits for runs that are being prepared: begun, their
// commands go on without it, and what is not begun is lost.
const starting = 10 * time.Second

// finishing bounds how long an ending daemon waits for requests with closed connections, which
// still have results to record.
const finishing = 5 * time.Second

// finish waits until no request is in progress, for at most limit.
func (d *Daemon) finish(limit time.Duration) bool {
	over := make(chan struct{})
	go func() {
		d.under.Wait()
		close(over)
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-over:
		return true
	case <-late.C:
		return false
	}
}

func (d *Daemon) watchIdle(ctx context.Context) {
	tick := time.NewTicker(max(d.cfg.Idle/20, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		idle := d.open == 0 && time.Since(d.lastSeen) > d.cfg.Idle
		stop := d.stop
		d.mu.Unlock()
		if idle && !d.cfg.Operations.Busy() && !d.cfg.Engine.Busy() {
			d.cfg.Log.Info("idle: ending")
			stop()
			return
		}
	}
}
