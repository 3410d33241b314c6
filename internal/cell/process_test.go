package cell

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a process used is what its cell used meanwhile.
func TestStatsSince(t *testing.T) {
	all := []string{"processes", "peak_memory", "cpu_us", "peak_pids"}
	before := Stats{CPU: 100, Written: 10, OOMKills: 1, PeakMemory: 500, PeakPIDs: 7, Measured: all}
	got := Stats{CPU: 130, Written: 10, OOMKills: 1, PeakMemory: 500, PeakPIDs: 9, Memory: 50, Measured: all}.Since(before)
	want := Stats{CPU: 30, PeakPIDs: 9, Memory: 50, Measured: []string{"processes", "cpu_us", "peak_pids"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"processes", "peak_memory", "cpu_us", "peak_pids"}, all); d != "" {
		t.Errorf("the later look was changed: %s", d)
	}
}
