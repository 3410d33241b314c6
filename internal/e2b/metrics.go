package e2b

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// metric is the usage of a sandbox at one time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of one CPU, 100
	CPUCount      int       `json:"cpuCount"`
	MemUsed       int64     `json:"memUsed"`  // bytes
	MemTotal      int64     `json:"memTotal"` // bytes
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`  // bytes, of the sandbox
	DiskTotal     int64     `json:"diskTotal"` // bytes, of its file system
}

// sample is the CPU time of a sandbox up to a time.
type sample struct {
	at  time.Time
	cpu int64 // microseconds
}

// sampleGap is the time between two samples of the CPU time of a sandbox without an earlier one.
const sampleGap = 100 * time.Millisecond

// measure returns the present usage of a sandbox. The share of CPU is that since the last
// sample.
func (f *Front) measure(ctx context.Context, c *api.Cell) (m metric, err error) {
	id := cell.ID(c.ID)
	st, err := f.cfg.Engine.Stats(ctx, id)
	if err != nil {
		return m, err
	}
	b := f.box(id)
	b.mu.Lock()
	last := b.last
	b.mu.Unlock()
	if last.at.IsZero() || time.Since(last.at) < sampleGap {
		last = sample{time.Now(), st.CPU}
		select {
		case <-time.After(sampleGap):
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
		if st, err = f.cfg.Engine.Stats(ctx, id); err != nil {
			return m, err
		}
	}
	now := sample{time.Now(), st.CPU}
	b.mu.Lock()
	b.last = now
	b.mu.Unlock()
	v := f.listed(c)
	m = metric{Timestamp: now.at.UTC(), TimestampUnix: now.at.Unix(), CPUCount: v.CPUCount, MemUsed: st.Memory, MemTotal: v.MemoryMB << 20, DiskUsed: st.Disk}
	m.CPUUsedPct = max(0, float64(now.cpu-last.cpu)/float64(now.at.Sub(last.at).Microseconds())*100)
	m.DiskTotal, _ = f.disk()
	return m, nil
}

// metrics returns the present usage of a sandbox. There is no history: start and end are
// ignored.
func (f *Front) metrics(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	known(w, r)
	m, err := f.measure(r.Context(), c)
	if err != nil {
		f.failOf(w, c, err)
		return
	}
	answer(w, http.StatusOK, []metric{m})
}

// allMetrics returns the same for several sandboxes.
func (f *Front) allMetrics(w http.ResponseWriter, r *http.Request) {
	known(w, r, "sandbox_ids")
	out := map[string]metric{}
	ids := strings.FieldsFunc(strings.Join(r.URL.Query()["sandbox_ids"], ","), func(r rune) bool { return r == ',' })
	for _, id := range ids {
		c, err := f.find(cell.ID(id))
		if err != nil {
			continue
		}
		if m, err := f.measure(r.Context(), &c); err == nil {
			out[c.ID] = m
		}
	}
	answer(w, http.StatusOK, map[string]any{"sandboxes": out})
}

// envdMetrics returns the same in envd's format.
func (f *Front) envdMetrics(w http.ResponseWriter, r *http.Request) {
	m, err := f.measure(r.Context(), cellIn(r.Context()))
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"ts": m.TimestampUnix, "cpu_count": m.CPUCount, "cpu_used_pct": m.CPUUsedPct, "mem_total": m.MemTotal,
		"mem_used": m.MemUsed, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal})
}
