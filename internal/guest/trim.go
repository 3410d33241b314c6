package guest

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// collectAt is the heap growth in percent that triggers a garbage collection. It keeps the
// guest within one of gVisor's allocations.
const collectAt = 25

// trimAfter is the guest's age at which it trims. Shorter-lived guests are not captured.
const trimAfter = 300 * time.Millisecond

// trim returns memory that gVisor has allocated for nearly empty tables of the Go runtime.
// gVisor allocates 2 MiB per touched page, and a capture reads all of it to skip zeros while
// the cell is paused.
//
// Trimming must not race with writes to zero pages. It covers only the index of the heap, the
// index of its pages, where the next entry is beside the last one, and the profiler's buckets,
// since nothing is profiled here. A trimmed page reads as zeros.
func trim() {
	debug.SetGCPercent(collectAt)
	runtime.MemProfileRate = 0
	maps, err := os.ReadFile("/proc/self/maps") // now, before the cell's proc is mounted over this one
	if err != nil {
		return // trimming is optional
	}
	time.AfterFunc(trimAfter, func() {
		for _, t := range tables(string(maps)) {
			t.trim()
		}
	})
}

// span is a range of the guest's memory, in whole pages.
type span struct{ from, to uintptr }

// tables returns the tables of the Go runtime, by their names in the text of /proc/PID/maps
// (proc_pid_maps(5)).
func tables(maps string) (list []span) {
	for line := range strings.Lines(maps) {
		var s span
		if _, err := fmt.Sscanf(line, "%x-%x rw-p", &s.from, &s.to); err != nil {
			continue
		}
		for _, name := range []string{"heap index", "page alloc index", "profiler hash buckets"} {
			if strings.HasSuffix(line, "[anon: Go: "+name+"]\n") {
				list = append(list, s)
			}
		}
	}
	return list
}
