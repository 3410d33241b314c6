package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// A Front is another API for the same cells, at the same address. The first front that matches
// answers, before the routes of this API.
type Front struct {
	// Match reports whether a request is for the front. It runs before authentication.
	Match func(*http.Request) bool
	// Needs is the access level that a request needs; "" when the front itself authenticates, as
	// for a signed link. A token that is sent must be valid all the same.
	Needs func(*http.Request) access.Level
	// Refuse writes an error in the format of that API; nil for the format of this one.
	Refuse func(http.ResponseWriter, *http.Request, error)
	// Handler answers. access.From returns its caller, if known.
	Handler http.Handler
}

// Open is a Listener for callers over the network, which need a token.
type Open struct {
	net.Listener
	URL string
	TLS *tls.Config // nil for plain HTTP
}

// server makes the server for one kind of listener.
func (d *Daemon) server(h http.Handler) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(&noise{log: d.cfg.Log}, "", 0),
		ConnContext:       connContext,
	}
	protocols(s)
	return s
}

// local authenticates callers on the unix socket: the user, and root. A token sent there
// restricts the caller to its rights, for programs that ask for others.
func (d *Daemon) local() http.Handler {
	return d.withRecord(true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if secret := access.Presented(r); secret != "" {
			d.authenticateToken(w, r, d.frontOf(r), secret)
			return
		}
		p := withProcess(r, access.Local)
		requestRecordOf(r).know(p)
		d.enter(w, r.WithContext(access.With(r.Context(), p)))
	}))
}

// remote authenticates all other callers, by token.
func (d *Daemon) remote() http.Handler {
	return d.withRecord(false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		front := d.frontOf(r)
		secret := access.Presented(r)
		if secret == "" {
			leave, ok := d.stranger(w, r)
			if !ok {
				return
			}
			defer leave()
		}
		if front == nil && d.health(w, r) {
			return
		}
		if front == nil && (r.URL.Path == "/docs" || r.URL.Path == "/") {
			leave, err := d.limit.enter(unknown(r), 0)
			if err != nil {
				front.refuseAndClose(w, r, err)
				return
			}
			defer leave()
			if d.docs(w, r) {
				return
			}
		}
		if secret != "" {
			d.authenticateToken(w, r, front, secret)
			return
		}
		if front == nil || front.Needs(r) != "" {
			d.reject(w, r, front, `Bearer realm="pando"`, cell.Errorf(cell.Unauthenticated, "daemon",
				"send Authorization: Bearer pando_…; make a token where the daemon runs: pando token create", "cannot answer without a token"))
			return
		}
		leave, err := d.limit.enter(unknown(r), 0)
		if err != nil {
			front.refuseAndClose(w, r, err)
			return
		}
		defer leave()
		d.enter(w, r)
		if v := requestRecordOf(r); v.w.status == http.StatusUnauthorized { // the front has checked a key of its own
			d.authFailures.failed(peerOf(v.from))
		}
	}))
}

// authenticateToken authenticates a caller by its token, and serves the request until the token
// expires.
func (d *Daemon) authenticateToken(w http.ResponseWriter, r *http.Request, front *Front, secret string) {
	p, life, expires, err := d.cfg.Tokens.Recognise(secret)
	if err != nil {
		leave, ok := d.stranger(w, r)
		if !ok {
			return
		}
		defer leave()
		d.reject(w, r, front, `Bearer realm="pando", error="invalid_token"`, cell.Errorf(cell.Unauthenticated, "daemon", cell.HintOf(err), "cannot answer: %w", err))
		return
	}
	p = withProcess(r, p)
	requestRecordOf(r).know(p)
	markAuthenticated(r.Context())
	own := 0.0
	if p.Bounds != nil {
		own = p.Bounds.Rate
	}
	leave, err := d.limit.enter(p.Token, own)
	if err != nil {
		front.refuseAndClose(w, r, err)
		return
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(access.With(r.Context(), p))
	defer cancel(nil)
	defer context.AfterFunc(life, func() { cancel(context.Cause(life)) })()
	if !expires.IsZero() {
		defer time.AfterFunc(time.Until(expires), func() {
			cancel(cell.Errorf(cell.Unauthenticated, "daemon", "", "the token has expired"))
		}).Stop()
	}
	r = r.WithContext(context.WithValue(ctx, tokenLifetimeKey{}, tokenLifetime{life, expires}))
	if front == nil {
		r.Body = pace(w, r.Body)
		if n := d.limit.of.Upload; n > 0 {
			if r.ContentLength > n { // so that nothing is begun with it
				front.refuseAndClose(w, r, unread(&http.MaxBytesError{Limit: n}))
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, n)
		}
	}
	d.enter(w, r)
	sent(w, r)
}

// refuseAndClose refuses a request, and soon ends the connection of an unauthenticated caller. headers
// are names and values that replace those of err's kind.
func (f *Front) refuseAndClose(w http.ResponseWriter, r *http.Request, err error, headers ...string) {
	closeSoon(w, err)
	for i := 0; i+1 < len(headers); i += 2 {
		w.Header().Set(headers[i], headers[i+1])
	}
	keepShared(w, r, err)
	f.refuse(w, r, err)
}

// refuse writes an error in the format of the API that the request is for; f is nil for this
// one.
func (f *Front) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if v := requestRecordOf(r); v != nil {
		v.kind = string(cell.KindOf(err))
	}
	if f != nil && f.Refuse != nil {
		f.Refuse(w, r, err)
		return
	}
	writeError(w, err)
}

// enter passes a request to its front, or to the routes.
func (d *Daemon) enter(w http.ResponseWriter, r *http.Request) {
	f := d.frontOf(r)
	if f == nil && (d.health(w, r) || d.docs(w, r)) || d.refuseEnding(w, r, f) {
		return
	}
	r, over := d.traced(r)
	defer over()
	if f != nil {
		if v := requestRecordOf(r); v != nil {
			v.front = true
		}
		if need := f.Needs(r); need != "" {
			if err := allowed(r, need); err != nil {
				f.refuse(w, r, err)
				return
			}
		}
		f.Handler.ServeHTTP(w, r)
		return
	}
	if uncleanPath(trimFinalSlash(r.URL.Path)) {
		// The mux would redirect the client, and a name could be part of a way up.
		writeError(w, cell.Errorf(cell.Invalid, "daemon", "escape names, and use none that is . or ..", "cannot use %q as a path", cell.Clip(r.URL.Path)))
		return
	}
	d.mux.ServeHTTP(w, r)
}

func (d *Daemon) frontOf(r *http.Request) *Front {
	for i := range d.cfg.Fronts {
		if d.cfg.Fronts[i].Match(r) {
			return &d.cfg.Fronts[i]
		}
	}
	return nil
}

// allowed reports whether the caller has the access level need.
func allowed(r *http.Request, need access.Level) error {
	p, ok := access.From(r.Context())
	switch {
	case !ok:
		return cell.Errorf(cell.Unauthenticated, "daemon", "", "the caller is unknown")
	case !p.Level.Allows(need):
		return cell.Errorf(cell.Denied, "daemon", "make another token on the daemon's host: pando token create --scope "+string(need),
			"the token %s is of scope %s, and this needs %s", p.Name, p.Level, need)
	}
	return nil
}

// straight leaves out the end of a path of a program in a cell that marks it as a directory: the
// program decides what such a path means.
func trimFinalSlash(p string) string {
	if strings.Contains(p, "/http/") {
		p = strings.TrimSuffix(p, "/")
	}
	return p
}

// uncleanPath reports whether a path has escaped or relative segments.
func uncleanPath(p string) bool {
	for s := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		if s == "" || s == "." || s == ".." {
			return true
		}
	}
	return false
}

// Loopback reports whether only this host can connect to an address.
func Loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// serve answers on all listeners until ctx ends or one of them fails.
func (d *Daemon) serve(ctx context.Context, stop context.CancelFunc, l net.Listener) error {
	type pair struct {
		srv *http.Server
		l   net.Listener
	}
	conns := newConnections()
	servers := []pair{{d.server(d.count(d.local())), l}}
	local, _ := l.(*localListener) // else a test's
	servers[0].srv.ConnState = func(c net.Conn, s http.ConnState) {
		if c, ok := c.(*localConn); ok {
			c.note(s)
		}
	}
	bound := newConnLimit(d.limit.of.Conns)
	for _, o := range d.cfg.Listen {
		srv, l := d.server(d.count(d.remote())), bound.on(o.Listener)
		if o.TLS != nil {
			l = tls.NewListener(l, o.TLS)
		}
		srv.ConnState = conns.note
		servers = append(servers, pair{srv, l})
	}
	ended, accepted := make(chan error, len(servers)), make(chan struct{})
	for i, s := range servers {
		go func() {
			err := s.srv.Serve(s.l)
			if i == 0 {
				close(accepted)
			}
			if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
				err = nil
			}
			stop()
			ended <- err
		}()
	}
	<-ctx.Done()
	d.cfg.Engine.AwaitStarts(starting)
	if local != nil {
		local.refuse()
		<-accepted
	}
	conns.quiet(2*api.AnsweredLately, 4*api.AnsweredLately)
	c, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			s.srv.Shutdown(c)
			s.srv.Close()
		})
	}
	wg.Wait()
	if local != nil {
		local.wait(2 * time.Second)
	}
	if !d.finish(finishing) {
		d.cfg.Log.Warn("the daemon ends while requests are in progress: they are not in the audit log")
	}
	d.streams.writeDown(func(l auditLine) { d.cfg.Audit.write(d.cfg.Log, l) })
	var all []error
	for range servers {
		all = append(all, <-ended)
	}
	return errors.Join(all...)
}
