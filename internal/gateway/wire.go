package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/wire"
)

// This file records HTTP exchanges, and answers from a recording. What is recorded is what the cell sees: requests
// before credentials are put in, answers after values were taken out.

// taping is what is done with exchanges.
type taping struct {
	record *wire.Recorder // nil: nothing is recorded
	play   *wire.Player   // nil: there are no answers
}

// Wire has exchanges recorded, or answered from a recording if the cell is offline. Both nil end that: what is
// under way is recorded until its end, or until the recorder is closed.
func (g *Gateway) Wire(record *wire.Recorder, play *wire.Player) {
	if record == nil && play == nil {
		g.wire.Store(nil)
		return
	}
	g.wire.Store(&taping{record, play})
}

// answers reports whether connections to a host are answered from recordings alone: all but those to services.
func (l *compiledPolicy) answers(host string) bool { return l.offline && !l.services[host] }

var errOffline = errors.New("the cell is answered from a recording alone")

// recorder records what the cell's connections say. Its methods do nothing on nil.
type recorder struct{ *wire.Recorder }

// recorder returns that of the cell, nil if nothing is recorded of the connection's host.
func (c *conn) recorder() *recorder {
	t := c.g.wire.Load()
	if t == nil || t.record == nil || c.g.inForce.Load().services[c.access.Host] {
		return nil
	}
	return &recorder{t.record}
}

func (r *recorder) missed(kind string) {
	if r != nil {
		r.Missed(kind)
	}
}

// keeping is an exchange that is being recorded. Its methods do nothing on nil.
type keeping struct {
	to   *wire.Recorder
	hide []hidden

	mu   sync.Mutex // guards the fields below
	e    wire.Exchange
	sent http.Header // the header of the answer, as it was sent
	over bool
}

// begin records a request.
func (r *recorder) begin(x *exchange, in *http.Request) *keeping {
	if r == nil {
		return nil
	}
	k := &keeping{to: r.Recorder, hide: hiddenOf(x.l.lent)}
	k.e = asked(x, in)
	k.e.N, k.e.Conn = r.Begin(), x.c.id
	k.e.Request.Header = public(in.Header, x.l.lent)
	k.e.Request.Partial = in.Body != nil && in.Body != http.NoBody
	k.e.Answer.Partial = true
	return k
}

// asked is a request without its body.
func asked(x *exchange, in *http.Request) wire.Exchange {
	path := in.URL.EscapedPath()
	if in.URL.RawQuery != "" || in.URL.ForceQuery {
		path += "?" + in.URL.RawQuery
	}
	return wire.Exchange{Scheme: x.access.Scheme, Host: net.JoinHostPort(strings.Trim(x.c.host(), "[]"), strconv.Itoa(int(x.access.Port))), Method: in.Method, Path: path}
}

// public is a header without what lets its reader in elsewhere, unless that is a placeholder.
func public(h http.Header, known []*lent) http.Header {
	out := http.Header{}
	for name, values := range h {
		for _, v := range values {
			if !private(name) || slices.ContainsFunc(known, func(s *lent) bool { return s.isIn(v) }) {
				out[name] = append(out[name], v)
			}
		}
	}
	return out
}

// private reports whether a header carries credentials, by its name.
func private(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "cookie", "token", "secret", "key", "password", "session"}, func(part string) bool { return strings.Contains(name, part) })
}

// request records a piece of the request's body.
func (k *keeping) request(p []byte, err error) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.to.Keep(&k.e.Request, p)
		k.e.Request.Partial = k.e.Request.Partial && err != io.EOF
	}
}

// answers records the header of the answer, as it goes to the cell.
func (k *keeping) answers(code int, h http.Header) {
	if k == nil || code < http.StatusOK {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sent == nil {
		k.e.Status, k.sent = code, h.Clone()
	}
}

// answer records a piece of the answer's body.
func (k *keeping) answer(p []byte) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.to.Keep(&k.e.Answer, p)
	}
}

// upgraded says that the connection speaks another protocol now, which is not recorded.
func (k *keeping) upgraded() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.over = true
		k.to.Drop(&k.e, cell.NotUpgraded)
	}
}

// whole says that the answer has come to its end. h has its trailers.
func (k *keeping) whole(h http.Header) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.e.Answer.Partial = false
	trailer := http.Header{}
	for name, values := range h {
		if bare, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailer[bare] = slices.Clone(values)
		} else if _, before := k.sent[name]; !before && k.sent != nil {
			trailer[name] = slices.Clone(values)
		}
	}
	k.e.Answer.Trailer = public(trailer, nil)
}

// end writes the exchange.
func (k *keeping) end() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.over = true
	if k.e.Status == 0 {
		k.e.Status = http.StatusBadGateway // the cell gave up before
	}
	k.e.Answer.Header = public(k.sent, nil)
	for name, values := range k.e.Answer.Header {
		if len(values) == 0 {
			delete(k.e.Answer.Header, name)
		}
	}
	k.conceal()
	k.to.Write(&k.e)
}

// conceal takes values of credentials out of all that is written: a cell that knows one may send it.
func (k *keeping) conceal() {
	k.e.Path = concealed(k.e.Path, k.hide)
	for _, m := range []*wire.Message{&k.e.Request, &k.e.Answer} {
		ready := redactAll(m.Body, k.hide)
		if m.Cut || m.Partial {
			m.Body = m.Body[:ready] // what is behind may be the beginning of a value
		}
		for _, h := range []http.Header{m.Header, m.Trailer} {
			for _, values := range h {
				for i, v := range values {
					values[i] = concealed(v, k.hide)
				}
			}
		}
	}
}

// concealed is a text with the values of credentials replaced.
func concealed(s string, hide []hidden) string {
	b := []byte(s)
	redactAll(b, hide)
	return string(b)
}

// replay answers a request from the recording.
func (x *exchange) replay(rw http.ResponseWriter, r *http.Request) {
	x.flow = cell.Flow{Conn: x.c.id, ID: x.id, Host: x.c.access.Host, Port: x.c.access.Port, Scheme: x.access.Scheme,
		Method: r.Method, Path: x.access.Path, Protocol: r.Proto}
	defer x.end()
	q := asked(x, r)
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxBody+1))
	q.Request.Body = body[:min(len(body), wire.MaxBody)]
	q.Request.Cut, q.Request.Partial = len(body) > wire.MaxBody, err != nil
	redactAll(q.Request.Body, hiddenOf(x.l.lent))
	x.sent.n.Add(requestSize(r) + int64(len(body)))
	var e *wire.Exchange
	why := "cannot be answered: no recording is played in this cell now"
	if t := x.c.g.wire.Load(); t != nil && t.play != nil {
		e, why = t.play.Answer(&q)
	}
	if e == nil {
		x.flow.Status, x.flow.Error = http.StatusBadGateway, errOffline.Error()
		respond(rw, http.StatusBadGateway, Denial{Kind: "unavailable", Reason: q.Want() + " " + why, RequestID: x.id})
		return
	}
	x.flow.Status = e.Status
	out := &answerWriter{ResponseWriter: rw, x: x}
	h := out.Header()
	for name, values := range e.Answer.Header {
		h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	for name := range e.Answer.Trailer {
		h.Add("Trailer", name)
	}
	if e.Answer.Partial {
		h.Del("Content-Length")
	}
	out.WriteHeader(e.Status)
	n, _ := out.Write(e.Answer.Body)
	x.received.n.Add(int64(n))
	if e.Answer.Partial {
		http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, values := range e.Answer.Trailer {
		h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
}

// unanswerable ends a connection that is no HTTP and can't be answered.
func (c *conn) unanswerable() {
	if t := c.g.wire.Load(); t != nil && t.play != nil {
		t.play.Unanswerable("connect "+net.JoinHostPort(strings.Trim(c.host(), "[]"), strconv.Itoa(int(c.access.Port))), "cannot be answered: it is no HTTP")
	}
	c.reset(errOffline.Error())
}

// recordName records what came of the lookup of a name.
func (g *Gateway) recordName(l *compiledPolicy, host string, ans answer, err error) {
	t := g.wire.Load()
	if t == nil || t.record == nil || l.services[host] {
		return
	}
	n := wire.Name{Host: host, Code: ans.rcode, None: len(ans.addrs) == 0}
	if err != nil {
		n.Code = dns.RcodeServerFailure
	}
	t.record.Resolved(n)
}

// resolvedThen is what came of the lookup of a name in the run that is replayed. No resolver is asked. While none is
// replayed each name has an address, at which requests are told that.
func (g *Gateway) resolvedThen(host string) answer {
	some := answer{addrs: []netip.Addr{netip.IPv4Unspecified()}}
	t := g.wire.Load()
	if t == nil || t.play == nil {
		return some
	}
	switch n, known := t.play.Resolve(host); {
	case !known:
		return answer{rcode: dns.RcodeNameError}
	case n.Code != 0 || n.None:
		return answer{rcode: n.Code}
	}
	return some
}
