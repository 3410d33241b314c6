package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

var crowdAxis = Axis{
	Name:    "crowd",
	About:   "sandboxes that many programs create at once and soon kill, below a ceiling with a queue, below one without, and with none",
	measure: measureCrowd,
}

// The ways of being created, and what the ceilings of each say.
const (
	loadFree    = "no ceiling"
	loadQueued  = "ceiling, queue"
	loadRefused = "ceiling, no queue"
)

// loadSize is how much load is made.
type loadSize struct {
	sandboxes int // in one round
	clients   int // at once, where none waits for its time
	cells     int // that there may be at once
	every     time.Duration
	lives     time.Duration // a sandbox of the slow case
}

// askAgain is when a client that was refused asks again. Retry-After says when the next
// sandbox's time is over, and these are killed before.
const askAgain = 100 * time.Millisecond

func measureCrowd(ctx context.Context, l *lab, out *AxisResult) error {
	z := loadSize{sandboxes: 100, clients: 16, cells: 8, every: time.Second, lives: 5 * time.Second}
	if l.quick {
		z = loadSize{sandboxes: 12, clients: 4, cells: 2, every: 200 * time.Millisecond, lives: 300 * time.Millisecond}
	}
	fast := fmt.Sprintf("%d at once", z.clients)
	slow := fmt.Sprintf("%d in %v", z.sandboxes, time.Duration(z.sandboxes)*z.every)
	var list []contestant
	for _, way := range []struct{ name, ceilings string }{
		{loadFree, "doors: {e2b: {cells: none}}"},
		{loadQueued, fmt.Sprintf("queue: {length: %d, wait: 60s}\ndoors: {e2b: {cells: %d}}", z.sandboxes, z.cells)},
		{loadRefused, fmt.Sprintf("queue: {length: none}\ndoors: {e2b: {cells: %d}}", z.cells)},
	} {
		inst, err := l.install()
		if err != nil {
			return err
		}
		defer inst.close(ctx)
		if ok, err := inst.works(ctx, out, way.name); !ok || err != nil {
			return err
		}
		if err := inst.stop(ctx); err != nil {
			return err
		}
		file := filepath.Join(inst.dir, "ceilings.yaml")
		if err := os.WriteFile(file, []byte("version: 1\n"+way.ceilings+"\n"), 0o600); err != nil {
			return err
		}
		at, err := inst.serve(ctx, "--ceilings", file)
		if err != nil {
			return err
		}
		defer at.close()
		list = append(list, contestant{name: way.name, ours: true, command: "what Sandbox.create and kill of E2B's SDKs send, at pando serve --ceilings FILE with " + way.ceilings,
			round: func(ctx context.Context, r *recorder) error {
				b := &burst{at: at, again: way.name == loadRefused}
				began := time.Now()
				if err := b.atOnce(ctx, z); err != nil {
					return err
				}
				took := time.Since(began)
				b.record(r, fast)
				r.put(fast+", rate", round(float64(z.sandboxes)/took.Seconds()))
				r.put(fast+", refused", float64(b.refused.Load()))
				if r.n > 1 || way.name == loadRefused {
					return nil // it takes its time, and is the same with and without a queue
				}
				b = &burst{at: at}
				if err := b.oneByOne(ctx, z, r.n == 0); err != nil {
					return err
				}
				b.record(r, slow)
				return nil
			}})
	}
	p99 := func(name string) Case {
		return Case{Name: name + ", p99", What: "of that, the 99th percentile of each round (nearest rank)"}
	}
	return l.hold(ctx, out, contest{contestants: list, cases: []Case{
		{Name: fast, What: fmt.Sprintf("%d sandboxes by %d clients, each of which creates one, executes /bin/true in it, kills it and goes on; of %d at most at once. From the first request to the sandbox: in the queue, or asked for again after %v", z.sandboxes, z.clients, z.cells, askAgain)},
		p99(fast),
		{Name: fast + ", rate", Unit: "/s", What: "how many were created, used and killed in a second"},
		{Name: fast + ", refused", Unit: "times", What: "how often a client was refused, and asked again"},
		{Name: slow, What: fmt.Sprintf("one after %v, each of which lives for %v: fewer at once than may be; once, not in each round", z.every, z.lives)},
		p99(slow),
	}})
}

// burst is sandboxes that are created by many clients.
type burst struct {
	at      *served
	again   bool // a refused request is sent again
	refused atomic.Int64

	mu   sync.Mutex // guards took
	took []float64  // ms of each create
}

// record puts all creates, and their 99th percentile.
func (b *burst) record(r *recorder, name string) {
	for _, ms := range b.took {
		r.put(name, ms)
	}
	r.put(name+", p99", percentile(b.took, 99))
}

// create creates a sandbox through a door of its own.
func (b *burst) create(ctx context.Context) (door, string, error) {
	d := b.at.e2b()
	began := time.Now()
	for {
		id, err := d.create(ctx)
		r, ok := errors.AsType[*refusal](err)
		if err == nil {
			b.mu.Lock()
			b.took = append(b.took, toMS(time.Since(began)))
			b.mu.Unlock()
		}
		if !b.again || !ok || r.status != http.StatusTooManyRequests {
			return d, id, err
		}
		b.refused.Add(1)
		select {
		case <-ctx.Done():
			return d, "", context.Cause(ctx)
		case <-time.After(askAgain):
		}
	}
}

// atOnce creates sandboxes as fast as it goes.
func (b *burst) atOnce(ctx context.Context, z loadSize) error {
	numbers := func(yield func(int) bool) {
		for i := range z.sandboxes {
			if !yield(i) {
				return
			}
		}
	}
	return each(z.clients, numbers, func(int) error {
		d, id, err := b.create(ctx)
		if err != nil {
			return err
		}
		return errors.Join(d.exec(ctx, id), d.remove(ctx, id))
	})
}

// oneByOne creates one after the other, each at its time; few to warm up.
func (b *burst) oneByOne(ctx context.Context, z loadSize, warm bool) error {
	n := z.sandboxes
	if warm {
		n = min(n, 3)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	tick := time.NewTicker(z.every)
	defer tick.Stop()
	for i := range n {
		all.Go(func() {
			d, id, err := b.create(ctx)
			if errs[i] = err; err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(z.lives):
			}
			errs[i] = d.remove(context.WithoutCancel(ctx), id)
		})
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	all.Wait()
	return errors.Join(errs...)
}
