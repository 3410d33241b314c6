package spawn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// OpBranch is the kind of the operation of a branch.
const OpBranch = "branch"

// branchArgs is a branch that was begun: where the source goes on if it comes
// to be. A daemon that finds it asks the source's keeper on which layer the
// source is.
type branchArgs struct {
	Source state.Cell       `json:"source"`
	At     state.Checkpoint `json:"at"`

	id string
}

func (b *branching) args() branchArgs {
	var r [8]byte
	rand.Read(r[:])
	return branchArgs{Source: b.src, At: b.at, id: "o-" + hex.EncodeToString(r[:])}
}

// beginBranch writes down that a branch is about to be made. What it returns
// writes down that it was not.
func (m *Manager) beginBranch(a branchArgs) (given func() error, err error) {
	args := a
	args.Source.Shared = cell.Digest{}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	rec := operation.Redo{ID: a.id, Kind: OpBranch, Args: raw, Phase: operation.Doing}
	return func() error { return m.reg.Commit(a.over()) }, m.reg.Commit(&rec)
}

// over is the record that a branch needs nothing more.
func (a branchArgs) over() *operation.Redo {
	return &operation.Redo{ID: a.id, Kind: OpBranch, Phase: operation.Done}
}

// BegunLayers are the layers that an operation which is not over may have made.
func BegunLayers(o *operation.Redo) []*workspace.Generation {
	var a branchArgs
	if o.Kind != OpBranch || json.Unmarshal(o.Args, &a) != nil {
		return nil
	}
	return a.Source.Gens()
}

// Resume finishes an operation that an earlier daemon began: see resumeBranch.
func (m *Manager) Resume(ctx context.Context, rec operation.Redo) error {
	return operation.DoAgain(ctx, m.reg, rec, m.resumeBranch)
}

// resumeBranch finds out what became of a branch under which a daemon died. The
// branches themselves have been ended: no answer told of them.
func (m *Manager) resumeBranch(ctx context.Context, a branchArgs) error {
	c, err := m.reg.Cell(a.Source.ID)
	if err != nil || c.State == cell.Removed || c.Next != a.At.Number {
		return nil // it was recorded, or is gone
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	// Without its keeper that can't be told. What lies in layers is there either way:
	// the upper one is empty when the source never came to write to it.
	on := p.Mounts()
	if layer, ok := m.layerOf(ctx, &c); ok {
		on = layer == a.Source.Gen.Layer
	}
	if !on {
		for _, g := range a.Source.Gens() {
			if !slices.ContainsFunc(c.Gens(), func(o *workspace.Generation) bool { return o.Layer == g.Layer }) {
				m.space.DropLayer(c.Provider, g.Layer)
			}
		}
		return nil
	}
	now := a.Source
	now.Cause, now.Shared = c.Cause, cell.Digest{}
	if err := now.To(c.State); err != nil {
		return err
	}
	a.At.Created = time.Now().UTC()
	return m.reg.Commit(&now, &a.At)
}

// layerOf asks a living cell on which layer its interpreter works.
func (m *Manager) layerOf(ctx context.Context, c *state.Cell) (string, bool) {
	b, err := m.cfg.Backend(c.Backend)
	if err != nil {
		return "", false
	}
	inst, err := b.Attach(ctx, c.ID, c.Family)
	if err != nil {
		return "", false
	}
	defer inst.Close()
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return "", false
	}
	st, err := w.Warmth(ctx)
	return st.Layer, err == nil && st.Layer != ""
}
