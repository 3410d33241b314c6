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
)

// metrics counts requests. What there is to say about cells is asked of the
// engine when somebody wants to know.
type metrics struct {
	mu       sync.Mutex // guards what follows
	requests map[requestKey]*requestCount
}

// requestKey has few values: routes of the table, and classes of answers.
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

func newMetrics() *metrics { return &metrics{requests: map[requestKey]*requestCount{}} }

// saw counts a request that has ended.
func (m *metrics) saw(v *visit, local bool) {
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

// family begins a family of samples in Prometheus' text format.
func family(w io.Writer, name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// label writes a label's value as the format wants it.
func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

func (m *metrics) write(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.requests), func(a, b requestKey) int {
		return cmp.Or(cmp.Compare(a.route, b.route), cmp.Compare(a.code, b.code), cmp.Compare(a.door, b.door))
	})
	family(w, "pando_request_seconds", "histogram", "How long requests took, streams to their end, by route, class of status, and where they came in.")
	for _, k := range keys {
		c := m.requests[k]
		labels := fmt.Sprintf(`route=%s,code="%dxx",door=%s`, label(k.route), k.code, label(k.door))
		sum := uint64(0)
		for i, n := range c.buckets {
			sum += n
			fmt.Fprintf(w, "pando_request_seconds_bucket{%s,le=\"%s\"} %d\n", labels, strconv.FormatFloat(bounds[i], 'g', -1, 64), sum)
		}
		fmt.Fprintf(w, "pando_request_seconds_bucket{%s,le=\"+Inf\"} %d\n", labels, c.n)
		fmt.Fprintf(w, "pando_request_seconds_sum{%s} %g\npando_request_seconds_count{%s} %d\n", labels, c.seconds, labels, c.n)
	}
}

// getMetrics answers in Prometheus' text format. No label has the name of a
// cell: there are too many of them.
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
	count := map[[2]string]int{}
	for _, c := range d.cfg.Engine.Cells() {
		count[[2]string{c.State, c.Backend}]++
	}
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
		{"pando_pool_misses_total", "counter", "Forks that had to be made when they were asked for.", func(i int) int64 { return o.Templates[i].Misses }},
	} {
		family(&b, f.name, f.kind, f.help)
		for i, t := range o.Templates {
			fmt.Fprintf(&b, "%s{template=%s} %d\n", f.name, label(t.Template), f.of(i))
		}
	}
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
		{"pando_host_memory_available_bytes", "Memory that programs can have.", o.Host.MemoryAvailable},
		{"pando_host_memory_reserved_bytes", "Memory that is promised to forks that are being made.", o.Host.Reserved},
		{"pando_host_processes", "Processes of the user that pando runs as, or of the host.", o.Host.Processes},
		{"pando_host_processes_max", "How many there may be.", o.Host.ProcessesMax},
		{"pando_requests_open", "Requests under way.", int64(open)},
		{"pando_draining", "Whether the daemon takes no new work.", int64(draining)},
		{"pando_approvals_waiting", "What waits for a person.", int64(len(d.cfg.Engine.Approvals(false)))},
		{"pando_daemon_goroutines", "Goroutines of the daemon.", int64(runtime.NumGoroutine())},
		{"pando_daemon_heap_bytes", "Heap of the daemon.", int64(mem.HeapAlloc)},
		{"pando_daemon_open_files", "Open files of the daemon.", int64(len(fds))},
	} {
		family(&b, g.name, "gauge", g.help)
		fmt.Fprintf(&b, "%s %d\n", g.name, g.v)
	}
	d.met.write(&b)
	w.Header().Set("Content-Type", metricsText)
	io.WriteString(w, b.String())
	return done{}, nil
}

const metricsText = "text/plain; version=0.0.4; charset=utf-8"
