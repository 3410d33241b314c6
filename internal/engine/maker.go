package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// What a cell remembers of who made it is in its lease: the labels, which say who
// sees it, the token, by which cells are counted, and until when it may live. It
// is committed with the cell's first record, so that there is no moment, and no
// crash, after which a cell has none of it.

// viewKey is of the View by whose request a context is.
type viewKey struct{}

// with returns a context of work that v asks for: what it makes is v's.
func (v *View) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, viewKey{}, v)
}

// viewOf returns the View whose request a context is of; nil for the engine's own
// work.
func viewOf(ctx context.Context) *View {
	v, _ := ctx.Value(viewKey{}).(*View)
	return v
}

// making returns a context in which v, which may be nil, may make n cells with labels, and
// what gives back those that it did not make. It waits while there are too many at once.
func (v *View) making(ctx context.Context, n int, labels map[string]string) (context.Context, func(), error) {
	if v == nil {
		return ctx, func() {}, nil
	}
	if n > maxFork {
		return ctx, nil, cell.Errorf(cell.Invalid, "engine.making", fmt.Sprintf("ask for 1 to %d", maxFork), "cannot make %d cells", n)
	}
	limit := 0
	if v.bounds != nil {
		limit = v.bounds.MaxCells
	}
	w := *v
	w.bounded = v.ceilings(labels)
	var done func()
	var err error
	if w.claim, done, err = v.e.admit(ctx, claiming{v.caller(labels), n, limit, v.e.cfg.MaxCells, w.bounded.Counts}); err != nil {
		return ctx, nil, err
	}
	return w.with(ctx), done, nil
}

// DefaultCells is how many cells there may be, when nothing is said.
const DefaultCells = 100_000

// made counts the cells of a token. The caller holds r.mu.
func (r *registry) made(token string) (n int) {
	return r.x.owners[token]
}

// Made counts the cells that there are of those that were made with a token.
func (v *View) Made(token string) int {
	v.e.reg.mu.RLock()
	defer v.e.reg.mu.RUnlock()
	return v.e.reg.made(token)
}

// Own reports whether a cell was made with the caller's token.
func (v *View) Own(id cell.ID) bool {
	l := v.e.reg.lease(id)
	return v.token != "" && l != nil && l.Owner == v.token
}

// sign has a lease say who made the cell. v may be nil.
func (v *View) sign(l *Lease, template bool) {
	v.label(l)
	if v != nil {
		l.Owner, l.OwnerName, l.Door = v.token, v.tokenName, v.door
	}
	if !template {
		v.shorten(l, l.Since)
	}
}

// label adds to a lease what v is restricted to. v may be nil.
func (v *View) label(l *Lease) {
	if !v.restricted() {
		return
	}
	labels := maps.Clone(l.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, v.bounds.Labels)
	l.Labels = labels
}

// shorten has a lease end in the time that v may give from now on. v may be nil.
func (v *View) shorten(l *Lease, now time.Time) {
	if v == nil || v.bounds == nil || v.bounds.TTL == 0 {
		return
	}
	if end := now.Add(v.bounds.TTL); l.Until.IsZero() || l.Until.After(end) {
		l.Until = end
	}
}

// withLeases adds to objects that are committed the leases of cells among them
// that are new: with what they have of their parents, and of who makes them.
func (r *registry) withLeases(objects []any) []any {
	var more []any
	for _, o := range objects {
		c, ok := o.(*Cell)
		if !ok || c.made == nil && c.Parent == nil && c.heir == "" {
			continue
		}
		if c.Ceiling == nil {
			c.Ceiling = c.made.most()
		}
		if slices.ContainsFunc(objects, func(o any) bool { l, ok := o.(*Lease); return ok && l.Cell == c.ID }) {
			continue
		}
		labels, known := r.inherited(c)
		if known || (c.made == nil || c.made.token == "" && c.made.door == "") && len(labels) == 0 {
			continue
		}
		l := &Lease{Cell: c.ID, Since: time.Now().UTC(), Then: api.LeasePause, Labels: labels}
		c.made.sign(l, c.Template != "")
		more = append(more, l)
	}
	return slices.Concat(objects, more)
}

// inherited are the labels that a new cell has of the one that it was forked from,
// or whose place it takes, but for those of other doors. known: it is not new.
func (r *registry) inherited(c *Cell) (labels map[string]string, known bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.cells.of[c.ID] != nil {
		return nil, true
	}
	from := r.leases.of[c.heir]
	if from == nil {
		from = r.leases.of[c.parent()]
	}
	if from == nil {
		return nil, false
	}
	return inheritable(from.Labels), false
}

// inheritable are labels without those of other doors.
func inheritable(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	maps.DeleteFunc(labels, func(k, _ string) bool { return strings.Contains(k, ":") })
	return labels
}

// parent is the cell that c was forked from; "" for none.
func (c *Cell) parent() cell.ID {
	if c.Parent == nil {
		return ""
	}
	return c.Parent.Cell
}
