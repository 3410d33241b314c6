package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prommodel "github.com/prometheus/common/model"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pando-dev/pando/internal/testenv"
)

// metrics reads what a daemon has to tell, strictly.
func (h *host) metrics() map[string]*dto.MetricFamily {
	h.t.Helper()
	p := expfmt.NewTextParser(prommodel.LegacyValidation)
	list, err := p.TextToMetricFamilies(strings.NewReader(h.pando("daemon", "metrics")))
	if err != nil {
		h.t.Fatalf("metrics: %v", err)
	}
	return list
}

// sample is the value of a metric with these labels (name=value,…), or the count of a
// histogram; -1 if there is none.
func sample(f *dto.MetricFamily, labels ...string) float64 {
	sum := -1.0
	for _, m := range f.GetMetric() {
		has := map[string]bool{}
		for _, l := range m.Label {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
			continue
		}
		sum = max(sum, 0) + m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// TestMetrics does a little of everything and looks for it in the metrics, which
// keep Prometheus' rules; and the dashboard shows nothing that is not there.
func TestMetrics(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	testenv.Python(t)
	h := newHost(t)
	u, err := startUpstream(h.work, nil)
	must(t, err)
	defer u.Close()
	h.env = append(h.env, fmt.Sprintf("PANDO_RESOLVER=127.0.0.1:%d", u.Ports["dns"]))
	h.write("file", "1\n")
	h.pando("run", "--cell", "secretly-named", "--", "true")
	h.pando("exec", "secretly-named", "--", "true")
	h.pando("checkpoint", "secretly-named")
	h.pando("restore", "secretly-named@1", "--yes")
	h.pando("fork", "secretly-named", "--name", "forked")
	h.pando("template", "build", "tp", "--from", h.src, "--warm", "python", "--setup", "x = 1")
	h.pando("fork", "tp", "-n", "2", "--name", "kid")
	h.pando("eval", "kid-1", "x + 1")
	h.pando("branch", "kid-1", "--name", "twig")
	h.exits(125, "exec", "nobody", "--", "true")
	if f := h.metrics()["pando_denials_total"]; sample(f) > 0 {
		t.Errorf("something was denied: %v", f)
	}
	// It is refused twice: in a run, and in a cell that lives on.
	h.try("run", "--allow", "a.test", "--", "python3", "-c", "import socket; socket.gethostbyname('b.test')")
	h.pando("run", "--cell", "talks", "--allow", "a.test", "--on-failure", "pending", "--", "true")
	h.try("exec", "talks", "--", "python3", "-c", "import socket; socket.gethostbyname('c.test')")
	h.pando("gc", "--yes")

	// What was denied in a cell that is just coming to rest is counted when it has: a cell is asked while it is there, and
	// once more on its way out.
	list := h.metrics()
	testenv.Eventually(t, func() bool {
		list = h.metrics()
		return sample(list["pando_denials_total"], "act=resolve", "reason=default") >= 2
	}, "two denials")
	for _, x := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"pando_operation_seconds", []string{"operation=run", "backend=namespace", "result=ok"}, 3},
		{"pando_operation_seconds", []string{"operation=exec", "backend=namespace", "result=ok"}, 2},
		{"pando_operation_seconds", []string{"operation=checkpoint", "result=ok"}, 1},
		{"pando_operation_seconds", []string{"operation=restore", "result=ok"}, 1},
		{"pando_operation_seconds", []string{"operation=template", "backend=namespace", "result=ok"}, 1},
		{"pando_operation_seconds", []string{"operation=fork", "backend=namespace", "result=ok"}, 2},
		{"pando_operation_seconds", []string{"operation=eval", "backend=namespace", "result=ok"}, 1},
		{"pando_operation_seconds", []string{"operation=branch", "backend=namespace", "result=ok"}, 1},
		{"pando_fork_seconds", []string{"from=checkpoint", "backend=namespace"}, 1},
		{"pando_branch_pause_seconds", []string{"backend=namespace"}, 1},
		{"pando_gc_total", nil, 1},
		{"pando_ledger_seal_failures_total", nil, 0},
	} {
		if got := sample(list[x.name], x.labels...); got != x.want {
			t.Errorf("%s%v is %v, want %v", x.name, x.labels, got, x.want)
		}
	}
	if n := sample(list["pando_request_errors_total"], "kind=not-found"); n < 1 {
		t.Errorf("%v errors for a cell that there is not", n)
	}
	forks := max(sample(list["pando_fork_seconds"], "from=pool"), 0) + max(sample(list["pando_fork_seconds"], "from=template"), 0)
	if pool := sample(list["pando_pool_hits_total"], "template=tp") + sample(list["pando_pool_misses_total"], "template=tp"); forks != 2 || pool != 2 {
		t.Errorf("%v forks, %v by pools", forks, pool)
	}
	now := float64(time.Now().Unix())
	if at := sample(list["pando_ledger_last_sealed_time_seconds"]); at < now-120 || at > now+1 {
		t.Errorf("sealed at %v, it is %v", at, now)
	}
	for _, name := range []string{"pando_store_objects", "pando_store_bytes", "pando_disk_free_bytes", "pando_ledger_receipts"} {
		if sample(list[name]) <= 0 {
			t.Errorf("%s: %v", name, list[name])
		}
	}
	lint(t, list)
	text := h.pando("daemon", "metrics")
	for _, word := range []string{"secretly-named", "kid-1", "c-", "b.test"} {
		if strings.Contains(text, `"`+word) {
			t.Errorf("the metrics have %q in them", word)
		}
	}
	dashboard(t, list)

	// Another daemon counts from nothing: what the old one counted is not counted twice.
	h.pando("daemon", "stop")
	h.pando("eval", "kid-2", "1") // cells live on
	if n := sample(h.metrics()["pando_denials_total"]); n > 0 {
		t.Errorf("a new daemon has %v denials", n)
	}
}

var metricName = regexp.MustCompile(`^pando_[a-z][a-z_]*$`)

// lint holds metrics to the rules that promtool checks.
func lint(t *testing.T, list map[string]*dto.MetricFamily) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(list)) {
		f := list[name]
		counter := f.GetType() == dto.MetricType_COUNTER
		switch {
		case f.GetHelp() == "":
			t.Errorf("%s has no help", name)
		case f.GetType() == dto.MetricType_UNTYPED:
			t.Errorf("%s has no type", name)
		case !metricName.MatchString(name):
			t.Errorf("%s is no name", name)
		case counter != strings.HasSuffix(name, "_total"):
			t.Errorf("%s is a %s", name, f.GetType())
		case strings.Contains(name, "_ms") || strings.Contains(name, "milli") || strings.Contains(name, "kilo"):
			t.Errorf("%s is not in base units", name)
		}
		for _, m := range f.Metric {
			hist := m.GetHistogram()
			if f.GetType() != dto.MetricType_HISTOGRAM {
				continue
			}
			last := hist.Bucket[len(hist.Bucket)-1]
			var before uint64
			for _, b := range hist.Bucket {
				if b.GetCumulativeCount() < before {
					t.Errorf("%s: a bucket has less than the one below it: %v", name, m)
				}
				before = b.GetCumulativeCount()
			}
			if last.GetUpperBound() < 1e300 || last.GetCumulativeCount() != hist.GetSampleCount() {
				t.Errorf("%s: the last bucket does not have all: %v", name, m)
			}
		}
	}
}

var (
	queried = regexp.MustCompile(`pando_[a-z_]+`)
	grouped = regexp.MustCompile(`(?:by|without) \(([a-z, ]+)\)|\{([^}]*)\}`)
	labelOf = regexp.MustCompile(`[a-z_]+`)
)

// dashboard looks whether what the dashboard asks for is there.
func dashboard(t *testing.T, list map[string]*dto.MetricFamily) {
	t.Helper()
	b, err := os.ReadFile("../packaging/grafana/pando.json")
	must(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(b, &board))
	labels := map[string]bool{"le": true, "job": true, "instance": true}
	for _, f := range list {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				labels[l.GetName()] = true
			}
		}
	}
	seen := 0
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			for _, name := range queried.FindAllString(q.Expr, -1) {
				seen++
				f := list[name]
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					if base, ok := strings.CutSuffix(name, part); ok && list[base].GetType() == dto.MetricType_HISTOGRAM {
						f = list[base]
					}
				}
				if f == nil {
					t.Errorf("panel %q asks for %s, which there is not", p.Title, name)
				}
			}
			for _, g := range grouped.FindAllStringSubmatch(q.Expr, -1) {
				for _, part := range strings.Split(g[1]+g[2], ",") {
					if name := labelOf.FindString(part); name != "" && !labels[name] {
						t.Errorf("panel %q asks for label %s, which there is not: %s", p.Title, name, q.Expr)
					}
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("the dashboard asks for %d metrics", seen)
	}
}

// collector takes traces as OpenTelemetry's does.
type collector struct {
	*httptest.Server
	mu    sync.Mutex // guards what follows
	spans []*tracepb.Span
	raw   []byte // all that came
}

func collect(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var data tracepb.TracesData
		if err = errors.Join(err, proto.Unmarshal(b, &data)); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("X-Key") != "k3y" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raw = append(c.raw, b...)
		for _, rs := range data.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// TestTraces follows requests of a client that has a trace of its own through the
// door and the engine, at a collector.
func TestTraces(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	testenv.Python(t)
	c := collect(t)
	h := newHost(t)
	const parent = "0af7651916cd43dd8448eb211c80319c"
	h.env = append(h.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_EXPORTER_OTLP_HEADERS=x-key=k3y", "TRACEPARENT=00-"+parent+"-b7ad6b7169203331-01")
	h.write("file", "1\n")
	h.pando("run", "--cell", "a", "--", "sh", "-c", ": hunter2-argv")
	h.pando("exec", "--env", "PASSWORD=hunter2-env", "a", "--", "true")
	h.exits(125, "exec", "hunter2-name", "--", "true")
	h.pando("template", "build", "tp", "--from", h.src, "--setup", "x = 'hunter2-setup'")
	h.pando("fork", "tp", "-n", "2", "--name", "kid", "--eval", "'hunter2-eval'")
	h.pando("branch", "kid-1")
	h.pando("checkpoint", "a", "-m", "hunter2-message")
	h.pando("restore", "a@1", "--yes")
	h.pando("daemon", "stop") // sends what is left

	byID, byName := map[string]*tracepb.Span{}, map[string][]*tracepb.Span{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		byID[string(s.SpanId)] = s
		byName[s.Name] = append(byName[s.Name], s)
		if fmt.Sprintf("%x", s.TraceId) != parent {
			t.Errorf("%s belongs to trace %x", s.Name, s.TraceId)
		}
		if s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s ended before it began", s.Name)
		}
	}
	for name, above := range map[string]string{
		"pando.run": "POST /v1/runs", "pando.prepare": "pando.run", "pando.start": "pando.run", "pando.command": "pando.run", "pando.finish": "pando.run",
		"pando.exec": "POST /v1/cells/{cell}/execs", "pando.ready": "pando.exec", "pando.template": "POST /v1/templates",
		"pando.fork": "POST /v1/templates/{template}/fork", "pando.warm": "pando.fork", "pando.record": "pando.fork", "pando.answer": "pando.fork",
		"pando.branch": "POST /v1/cells/{cell}/branch", "pando.pause and copy": "pando.branch", "pando.adopt": "pando.branch",
		"pando.checkpoint": "POST /v1/cells/{cell}/checkpoints", "pando.restore": "POST /v1/cells/{cell}/restore",
	} {
		found := false
		for _, s := range byName[name] {
			p := byID[string(s.ParentSpanId)]
			found = found || p.GetName() == above
		}
		if !found {
			t.Errorf("no span %s below %s, of %v", name, above, slices.Sorted(maps.Keys(byName)))
		}
	}
	said := map[string]string{}
	for _, a := range byName["pando.run"][0].Attributes {
		said[a.Key] = a.Value.GetStringValue()
	}
	if said["pando.backend"] != "namespace" || !strings.HasPrefix(said["pando.cell"], "c-") || !strings.HasPrefix(said["pando.run"], "r-") || said["pando.verdict"] != "accepted" {
		t.Errorf("the run says %v", said)
	}
	failed := slices.ContainsFunc(c.spans, func(s *tracepb.Span) bool {
		return s.Name == "POST /v1/cells/{cell}/execs" && slices.ContainsFunc(s.Attributes, func(a *commonpb.KeyValue) bool {
			return a.Key == "error.type" && a.Value.GetStringValue() == "not-found"
		})
	})
	if !failed {
		t.Error("no span tells of the cell that was not found")
	}
	// Variables for other programs are an error of pando serve alone.
	h.env = append(h.env, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	h.pando("ls")
	h.pando("daemon", "stop")
	if o := h.exits(2, "serve", "--listen", "127.0.0.1:0"); !strings.Contains(o.stderr, "http/protobuf") {
		t.Errorf("%s", o.stderr)
	}
	if i := bytes.Index(c.raw, []byte("hunter2")); i >= 0 {
		t.Errorf("spans have in them what was typed: %q", c.raw[max(0, i-60):min(len(c.raw), i+20)])
	}
}
