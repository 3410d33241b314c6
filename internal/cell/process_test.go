package cell

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Since returns the use of the cell during the process.
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

// Arguments that execve(2) cannot pass are rejected, with the limit and an alternative.
func TestX59LongArguments(t *testing.T) {
	long := strings.Repeat("a", MaxArgument+1)
	if err := CheckArguments("op", []string{"echo", long[1:]}, []string{"A=" + long[3:]}); err != nil {
		t.Errorf("as long as may be: %v", err)
	}
	for want, x := range map[string][2][]string{
		"argument 1 has 131072 bytes":     {{"echo", long}, nil},
		`variable "NAME" has 131077 byte`: {{"echo"}, {"B=1", "NAME=" + long}},
		"argument 0 contains a NUL":       {{"a\x00b"}, nil},
		`variable "A" contains a NUL`:     {{"a"}, {"A=\x00"}},
	} {
		err := CheckArguments("op", x[0], x[1])
		if KindOf(err) != Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
		if e, ok := errors.AsType[*Error](err); ok && strings.Contains(want, "bytes") && e.Hint != ByAnotherWay {
			t.Errorf("the hint is %q", e.Hint)
		}
	}
	if e, ok := errors.AsType[*Error](CantExecute("op", "/bin/echo", syscall.E2BIG)); !ok || e.Kind != NotRunnable || e.Hint != ByAnotherWay {
		t.Errorf("too long together: %v", e)
	}
}
