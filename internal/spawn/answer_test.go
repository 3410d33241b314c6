package spawn

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Quick acts never run beside more than may; acts that wait for something keep the others
// waiting for no longer than their turn.
func TestInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards what follows
		var now, most, ended int
		inTurns(20, 3, time.Second, func(int) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			now, ended = now-1, ended+1
			mu.Unlock()
		})
		if most != 3 || ended != 20 {
			t.Errorf("%d of 20 have ended, %d at once; want 20, 3", ended, most)
		}

		var begun atomic.Int64
		release := make(chan struct{})
		done := make(chan struct{})
		go func() {
			inTurns(6, 2, time.Second, func(int) {
				begun.Add(1)
				<-release
			})
			close(done)
		}()
		for turn := range 3 {
			synctest.Wait()
			if got := int(begun.Load()); got != 2*(turn+1) {
				t.Errorf("in turn %d %d have begun, want %d", turn, got, 2*(turn+1))
			}
			time.Sleep(time.Second)
		}
		close(release)
		<-done
	})
}
