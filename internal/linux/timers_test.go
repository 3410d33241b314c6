package linux

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// All threads get the slack, and what is executed has the kernel's or its own.
func TestTimerSlack(t *testing.T) {
	testenv.Root(t) // other threads' slack takes CAP_SYS_NICE
	const coarse = "3000000"
	defer CoarseTimers(defaultSlack)
	if err := CoarseTimers(3 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads: %v", len(threads), err)
	}
	for _, thread := range threads {
		if b, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns"); err == nil && strings.TrimSpace(string(b)) != coarse {
			t.Errorf("thread %s: %s", thread.Name(), b)
		}
	}
	for slack, want := range map[time.Duration]string{0: "50000", time.Millisecond: "1000000"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := &Script{Slack: slack}
		s.Stdio([3]*os.File{nil, w, nil})
		s.Exec([]string{"/bin/cat"}, []string{"cat", "/proc/self/timerslack_ns"}, nil)
		c, err := Spawn(s, SpawnOptions{})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r)
		c.Wait()
		if got := strings.TrimSpace(string(b)); got != want {
			t.Errorf("with a slack of %v it has %s, want %s", slack, got, want)
		}
	}
}
