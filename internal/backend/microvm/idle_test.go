package microvm

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A machine in which nothing runs wakes QEMU seldom: of a hundred on one host, none has
// anything to do.
func TestIdleMachineSleeps(t *testing.T) {
	_, _, qemu, _ := running(t)
	const most = 20 // a second; the timer of old PCs alone, which counts from the start, makes 36
	for range 5 {   // it has just started: what Linux does then ends
		before := woken(t, qemu)
		time.Sleep(3 * time.Second)
		if n := (woken(t, qemu) - before) / 3; n <= most {
			return
		}
	}
	t.Errorf("QEMU's first thread wakes more than %d times a second", most)
}

// woken is how often the first thread of a process has waited for something.
func woken(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(process(pid, "task/"+strconv.Itoa(pid)+"/status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
			if n, err = strconv.Atoi(strings.TrimSpace(v)); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the kernel does not say how often a thread has waited")
	return 0
}
