package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Admission: a request that makes cells claims them first. Beyond how many there may be at
// once it waits in a queue, for a while, and is refused then with what is in use and who
// said so. See package ceiling for what holds for whom.

// At is the engine as those have it who come by a door.
func (v *View) At(door string) *View {
	own := *v
	own.door = door
	return &own
}

// doorOf is by which door a caller came.
func doorOf(p access.Principal) string {
	switch {
	case p.Door != "":
		return p.Door
	case p.Here && p.Token == "":
		return ceiling.Local
	}
	return ceiling.REST
}

// For is the engine for a request for cells with labels: what holds for those labels holds
// for it.
func (v *View) For(labels map[string]string) *View {
	own := *v
	own.asked = labels
	return &own
}

// caller is who asks, for cells that also carry labels.
func (v *View) caller(labels map[string]string) ceiling.Caller {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, v.asked)
	maps.Copy(all, v.required())
	return ceiling.Caller{Door: v.door, Token: v.token, TokenName: v.tokenName, Labels: all}
}

// ceilings are what holds for the caller; nothing for nil.
func (v *View) ceilings(labels map[string]string) ceiling.Bounds {
	if v == nil {
		return ceiling.Bounds{}
	}
	return v.e.ceilings.Load().For(v.caller(labels))
}

// ReadCeilings reads the operator's file of ceilings, over what is built in. path is "" for
// where it usually is, which may not be there.
func ReadCeilings(path string, h policy.Host) (*ceiling.Set, error) {
	text, err := readPolicy(cmp.Or(path, ceiling.Path), false)
	switch {
	case path == "" && errors.Is(err, fs.ErrNotExist):
		return ceiling.BuiltIn(h), nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, cell.Errorf(cell.NotFound, "engine.ReadCeilings", "", "cannot read ceilings %s: no such file", path)
	case err != nil:
		return nil, err
	}
	return ceiling.Parse(cmp.Or(path, ceiling.Path), text, h)
}

// SetCeilings puts other ceilings in force: for what is made from now on, and for how many
// cells there are at once.
func (e *Engine) SetCeilings(s *ceiling.Set) {
	e.ceilings.Store(s)
	e.reg.recount()
}

// keep is how long a cell is kept that is paused, and who said so; 0 for ever.
func (e *Engine) keep(l *Lease) (time.Duration, string) {
	b := e.ceilings.Load().For(ceiling.Caller{Door: l.Door, Token: l.Owner, TokenName: l.OwnerName, Labels: l.Labels})
	return b.Keep, b.KeepBy
}

// keptUntil is until when a cell is kept that is paused; zero for ever.
func (r *registry) keptUntil(l *Lease) time.Time {
	if l.ParkedAt.IsZero() || r.keeps == nil {
		return time.Time{}
	}
	d := r.keeps(l)
	if d == 0 {
		return time.Time{}
	}
	return l.ParkedAt.Add(d)
}

// overkept reports whether a paused cell has been kept for as long as it may.
func (e *Engine) overkept(l *Lease, now time.Time) bool {
	at := e.reg.keptUntil(l)
	return !at.IsZero() && !now.Before(at)
}

// endKept removes a paused cell that was kept for as long as it may. One with a result that
// waits for a verdict is asked about again after a day.
func (e *Engine) endKept(l Lease) {
	again := 30 * time.Second
	var err error
	if e.hasPending(l.Cell) {
		again, err = 24*time.Hour, cell.Errorf(cell.Conflict, "engine.endKept", "", "a result in it waits for a verdict")
	} else {
		_, err = e.Remove(e.life, l.Cell, false)
	}
	d, by := e.keep(&l)
	switch {
	case err == nil:
		e.log.Info("removed a cell that was paused for longer than it is kept", "cell", l.Cell, "paused", l.ParkedAt, "kept", d, "by", by)
	case e.life.Err() == nil:
		e.log.Warn("cannot remove a cell that was paused for longer than it is kept", "cell", l.Cell, "error", err)
		e.changeLease(l.Cell, func(l *Lease) error {
			if !l.ParkedAt.IsZero() {
				l.ParkedAt = time.Now().UTC().Add(again - d)
			}
			return nil
		})
	}
}

// withinCeilings brings limits that were made of policies within a caller's ceilings: what nobody
// asked for is the door's default, and no limit is above its maximum. What the request
// itself asks for beyond that is refused.
func withinCeilings(r *policy.Result, ownPolicy string, b ceiling.Bounds) error {
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
		if now > 0 && (strings.HasPrefix(origin, "--") || ownPolicy != "" && strings.HasPrefix(origin, ownPolicy+":")) {
			return cell.Errorf(cell.Denied, "engine.ceiling", fmt.Sprintf("ask for %s at most", ceiling.Text(name, most)),
				"cannot allow %s of %s: the ceiling is %s (%s)", name, ceiling.Text(name, now), ceiling.Text(name, most), b.By[name])
		}
		r.Limits.Set(name, most)
		r.Origins.Lines["limits."+name] = b.By[name]
	}
	return nil
}

// A claim is a number of cells that somebody may make.
type claim struct {
	ceiling.Caller
	n    int
	made map[cell.ID]bool // those of them that are recorded
}

// left is how many are not made yet.
func (c *claim) left() int { return c.n - len(c.made) }

// claiming is what a claim is asked for with.
type claiming struct {
	caller ceiling.Caller
	n      int
	made   int // how many cells the token may have made; 0 for any number
	all    int // how many there may be in all; 0 when the cells are there already
	counts []ceiling.Count
}

// occupied is why a claim has to wait: as many cells are there at once as may be.
type occupied struct {
	count ceiling.Count
	used  int
	n     int
}

func (o *occupied) Error() string {
	return fmt.Sprintf("cannot make %s: there may be %d at once (%s), and there are %d", cells(o.n), o.count.Most, o.count.By, o.used)
}

// cells says how many.
func cells(n int) string {
	if n == 1 {
		return "1 cell"
	}
	return fmt.Sprintf("%d cells", n)
}

// claim reserves cells: those that there are, and those that are reserved, together are
// within what q says. An error that is *occupied may be gone when a cell ends.
func (r *registry) claim(q claiming) (*claim, func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, total := r.x.owners[q.caller.Token], r.alive
	for c := range r.claims {
		if total += c.left(); c.Token == q.caller.Token {
			have += c.left()
		}
	}
	if q.all > 0 && q.n > q.all-total {
		return nil, nil, cell.Errorf(cell.Limited, "engine.claim", "remove cells that are not needed any more (pando ls), or raise the limit: pando serve --max-cells",
			"cannot make %s: there may be %d in all, and there are %d", cells(q.n), q.all, total)
	}
	if q.made > 0 && q.n > q.made-have {
		return nil, nil, cell.Errorf(cell.Limited, "engine.claim", "remove cells that are not needed any more, or use a token with a higher --max-cells",
			"cannot make %s: the token may have %d at a time, and has %d", cells(q.n), q.made, have)
	}
	for _, x := range q.counts {
		if used := r.used(x); q.n > x.Most-used {
			return nil, nil, &occupied{x, used, q.n}
		}
	}
	c := &claim{Caller: q.caller, n: q.n, made: map[cell.ID]bool{}}
	r.claims[c] = true
	return c, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.claims, c)
		r.freed()
	}), nil
}

// used is how many cells of a scope there are at once: those that are not paused, and
// those that are claimed. The caller holds r.mu.
func (r *registry) used(x ceiling.Count) (n int) {
	mine := func(*claim) bool { return false }
	switch x.Scope.Kind {
	case "door":
		n, mine = r.x.active[scope{door: x.Scope.Name}], func(c *claim) bool { return c.Door == x.Scope.Name }
	case "token":
		n, mine = r.x.active[scope{token: x.Scope.Name}], func(c *claim) bool { return c.Token == x.Scope.Name || c.TokenName == x.Scope.Name }
	case "label":
		l := label{}
		l.name, l.value, _ = strings.Cut(x.Scope.Name, "=")
		if s := r.x.labels[l]; s != nil {
			n = s[classRunning].Len() + s[classMaking].Len()
		}
		mine = func(c *claim) bool { v, ok := c.Labels[l.name]; return ok && v == l.value }
	}
	for c := range r.claims {
		if mine(c) {
			n += c.left()
		}
	}
	return n
}

// inUse is how many cells of a scope there are at once.
func (r *registry) inUse(x ceiling.Count) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.used(x)
}

// freed wakes requests that wait for a claim. The caller holds r.mu.
func (r *registry) freed() {
	close(r.free)
	r.free = make(chan struct{})
}

// queue are the requests that wait for a claim, oldest first.
type queue struct {
	mu      sync.Mutex // guards what follows. It stands before registry.mu.
	waiting []*waiter
	refused map[ceiling.Scope]int64 // how many were refused, by whose ceiling
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
func (e *Engine) tryClaim(w *waiter, q claiming) (c *claim, done func(), full *occupied, err error) {
	e.queue.mu.Lock()
	defer e.queue.mu.Unlock()
	if x := e.queue.behind(w, q.counts); x != nil {
		return nil, nil, &occupied{*x, e.reg.inUse(*x), q.n}, nil
	}
	c, done, err = e.reg.claim(q)
	if full, ok := err.(*occupied); ok {
		return nil, nil, full, nil
	}
	return c, done, nil, err
}

// drained refuses to make cells while the daemon takes no new work.
func (e *Engine) drained(n int) error {
	if !e.draining.Load() {
		return nil
	}
	return cell.Errorf(cell.Unavailable, "engine.admit", "ask another daemon, or have this one take work again: pando daemon drain --undo", "cannot make %s: the daemon takes no new work", counted(n, "cell"))
}

// admit claims cells, and waits for its turn as long as the queue allows.
func (e *Engine) admit(ctx context.Context, q claiming) (*claim, func(), error) {
	if err := e.drained(q.n); err != nil {
		return nil, nil, err
	}
	c, done, full, err := e.tryClaim(nil, q)
	if full == nil {
		return c, done, err
	}
	var limits ceiling.Queue
	if s := e.ceilings.Load(); s != nil {
		limits = s.Queue
	}
	w := &waiter{q.counts}
	e.queue.mu.Lock()
	n := len(e.queue.waiting)
	enters := n < limits.Length && limits.Wait > 0 && q.n <= full.count.Most
	if enters {
		e.queue.waiting = append(e.queue.waiting, w)
		e.queue.waited[full.count.Scope]++
	}
	e.queue.mu.Unlock()
	if !enters {
		why := fmt.Sprintf("%s for their turn, and no more may", counted(n, "request"))
		if q.n > full.count.Most {
			why = "so many can never be"
		}
		return nil, nil, e.turnedAway(full, why)
	}
	defer func() {
		e.queue.mu.Lock()
		e.queue.waiting = slices.DeleteFunc(e.queue.waiting, func(o *waiter) bool { return o == w })
		e.queue.mu.Unlock()
		e.reg.wake() // the next may have room, too
	}()
	over := time.NewTimer(limits.Wait)
	defer over.Stop()
	for {
		free := e.reg.room()
		if err := e.drained(q.n); err != nil {
			return nil, nil, err
		}
		if c, done, full, err = e.tryClaim(w, q); full == nil {
			return c, done, err
		}
		select {
		case <-free:
		case <-over.C:
			return nil, nil, e.turnedAway(full, fmt.Sprintf("none ended in the %s that a request waits", limits.Wait))
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-e.life.Done():
			return nil, nil, errClosing
		}
	}
}

// goingOn claims room among the cells there are at once for a paused one. done gives it back,
// when the cell itself is counted again, or is not to be.
func (v *View) goingOn(ctx context.Context, id cell.ID) (done func(), err error) {
	e := v.e
	labels, uncounted := e.reg.uncounted(id)
	if !uncounted {
		return func() {}, nil
	}
	_, done, err = e.admit(ctx, claiming{caller: v.caller(labels), n: 1, counts: v.ceilings(labels).Counts})
	return done, err
}

// goesOn does what ends the pause of a cell, if it is paused: that claims room as going on
// with it does.
func goesOn[T any](ctx context.Context, v *View, id cell.ID, do func() (T, error)) (out T, err error) {
	done, err := v.goingOn(ctx, id)
	if err != nil {
		return out, err
	}
	defer done()
	return do()
}

// turnedAway refuses a request for which there is no room, and says when it may be tried
// again: when the next cell's time is over, in a minute at most.
func (e *Engine) turnedAway(full *occupied, why string) error {
	e.queue.mu.Lock()
	e.queue.refused[full.count.Scope]++
	e.queue.mu.Unlock()
	after := 10 * time.Second
	if next := e.reg.nextDue(); !next.IsZero() {
		after = min(max(time.Until(next), time.Second), time.Minute)
	}
	return &cell.Later{After: after, Err: cell.Errorf(cell.Limited, "engine.admit",
		"try again later, remove or pause some, or raise `cells` of "+full.count.Scope.String()+" in the daemon's ceilings ("+ceiling.Path+", or pando serve --ceilings)", "%w; %s", full, why)}
}

// Drain has the engine make no new cells, or make some again. What there is goes on.
func (v *View) Drain(on bool) {
	v.e.draining.Store(on)
	v.e.reg.wake()
}

// Ceilings are what the operator set, what is in use of it, and what was refused for it. To
// a caller who is restricted to labels only what holds for them is told.
func (v *View) Ceilings() (out []api.Ceiling, waiting int) {
	e := v.e
	s := e.ceilings.Load()
	e.queue.mu.Lock()
	defer e.queue.mu.Unlock()
	me := v.caller(nil)
	for _, w := range s.List() {
		if v.restricted() && !w.Scope.Of(me) {
			continue
		}
		c := api.Ceiling{For: w.Scope.String(), Default: limitsOf(w.Default), Max: limitsOf(w.Max), MaxCells: w.Cells, By: w.By,
			Waited: e.queue.waited[w.Scope], Refused: e.queue.refused[w.Scope]}
		if w.Keep > 0 {
			c.Keep = w.Keep.String()
		}
		c.Cells = e.reg.inUse(ceiling.Count{Scope: w.Scope})
		for _, other := range e.queue.waiting {
			if slices.ContainsFunc(other.counts, func(y ceiling.Count) bool { return y.Scope == w.Scope }) {
				c.Waiting++
			}
		}
		out = append(out, c)
	}
	waiting = len(e.queue.waiting)
	if v.restricted() { // of others it is not told how many wait
		waiting = 0
		for _, other := range e.queue.waiting {
			if slices.ContainsFunc(other.counts, func(y ceiling.Count) bool { return y.Scope.Of(me) }) {
				waiting++
			}
		}
	}
	return out, waiting
}

func limitsOf(l ceiling.Limits) api.CeilingLimits {
	return api.CeilingLimits{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk, Egress: l.Egress}
}
