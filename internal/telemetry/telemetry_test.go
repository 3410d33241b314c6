package telemetry

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pando-dev/pando/internal/cell"
)

// collector takes spans as a collector does.
type collector struct {
	*httptest.Server
	busy int // requests that it refuses first

	mu    sync.Mutex // guards what follows
	heads []http.Header
	paths []string
	got   []*tracepb.ResourceSpans
}

func collect(t *testing.T, busy int) *collector {
	c := &collector{busy: busy}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.heads, c.paths = append(c.heads, r.Header), append(c.paths, r.URL.Path)
		if len(c.heads) <= c.busy {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
			}
		}
		b, _ := io.ReadAll(body)
		var data tracepb.TracesData
		if err := proto.Unmarshal(b, &data); err != nil {
			t.Error(err)
		}
		c.got = append(c.got, data.ResourceSpans...)
	}))
	t.Cleanup(c.Close)
	return c
}

// send makes one span with these variables.
func send(t *testing.T, env ...string) {
	t.Helper()
	p, end, err := Open(t.Context(), env, "1.2.3", slog.New(slog.DiscardHandler))
	if err != nil || p == nil {
		t.Fatal(p, err)
	}
	_, span := p.Tracer("x").Start(context.Background(), "one")
	span.End()
	if err := end(context.Background()); err != nil {
		t.Error(err)
	}
}

// A span comes to the collector that the standard variables name, with what they
// say of the service, also when the collector is busy at first.
func TestSpansComeToTheCollector(t *testing.T) {
	c := collect(t, 1)
	send(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL+"/", "OTEL_EXPORTER_OTLP_HEADERS=x-key=a%20b, X-More=2", "OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
		"OTEL_SERVICE_NAME=colony", "OTEL_RESOURCE_ATTRIBUTES=team=roots")
	if len(c.heads) != 2 || c.paths[1] != "/v1/traces" || c.heads[1].Get("X-Key") != "a b" || c.heads[1].Get("X-More") != "2" || c.heads[1].Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("%v %v", c.paths, c.heads)
	}
	if len(c.got) != 1 || c.got[0].ScopeSpans[0].Spans[0].Name != "one" {
		t.Fatalf("%v", c.got)
	}
	said := map[string]string{}
	for _, a := range c.got[0].Resource.Attributes {
		said[a.Key] = a.Value.GetStringValue()
	}
	if said["service.name"] != "colony" || said["team"] != "roots" || said["service.version"] != "1.2.3" {
		t.Errorf("%v", said)
	}
	if v := os.Getenv("OTEL_EXPORTER_OTLP_HEADERS"); v != "" {
		t.Errorf("the environment has %q afterwards", v)
	}
}

func TestEndpointOfTracesIsTakenAsItIs(t *testing.T) {
	c := collect(t, 0)
	send(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.URL+"/here", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
	if len(c.paths) != 1 || c.paths[0] != "/here" {
		t.Errorf("%v", c.paths)
	}
}

// The sampler is the one that is asked for.
func TestSampler(t *testing.T) {
	c := collect(t, 0)
	send(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_TRACES_SAMPLER=always_off")
	if len(c.got) != 0 {
		t.Errorf("%v", c.got)
	}
}

// An environment without traces makes no provider; a wrong one is an error.
func TestWhatIsAskedFor(t *testing.T) {
	const at = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
	for name, env := range map[string][]string{
		"nothing": nil, "other variables": {"PATH=/bin", "OTEL_SERVICE_NAME=x"}, "disabled": {at, "OTEL_SDK_DISABLED=true"}, "none": {at, "OTEL_TRACES_EXPORTER=none"},
	} {
		if p, _, err := Open(t.Context(), env, "", slog.New(slog.DiscardHandler)); p != nil || err != nil {
			t.Errorf("%s: %v %v", name, p, err)
		}
	}
	for name, kv := range map[string]string{
		"gRPC": "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "no URL": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=collector:4318", "another exporter": "OTEL_TRACES_EXPORTER=zipkin",
		"headers": "OTEL_EXPORTER_OTLP_HEADERS=secret", "time-out": "OTEL_EXPORTER_OTLP_TIMEOUT=soon", "compression": "OTEL_EXPORTER_OTLP_COMPRESSION=zip",
		"no certificates": "OTEL_EXPORTER_OTLP_CERTIFICATE=/dev/null", "no key": "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=/dev/null",
	} {
		_, _, err := Open(t.Context(), []string{at, kv}, "", slog.New(slog.DiscardHandler))
		if cell.KindOf(err) != cell.Invalid || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A missing collector delays no request, and its error has no password in it.
func TestNobodyIsThere(t *testing.T) {
	c, err := clientOf(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hidden@127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := c.UploadTraces(ctx, nil); err == nil || strings.Contains(err.Error(), "hidden") || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// Redirects are not followed: the headers have keys in them.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := collect(t, 0)
	here := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer here.Close()
	c, err := clientOf(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": here.URL, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.UploadTraces(t.Context(), nil); err == nil || len(other.heads) > 0 {
		t.Errorf("%v, %v", err, other.heads)
	}
}
