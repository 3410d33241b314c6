package spawn

import (
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/linux"
)

func TestPoolWants(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		past, idle time.Duration // since the most were asked for, and since any were
		want       int
	}{
		{0, 0, 64}, {poolHold, poolHold, 64}, {poolHold + poolHalf, poolHold + poolHalf, 32}, {poolHold + 2*poolHalf, poolHalf, 16},
		{poolHold + poolHalf, 0, 32}, {time.Hour, 0, minPooled}, {poolIdle + 1, poolIdle + 1, 0},
	} {
		p := &pool{peak: 64, peaked: now.Add(-c.past), used: now.Add(-c.idle)}
		if got := p.want(now); got != c.want {
			t.Errorf("%v after the most, %v after the last, %d are wanted, want %d", c.past, c.idle, got, c.want)
		}
	}
	if got := (&pool{image: true, peak: 64, peaked: now.Add(-imageHold), used: now}).want(now); got != 64 {
		t.Errorf("of whole sandboxes %d are wanted after %v, want 64", got, imageHold)
	}
}

// Whole sandboxes may wait in a larger share of the memory: making one takes long.
func TestSharesOfPools(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		image bool
		share int64
		one   int64
	}{{false, poolShare, assumedMemory}, {true, imageShare, assumedImage}} {
		p := &pool{cell: "c-1", image: x.image, peak: 5, used: time.Now()}
		m := New(Config{})
		m.pools["t"] = p
		got := m.mayPool()
		p.slots = make([]*child, 100) // their memory isn't available, and is theirs
		if more := int64(m.mayPool() - got); x.image && more < x.share*8/10 {
			t.Errorf("where a hundred wait, only %d more may", more)
		}
		available, _, err := linux.Memory()
		if err != nil {
			t.Fatal(err)
		}
		want := max(available-keepBack, 0) * x.share / 100 / x.one
		if want = min(want, maxPooled); int64(got) < want*8/10 || int64(got) > want*12/10+1 {
			t.Errorf("image %v: %d may wait, about %d fit", x.image, got, want)
		}
	}
}
