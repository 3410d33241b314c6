package gc

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
	m := New(Config{Home: paths.Home{State: t.TempDir()}})
	if err := m.KeepReserve(); err != nil {
		t.Fatal(err)
	}
	done := 0
	err := m.Freeing(func() error {
		if done++; done > 1 {
			return nil
		}
		return errors.Join(m.Freeing(func() error { // another removal, between this one's look at the disk and its look at the reserve
			if _, err := os.Stat(m.cfg.Home.Reserve()); err == nil {
				return unix.ENOSPC
			}
			return nil
		}), unix.ENOSPC)
	})
	if err != nil || done != 2 {
		t.Errorf("the second removal was done %d times: %v", done, err)
	}
	if m.spenders != 0 {
		t.Errorf("%d use the reserve's space for ever", m.spenders)
	}
	if err := m.KeepReserve(); err != nil {
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
	}{{0, 0, true}, {ReserveSize, 1, false}, {2*ReserveSize - 1, 3, false}, {2 * ReserveSize, 3, true}} {
		if got := roomForReserve(c.free, c.spenders); got != c.want {
			t.Errorf("%d bytes are free, %d use them: %v", c.free, c.spenders, got)
		}
	}
	m := New(Config{Home: paths.Home{State: t.TempDir()}})
	done := m.SpendReserve()
	if m.spenders != 1 {
		t.Errorf("%d use the reserve's space", m.spenders)
	}
	if done(); m.spenders != 0 {
		t.Errorf("%d use the reserve's space afterwards", m.spenders)
	}
}
