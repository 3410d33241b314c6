package state

import (
	"fmt"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
)

// A Claim is a number of cells that a request may make.
type Claim struct {
	ceiling.Caller
	n    int
	made map[cell.ID]bool // those of them that are recorded
}

// left is how many are not made yet.
func (c *Claim) left() int { return c.n - len(c.made) }

// ClaimRequest says which cells are claimed, and within what.
type ClaimRequest struct {
	Caller ceiling.Caller
	N      int
	Made   int // how many cells the token may have made; 0 for any number
	All    int // how many there may be in all; 0 when the cells are there already
	Counts []ceiling.Count
}

// Occupied is the error of a claim that has to wait: as many cells of one scope are there at
// once as may be.
type Occupied struct {
	Count ceiling.Count
	Used  int
	N     int
}

func (o *Occupied) Error() string {
	return fmt.Sprintf("cannot make %s: there may be %d at once (%s), and there are %d", cells(o.N), o.Count.Most, o.Count.By, o.Used)
}

// cells says how many.
func cells(n int) string {
	if n == 1 {
		return "1 cell"
	}
	return fmt.Sprintf("%d cells", n)
}

// Claim reserves cells: those that there are, and those that are reserved, together are
// within what q says. An error that is *occupied may be gone when a cell ends.
func (r *Registry) Claim(q ClaimRequest) (*Claim, func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, total := r.x.owners[q.Caller.Token], r.alive
	for c := range r.claims {
		if total += c.left(); c.Token == q.Caller.Token {
			have += c.left()
		}
	}
	if q.All > 0 && q.N > q.All-total {
		return nil, nil, cell.Errorf(cell.Limited, "engine.claim", "remove cells that are not needed any more (pando ls), or raise the limit: pando serve --max-cells",
			"cannot make %s: there may be %d in all, and there are %d", cells(q.N), q.All, total)
	}
	if q.Made > 0 && q.N > q.Made-have {
		return nil, nil, cell.Errorf(cell.Limited, "engine.claim", "remove cells that are not needed any more, or use a token with a higher --max-cells",
			"cannot make %s: the token may have %d at a time, and has %d", cells(q.N), q.Made, have)
	}
	for _, x := range q.Counts {
		if used := r.used(x); q.N > x.Most-used {
			return nil, nil, &Occupied{x, used, q.N}
		}
	}
	c := &Claim{Caller: q.Caller, n: q.N, made: map[cell.ID]bool{}}
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
func (r *Registry) used(x ceiling.Count) (n int) {
	mine := func(*Claim) bool { return false }
	switch x.Scope.Kind {
	case "door":
		n, mine = r.x.active[scope{door: x.Scope.Name}], func(c *Claim) bool { return c.Door == x.Scope.Name }
	case "token":
		n, mine = r.x.active[scope{token: x.Scope.Name}], func(c *Claim) bool { return c.Token == x.Scope.Name || c.TokenName == x.Scope.Name }
	case "label":
		l := label{}
		l.name, l.value, _ = strings.Cut(x.Scope.Name, "=")
		if s := r.x.labels[l]; s != nil {
			n = s[ClassRunning].Len() + s[classMaking].Len()
		}
		mine = func(c *Claim) bool { v, ok := c.Labels[l.name]; return ok && v == l.value }
	}
	for c := range r.claims {
		if mine(c) {
			n += c.left()
		}
	}
	return n
}

// InUse is how many cells of a scope there are at once.
func (r *Registry) InUse(x ceiling.Count) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.used(x)
}

// freed wakes requests that wait for a claim. The caller holds r.mu.
func (r *Registry) freed() {
	close(r.free)
	r.free = make(chan struct{})
}
