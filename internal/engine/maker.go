package engine

import (
	"context"
	"fmt"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
)

// What a cell remembers of its maker is in its lease: the labels, which decide which callers
// see it, the token, by which cells are counted, and until when it may live. It
// is committed with the cell's first record, so that there is no moment, and no
// crash, after which a cell has none of it.

// viewKey is of the View that a context's request came by.
type viewKey struct{}

// with returns a context of work that v asks for: what it makes is v's.
func (v *View) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, viewKey{}, v)
}

// viewOf returns the View that a context's request came by; nil for the engine's own
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
	if n > spawn.MaxFork {
		return ctx, nil, cell.Errorf(cell.Invalid, "engine.making", fmt.Sprintf("ask for 1 to %d", spawn.MaxFork), "cannot make %d cells", n)
	}
	limit := 0
	if v.bounds != nil {
		limit = v.bounds.MaxCells
	}
	w := *v
	w.bounded = v.ceilings(labels)
	var done func()
	var err error
	if w.claim, done, err = v.e.govern.Admit(ctx, state.ClaimRequest{Caller: v.caller(labels), N: n, Made: limit, All: v.e.cfg.MaxCells, Counts: w.bounded.Counts}); err != nil {
		return ctx, nil, err
	}
	return w.with(ctx), done, nil
}

// DefaultCells is how many cells there may be, when nothing is said.
const DefaultCells = 100_000

// Made counts the cells that there are of those that were made with a token.
func (v *View) Made(token string) int {
	return v.e.reg.MadeBy(token)
}

// Own reports whether a cell was made with the caller's token.
func (v *View) Own(id cell.ID) bool {
	l := v.e.reg.Lease(id)
	return v.token != "" && l != nil && l.Owner == v.token
}

// maker is what the cells that v makes have of it; nil for nil.
func (v *View) maker() *state.Maker {
	if v == nil {
		return nil
	}
	m := &state.Maker{Token: v.token, TokenName: v.tokenName, Door: v.door, Bounds: v.bounded, Claim: v.claim, Race: v.forRace}
	if v.bounds != nil {
		m.Labels, m.TTL = v.bounds.Labels, v.bounds.TTL
	}
	return m
}

// makerOf is that of the request that a context is of; nil for the engine's own work.
func makerOf(ctx context.Context) *state.Maker { return viewOf(ctx).maker() }
