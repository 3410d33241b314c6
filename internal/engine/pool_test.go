package engine

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// ready waits until a pool has this many forks, and nobody fills it any more.
func (b *bed) ready(name string, n int) {
	b.Helper()
	b.until("the pool is full", func() bool {
		tm, err := b.Engine.Template(name)
		b.must(err)
		b.mu.Lock()
		defer b.mu.Unlock()
		return tm.Ready == n && b.filling == 0
	})
}

// filled waits until nobody fills pools any more.
func (b *bed) filled() {
	b.Helper()
	b.until("pools are full", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.filling == 0 })
}

func TestPoolFollowsUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.template("warm", "x = 41")
		b.ready("warm", minPooled)
		r := b.fork("warm", api.WarmForkRequest{Count: 5, Eval: "x + 1"})
		if r.Hits != minPooled {
			t.Errorf("%d hits of %d that were ready", r.Hits, minPooled)
		}
		b.ready("warm", 5)
		if r = b.fork("warm", api.WarmForkRequest{Count: 5, Eval: "env PANDO_CELL"}); r.Hits != 5 {
			t.Errorf("%d hits of 5 that were ready", r.Hits)
		}
		for _, f := range r.Forks {
			if repr(f.Result) != f.Cell.Name || !f.Hit {
				t.Errorf("%s says that it is %s", f.Cell.Name, f.Result)
			}
		}
		if len(listOf(b.All())) != 10 {
			t.Errorf("%d cells", len(listOf(b.All())))
		}
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
		if got := (&pool{whole: true, peak: 64, peaked: now.Add(-wholeHold), used: now}).want(now); got != 64 {
			t.Errorf("of whole sandboxes %d are wanted after %v, want 64", got, wholeHold)
		}
		b.ready("warm", 5) // what is being made now would come after it
		b.shrinkPools(b.ctx, time.Now().Add(2*poolIdle))
		b.ready("warm", 0)
	})
}

// Forks are made ahead on all processors, and those on their way are counted.
func TestPoolIsFilledByAllProcessors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		slow := make(chan struct{})
		b.toys.mu.Lock()
		b.toys.slow = slow
		b.toys.mu.Unlock()
		b.template("warm", "x = 41")
		underWay := b.toys.made
		want := min(runtime.GOMAXPROCS(0), copiesAtOnce, minPooled)
		b.until("forks are under way on all processors", func() bool { return underWay() == want })
		slow <- struct{}{}
		b.until("one is made, and whoever made it begins none in the place of the other", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.pools["warm"].size() == 1 && b.filling == 1
		})
		close(slow)
		b.ready("warm", minPooled)
		if n := underWay(); n != minPooled {
			t.Errorf("%d forks were made for a pool of %d", n, minPooled)
		}
	})
}

// What a daemon had made ahead when it was killed, the next one takes away.
func TestF19PooledForksOfADeadDaemon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.template("warm", "x = 41")
		b.ready("warm", minPooled)
		b.mu.Lock()
		old := b.pools["warm"].slots
		b.pools = map[string]*pool{}
		b.mu.Unlock()
		b.reopen()
		for _, ch := range old {
			if b.toys.toy(ch.c.ID) != nil {
				t.Errorf("fork %s lives on", ch.c.ID)
			}
		}
		b.ready("warm", minPooled)
		b.fork("warm", api.WarmForkRequest{Eval: "x + 1"})
	})
}

// A pooled fork that died unseen is made again.
func TestPooledForkThatDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.template("warm", "x = 41")
		b.ready("warm", minPooled)
		b.mu.Lock()
		for _, ch := range b.pools["warm"].slots {
			go b.toys.kill(ch.c.ID, "memory limit")
		}
		slots := b.pools["warm"].slots
		b.mu.Unlock()
		b.until("they are dead", func() bool { return b.toys.toy(slots[0].c.ID) == nil && b.toys.toy(slots[1].c.ID) == nil })
		if r := b.fork("warm", api.WarmForkRequest{Count: 2, Eval: "x + 1"}); r.Hits != 0 || repr(r.Forks[1].Result) != "42" {
			t.Errorf("%+v", r)
		}
	})
}

// A template that nobody uses is let go of, and warmed when it is needed.
func TestUnusedTemplateGoesCold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		tm := b.template("warm", "x = 41")
		b.chill(b.ctx, time.Now())
		if b.alive.Instance(cell.ID(tm.Cell)) == nil {
			t.Fatal("it was let go of at once")
		}
		b.chill(b.ctx, time.Now().Add(2*coldAfter))
		b.until("the daemon has nothing to do", func() bool { return !b.Busy() })
		if tm, _ = b.Engine.Template("warm"); tm.State != templateCold {
			t.Errorf("it is %s", tm.State)
		}
		if r := b.fork("warm", api.WarmForkRequest{Eval: "x + 1"}); repr(r.Forks[0].Result) != "42" {
			t.Errorf("%+v", r)
		}
		b.chill(b.ctx, time.Now().Add(2*coldAfter))
		if tm, _ = b.Engine.Template("warm"); tm.State != templateWarm {
			t.Error("it was let go of although a fork of it lives")
		}
	})
}

// Whole sandboxes may wait in a larger share of the memory: making one takes long.
func TestSharesOfPools(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		whole bool
		share int64
		one   int64
	}{{false, poolShare, assumedMemory}, {true, wholeShare, assumedWhole}} {
		p := &pool{cell: "c-1", whole: x.whole, peak: 5, used: time.Now()}
		e := &Engine{pools: map[string]*pool{"t": p}}
		got := e.mayPool()
		p.slots = make([]*child, 100) // their memory isn't available, and is theirs
		if more := int64(e.mayPool() - got); x.whole && more < x.share*8/10 {
			t.Errorf("where a hundred wait, only %d more may", more)
		}
		available, _, err := linux.Memory()
		if err != nil {
			t.Fatal(err)
		}
		want := max(available-keepBack, 0) * x.share / 100 / x.one
		if want = min(want, maxPooled); int64(got) < want*8/10 || int64(got) > want*12/10+1 {
			t.Errorf("whole %v: %d may wait, about %d fit", x.whole, got, want)
		}
	}
}
