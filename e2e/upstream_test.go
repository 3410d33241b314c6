package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/rogpeppe/go-internal/testscript"
)

// An upstream is the outside world of a test: a DNS server for names below .test, and their
// servers, all on loopback. It logs requests as JSON lines.
type upstream struct {
	dns   []*dns.Server
	http  []*http.Server
	raw   net.Listener
	mu    sync.Mutex // guards log
	log   *os.File
	Ports map[string]int // "dns", "http", "https", "raw"
	Roots string         // file with the authority of the servers' certificates
}

// seen is a line of the log.
type seen struct {
	Server  string              `json:"server"` // "dns", "http", "https", "raw"
	Name    string              `json:"name"`
	Method  string              `json:"method,omitempty"`
	Path    string              `json:"path,omitempty"`
	Proto   string              `json:"proto,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	Body    string              `json:"body,omitempty"`
}

// startUpstream starts the servers; what they keep lies below dir. handler
// answers what is no path of the upstream's own; nil: with an echo.
func startUpstream(dir string, handler http.Handler) (_ *upstream, err error) {
	u := &upstream{Ports: map[string]int{}, Roots: filepath.Join(dir, "roots.pem")}
	defer func() {
		if err != nil {
			u.Close()
		}
	}()
	if u.log, err = os.OpenFile(filepath.Join(dir, "upstream.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return nil, err
	}
	if err := u.serveDNS(); err != nil {
		return nil, err
	}
	if handler == nil {
		handler = http.HandlerFunc(echo)
	}
	cert, err := u.certificate()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"http", "https"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		u.Ports[name] = l.Addr().(*net.TCPAddr).Port
		s := &http.Server{Handler: u.logged(name, handler), ReadHeaderTimeout: 10 * time.Second}
		u.http = append(u.http, s)
		if name == "https" {
			s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
			go s.ServeTLS(l, "", "")
		} else {
			go s.Serve(l)
		}
	}
	if u.raw, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	u.Ports["raw"] = u.raw.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			c, err := u.raw.Accept()
			if err != nil {
				return
			}
			u.write(seen{Server: "raw", Name: c.LocalAddr().String()})
			go func() {
				defer c.Close()
				io.WriteString(c, "hello from raw\n") // speaks first, as SSH does
				io.Copy(c, c)
			}()
		}
	}()
	return u, nil
}

// serveDNS answers every name below .test with 127.0.0.1, but: nx.test is not
// there, private.test is at 10.9.8.7, metadata.test at 169.254.169.254.
func (u *upstream) serveDNS() error {
	mux := dns.NewServeMux()
	mux.HandleFunc(".", func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
		u.write(seen{Server: "dns", Name: name, Method: dns.TypeToString[q.Question[0].Qtype]})
		at := "127.0.0.1"
		switch name {
		case "private.test":
			at = "10.9.8.7"
		case "metadata.test":
			at = "169.254.169.254"
		}
		switch {
		case name == "nx.test" || !strings.HasSuffix(name, ".test") && !strings.HasSuffix(name, ".anthropic.com"):
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(at)})
		}
		w.WriteMsg(m)
	})
	pc, l, err := samePort()
	if err != nil {
		return err
	}
	u.Ports["dns"] = pc.LocalAddr().(*net.UDPAddr).Port
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: mux}, {Listener: l, Handler: mux}} {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		u.dns = append(u.dns, s)
		go s.ActivateAndServe()
		<-ready
	}
	return nil
}

// samePort listens on a port of UDP and on that of TCP with the same number, which
// another may have: then on the next.
func samePort() (pc net.PacketConn, l net.Listener, err error) {
	for range 50 {
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			return nil, nil, err
		}
		if l, err = net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			return pc, l, nil
		}
		pc.Close()
	}
	return nil, nil, err
}

// certificate makes an authority, writes it to Roots, and returns what it
// signed for all names below .test, and for the hosts that tests pose as.
func (u *upstream) certificate() (c tls.Certificate, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the test's authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return c, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "upstream"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"a.test", "b.test", "c.test", "private.test", "*.sub.test", "api.anthropic.com"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return c, err
	}
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: key}, os.WriteFile(u.Roots, roots, 0o644)
}

func (u *upstream) logged(server string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		u.write(seen{Server: server, Name: r.Host, Method: r.Method, Path: r.URL.RequestURI(), Proto: r.Proto, Headers: r.Header, Body: string(body)})
		next.ServeHTTP(w, r)
	})
}

func (u *upstream) write(s seen) {
	b, _ := json.Marshal(s)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log.Write(append(b, '\n'))
}

// eventStreams counts the streams of events that were sent.
var eventStreams atomic.Int64

// echo answers with what it was asked; /bytes/N with N bytes, /slow after a
// second, /status/N with that status; /events/N with N events; /v1/messages as a model that used 500 tokens.
func echo(w http.ResponseWriter, r *http.Request) {
	what, arg, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	n, _ := strconv.Atoi(arg)
	switch what {
	case "bytes":
		for chunk := make([]byte, 32<<10); n > 0; n -= len(chunk) {
			w.Write(chunk[:min(n, len(chunk))])
		}
		return
	case "slow":
		time.Sleep(time.Second)
	case "status":
		w.WriteHeader(n)
	case "events": // a model's answer: a stream of n events, another one each time
		w.Header().Set("Content-Type", "text/event-stream")
		call := eventStreams.Add(1)
		for i := range n {
			fmt.Fprintf(w, "event: delta\ndata: {\"call\":%d,\"piece\":%d}\n\n", call, i)
			http.NewResponseController(w).Flush()
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path == "/v1/messages" {
		io.WriteString(w, `{"model":"claude-sonnet-4-5","usage":{"input_tokens":400,"output_tokens":100}}`+"\n")
		return
	}
	fmt.Fprintf(w, "%s %s %s\n%s\n", r.Method, r.Host, r.URL.RequestURI(), body)
}

// Close ends the servers.
func (u *upstream) Close() {
	for _, s := range u.dns {
		s.Shutdown()
	}
	for _, s := range u.http {
		s.Close()
	}
	if u.raw != nil {
		u.raw.Close()
	}
	if u.log != nil {
		u.log.Close()
	}
}

// Env is what a daemon needs to find them.
func (u *upstream) Env() []string {
	env := []string{fmt.Sprintf("PANDO_RESOLVER=127.0.0.1:%d", u.Ports["dns"]), "PANDO_ROOTS=" + u.Roots}
	for name, port := range u.Ports {
		env = append(env, fmt.Sprintf("%s_PORT=%d", strings.ToUpper(name), port))
	}
	return env
}

// upstreamCmd starts an upstream: from here on $HTTPS_PORT and the like are its
// ports, and a daemon that is started asks it for names. Its log is
// $WORK/upstream.log.
func upstreamCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: upstream")
	}
	u, err := startUpstream(ts.Getenv("WORK"), nil)
	ts.Check(err)
	ts.Defer(u.Close)
	for _, kv := range u.Env() {
		k, v, _ := strings.Cut(kv, "=")
		ts.Setenv(k, v)
	}
}
