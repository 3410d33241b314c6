package engine

import (
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// ready waits until a pool has this many forks, and nobody fills it any more.
func (b *bed) ready(name string, n int) {
	b.Helper()
	b.until("the pool is full", func() bool {
		tm, err := b.Engine.Template(name)
		b.must(err)
		b.mu.Lock()
		defer b.mu.Unlock()
		return tm.Ready == n && !b.filling
	})
}

func TestPoolFollowsUse(t *testing.T) {
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
	if len(b.Cells()) != 10 {
		t.Errorf("%d cells", len(b.Cells()))
	}
	p := &pool{peak: 64, used: time.Now()}
	for _, c := range []struct {
		idle time.Duration
		want int
	}{{0, 64}, {poolHalf, 32}, {2 * poolHalf, 16}, {poolIdle + 1, 0}} {
		if got := p.want(p.used.Add(c.idle)); got != c.want {
			t.Errorf("after %v %d are wanted, want %d", c.idle, got, c.want)
		}
	}
	b.ready("warm", 5) // what is being made now would come after it
	b.shrinkPools(b.ctx, time.Now().Add(2*poolIdle))
	b.ready("warm", 0)
}

// What a daemon had made ahead when it was killed, the next one takes away.
func TestF19PooledForksOfADeadDaemon(t *testing.T) {
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
}

// A pooled fork that died unseen is made again.
func TestPooledForkThatDied(t *testing.T) {
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
}

// A template that nobody uses is let go of, and warmed when it is needed.
func TestUnusedTemplateGoesCold(t *testing.T) {
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 41")
	b.chill(b.ctx, time.Now())
	if b.instance(cell.ID(tm.Cell)) == nil {
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
}

// Whole sandboxes may wait in a larger share of the memory: making one takes long.
func TestSharesOfPools(t *testing.T) {
	for _, x := range []struct {
		whole bool
		share int64
		one   int64
	}{{false, poolShare, assumedMemory}, {true, wholeShare, assumedWhole}} {
		e := &Engine{pools: map[string]*pool{"t": {cell: "c-1", peak: 5, used: time.Now()}}, interps: map[cell.ID]*interp{"c-1": {whole: x.whole}}}
		got := e.mayPool()
		available, _, err := hostMemory()
		if err != nil {
			t.Fatal(err)
		}
		want := max(available-keepBack, 0) * x.share / 100 / x.one
		if want = min(want, maxPooled); int64(got) < want*8/10 || int64(got) > want*12/10+1 {
			t.Errorf("whole %v: %d may wait, about %d fit", x.whole, got, want)
		}
	}
}
