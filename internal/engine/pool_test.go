package engine

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// minPooled is how many forks are made ahead of a template that was used once.
const minPooled = 2

// ready waits until a pool has this many forks, and is filled no more.
func (b *bed) ready(name string, n int) {
	b.Helper()
	b.until("the pool is full", func() bool {
		tm, err := b.spawn.Template(name)
		b.must(err)
		return tm.Ready == n
	})
	b.filled()
}

// filled waits until pools are full, and are filled no more.
func (b *bed) filled() {
	b.Helper()
	b.until("pools are full", func() bool {
		use, _ := b.spawn.Use(b.ctx)
		return !slices.ContainsFunc(use, func(u api.TemplateUse) bool { return u.Ready < u.Wanted })
	})
}

func TestPoolFollowsUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.ctx = context.Background()
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
		b.ready("warm", 5)
		time.Sleep(20 * time.Minute)
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
		want := min(runtime.GOMAXPROCS(0), minPooled)
		b.until("forks are under way on all processors", func() bool { return underWay() == want })
		slow <- struct{}{}
		b.until("one is made", func() bool { _, n := b.spawn.Use(b.ctx); return n == 1 })
		synctest.Wait()
		if n := underWay(); n != want {
			t.Errorf("%d are under way, one in the place of the other", n)
		}
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
		old := b.ahead()
		b.die()
		b.open()
		b.gone(old)
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
		for _, id := range b.ahead() {
			b.toys.kill(id, "memory limit")
		}
		if r := b.fork("warm", api.WarmForkRequest{Count: 2, Eval: "x + 1"}); r.Hits != 0 || repr(r.Forks[1].Result) != "42" {
			t.Errorf("%+v", r)
		}
	})
}

// A template that is not used is let go of, and warmed when it is needed.
func TestUnusedTemplateGoesCold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.ctx = context.Background()
		tm := b.template("warm", "x = 41")
		time.Sleep(29 * time.Minute)
		if b.alive.Instance(cell.ID(tm.Cell)) == nil {
			t.Fatal("it was let go of too soon")
		}
		time.Sleep(2 * time.Minute)
		b.until("the daemon has nothing to do", func() bool { return !b.Busy() })
		if tm, _ = b.spawn.Template("warm"); tm.State != "cold" {
			t.Errorf("it is %s", tm.State)
		}
		if r := b.fork("warm", api.WarmForkRequest{Eval: "x + 1"}); repr(r.Forks[0].Result) != "42" {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Hour)
		if tm, _ = b.spawn.Template("warm"); tm.State != "warm" {
			t.Error("it was let go of although a fork of it lives")
		}
	})
}
