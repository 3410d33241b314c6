package engine

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/paths"
)

// Of several removals that find the disk full at once one removes the reserve; the others
// have the space that it gave back, and are done again as well.
func TestX27ReserveIsForAllRemovals(t *testing.T) {
	t.Parallel()
	e := &Engine{cfg: Config{Home: paths.Home{State: t.TempDir()}}}
	if err := e.keepReserve(); err != nil {
		t.Fatal(err)
	}
	done := 0
	err := e.freeing(func() error {
		if done++; done > 1 {
			return nil
		}
		return errors.Join(e.freeing(func() error { // another removal, between this one's look at the disk and its look at the reserve
			if _, err := os.Stat(e.reservePath()); err == nil {
				return unix.ENOSPC
			}
			return nil
		}), unix.ENOSPC)
	})
	if err != nil || done != 2 {
		t.Errorf("the second removal was done %d times: %v", done, err)
	}
	if e.spenders != 0 {
		t.Errorf("%d use the reserve's space for ever", e.spenders)
	}
	if err := e.keepReserve(); err != nil {
		t.Errorf("the reserve is not made again: %v", err)
	}
}

// The reserve is not made of the space that a removal needs at this moment.
func TestX27ReserveWaitsForRemovals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		free     int64
		spenders int
		want     bool
	}{{0, 0, true}, {reserveSize, 1, false}, {2*reserveSize - 1, 3, false}, {2 * reserveSize, 3, true}} {
		if got := roomForReserve(c.free, c.spenders); got != c.want {
			t.Errorf("%d bytes are free, %d use them: %v", c.free, c.spenders, got)
		}
	}
	e := &Engine{cfg: Config{Home: paths.Home{State: t.TempDir()}}}
	done := e.spendReserve()
	if e.spenders != 1 {
		t.Errorf("%d use the reserve's space", e.spenders)
	}
	if done(); e.spenders != 0 {
		t.Errorf("%d use the reserve's space afterwards", e.spenders)
	}
}
