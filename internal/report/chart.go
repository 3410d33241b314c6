package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// chart has the lines of what a run used over its time.
type chart struct {
	Cores, Memory string // points of polylines
	Most, MostMem string // what the top of the chart is, for each
	Took          string
	Summary       string // for those that do not see it
}

// The size of a chart, in its own units.
const (
	chartWidth  = 600.0
	chartHeight = 120.0
)

// chartOf draws processors and memory over time; nil where there are too few samples for a line.
func chartOf(r *api.Report) *chart {
	if len(r.Samples) < 2 {
		return nil
	}
	start := r.Run.Started
	if start.IsZero() || start.After(r.Samples[0].At) {
		start = r.Samples[0].At
	}
	end := r.Samples[len(r.Samples)-1].At
	if r.Run.Ended.After(end) {
		end = r.Run.Ended
	}
	all := end.Sub(start)
	if all <= 0 {
		return nil
	}
	var cores []float64
	most, memory := 0.0, int64(0)
	last, used := start, int64(0)
	for _, s := range r.Samples {
		n := 0.0
		if d := s.At.Sub(last); d > 0 {
			n = max(0, float64(s.CPUMS-used)/float64(d.Milliseconds()+1))
		}
		cores, last, used = append(cores, n), s.At, s.CPUMS
		most, memory = max(most, n), max(memory, s.Memory)
	}
	x := func(t time.Time) float64 { return float64(t.Sub(start)) / float64(all) * chartWidth }
	y := func(part float64) float64 { return chartHeight - part*(chartHeight-4) }
	var a, b strings.Builder
	at := start
	for i, s := range r.Samples { // processors are those between two samples
		fmt.Fprintf(&a, "%.1f,%.1f %.1f,%.1f ", x(at), y(cores[i]/max(most, 0.01)), x(s.At), y(cores[i]/max(most, 0.01)))
		fmt.Fprintf(&b, "%.1f,%.1f ", x(s.At), y(float64(s.Memory)/float64(max(memory, 1))))
		at = s.At
	}
	if rest := end.Sub(at); rest > time.Millisecond { // to the end of the command
		n := max(0, float64(r.Run.Usage.CPUMS-used)/float64(rest.Milliseconds()+1))
		n = min(n, max(most, 0.01))
		fmt.Fprintf(&a, "%.1f,%.1f %.1f,%.1f ", x(at), y(n/max(most, 0.01)), x(end), y(n/max(most, 0.01)))
	}
	c := &chart{Cores: strings.TrimSpace(a.String()), Memory: strings.TrimSpace(b.String()), Most: fmt.Sprintf("%.2f cores", most), MostMem: policy.FormatSize(memory), Took: all.Round(100 * time.Millisecond).String()}
	c.Summary = fmt.Sprintf("Processors and memory over %s: at most %s, and %s.", c.Took, c.Most, c.MostMem)
	return c
}
