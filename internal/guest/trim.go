package guest

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// collectAt is how much the guest's garbage may grow by, in percent, before it is
// collected: what it needs is little, and stays within one of gVisor's allocations.
const collectAt = 25

// trimAfter is how long the guest lives before it trims: shorter lives are not
// captured.
const trimAfter = 300 * time.Millisecond

// trim gives back, after a while, what gVisor has allocated for tables of the Go
// runtime that are nearly empty. gVisor allocates 2 MiB where a page is touched, and
// who captures memory reads all that is allocated, to leave out what is zero: while
// the cell stands still.
//
// Only tables are looked at to whose zero pages nobody is about to write: the index
// of the heap and that of its pages, whose next entry lies beside the last one, and
// the profiler's buckets, since nothing is profiled here. A page that was given back
// is zero again when somebody reads it.
func trim() {
	debug.SetGCPercent(collectAt)
	runtime.MemProfileRate = 0
	maps, err := os.ReadFile("/proc/self/maps") // now, because the cell's own proc will lie over this one
	if err != nil {
		return // nothing needs it
	}
	time.AfterFunc(trimAfter, func() {
		for _, t := range tables(string(maps)) {
			t.trim()
		}
	})
}

// span is a part of the guest's own memory, in whole pages.
type span struct{ from, to uintptr }

// tables are those of the Go runtime, by the names that it gives them, in the text
// of a process's map of its memory: proc_pid_maps(5).
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
