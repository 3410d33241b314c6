package daemon

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/engine"
)

// metrics counts requests. The engine is asked about cells when metrics are read.
type metrics struct {
	mu       sync.Mutex // guards the fields below
	requests map[requestKey]*requestCount
	errors   map[string]uint64 // by kind
}

// requestKey has few values: routes of the table, and classes of statuses.
type requestKey struct {
	route string // method and path of the table; "front" or "none"
	code  int    // 2, 4, 5: class of the status
	door  string // "socket" or "tcp"
}

type requestCount struct {
	n       uint64
	seconds float64
	buckets [len(bounds)]uint64 // not cumulative
}

// bounds of the histogram of latencies, in seconds.
var bounds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}

func newMetrics() *metrics {
	return &metrics{requests: map[requestKey]*requestCount{}, errors: map[string]uint64{}}
}

// count counts an ended request.
func (m *metrics) count(v *requestRecord, local bool) {
	k := requestKey{route: "none", code: v.w.status / 100, door: "tcp"}
	if local {
		k.door = "socket"
	}
	switch {
	case v.route != nil:
		path, _ := v.route.Split()
		k.route = v.route.Method + " " + path
	case v.front:
		k.route = "front"
	}
	took := time.Since(v.began).Seconds()
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.kind != "" {
		m.errors[v.kind]++
	}
	c := m.requests[k]
	if c == nil {
		c = &requestCount{}
		m.requests[k] = c
	}
	c.n++
	c.seconds += took
	if i, _ := slices.BinarySearch(bounds[:], took); i < len(bounds) {
		c.buckets[i]++
	}
}

// family begins a metric in Prometheus' text format.
func family(w io.Writer, name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// label formats the value of a label.
func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

func (m *metrics) write(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.requests), func(a, b requestKey) int {
		return cmp.Or(cmp.Compare(a.route, b.route), cmp.Compare(a.code, b.code), cmp.Compare(a.door, b.door))
	})
	family(w, "pando_request_seconds", "histogram", "Duration of requests, streams to their end, by route, class of status, and door.")
	for _, k := range keys {
		c := m.requests[k]
		labels := fmt.Sprintf(`route=%s,code="%dxx",door=%s`, label(k.route), k.code, label(k.door))
		histogram(w, "pando_request_seconds", labels, bounds[:], c.buckets[:], c.n, c.seconds)
	}
	family(w, "pando_request_errors_total", "counter", "Requests that ended with an error, by its kind.")
	for _, kind := range slices.Sorted(maps.Keys(m.errors)) {
		fmt.Fprintf(w, "pando_request_errors_total{kind=%s} %d\n", label(kind), m.errors[kind])
	}
}

// histogram writes one series of a histogram. buckets are not cumulative.
func histogram(w io.Writer, name, labels string, bounds []float64, buckets []uint64, n uint64, seconds float64) {
	sum := uint64(0)
	for i, b := range buckets {
		sum += b
		fmt.Fprintf(w, "%s_bucket{%s,le=\"%s\"} %d\n", name, labels, strconv.FormatFloat(bounds[i], 'g', -1, 64), sum)
	}
	fmt.Fprintf(w, "%s_bucket{%s,le=\"+Inf\"} %d\n", name, labels, n)
	fmt.Fprintf(w, "%s_sum{%s} %g\n%s_count{%s} %d\n", name, labels, seconds, name, labels, n)
}

// writeFigures writes the metrics of the engine.
func writeFigures(w io.Writer, f engine.Figures) {
	family(w, "pando_operation_seconds", "histogram", "Duration of operations, by kind, backend and result: ok, refused (not possible as requested) or failed.")
	for _, t := range f.Acts {
		histogram(w, "pando_operation_seconds", fmt.Sprintf("operation=%s,backend=%s,result=%s", label(t.Act), label(t.Backend), label(t.Result)), engine.Bounds[:], t.Buckets[:], t.Count, t.Seconds)
	}
	family(w, "pando_fork_seconds", "histogram", "Time from the request until a fork was ready, for each fork, by backend and origin: pool (made ahead), template (made on request) or checkpoint.")
	for _, t := range f.Forks {
		histogram(w, "pando_fork_seconds", fmt.Sprintf("backend=%s,from=%s", label(t.Backend), label(t.From)), engine.Bounds[:], t.Buckets[:], t.Count, t.Seconds)
	}
	family(w, "pando_branch_pause_seconds", "histogram", "Time for which cells were paused while they were branched, by backend.")
	for _, t := range f.Pauses {
		histogram(w, "pando_branch_pause_seconds", "backend="+label(t.Backend), engine.Bounds[:], t.Buckets[:], t.Count, t.Seconds)
	}
	family(w, "pando_denials_total", "counter", "Denied network requests of cells, by act and reason (rule, default, special, person, gateway, budget, error).")
	for _, r := range f.Refused {
		fmt.Fprintf(w, "pando_denials_total{act=%s,reason=%s} %d\n", label(string(r.Act)), label(r.Reason), r.Count)
	}
	family(w, "pando_runs_under_way", "gauge", "Runs that have not ended, by phase.")
	for _, phase := range slices.Sorted(maps.Keys(f.Runs)) {
		fmt.Fprintf(w, "pando_runs_under_way{phase=%s} %d\n", label(phase), f.Runs[phase])
	}
	for _, g := range []struct {
		name, kind, help string
		there            bool
		v                float64
	}{
		{"pando_store_objects", "gauge", "Objects in the store of trees.", f.Stored, float64(f.Objects)},
		{"pando_store_bytes", "gauge", "Bytes of the store of trees.", f.Stored, float64(f.Bytes)},
		{"pando_disk_free_bytes", "gauge", "Free space of the state's file system.", f.Total > 0, float64(f.Free)},
		{"pando_disk_bytes", "gauge", "Size of the state's file system.", f.Total > 0, float64(f.Total)},
		{"pando_gc_total", "counter", "Garbage collections.", true, float64(f.GCs)},
		{"pando_gc_freed_bytes_total", "counter", "Bytes freed by garbage collections.", true, float64(f.GCFreed)},
		{"pando_gc_last_time_seconds", "gauge", "Time of this daemon's latest garbage collection, in seconds since 1970.", !f.LastGC.IsZero(), float64(f.LastGC.UnixMilli()) / 1000},
		{"pando_ledger_receipts", "gauge", "Receipts in the ledger.", true, float64(f.Receipts)},
		{"pando_ledger_last_sealed_time_seconds", "gauge", "Time of this daemon's latest receipt, in seconds since 1970.", !f.Sealed.IsZero(), float64(f.Sealed.UnixMilli()) / 1000},
		{"pando_ledger_seal_failures_total", "counter", "Receipts that could not be sealed.", true, float64(f.Unsealed)},
	} {
		family(w, g.name, g.kind, g.help)
		if g.there {
			fmt.Fprintf(w, "%s %s\n", g.name, strconv.FormatFloat(g.v, 'f', -1, 64))
		}
	}
}

// writeCeilings writes the ceilings of callers, and their usage.
func writeCeilings(w io.Writer, list []api.Ceiling) {
	for _, f := range []struct {
		name, kind, help string
		of               func(c *api.Ceiling) float64
	}{
		{"pando_ceiling_cells", "gauge", "Cells that are not paused, by the door, token or label of a ceiling.", func(c *api.Ceiling) float64 { return float64(c.Cells) }},
		{"pando_ceiling_cells_max", "gauge", "Maximum number of these cells; 0: unlimited.", func(c *api.Ceiling) float64 { return float64(c.MaxCells) }},
		{"pando_ceiling_memory_max_bytes", "gauge", "Maximum memory of one cell; 0: unlimited.", func(c *api.Ceiling) float64 { return float64(c.Max.Memory) }},
		{"pando_ceiling_waiting", "gauge", "Requests that wait for one of the cells to end.", func(c *api.Ceiling) float64 { return float64(c.Waiting) }},
		{"pando_ceiling_waited_total", "counter", "Requests that had to wait.", func(c *api.Ceiling) float64 { return float64(c.Waited) }},
		{"pando_ceiling_refused_total", "counter", "Requests that were refused for a ceiling.", func(c *api.Ceiling) float64 { return float64(c.Refused) }},
	} {
		family(w, f.name, f.kind, f.help)
		for i := range list {
			fmt.Fprintf(w, "%s{for=%s} %s\n", f.name, label(list[i].For), strconv.FormatFloat(f.of(&list[i]), 'f', -1, 64))
		}
	}
}

// getMetrics answers in Prometheus' text format. No label has the name of a cell: there are too
// many of them.
func (d *Daemon) getMetrics(w http.ResponseWriter, r *http.Request) (any, error) {
	o, err := d.cfg.Engine.AllStats(r.Context())
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	family(&b, "pando_build_info", "gauge", "The program that answers.")
	fmt.Fprintf(&b, "pando_build_info{version=%s,go=%s} 1\n", label(d.cfg.Version), label(runtime.Version()))
	family(&b, "pando_start_time_seconds", "gauge", "When the daemon started, in seconds since 1970.")
	fmt.Fprintf(&b, "pando_start_time_seconds %d\n", d.started.Unix())
	count := d.cfg.Engine.Standing()
	family(&b, "pando_cells", "gauge", "Cells, by state and backend.")
	for _, k := range slices.SortedFunc(maps.Keys(count), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		fmt.Fprintf(&b, "pando_cells{state=%s,backend=%s} %d\n", label(k[0]), label(k[1]), count[k])
	}
	for _, f := range []struct {
		name, kind, help string
		of               func(i int) int64
	}{
		{"pando_template_cells", "gauge", "Living forks of a template.", func(i int) int64 { return int64(o.Templates[i].Cells) }},
		{"pando_template_memory_bytes", "gauge", "Resident memory of a template itself.", func(i int) int64 { return o.Templates[i].Memory }},
		{"pando_pool_ready", "gauge", "Forks that wait in a template's pool.", func(i int) int64 { return int64(o.Templates[i].Ready) }},
		{"pando_pool_hits_total", "counter", "Forks that were taken from the pool.", func(i int) int64 { return o.Templates[i].Hits }},
		{"pando_pool_misses_total", "counter", "Forks that were made on request.", func(i int) int64 { return o.Templates[i].Misses }},
	} {
		family(&b, f.name, f.kind, f.help)
		for i, t := range o.Templates {
			fmt.Fprintf(&b, "%s{template=%s} %d\n", f.name, label(t.Template), f.of(i))
		}
	}
	writeCeilings(&b, o.Ceilings)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	fds, _ := os.ReadDir("/proc/self/fd")
	d.mu.Lock()
	open, draining := d.open, 0
	if d.draining {
		draining = 1
	}
	d.mu.Unlock()
	for _, g := range []struct {
		name, help string
		v          int64
	}{
		{"pando_host_memory_available_bytes", "Memory available to programs.", o.Host.MemoryAvailable},
		{"pando_host_memory_reserved_bytes", "Memory reserved for forks in the making.", o.Host.Reserved},
		{"pando_host_processes", "Processes of the user that pando runs as, or of the host.", o.Host.Processes},
		{"pando_host_processes_max", "Maximum number of processes.", o.Host.ProcessesMax},
		{"pando_admission_waiting", "Requests that wait for cells to end.", int64(o.Waiting)},
		{"pando_requests_open", "Requests in progress.", int64(open)},
		{"pando_draining", "Whether the daemon refuses new work.", int64(draining)},
		{"pando_approvals_waiting", "Pending approvals.", int64(len(d.cfg.Engine.Approvals(false)))},
		{"pando_daemon_goroutines", "Goroutines of the daemon.", int64(runtime.NumGoroutine())},
		{"pando_daemon_heap_bytes", "Heap of the daemon.", int64(mem.HeapAlloc)},
		{"pando_daemon_open_files", "Open files of the daemon.", int64(len(fds))},
	} {
		family(&b, g.name, "gauge", g.help)
		fmt.Fprintf(&b, "%s %d\n", g.name, g.v)
	}
	writeFigures(&b, d.cfg.Engine.Figures(r.Context()))
	d.met.write(&b)
	w.Header().Set("Content-Type", metricsText)
	io.WriteString(w, b.String())
	return done{}, nil
}

const metricsText = "text/plain; version=0.0.4; charset=utf-8"
