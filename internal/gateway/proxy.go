package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/pando-dev/pando/internal/cell"
)

// maxProxyAnswer bounds a proxy's answer to CONNECT, in bytes.
const maxProxyAnswer = 64 << 10

const (
	// nearLookup bounds the local lookup of a name that the proxy will look up itself.
	nearLookup = 2 * time.Second
	// unknownFor is how long a name counts as locally unknown, and maxUnknown bounds the number
	// of such names.
	unknownFor = time.Minute
	maxUnknown = 1 << 10
	// maxNear bounds concurrent lookups: otherwise a cell could overload the host's resolver,
	// and have a name go unchecked.
	maxNear = 16
)

// proxy is the way out of a host behind a proxy: connections through CONNECT. The proxy resolves
// names itself; the addresses found locally are checked before.
type proxy struct {
	web, other *url.URL // for port 80, and for all other ports
	bypass     func(*url.URL) (*url.URL, error)
	bad        error // why the configured one can't be used: then all connections fail

	near chan struct{}

	mu      sync.Mutex // guards the fields below
	unknown map[string]time.Time
}

// newProxy returns nil for a host without a proxy.
func newProxy(p *cell.Proxy) *proxy {
	if p == nil || p.HTTP == "" && p.HTTPS == "" {
		return nil
	}
	out := &proxy{near: make(chan struct{}, maxNear)}
	parse := func(s string) *url.URL {
		if !strings.Contains(s, "://") {
			s = "http://" + s
		}
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			out.bad = errors.New("the proxy of the host can't be used: it is no http:// or https:// URL")
			return nil
		}
		return u
	}
	for _, s := range []struct {
		dst          **url.URL
		first, other string
	}{{&out.web, p.HTTP, p.HTTPS}, {&out.other, p.HTTPS, p.HTTP}} {
		if s.first == "" {
			s.first = s.other // never directly for want of a variable
		}
		*s.dst = parse(s.first)
	}
	// NO_PROXY is parsed as by all Go programs; the URL here is a dummy.
	c := httpproxy.Config{HTTPProxy: "http://proxy", HTTPSProxy: "http://proxy", NoProxy: p.No}
	out.bypass = c.ProxyFunc()
	return out
}

// through returns the proxy for a host and port; nil: dial directly.
func (p *proxy) through(a cell.Access) (*url.URL, error) {
	if p == nil || a.Host == cell.HostName {
		return nil, nil
	}
	port := a.Port
	if port == 0 { // of a lookup: the port is not known yet
		port = 443
	}
	scheme := "https"
	if port == 80 {
		scheme = "http"
	}
	if u, err := p.bypass(&url.URL{Scheme: scheme, Host: net.JoinHostPort(hostText(a), strconv.Itoa(int(port)))}); err != nil || u == nil {
		return nil, err
	}
	if p.bad != nil {
		return nil, p.bad
	}
	if port == 80 {
		return p.web, nil
	}
	return p.other, nil
}

func hostText(a cell.Access) string {
	if a.Host != "" {
		return a.Host
	}
	return a.Addr.String()
}

// beforeProxy decides on the addresses that this host finds for a name. The proxy chooses among
// its own, so one denied address is enough. checked is false when this host finds none, as
// behind company proxies: then the proxy alone decides.
func (g *Gateway) beforeProxy(ctx context.Context, l *compiledPolicy, a cell.Access) (checked bool, deny *cell.Decision, at netip.Addr, err error) {
	if a.Host == "" {
		return true, nil, at, nil
	}
	if l.proxy.unknownName(a.Host) {
		return false, nil, at, nil
	}
	select {
	case l.proxy.near <- struct{}{}:
	case <-ctx.Done():
		return false, nil, at, fmt.Errorf("resolve %s: %w", a.Host, context.Cause(ctx))
	}
	short, cancel := context.WithTimeout(ctx, nearLookup)
	ans, failed := l.resolver.lookup(short, a.Host)
	cancel()
	<-l.proxy.near
	if ctx.Err() != nil { // it was cancelled, which says nothing about the name
		return false, nil, at, context.Cause(ctx)
	}
	if failed != nil {
		l.proxy.keepUnknown(a.Host)
		return false, nil, at, nil
	}
	for _, addr := range ans.addrs {
		b := a
		b.Addr = addr
		if d := l.decide(b); d.Effect == cell.Deny {
			return true, &d, addr, nil
		}
	}
	return len(ans.addrs) > 0, nil, at, nil
}

// unknownName reports whether a recent local lookup of a name has failed.
func (p *proxy) unknownName(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.unknown[host])
}

func (p *proxy) keepUnknown(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unknown) >= maxUnknown {
		p.unknown = nil
	}
	if p.unknown == nil {
		p.unknown = map[string]time.Time{}
	}
	p.unknown[host] = time.Now().Add(unknownFor)
}

// connect opens a connection through a proxy to the host of an access, which was allowed. With
// checked its addresses were, too.
func (g *Gateway) connect(ctx context.Context, l *compiledPolicy, by *url.URL, a cell.Access, checked bool) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("the proxy %s: %w", by.Host, err)
	}
	at := by.Host
	if by.Port() == "" {
		at = net.JoinHostPort(by.Hostname(), map[string]string{"http": "80", "https": "443"}[by.Scheme])
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := g.cfg.Dial(ctx, "tcp", at)
	if err != nil {
		return fail(err)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	raw := c
	give := func(err error) (net.Conn, error) {
		stop()
		raw.Close()
		return fail(err)
	}
	if by.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: by.Hostname(), RootCAs: l.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		if err := t.HandshakeContext(ctx); err != nil {
			return give(err)
		}
		c = t
	}
	to := net.JoinHostPort(hostText(a), strconv.Itoa(int(a.Port)))
	head := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if by.User != nil {
		password, _ := by.User.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(by.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return give(err)
	}
	limit := &io.LimitedReader{R: c, N: maxProxyAnswer}
	r := bufio.NewReaderSize(limit, 4<<10)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return give(errors.New("it gave no answer to CONNECT that can be read"))
	}
	if res.StatusCode/100 != 2 {
		return give(fmt.Errorf("it answers %d to CONNECT %s", res.StatusCode, to))
	}
	if !stop() {
		return give(context.Cause(ctx))
	}
	early, _ := r.Peek(r.Buffered()) // of a host that speaks first
	return &proxied{Conn: c, raw: raw, early: append([]byte(nil), early...), by: proxyAddr{by.Host, checked}}, nil
}

// proxied is a connection through a proxy. The address of the host is unknown here.
type proxied struct {
	net.Conn
	raw   net.Conn
	early []byte
	by    proxyAddr
}

func (p *proxied) Read(b []byte) (int, error) {
	if len(p.early) > 0 {
		n := copy(b, p.early)
		p.early = p.early[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// RemoteAddr is the proxy, in a form that cannot be mistaken for an address of a host.
func (p *proxied) RemoteAddr() net.Addr { return p.by }

func (p *proxied) CloseWrite() error {
	if h, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

func (p *proxied) SetLinger(sec int) error {
	if h, ok := p.raw.(interface{ SetLinger(int) error }); ok {
		return h.SetLinger(sec)
	}
	return nil
}

// proxyAddr is the proxy of a connection.
type proxyAddr struct {
	at      string // HOST:PORT
	checked bool   // the addresses of the host behind it were checked
}

func (proxyAddr) Network() string  { return "proxy" }
func (a proxyAddr) String() string { return a.at }

// passed returns where a connection leads, as far as known: to an address, or through a proxy.
func passed(c net.Conn) (addr netip.Addr, by proxyAddr) {
	switch a := c.RemoteAddr().(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap(), by
	case proxyAddr:
		return addr, a
	}
	return addr, by
}

// unchecked reports whether the destination behind the proxy is unknown.
func (a proxyAddr) unchecked() bool { return a.at != "" && !a.checked }
