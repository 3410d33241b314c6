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
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
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
	e.reg.Recount()
}

// keep is how long a cell is kept that is paused, and who said so; 0 for ever.
func (e *Engine) keep(l *state.Lease) (time.Duration, string) {
	b := e.ceilings.Load().For(ceiling.Caller{Door: l.Door, Token: l.Owner, TokenName: l.OwnerName, Labels: l.Labels})
	return b.Keep, b.KeepBy
}

// endKept removes a paused cell that was kept for as long as it may. One with a result that
// waits for a verdict is asked about again after a day.
func (e *Engine) endKept(l state.Lease) {
	again := 30 * time.Second
	var err error
	if e.reg.HasOpenRun(l.Cell) {
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
		e.alive.ChangeLease(l.Cell, func(l *state.Lease) error {
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
func (e *Engine) tryClaim(w *waiter, q state.ClaimRequest) (c *state.Claim, done func(), full *state.Occupied, err error) {
	e.queue.mu.Lock()
	defer e.queue.mu.Unlock()
	if x := e.queue.behind(w, q.Counts); x != nil {
		return nil, nil, &state.Occupied{Count: *x, Used: e.reg.InUse(*x), N: q.N}, nil
	}
	c, done, err = e.reg.Claim(q)
	if full, ok := err.(*state.Occupied); ok {
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
func (e *Engine) admit(ctx context.Context, q state.ClaimRequest) (*state.Claim, func(), error) {
	if err := e.drained(q.N); err != nil {
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
	w := &waiter{q.Counts}
	e.queue.mu.Lock()
	n := len(e.queue.waiting)
	enters := n < limits.Length && limits.Wait > 0 && q.N <= full.Count.Most
	if enters {
		e.queue.waiting = append(e.queue.waiting, w)
		e.queue.waited[full.Count.Scope]++
	}
	e.queue.mu.Unlock()
	if !enters {
		why := fmt.Sprintf("%s for their turn, and no more may", counted(n, "request"))
		if q.N > full.Count.Most {
			why = "so many can never be"
		}
		return nil, nil, e.turnedAway(full, why)
	}
	defer func() {
		e.queue.mu.Lock()
		e.queue.waiting = slices.DeleteFunc(e.queue.waiting, func(o *waiter) bool { return o == w })
		e.queue.mu.Unlock()
		e.reg.Wake() // the next may have room, too
	}()
	over := time.NewTimer(limits.Wait)
	defer over.Stop()
	for {
		free := e.reg.Room()
		if err := e.drained(q.N); err != nil {
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
			return nil, nil, live.ErrClosing
		}
	}
}

// goingOn claims room among the cells there are at once for a paused one. done gives it back,
// when the cell itself is counted again, or is not to be.
func (v *View) goingOn(ctx context.Context, id cell.ID) (done func(), err error) {
	e := v.e
	labels, uncounted := e.reg.Uncounted(id)
	if !uncounted {
		return func() {}, nil
	}
	_, done, err = e.admit(ctx, state.ClaimRequest{Caller: v.caller(labels), N: 1, Counts: v.ceilings(labels).Counts})
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
func (e *Engine) turnedAway(full *state.Occupied, why string) error {
	e.queue.mu.Lock()
	e.queue.refused[full.Count.Scope]++
	e.queue.mu.Unlock()
	after := 10 * time.Second
	if next := e.reg.NextDue(); !next.IsZero() {
		after = min(max(time.Until(next), time.Second), time.Minute)
	}
	return &cell.Later{After: after, Err: cell.Errorf(cell.Limited, "engine.admit",
		"try again later, remove or pause some, or raise `cells` of "+full.Count.Scope.String()+" in the daemon's ceilings ("+ceiling.Path+", or pando serve --ceilings)", "%w; %s", full, why)}
}

// Drain has the engine make no new cells, or make some again. What there is goes on.
func (v *View) Drain(on bool) {
	v.e.draining.Store(on)
	v.e.reg.Wake()
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
		c.Cells = e.reg.InUse(ceiling.Count{Scope: w.Scope})
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

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
