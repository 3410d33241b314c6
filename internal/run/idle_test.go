package run

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A run is idle when all that is seen of it has stood still for the whole period, but for timers; a
// little work at any time begins the period anew, and what can't be seen is work.
func TestF31IdleRuns(t *testing.T) {
	const period = 20 * time.Second
	for _, x := range []struct {
		name string
		look func(since time.Duration) (doing, bool)
		want []time.Duration // when it sleeps, within 70 s
	}{
		{"nothing", func(time.Duration) (doing, bool) { return doing{cpu: 5}, true }, []time.Duration{period, 2 * period, 3 * period}},
		{"timers", func(d time.Duration) (doing, bool) { return doing{cpu: d.Microseconds() / 50}, true }, []time.Duration{period, 2 * period, 3 * period}},
		{"a busy processor", func(d time.Duration) (doing, bool) { return doing{cpu: d.Microseconds() / 20}, true }, nil},
		{"output", func(d time.Duration) (doing, bool) { return doing{output: int64(d / (15 * time.Second)), cpu: 5}, true }, nil},
		{"requests", func(d time.Duration) (doing, bool) { return doing{events: int64(d / (15 * time.Second)), cpu: 5}, true }, nil},
		{"a process that ended", func(d time.Duration) (doing, bool) { return doing{cpu: max(5, 25-int64(d/time.Second))}, true }, []time.Duration{2 * period, 3 * period}},
		{"unseen", func(time.Duration) (doing, bool) { return doing{}, false }, nil},
		{"unseen for a moment", func(d time.Duration) (doing, bool) { return doing{cpu: 5}, d != 10*time.Second }, []time.Duration{31 * time.Second, 51 * time.Second}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
				defer cancel()
				began := time.Now()
				var slept []time.Duration
				watchIdle(ctx, period, func() (doing, bool) { return x.look(time.Since(began)) }, func() { slept = append(slept, time.Since(began)) })
				if len(slept) != len(x.want) {
					t.Fatalf("it sleeps at %v, not %v", slept, x.want)
				}
				for i := range slept {
					if slept[i] != x.want[i] {
						t.Errorf("it sleeps at %v, not %v", slept, x.want)
					}
				}
			})
		})
	}
}
