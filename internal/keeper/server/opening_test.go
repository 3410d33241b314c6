package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// Input is held back until a program reads byte by byte and its screen is at rest, and never for
// longer than its limit or its life.
func TestInputWaitsForTheScreen(t *testing.T) {
	for _, x := range []struct {
		name  string
		raw   time.Duration // when it begins to read byte by byte
		draws [2]time.Duration
		ends  time.Duration
		want  time.Duration // at least, and two ticks more at most
	}{
		{"a screen", time.Second, [2]time.Duration{2 * time.Second, 3 * time.Second}, time.Hour, 3*time.Second + openingRest},
		{"a prompt of lines", time.Hour, [2]time.Duration{0, time.Second}, time.Hour, openingLimit},
		{"no output", 0, [2]time.Duration{time.Hour, time.Hour}, time.Hour, openingLimit},
		{"output without rest", 0, [2]time.Duration{0, time.Hour}, time.Hour, openingLimit},
		{"an early end", time.Hour, [2]time.Duration{0, 0}, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				since := func() time.Duration { return time.Since(began) }
				written := func() int64 {
					if since() < x.draws[0] {
						return 0
					}
					return 1 + int64((min(since(), x.draws[1])-x.draws[0])/openingTick)
				}
				over := make(chan struct{})
				ends := time.AfterFunc(x.ends, func() { close(over) })
				defer ends.Stop()
				awaitScreen(func() bool { return since() >= x.raw }, written, over, began.Add(openingLimit))
				if d := since(); d < x.want || d > x.want+2*openingTick {
					t.Errorf("it was held back for %s, not %s", d, x.want)
				}
			})
		})
	}
}
