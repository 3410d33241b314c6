package engine

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Those who are quick never run beside more than may; those who wait for something keep
// the others waiting for no longer than their turn.
func TestInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, ended atomic.Int64
		inTurns(20, 3, time.Second, func(int) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Millisecond)
			now.Add(-1)
			ended.Add(1)
		})
		if most.Load() != 3 || ended.Load() != 20 {
			t.Errorf("%d of 20 have ended, %d at once; want 20, 3", ended.Load(), most.Load())
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
