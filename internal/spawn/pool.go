package spawn

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
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
	image  bool      // they are whole sandboxes
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
	imageShare = 33               // the same where forks are whole sandboxes, which take a tenth of a second and more of two processors to make
	poolFiles  = 20               // of the files that a keeper may have open, one fork in the pool for so many: it has four for each, seven with a network
	poolHold   = time.Minute      // in which as many are wanted as were asked for at once
	imageHold  = 5 * time.Minute  // the same where forks are whole sandboxes: a hundred take two minutes to make
	poolHalf   = 3 * time.Minute  // after which, and that, half as many are
	poolRetry  = 30 * time.Second // after a failure
	poolIdle   = 10 * time.Minute // after which none are
	coldAfter  = 30 * time.Minute // a template that was not forked, and that has no forks
)

// want is how many forks a pool should have now.
func (p *pool) want(now time.Time) int {
	if now.Sub(p.used) > poolIdle {
		return 0
	}
	hold := poolHold
	if p.image {
		hold = imageHold
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
func (m *Manager) takeSlots(par *warmParent, n int) []*child {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pools[par.t.Name]
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
func (m *Manager) forkBegins() (ended func()) {
	m.mu.Lock()
	m.forkings++
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.forkings--
		m.mu.Unlock()
		m.FillPools()
	}
}

// used notes that a template was forked.
func (m *Manager) used(par *warmParent, n, hits int) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.poolOf(par.t.Name, par.c.ID)
	if n >= p.want(now) {
		p.peak, p.peaked = n, now
	}
	p.used = now
	p.hits += int64(hits)
	p.misses += int64(n - hits)
	m.live.UseInterp(par.c.ID, now)
}

// poolOf returns the pool of a template with an interpreter that is known. The caller holds
// m.mu, and has drained that of an earlier one.
func (m *Manager) poolOf(name string, id cell.ID) *pool {
	p := m.pools[name]
	if p == nil || p.cell != id {
		_, image, _ := m.live.SealedUse(id)
		p = &pool{cell: id, image: image, used: time.Now()}
		m.pools[name] = p
	}
	return p
}

// FillPools makes forks ahead in the background, while no request waits for forks: as many at a time
// as there are processors, and no more than copiesAtOnce.
func (m *Manager) FillPools() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cfg.Life.Err() != nil {
		return
	}
	for ; m.filling < min(runtime.GOMAXPROCS(0), copiesAtOnce); m.filling++ {
		m.cfg.Work(func(ctx context.Context) {
			for m.fillOne(ctx) {
			}
		})
	}
}

// fillOne makes one fork for the pool that lacks one. It reports false, and is one
// filler less, when there is nothing to do now.
func (m *Manager) fillOne(ctx context.Context) bool {
	limit := m.mayPool()
	m.mu.Lock()
	now := time.Now()
	name, all := "", 0
	for _, p := range m.pools {
		all += len(p.slots) + p.making
	}
	if m.forkings == 0 && all < limit && ctx.Err() == nil {
		for n, p := range m.pools {
			if len(p.slots)+p.making < p.want(now) && now.Sub(p.failed) > poolRetry && !m.building[n] && m.live.HasInterp(p.cell) {
				name = n
				break
			}
		}
	}
	if name == "" {
		m.filling--
		m.mu.Unlock()
		return false
	}
	p := m.pools[name]
	p.making++
	m.mu.Unlock()
	ch, err := m.makeAhead(ctx, name, p.cell)
	m.mu.Lock()
	p.making--
	if err == nil && m.pools[name] == p {
		p.slots = append(p.slots, ch)
		m.mu.Unlock()
		return true
	}
	if err != nil {
		p.failed = time.Now()
	}
	m.mu.Unlock()
	if err == nil { // its pool was drained meanwhile
		m.dropChild(ctx, ch, "its template went")
	} else if ctx.Err() == nil {
		m.log.Warn("cannot make a fork ahead", "template", name, "error", err)
	}
	return true
}

func (m *Manager) makeAhead(ctx context.Context, name string, id cell.ID) (*child, error) {
	defer m.cfg.Pin()()
	t, err := m.reg.Template(name)
	if err != nil {
		return nil, err
	}
	if t.Cell != id {
		return nil, cell.Errorf(cell.Conflict, "spawn.pool", "", "cannot make a fork ahead: template %s was built anew", name)
	}
	par, err := m.warmParent(ctx, t)
	if err != nil {
		return nil, err
	}
	return m.makeChild(ctx, par, true)
}

// mayPool is how many forks may wait in all pools: as many as fit into a share
// of the memory, theirs included, and of the open files that can be had.
func (m *Manager) mayPool() int {
	available, _, err := linux.Memory()
	if err != nil {
		return 0
	}
	one, share := int64(0), int64(poolShare)
	m.mu.Lock()
	for name, p := range m.pools {
		its := int64(assumedMemory)
		if p.image {
			its = assumedImage
		}
		if was := m.measured[name]; was != nil && was.memory > 0 {
			its = was.memory
		}
		available += int64(len(p.slots)) * its
		if p.want(time.Now()) == 0 {
			continue
		}
		if p.image {
			share = imageShare
		}
		one = max(one, its)
	}
	available -= m.promised.Memory
	m.mu.Unlock()
	if one == 0 {
		one = assumedMemory
	}
	most := int64(maxPooled)
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
		most = min(most, int64(min(lim.Cur, 1<<30)/poolFiles))
	}
	if m.cfg.Pool != nil {
		most = min(most, int64(*m.cfg.Pool))
	}
	return int(min(max(available-keepBack, 0)*share/100/one, most))
}

// Drain takes the forks of a template away that were made ahead.
func (m *Manager) Drain(ctx context.Context, name, cause string) {
	m.mu.Lock()
	p := m.pools[name]
	delete(m.pools, name)
	m.mu.Unlock()
	if p != nil {
		m.dropSlots(ctx, p.slots, cause)
	}
}

func (m *Manager) dropSlots(ctx context.Context, slots []*child, cause string) {
	var workers sync.WaitGroup
	next := make(chan *child)
	for range min(len(slots), 4) {
		workers.Go(func() {
			for ch := range next {
				m.dropChild(ctx, ch, cause)
			}
		})
	}
	for _, ch := range slots {
		next <- ch
	}
	close(next)
	workers.Wait()
}

// Tend takes away the forks made ahead that will not be needed, and lets go of templates that
// are not used.
func (m *Manager) Tend(ctx context.Context, now time.Time) {
	m.shrinkPools(ctx, now)
	m.chill(ctx, now)
	m.FillPools()
}

// shrinkPools takes away the forks that are too many.
func (m *Manager) shrinkPools(ctx context.Context, now time.Time) {
	limit := m.mayPool()
	var drop []*child
	m.mu.Lock()
	for _, p := range m.pools {
		keep := min(p.want(now), limit)
		limit -= keep
		if len(p.slots) > keep {
			drop = append(drop, p.slots[keep:]...)
			p.slots = p.slots[:keep:keep]
		}
	}
	m.mu.Unlock()
	m.dropSlots(ctx, drop, "it was not needed")
}

// chill lets go of templates that were not forked for long. One with living
// forks stays: its memory is theirs, too.
func (m *Manager) chill(ctx context.Context, now time.Time) {
	for _, t := range m.reg.Templates() {
		last, image, warm := m.live.SealedUse(t.Cell)
		idle := warm && !image && now.Sub(last) > coldAfter
		if !idle || m.reg.CountForks(t.Name) > 0 {
			continue
		}
		if err := m.letGo(ctx, t.Name, fmt.Sprintf("it was not forked for %d minutes", int(coldAfter.Minutes()))); err != nil && cell.KindOf(err) != cell.Conflict {
			m.log.Warn("cannot let go of a template", "template", t.Name, "error", err)
		}
	}
}

// letGo ends a template's interpreter for cause.
func (m *Manager) letGo(ctx context.Context, name, cause string) error {
	release, err := m.claimTemplate(name, "let go of")
	if err != nil {
		return err
	}
	defer release()
	t, err := m.reg.Template(name)
	if err != nil {
		return err
	}
	m.Drain(ctx, name, cause)
	unlock, err := m.cfg.Locks.Acquire(ctx, t.Cell, "rest", nil)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.live.Deactivate(ctx, t.Cell, cause); err != nil {
		return err
	}
	c, err := m.reg.Cell(t.Cell)
	if err != nil {
		return err
	}
	if err := c.To(cell.Idle); err != nil {
		return err
	}
	c.Cause = cause
	return m.reg.Commit(&c)
}

// Use is what templates and the forks that were made ahead of them use now, and how many of these
// there are.
func (m *Manager) Use(ctx context.Context) (list []api.TemplateUse, pooled int) {
	list = []api.TemplateUse{}
	for _, t := range m.reg.Templates() {
		u := api.TemplateUse{Template: t.Name, State: m.standing(&t).State, Cells: m.reg.CountForks(t.Name)}
		if inst := m.live.Instance(t.Cell); inst != nil {
			if st, err := inst.Stats(ctx); err == nil {
				u.Memory = st.Memory
			}
		} else {
			u.Memory = m.imageSize(&t)
		}
		m.mu.Lock()
		if took := m.measured[t.Name]; took != nil {
			u.PerCell = took.memory
		}
		if p := m.pools[t.Name]; p != nil {
			u.Ready, u.Wanted, u.Hits, u.Misses = len(p.slots), p.want(time.Now()), p.hits, p.misses
			if len(p.slots) > 0 {
				u.OldestMS = time.Since(p.slots[0].made).Milliseconds()
			}
			u.IdleMS = time.Since(p.used).Milliseconds()
			pooled += len(p.slots)
		}
		m.mu.Unlock()
		list = append(list, u)
	}
	return list, pooled
}

// Most is how many forks may wait in all pools, and how many bytes of memory are promised to forks
// under way.
func (m *Manager) Most() (pooled int, promised int64) {
	pooled = m.mayPool()
	m.mu.Lock()
	defer m.mu.Unlock()
	return pooled, m.promised.Memory
}

// Close takes away all forks that were made ahead.
func (m *Manager) Close(cause string) {
	for _, t := range m.reg.Templates() {
		m.Drain(context.Background(), t.Name, cause)
	}
}
