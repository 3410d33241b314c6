package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	maxHeader   = 256 << 10
	maxRequests = 2048    // in progress at once
	maxPath     = 8 << 10 // longer than most hosts accept, and too long for events
	maxMethod   = 32
	webIdle     = 5 * time.Minute
	// flushAfter is how long a part of an answer of known length may be held back for more.
	// Answers of unknown length are passed on at once.
	flushAfter = 5 * time.Millisecond
)

// web is the HTTP side that faces the cell: one server for all HTTP connections.
type web struct {
	g      *Gateway
	server *http.Server
	proxy  *httputil.ReverseProxy
	conns  chan net.Conn
	quit   chan struct{}
	once   sync.Once
	busy   chan struct{}
}

type (
	connKey     struct{}
	exchangeKey struct{}
)

func newWeb(g *Gateway) *web {
	w := &web{g: g, conns: make(chan net.Conn), quit: make(chan struct{}), busy: make(chan struct{}, share(maxRequests, 8))}
	quiet := log.New(io.Discard, "", 0)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	w.server = &http.Server{
		Handler: w, ReadHeaderTimeout: firstTimeout, IdleTimeout: webIdle, MaxHeaderBytes: maxHeader, DisableGeneralOptionsHandler: true, ErrorLog: quiet, Protocols: &protocols,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, connOf(nc))
		},
		ConnState: func(nc net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				connOf(nc).served()
			}
		},
	}
	w.proxy = &httputil.ReverseProxy{
		Rewrite: w.rewrite, Transport: roundTripper{}, ModifyResponse: w.modify, ErrorHandler: w.fail,
		FlushInterval: flushAfter, ErrorLog: quiet, BufferPool: bufferPool{},
	}
	g.wg.Go(func() { w.server.Serve(w) })
	return w
}

// connOf returns the cell's connection of a request.
func connOf(nc net.Conn) *conn {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	return nc.(*prefixed).c
}

// web passes a connection to the server and returns when the server is done with it.
func (c *conn) web(nc net.Conn) {
	c.mu.Lock()
	c.done = make(chan struct{})
	done := c.done
	c.mu.Unlock()
	select {
	case c.g.web.conns <- nc:
		<-done
	case <-c.g.web.quit:
	}
}

// served is called when the connection was closed, by the server or by a handler that took it
// over.
func (c *conn) served() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done != nil {
		close(c.done)
		c.done = nil
	}
}

// Accept, Close and Addr make web a net.Listener.
func (w *web) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.quit:
		return nil, net.ErrClosed
	}
}

func (w *web) Close() error {
	w.once.Do(func() { close(w.quit) })
	return nil
}

func (w *web) Addr() net.Addr { return &net.TCPAddr{} }

func (w *web) close() {
	w.Close()
	w.server.Close()
}

// exchange is one HTTP request and its response.
type exchange struct {
	c       *conn
	l       *compiledPolicy
	access  cell.Access
	asked   bool        // a person has allowed it
	secret  *lent       // the credential that is put in
	wrote   atomic.Bool // the headers were sent to the host
	pinned  string      // the credential that pins the host
	without string      // the credential for this host, where none is put in
	hide    []*lent     // credentials with values that must not come back
	cancel  context.CancelFunc
	id      string
	started time.Time
	turn    *turnWatch // nil: no turn can begin with it
	model   *modelUse  // nil: no model is asked
	kept    *keeping   // nil: it is not recorded

	flow     cell.Flow
	mu       sync.Mutex // guards addr and by
	addr     netip.Addr
	by       proxyAddr // the proxy that the request went through
	sent     counter
	received counter
}

// ServeHTTP decides on one request, and passes it on if allowed.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	l := w.g.inForce.Load()
	x := &exchange{c: c, l: l, started: time.Now()}
	c.mu.Lock()
	x.access = cell.Access{Act: cell.Request, Host: c.access.Host, Addr: c.access.Addr, Port: c.access.Port, Transport: "tcp", Scheme: c.scheme, Method: r.Method}
	opened := c.opened
	c.told = true
	c.mu.Unlock()
	if c.refused != nil {
		w.refusal(rw, r, x)
		return
	}
	select {
	case w.busy <- struct{}{}:
		defer func() { <-w.busy }()
	default:
		x.refuse(rw, r, never("limit", "the cell has too many requests under way"), http.StatusServiceUnavailable)
		return
	}
	forms, bad := w.shape(x, r)
	if bad != nil {
		x.refuse(rw, r, *bad, http.StatusBadRequest)
		return
	}
	x.access.Path = forms[0]
	d, ok := w.decide(l, x.access, forms)
	if ok && d.Effect != cell.Deny {
		d, ok = overridden(l, x.access, forms, r.Header, d)
	}
	if !ok {
		x.refuse(rw, r, d, http.StatusBadRequest)
		return
	}
	if d.Effect == cell.Allow {
		// If the policy asks about the connection, it asks about each of its requests instead:
		// they are more specific.
		if at := w.g.decideConnect(l, c.access); at.Effect == cell.Ask {
			at.Credential = d.Credential
			d = at
		}
	}
	if d.Effect != cell.Deny && l.answers(c.access.Host) {
		x.id = w.g.tell(l, x.access, cell.Decision{Effect: cell.Allow, Rule: d.Rule, Origin: d.Origin, Reason: d.Reason, By: d.By}, c.id)
		x.replay(rw, r)
		return
	}
	if d.Effect == cell.Allow || d.Effect == cell.Ask {
		d = x.credential(r, d)
	}
	if d.Effect == cell.Deny {
		x.refuse(rw, r, d, http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	x.cancel = cancel
	defer cancel()
	if d.Effect == cell.Ask {
		if x.id, d = w.g.asks.ask(ctx, l, x.access, d, c.id); d.Effect != cell.Allow {
			x.deny(rw, d, http.StatusForbidden)
			return
		}
		x.asked = true
	} else {
		x.id = w.g.tell(l, x.access, d, c.id)
	}
	c.use(x)
	defer c.unuse(x)
	if now := w.g.inForce.Load(); now != l {
		c.rejudge(now)
	}
	x.flow = cell.Flow{Conn: c.id, ID: x.id, Host: c.access.Host, Port: c.access.Port, Scheme: x.access.Scheme, Opened: opened,
		Method: r.Method, Path: x.access.Path, Protocol: r.Proto}
	defer x.end()
	if !x.sent.add(w.g, requestSize(r)) {
		panic(http.ErrAbortHandler)
	}
	x.turn = w.g.turns.watch(ctx, x, r)
	defer x.turn.ends()
	x.model = asksModel(x, r)
	x.kept = c.recorder().begin(x, r)
	defer x.kept.end()
	out := &answerWriter{ResponseWriter: rw, x: x}
	w.proxy.ServeHTTP(out, r.WithContext(context.WithValue(ctx, exchangeKey{}, x)))
	out.redact() // trailers
	x.kept.whole(out.Header())
}

// shape rejects requests that are not for the host of the connection.
func (w *web) shape(x *exchange, r *http.Request) (forms []string, bad *cell.Decision) {
	no := func(rule, reason string) ([]string, *cell.Decision) {
		d := never(rule, reason)
		return nil, &d
	}
	if r.Method == http.MethodConnect {
		return no("method", "the gateway is no proxy: connect to the host itself")
	}
	if len(r.Method) > maxMethod {
		x.access.Method = printable(r.Method)
		return no("method", "the method is too long")
	}
	if strings.ContainsFunc(r.Method, func(c rune) bool { return c >= 'a' && c <= 'z' }) {
		return no("method", "methods are written in capitals: some hosts take post for POST")
	}
	if r.URL.Opaque != "" {
		return no("path", "the target of the request is no path")
	}
	if r.URL.Host != "" && !strings.EqualFold(r.URL.Host, r.Host) {
		return no("host", "the request is for another host than its Host header says")
	}
	if r.URL.Scheme != "" && r.URL.Scheme != x.access.Scheme {
		return no("host", "the request is for another scheme than that of its connection")
	}
	if !sameHost(r.Host, x.access) {
		return no("host", "the request is for "+strconv.Quote(printable(r.Host))+" on a connection to "+x.c.host())
	}
	escaped := r.URL.EscapedPath()
	if len(escaped) > maxPath {
		return no("path", "the path is longer than "+strconv.Itoa(maxPath)+" bytes")
	}
	forms, ok := pathForms(escaped)
	if !ok {
		return no("path", "the path is not valid")
	}
	return forms, nil
}

// decide decides on every form of the path. When the decisions differ, the decision depends on
// an ambiguous path, and ok is false.
func (w *web) decide(l *compiledPolicy, a cell.Access, forms []string) (d cell.Decision, ok bool) {
	if d, over := w.g.overBudget(l); over {
		return d, true
	}
	d = l.decide(a)
	for _, f := range forms[1:] {
		a.Path = f
		if e := l.decide(a); e.Effect != d.Effect || e.Rule != d.Rule || e.Credential != d.Credential {
			return never("path", "the path can be read in more than one way, and the policy decides by it"), false
		}
	}
	return d, true
}

// overridden decides again for headers that make the host treat a request as another one: both
// must be allowed.
func overridden(l *compiledPolicy, a cell.Access, forms []string, h http.Header, d cell.Decision) (cell.Decision, bool) {
	methods := []string{a.Method}
	for _, name := range []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"} {
		for _, v := range h[name] {
			methods = append(methods, strings.ToUpper(strings.TrimSpace(v)))
		}
	}
	paths := forms
	for _, name := range []string{"X-Original-Url", "X-Rewrite-Url"} {
		for _, v := range h[name] {
			v, _, _ = strings.Cut(v, "?")
			more, ok := pathForms(v)
			if !ok {
				return never("path", "the header "+name+" names no path of a resource"), false
			}
			paths = append(slices.Clip(paths), more...)
		}
	}
	if len(methods) == 1 && len(paths) == len(forms) {
		return d, true
	}
	for _, a.Method = range methods {
		for _, a.Path = range paths {
			if e := l.decide(a); e.Effect != d.Effect || e.Credential != d.Credential {
				return never("override", "a header asks the host to take the request for another one, and the policy decides by it"), false
			}
		}
	}
	return d, true
}

// sameHost reports whether a Host header names the host of the connection.
func sameHost(header string, a cell.Access) bool {
	host, port := header, ""
	if i := strings.LastIndexByte(header, ':'); i >= 0 && !strings.HasSuffix(header, "]") {
		host, port = header[:i], header[i+1:]
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[a.Scheme]
	}
	if port != strconv.Itoa(int(a.Port)) {
		return false
	}
	if a.Host != "" {
		return hostOf(host) == a.Host
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap() == a.Addr
}

// credential finds the credential to put in, and returns the decision for it. A placeholder in a
// place that is not allowed is a denial, and so is other authentication for a pinned host.
func (x *exchange) credential(r *http.Request, d cell.Decision) cell.Decision {
	no := func(reason string) cell.Decision { return never("credential", reason) }
	host := x.c.host()
	if d.Credential != "" {
		s, lent := x.l.lentAs(d.Credential, x.access, host)
		switch {
		case !lent:
			return no("the credential " + d.Credential + " is not lent to this cell (any more)")
		case s == nil:
			return no("the credential " + d.Credential + " must not go to " + x.access.Method + " " + x.access.Scheme + "://" + host + x.access.Path)
		}
		if !s.Expires.IsZero() && !time.Now().Before(s.Expires) {
			return no("the login that the credential " + d.Credential + " is read from expired at " + s.Expires.Format(time.RFC3339) + ": " + s.Renew)
		}
		if name := s.astray(r.Header); name != "" {
			return no("the placeholder of the credential " + d.Credential + " was sent in the header " + name + ", where it is not put in")
		}
		x.secret = s
	}
	for _, s := range x.l.lent {
		if (x.secret == nil || s.Placeholder != x.secret.Placeholder) && s.carries(r) {
			return no("the placeholder of the credential " + s.Handle + " was sent where that may not go")
		}
	}
	x.hide = x.l.known(host)
	if x.pinned = x.l.pinnedTo(host); x.pinned != "" {
		if what := foreign(r, x.secret); what != "" {
			return denyPinned(x.pinned, host, what)
		}
	}
	if len(x.hide) > 0 {
		x.without = x.hide[0].Handle
	}
	if x.secret != nil {
		x.without = x.secret.Handle
		if !x.secret.goesIn(r.Header) { // the cell has put something else there
			x.secret, d.Credential = nil, ""
		}
	}
	return d
}

// rewrite makes the outgoing request.
func (w *web) rewrite(p *httputil.ProxyRequest) {
	x := p.In.Context().Value(exchangeKey{}).(*exchange)
	p.Out.URL.Scheme = x.access.Scheme
	p.Out.URL.Host = net.JoinHostPort(x.c.host(), strconv.Itoa(int(x.access.Port)))
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	p.Out.URL.ForceQuery = p.In.URL.ForceQuery
	p.Out.Host = p.In.Host
	p.Out.Trailer = p.In.Trailer // filled at the end of the body
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
	// Another protocol in the same connection would escape the policy; WebSockets are messages
	// of the one request.
	if up := p.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	if x.secret != nil {
		x.secret.takeFromQuery(p.Out.URL)
		x.hide = append(x.hide, x.secret.putIn(p.Out.Header))
	}
	if len(x.hide) > 0 || x.model != nil {
		askPlainly(p.Out.Header) // the answer is searched
	}
	if p.Out.Body != nil && p.Out.Body != http.NoBody {
		p.Out.Body = &countedBody{ReadCloser: p.Out.Body, x: x, n: &x.sent, in: p.In}
	}
}

// fail answers for a host that can't be reached.
func (w *web) fail(rw http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	if no, ok := errors.AsType[*denied](err); ok {
		x.flow.Error = no.Error()
		x.deny(rw, no.decision, http.StatusForbidden)
		return
	}
	x.flow.Error = err.Error()
	x.flow.Status = http.StatusBadGateway
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	x.unavailable(rw, err)
}

func (c *conn) use(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uses == nil {
		c.uses = map[*exchange]bool{}
	}
	c.uses[x] = true
	if c.over {
		x.cancel()
	}
}

func (c *conn) unuse(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uses, x)
}

// end emits the outcome of the exchange.
func (x *exchange) end() {
	f := x.flow
	x.mu.Lock()
	f.Addr, f.Proxy, f.Unchecked = x.addr, x.by.at, x.by.unchecked()
	x.mu.Unlock()
	switch {
	case x.secret == nil:
		f.Without = x.without
	case x.wrote.Load():
		f.Secret = x.secret.Handle
	}
	f.Sent, f.Received, f.MS = x.sent.n.Load(), x.received.n.Load(), ms(x.started)
	f.Model = x.model.end()
	x.c.g.events.flow(f)
	x.c.g.asks.uses(f.Model)
}

// requestSize estimates the size of a request without its body, in bytes.
func requestSize(r *http.Request) int64 {
	return int64(len(r.Method)+len(r.RequestURI)+len(r.Host)+20) + headerSize(r.Header)
}

func headerSize(h http.Header) (n int64) {
	for name, values := range h {
		for _, v := range values {
			n += int64(len(name) + len(v) + 4)
		}
	}
	return n
}

// answerWriter removes values from the answer's headers.
type answerWriter struct {
	http.ResponseWriter
	x *exchange
}

func (a *answerWriter) redact() {
	for _, s := range a.x.hide {
		s.redact(a.Header())
	}
}

func (a *answerWriter) WriteHeader(code int) {
	a.redact()
	if code >= http.StatusOK {
		// The server must not add headers that the host has not sent.
		for _, name := range []string{"Content-Type", "Date"} {
			if _, ok := a.Header()[name]; !ok {
				a.Header()[name] = nil
			}
		}
	}
	a.x.kept.answers(code, a.Header())
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Write passes on a piece of the body.
func (a *answerWriter) Write(p []byte) (int, error) {
	a.x.kept.answer(p)
	return a.ResponseWriter.Write(p)
}

// Hijack is for upgraded connections.
func (a *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, b, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.x.kept.upgraded()
	return &hijacked{Conn: nc, c: a.x.c}, b, nil
}

// hijacked reports its close to the connection: the server doesn't.
type hijacked struct {
	net.Conn
	c *conn
}

func (h *hijacked) Close() error {
	err := h.Conn.Close()
	h.c.served()
	return err
}

func (h *hijacked) CloseWrite() error {
	if w, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return h.Close()
}
