package telemetry

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pando-dev/pando/internal/cell"
)

// client sends spans to a collector: it implements otlptrace.Client.
type client struct {
	url     *url.URL
	headers http.Header
	gzip    bool
	timeout time.Duration // of one batch, with what is repeated
	http    *http.Client
}

// defaultTimeout is OTLP's.
const defaultTimeout = 10 * time.Second

// clientOf makes a client out of variables; nil when they ask for no traces.
func clientOf(vars map[string]string) (*client, error) {
	if strings.EqualFold(vars["OTEL_SDK_DISABLED"], "true") {
		return nil, nil
	}
	// of is a variable for traces, or else for everything.
	of := func(name string) string {
		return cmp.Or(vars["OTEL_EXPORTER_OTLP_TRACES_"+name], vars["OTEL_EXPORTER_OTLP_"+name])
	}
	switch e := vars["OTEL_TRACES_EXPORTER"]; {
	case e == "none":
		return nil, nil
	case e != "" && e != "otlp":
		return nil, wrong("OTEL_TRACES_EXPORTER", e, "use otlp or none")
	case e == "" && of("ENDPOINT") == "":
		return nil, nil
	}
	if p := of("PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, wrong("OTEL_EXPORTER_OTLP_PROTOCOL", p, "use http/protobuf, and the collector's port for it: 4318 as a rule")
	}
	c := &client{headers: http.Header{}, timeout: defaultTimeout}
	at := vars["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
	if at == "" {
		at = strings.TrimSuffix(cmp.Or(vars["OTEL_EXPORTER_OTLP_ENDPOINT"], "http://localhost:4318"), "/") + "/v1/traces"
	}
	var err error
	if c.url, err = url.Parse(at); err != nil || c.url.Host == "" || c.url.Scheme != "http" && c.url.Scheme != "https" {
		return nil, wrong("OTEL_EXPORTER_OTLP_ENDPOINT", "", "give a URL: http://collector:4318") // it may have a password in it
	}
	for pair := range strings.SplitSeq(of("HEADERS"), ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if v, err = url.PathUnescape(strings.TrimSpace(v)); err != nil || !ok || strings.ContainsAny(v, "\r\n") || strings.TrimSpace(k) == "" {
			return nil, wrong("OTEL_EXPORTER_OTLP_HEADERS", "", "give NAME=VALUE, with commas between them, and values as in URLs")
		}
		c.headers.Set(strings.TrimSpace(k), v)
	}
	switch z := of("COMPRESSION"); z {
	case "", "none":
	case "gzip":
		c.gzip = true
	default:
		return nil, wrong("OTEL_EXPORTER_OTLP_COMPRESSION", z, "use gzip or none")
	}
	if s := of("TIMEOUT"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n <= 0 {
			return nil, wrong("OTEL_EXPORTER_OTLP_TIMEOUT", s, "give milliseconds")
		}
		c.timeout = time.Duration(n) * time.Millisecond
	}
	conf, err := trust(of("CERTIFICATE"), of("CLIENT_CERTIFICATE"), of("CLIENT_KEY"))
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport: &http.Transport{Proxy: nil, TLSClientConfig: conf, ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: time.Minute},
		// Headers have keys in them: they are for the collector alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func wrong(name, value, hint string) error {
	if value == "" {
		return cell.Errorf(cell.Invalid, "telemetry.Open", hint, "cannot trace: %s can't be used", name)
	}
	return cell.Errorf(cell.Invalid, "telemetry.Open", hint, "cannot trace: %s=%q can't be used", name, value)
}

// trust returns the client's TLS settings: the roots it trusts and its certificate, by files.
func trust(roots, cert, key string) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if roots != "" {
		b, err := os.ReadFile(roots)
		if err != nil {
			return nil, cell.Errorf(cell.Invalid, "telemetry.Open", "", "cannot trace: OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(b) {
			return nil, wrong("OTEL_EXPORTER_OTLP_CERTIFICATE", roots, "give a file of certificates, PEM")
		}
	}
	if cert != "" || key != "" {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, cell.Errorf(cell.Invalid, "telemetry.Open", "give both as PEM", "cannot trace: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, _KEY: %w", err)
		}
		conf.Certificates = []tls.Certificate{c}
	}
	return conf, nil
}

// where names the collector, without what may be secret.
func (c *client) where() string { return c.url.Scheme + "://" + c.url.Host + c.url.Path }

func (c *client) Start(context.Context) error { return nil }

func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// again is an answer after which a batch may be sent once more.
type again struct {
	status int
	after  time.Duration
}

func (a *again) Error() string { return fmt.Sprintf("the collector answers %d", a.status) }

// UploadTraces sends a batch: the bytes of opentelemetry.proto.collector.trace.v1.
// ExportTraceServiceRequest are those of TracesData.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if c.gzip {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(body)
		if err := z.Close(); err != nil {
			return err
		}
		body = b.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for wait := 250 * time.Millisecond; ; wait *= 2 {
		err := c.send(ctx, body)
		var more *again
		if err == nil || !errors.As(err, &more) {
			return err
		}
		pause := wait/2 + rand.N(wait)
		if more.after > 0 {
			pause = more.after
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("cannot send spans to %s: %w", c.where(), err)
		}
	}
}

// send sends a batch once.
func (c *client) send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("cannot send spans")
	}
	req.Header = c.headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "pando")
	if c.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its text has the whole address
			err = u.Err
		}
		return fmt.Errorf("cannot send spans to %s: %w", c.where(), err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch s := resp.StatusCode; {
	case s/100 == 2:
		return nil
	case s == http.StatusTooManyRequests || s == http.StatusBadGateway || s == http.StatusServiceUnavailable || s == http.StatusGatewayTimeout:
		a := &again{status: s}
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
			a.after = time.Duration(n) * time.Second
		}
		return a
	default:
		return fmt.Errorf("cannot send spans: %s answers %d", c.where(), s)
	}
}
