package engine

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// pool is the forks of a template that were made ahead: complete but for their
// identity. They are the daemon's, recorded nowhere; the next one takes away
// what this one leaves. Their number follows use.
type pool struct {
	cell   cell.ID // the template's: forks of an earlier one are none of this
	slots  []*child
	making int       // forks on their way there
	whole  bool      // they are whole sandboxes
	peak   int       // the most forks that were asked for at once, lately
	peaked time.Time // when that was
	hits   int64
	misses int64
	used   time.Time
	failed time.Time // when making one failed; it is not tried again at once
}

const (
	maxPooled  = 1024             // forks in all pools
	minPooled  = 2                // for a template that is used at all
	poolShare  = 10               // percent of the memory that may be had, at most
	wholeShare = 33               // the same where forks are whole sandboxes, which take a tenth of a second and more of two processors to make
	poolFiles  = 20               // of the files that a keeper may have open, one fork in the pool for so many: it has four for each, seven with a network
	poolHold   = time.Minute      // in which as many are wanted as were asked for at once
	wholeHold  = 5 * time.Minute  // the same where forks are whole sandboxes: a hundred take two minutes to make
	poolHalf   = 3 * time.Minute  // after which, and that, half as many are
	poolRetry  = 30 * time.Second // after a failure
	poolIdle   = 10 * time.Minute // after which none are
	coldAfter  = 30 * time.Minute // a template that nobody forked, and that has no forks
	houseEvery = 10 * time.Second
)

// want is how many forks a pool should have now.
func (p *pool) want(now time.Time) int {
	if now.Sub(p.used) > poolIdle {
		return 0
	}
	hold := poolHold
	if p.whole {
		hold = wholeHold
	}
	past := max(now.Sub(p.peaked)-hold, 0)
	n := float64(p.peak) * math.Exp2(-float64(past)/float64(poolHalf))
	return min(max(int(math.Ceil(n)), minPooled), maxPooled)
}

func (p *pool) size() int {
	if p == nil {
		return 0
	}
	return len(p.slots)
}

// takeSlots takes up to n forks that were made ahead.
func (e *Engine) takeSlots(par *warmParent, n int) []*child {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pools[par.t.Name]
	if p == nil || p.cell != par.c.ID {
		return nil
	}
	n = min(n, len(p.slots))
	out := p.slots[:n:n]
	p.slots = p.slots[n:]
	return out
}

// forkBegins keeps pools from being filled while forks are made, until ended is
// called.
func (e *Engine) forkBegins() (ended func()) {
	e.mu.Lock()
	e.forkings++
	e.mu.Unlock()
	return func() {
		e.mu.Lock()
		e.forkings--
		e.mu.Unlock()
		e.fillPools()
	}
}

// used notes that a template was forked.
func (e *Engine) used(par *warmParent, n, hits int) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.poolOf(par.t.Name, par.c.ID)
	if n >= p.want(now) {
		p.peak, p.peaked = n, now
	}
	p.used = now
	p.hits += int64(hits)
	p.misses += int64(n - hits)
	e.alive.UseInterp(par.c.ID, now)
}

// poolOf returns the pool of a template, whose interpreter is known. The caller holds
// e.mu, and has drained that of an earlier one.
func (e *Engine) poolOf(name string, id cell.ID) *pool {
	p := e.pools[name]
	if p == nil || p.cell != id {
		it, _ := e.alive.Interp(id)
		p = &pool{cell: id, whole: it.Image, used: time.Now()}
		e.pools[name] = p
	}
	return p
}

// fillPools makes forks ahead in the background, while nobody waits for forks: as many
// at a time as there are processors, of which a fork on its way takes one at most, up
// to copiesAtOnce.
func (e *Engine) fillPools() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil {
		return
	}
	for ; e.filling < min(runtime.GOMAXPROCS(0), copiesAtOnce); e.filling++ {
		e.work.Go(func() {
			for e.fillOne(e.life) {
			}
		})
	}
}

// fillOne makes one fork for the pool that lacks one. It reports false, and is one
// filler less, when there is nothing to do now.
func (e *Engine) fillOne(ctx context.Context) bool {
	limit := e.mayPool()
	e.mu.Lock()
	now := time.Now()
	name, all := "", 0
	for _, p := range e.pools {
		all += len(p.slots) + p.making
	}
	if e.forkings == 0 && all < limit && ctx.Err() == nil {
		for n, p := range e.pools {
			if len(p.slots)+p.making < p.want(now) && now.Sub(p.failed) > poolRetry && !e.building[n] && e.alive.HasInterp(p.cell) {
				name = n
				break
			}
		}
	}
	if name == "" {
		e.filling--
		e.mu.Unlock()
		return false
	}
	p := e.pools[name]
	p.making++
	e.mu.Unlock()
	ch, err := e.makeAhead(ctx, name, p.cell)
	e.mu.Lock()
	p.making--
	if err == nil && e.pools[name] == p {
		p.slots = append(p.slots, ch)
		e.mu.Unlock()
		return true
	}
	if err != nil {
		p.failed = time.Now()
	}
	e.mu.Unlock()
	if err == nil { // its pool was drained meanwhile
		e.dropChild(ctx, ch, "its template went")
	} else if ctx.Err() == nil {
		e.log.Warn("cannot make a fork ahead", "template", name, "error", err)
	}
	return true
}

func (e *Engine) makeAhead(ctx context.Context, name string, id cell.ID) (*child, error) {
	defer e.pins.Begin().End()
	t, err := e.reg.Template(name)
	if err != nil {
		return nil, err
	}
	if t.Cell != id {
		return nil, cell.Errorf(cell.Conflict, "engine.pool", "", "cannot make a fork ahead: template %s was built anew", name)
	}
	par, err := e.warmParent(ctx, t)
	if err != nil {
		return nil, err
	}
	return e.makeChild(ctx, par, true)
}

// mayPool is how many forks may wait in all pools: as many as fit into a share
// of the memory, theirs included, and of the open files that can be had.
func (e *Engine) mayPool() int {
	available, _, err := linux.Memory()
	if err != nil {
		return 0
	}
	one, share := int64(0), int64(poolShare)
	e.mu.Lock()
	for name, p := range e.pools {
		its := int64(assumedMemory)
		if p.whole {
			its = assumedWhole
		}
		if m := e.measured[name]; m != nil && m.memory > 0 {
			its = m.memory
		}
		available += int64(len(p.slots)) * its
		if p.want(time.Now()) == 0 {
			continue
		}
		if p.whole {
			share = wholeShare
		}
		one = max(one, its)
	}
	available -= e.promised.memory
	e.mu.Unlock()
	if one == 0 {
		one = assumedMemory
	}
	most := int64(maxPooled)
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
		most = min(most, int64(min(lim.Cur, 1<<30)/poolFiles))
	}
	if e.cfg.Pool != nil {
		most = min(most, int64(*e.cfg.Pool))
	}
	return int(min(max(available-keepBack, 0)*share/100/one, most))
}

// drain takes the forks of a template away that were made ahead.
func (e *Engine) drain(ctx context.Context, name, cause string) {
	e.mu.Lock()
	p := e.pools[name]
	delete(e.pools, name)
	e.mu.Unlock()
	if p != nil {
		e.dropSlots(ctx, p.slots, cause)
	}
}

func (e *Engine) dropSlots(ctx context.Context, slots []*child, cause string) {
	var workers sync.WaitGroup
	next := make(chan *child)
	for range min(len(slots), 4) {
		workers.Go(func() {
			for ch := range next {
				e.dropChild(ctx, ch, cause)
			}
		})
	}
	for _, ch := range slots {
		next <- ch
	}
	close(next)
	workers.Wait()
}

// keepHouse looks, now and then, which forks made ahead nobody will need, and
// which templates nobody uses.
func (e *Engine) keepHouse() {
	tick := time.NewTicker(houseEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.life.Done():
			return
		case now := <-tick.C:
			e.shrinkPools(e.life, now)
			e.chill(e.life, now)
			e.fillPools()
			e.expireUploads(now)
		}
	}
}

// shrinkPools takes away the forks that are too many.
func (e *Engine) shrinkPools(ctx context.Context, now time.Time) {
	limit := e.mayPool()
	var drop []*child
	e.mu.Lock()
	for _, p := range e.pools {
		keep := min(p.want(now), limit)
		limit -= keep
		if len(p.slots) > keep {
			drop = append(drop, p.slots[keep:]...)
			p.slots = p.slots[:keep:keep]
		}
	}
	e.mu.Unlock()
	e.dropSlots(ctx, drop, "nobody needed it")
}

// chill lets go of templates that nobody has forked for long. One with living
// forks stays: its memory is theirs, too.
func (e *Engine) chill(ctx context.Context, now time.Time) {
	for _, t := range e.reg.Templates() {
		it, warm := e.alive.Interp(t.Cell)
		idle := warm && !it.Image && now.Sub(it.Used) > coldAfter
		if !idle || e.forksOf(t.Name) > 0 {
			continue
		}
		if err := e.letGo(ctx, t.Name, fmt.Sprintf("nobody forked it for %d minutes", int(coldAfter.Minutes()))); err != nil && cell.KindOf(err) != cell.Conflict {
			e.log.Warn("cannot let go of a template", "template", t.Name, "error", err)
		}
	}
}

// letGo ends a template's interpreter for cause.
func (e *Engine) letGo(ctx context.Context, name, cause string) error {
	release, err := e.claimTemplate(name, "let go of")
	if err != nil {
		return err
	}
	defer release()
	t, err := e.reg.Template(name)
	if err != nil {
		return err
	}
	e.drain(ctx, name, cause)
	unlock, err := e.locks.Acquire(ctx, t.Cell, "rest", nil)
	if err != nil {
		return err
	}
	defer unlock()
	if err := e.alive.Deactivate(ctx, t.Cell, cause); err != nil {
		return err
	}
	c, err := e.reg.Cell(t.Cell)
	if err != nil {
		return err
	}
	if err := c.To(cell.Idle); err != nil {
		return err
	}
	c.Cause = cause
	return e.reg.Commit(&c)
}
