package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// peakMemory fails when a daemon or keeper of the script has ever had more
// than a number of MiB in memory.
func peakMemory(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: peak-memory MIB")
	}
	limit, err := strconv.Atoi(args[0])
	ts.Check(err)
	pids := ours(ts.Getenv("WORK"))
	if len(pids) == 0 {
		ts.Fatalf("no process of ours is there")
	}
	for _, p := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		for l := range strings.Lines(string(status)) {
			f := strings.Fields(l)
			if len(f) < 2 || f[0] != "VmHWM:" {
				continue
			}
			kib, err := strconv.Atoi(f[1])
			ts.Check(err)
			ts.Logf("%s: %d KiB at most", processName(p), kib)
			if (kib > limit<<10) != neg {
				ts.Fatalf("%s had %d KiB in memory", processName(p), kib)
			}
		}
	}
}
