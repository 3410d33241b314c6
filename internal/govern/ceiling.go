package govern

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// Admission: a request that makes cells claims them first. Beyond how many there may be at
// once it waits in a queue, for a while, and is refused then with what is in use and which
// ceiling that meets. See package ceiling for what holds for which caller.

// ReadCeilings reads the operator's file of ceilings and merges it over the built-in ones. "" is
// ceiling.Path, which need not exist.
func ReadCeilings(path string, h policy.Host) (*ceiling.Set, error) {
	text, err := readPolicy(cmp.Or(path, ceiling.Path), false)
	switch {
	case path == "" && errors.Is(err, fs.ErrNotExist):
		return ceiling.BuiltIn(h), nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, cell.Errorf(cell.NotFound, "govern.ReadCeilings", "", "cannot read ceilings %s: no such file", path)
	case err != nil:
		return nil, err
	}
	return ceiling.Parse(cmp.Or(path, ceiling.Path), text, h)
}

// SetCeilings replaces the ceilings of cells that are made from now on; nil removes all of them. Call
// Recount of the registry afterwards, which counts cells by them.
func (m *Manager) SetCeilings(s *ceiling.Set) { m.ceilings.Store(s) }

// Keep is how long a cell is kept that is paused, and by which ceiling; 0 for ever.
func (m *Manager) Keep(l *state.Lease) (time.Duration, string) {
	b := m.ceilings.Load().For(ceiling.Caller{Door: l.Door, Token: l.Owner, TokenName: l.OwnerName, Labels: l.Labels})
	return b.Keep, b.KeepBy
}

// Within brings limits that were made of policies within a caller's ceilings: a limit that was
// not asked for is the door's default, and none is above its maximum. What the request itself
// asks for beyond that is refused.
func Within(r *policy.Result, requested string, b ceiling.Bounds) error {
	for _, name := range ceiling.Names() {
		now, origin := r.Limits.Get(name), r.Origins.Lines["limits."+name]
		d, most := b.Default.Get(name), b.Max.Get(name)
		if d > 0 && !slices.Contains(r.Asked, name) && (now == 0 || d < now) {
			r.Limits.Set(name, d)
			r.Origins.Lines["limits."+name] = b.DefaultBy[name]
			now = d
		}
		if most == 0 || now > 0 && now <= most {
			continue
		}
		if now > 0 && (policy.OfRequest(origin) || requested != "" && strings.HasPrefix(origin, requested+":")) {
			return cell.Errorf(cell.Denied, "govern.ceiling", fmt.Sprintf("ask for %s at most", ceiling.Text(name, most)),
				"cannot allow %s of %s: the ceiling is %s (%s)", name, ceiling.Text(name, now), ceiling.Text(name, most), b.By[name])
		}
		r.Limits.Set(name, most)
		r.Origins.Lines["limits."+name] = b.By[name]
	}
	return nil
}

// queue are the requests that wait for a claim, oldest first.
type queue struct {
	mu      sync.Mutex // guards what follows. It stands before registry.mu.
	waiting []*waiter
	refused map[ceiling.Scope]int64 // how many were refused, by the scope of the ceiling
	waited  map[ceiling.Scope]int64 // how many had to wait
}

type waiter struct{ counts []ceiling.Count }

// behind is the count of a request in which another waits that came before; nil for none.
// w is nil for one that does not wait yet.
func (q *queue) behind(w *waiter, counts []ceiling.Count) *ceiling.Count {
	for _, other := range q.waiting {
		if other == w {
			break
		}
		for i, x := range counts {
			if slices.ContainsFunc(other.counts, func(y ceiling.Count) bool { return y.Scope == x.Scope }) {
				return &counts[i]
			}
		}
	}
	return nil
}

// tryClaim claims cells unless another request waits for the same. full says why the
// request has to wait.
func (m *Manager) tryClaim(w *waiter, q state.ClaimRequest) (c *state.Claim, done func(), full *state.Occupied, err error) {
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	if x := m.queue.behind(w, q.Counts); x != nil {
		return nil, nil, &state.Occupied{Count: *x, Used: m.cfg.Records.InUse(*x), N: q.N}, nil
	}
	c, done, err = m.cfg.Records.Claim(q)
	if full, ok := err.(*state.Occupied); ok {
		return nil, nil, full, nil
	}
	return c, done, nil, err
}

// Drained refuses to make cells while the daemon takes no new work.
func (m *Manager) Drained(n int) error {
	if !m.draining.Load() {
		return nil
	}
	return cell.Errorf(cell.Unavailable, "govern.admit", "ask another daemon, or have this one take work again: pando daemon drain --undo", "cannot make %s: the daemon takes no new work", counted(n, "cell"))
}

// Admit claims cells, and waits for its turn as long as the queue allows.
func (m *Manager) Admit(ctx context.Context, q state.ClaimRequest) (*state.Claim, func(), error) {
	if err := m.Drained(q.N); err != nil {
		return nil, nil, err
	}
	c, done, full, err := m.tryClaim(nil, q)
	if full == nil {
		return c, done, err
	}
	var limits ceiling.Queue
	if s := m.ceilings.Load(); s != nil {
		limits = s.Queue
	}
	w := &waiter{q.Counts}
	m.queue.mu.Lock()
	n := len(m.queue.waiting)
	enters := n < limits.Length && limits.Wait > 0 && q.N <= full.Count.Most
	if enters {
		m.queue.waiting = append(m.queue.waiting, w)
		m.queue.waited[full.Count.Scope]++
	}
	m.queue.mu.Unlock()
	if !enters {
		why := fmt.Sprintf("%s for their turn, and no more may", counted(n, "request"))
		if q.N > full.Count.Most {
			why = "so many can never be"
		}
		return nil, nil, m.turnedAway(full, why)
	}
	defer func() {
		m.queue.mu.Lock()
		m.queue.waiting = slices.DeleteFunc(m.queue.waiting, func(o *waiter) bool { return o == w })
		m.queue.mu.Unlock()
		m.cfg.Records.Wake() // the next may have room, too
	}()
	over := time.NewTimer(limits.Wait)
	defer over.Stop()
	for {
		free := m.cfg.Records.Room()
		if err := m.Drained(q.N); err != nil {
			return nil, nil, err
		}
		if c, done, full, err = m.tryClaim(w, q); full == nil {
			return c, done, err
		}
		select {
		case <-free:
		case <-over.C:
			return nil, nil, m.turnedAway(full, fmt.Sprintf("none ended in the %s that a request waits", limits.Wait))
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-m.cfg.Life.Done():
			return nil, nil, context.Cause(m.cfg.Life)
		}
	}
}

// turnedAway refuses a request for which there is no room, and says when it may be tried
// again: when the next cell's time is over, in a minute at most.
func (m *Manager) turnedAway(full *state.Occupied, why string) error {
	m.queue.mu.Lock()
	m.queue.refused[full.Count.Scope]++
	m.queue.mu.Unlock()
	after := 10 * time.Second
	if next := m.cfg.Records.NextDue(); !next.IsZero() {
		after = min(max(time.Until(next), time.Second), time.Minute)
	}
	return &cell.Later{After: after, Err: cell.Errorf(cell.Limited, "govern.admit",
		"try again later, remove or pause cells, or raise `cells` of "+full.Count.Scope.String()+" in the daemon's ceilings ("+ceiling.Path+", or pando serve --ceilings)", "%w; %s", full, why)}
}

func limitsOf(l ceiling.Limits) api.CeilingLimits {
	return api.CeilingLimits{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk, Egress: l.Egress}
}

// Drain has no new cells made, or has some made again. What there is goes on.
func (m *Manager) Drain(on bool) {
	m.draining.Store(on)
	m.cfg.Records.Wake()
}

// Bounds are what holds for a caller.
func (m *Manager) Bounds(of ceiling.Caller) ceiling.Bounds { return m.ceilings.Load().For(of) }

// Ceilings are what the operator set, what is in use of it, and what was refused for it: those
// that hold for a caller, or all. waiting is how many requests wait for one of them.
func (m *Manager) Ceilings(of ceiling.Caller, all bool) (list []api.Ceiling, waiting int) {
	s := m.ceilings.Load()
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	for _, w := range s.List() {
		if !all && !w.Scope.Of(of) {
			continue
		}
		c := api.Ceiling{For: w.Scope.String(), Default: limitsOf(w.Default), Max: limitsOf(w.Max), MaxCells: w.Cells, By: w.By,
			Waited: m.queue.waited[w.Scope], Refused: m.queue.refused[w.Scope]}
		if w.Keep > 0 {
			c.Keep = w.Keep.String()
		}
		c.Cells = m.cfg.Records.InUse(ceiling.Count{Scope: w.Scope})
		c.Waiting = m.queue.count(func(s ceiling.Scope) bool { return s == w.Scope })
		list = append(list, c)
	}
	if all {
		return list, len(m.queue.waiting)
	}
	return list, m.queue.count(func(s ceiling.Scope) bool { return s.Of(of) })
}

// count is how many requests wait for a scope.
func (q *queue) count(is func(ceiling.Scope) bool) (n int) {
	for _, w := range q.waiting {
		if slices.ContainsFunc(w.counts, func(c ceiling.Count) bool { return is(c.Scope) }) {
			n++
		}
	}
	return n
}
