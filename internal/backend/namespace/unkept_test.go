package namespace

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A signal that waits for the end of its handler is no state that a fork would lose; one that stays
// blocked is.
func TestSignalsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const none, alarm = "SigPnd:\t0\nShdPnd:\t0\nSigBlk:\t2000\n", "SigPnd:\t0\nShdPnd:\t2000\nSigBlk:\t2000\n"
		for _, c := range []struct {
			reads int // with the signal
			want  []string
		}{{0, nil}, {20, nil}, {1 << 20, []string{"SIGALRM"}}} {
			n, began := 0, time.Now()
			_, got, err := settled(func() ([]byte, error) {
				if n++; n > c.reads {
					return []byte(none), nil
				}
				return []byte(alarm), nil
			})
			if err != nil || !slices.Equal(got, c.want) || time.Since(began) > 2*handlerGrace {
				t.Errorf("after %d reads with it %v wait, %v", c.reads, got, err)
			}
		}
	})
}
