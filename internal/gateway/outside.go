package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// outside are the gateway's HTTP connections to hosts. They belong to the policy under which
// they were made.
type outside struct {
	normal *http.Transport
	clear2 *http.Transport // HTTP/2 without TLS, for cells that speak it
}

func newOutside(g *Gateway, l *compiledPolicy) *outside {
	make := func() *http.Transport {
		return &http.Transport{
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dialFor(ctx, g, l) },
			TLSClientConfig:       &tls.Config{RootCAs: l.roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   20 * time.Second,
			DisableCompression:    true,
			MaxIdleConns:          256,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			ExpectContinueTimeout: time.Second,
			// The default of 10 MiB per host, times all requests, would exhaust this process.
			MaxResponseHeaderBytes: 1 << 20,
			ReadBufferSize:         16 << 10,
			WriteBufferSize:        16 << 10,
			ForceAttemptHTTP2:      true,
		}
	}
	o := &outside{normal: make(), clear2: make()}
	o.clear2.Protocols = new(http.Protocols)
	o.clear2.Protocols.SetUnencryptedHTTP2(true)
	return o
}

func (o *outside) close() {
	o.normal.CloseIdleConnections()
	o.clear2.CloseIdleConnections()
}

// dialFor opens a connection for a request: the one that was dialled ahead, or a new one.
func dialFor(ctx context.Context, g *Gateway, l *compiledPolicy) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange)
	if out := x.c.takeOut(); out != nil {
		return out, nil
	}
	a := x.c.access
	out, _, err := g.dial(ctx, l, a, x.c.id)
	return out, err
}

// roundTripper sends a request under the policy that allowed it.
type roundTripper struct{}

func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		x.mu.Lock()
		x.addr, x.by = passed(i.Conn)
		x.mu.Unlock()
	}}
	trace.WroteHeaders = func() { x.wrote.Store(true) }
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	if x.access.Scheme == "http" && r.ProtoMajor == 2 {
		return x.l.outside.clear2.RoundTrip(r)
	}
	return x.l.outside.normal.RoundTrip(r)
}
