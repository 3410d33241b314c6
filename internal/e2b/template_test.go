package e2b

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A build that is begun and not started fails after a time, and what it left is removed once. Files
// that come for it prolong that; a build that was started has no such end, and starts once.
func TestBuildsThatAreNotStartedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var removed atomic.Int32
		status := func(b *build) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.status
		}
		b := &build{status: buildWaiting}
		b.await(func() { removed.Add(1) })
		time.Sleep(startLimit - time.Minute)
		b.stays()
		time.Sleep(startLimit - time.Minute)
		if synctest.Wait(); status(b) != buildWaiting || removed.Load() != 0 {
			t.Fatalf("after its files came: %s, removed %d times", status(b), removed.Load())
		}
		time.Sleep(2 * time.Minute)
		if synctest.Wait(); status(b) != buildFailed || !strings.Contains(b.reason, "not started") || removed.Load() != 1 {
			t.Fatalf("after its time: %s (%s), removed %d times", status(b), b.reason, removed.Load())
		}
		if b.stays(); b.start() || status(b) != buildFailed {
			t.Fatalf("a failed build starts: %s", status(b))
		}

		b = &build{status: buildWaiting}
		b.await(func() { removed.Add(1) })
		if !b.start() || b.start() {
			t.Fatal("a build does not start once")
		}
		b.stays()
		time.Sleep(3 * startLimit)
		if synctest.Wait(); status(b) != buildRunning || removed.Load() != 1 {
			t.Fatalf("a running build: %s, removed %d times", status(b), removed.Load())
		}
		b.mu.Lock()
		b.status = buildReady
		b.mu.Unlock()
		if b.start() || status(b) != buildReady {
			t.Fatalf("a build that is ready starts again: %s", status(b))
		}
	})
}
