package engine

import (
	"context"
	"io"
	"os"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// known is the tree of a cell's source, as far as pando knows it.
func (e *Engine) known(ctx context.Context, c *state.Cell) (*workspace.Tree, error) {
	if !c.Known.IsZero() {
		return e.trees.get(c.Known)
	}
	k, err := e.firstOf(c)
	if err != nil {
		return nil, err
	}
	return e.tree(ctx, &k)
}

// remember notes what was written into a source, which had it already in some places. It
// returns nil when nothing was written. The cell is changed, not committed.
func (e *Engine) remember(ctx context.Context, o *offer, id string, base *workspace.Tree, written, already []string, out *api.AcceptResult) (*state.Applied, error) {
	known, err := e.known(ctx, o.c)
	if err != nil {
		return nil, err
	}
	before, err := workspace.Taken(known, base, written)
	if err != nil {
		return nil, err
	}
	if before, err = workspace.Taken(before, o.after.Tree, already); err != nil {
		return nil, err
	}
	after, err := workspace.Taken(before, o.after.Tree, written)
	if err != nil {
		return nil, err
	}
	a := &state.Applied{ID: id, At: time.Now().UTC(), Files: len(written), Checkpoint: o.at.ID}
	if a.Before, err = e.trees.put(before); err != nil {
		return nil, err
	}
	if a.After, err = e.trees.put(after); err != nil {
		return nil, err
	}
	if len(written) > 0 {
		if out.Patch, err = e.writeApplied(ctx, o, before, after); err != nil {
			e.log.Warn("cannot write a patch of what was applied", "cell", o.c.ID, "error", err)
		}
	}
	o.c.Known, o.c.KnownHead = a.After, headAt(o.c.Source)
	if !slices.Contains(o.c.KnownAt, o.at.ID) {
		o.c.KnownAt = append(slices.Clone(o.c.KnownAt), o.at.ID)
	}
	if len(written) == 0 {
		return nil, nil
	}
	return a, nil
}

// writeApplied writes a patch of what an apply did to the source into the folder of the
// newest run that it is of: it is there when the cell is gone. Without a run it writes none,
// nor for more than patchLimit.
func (e *Engine) writeApplied(ctx context.Context, o *offer, before, tree *workspace.Tree) (name string, err error) {
	run := o.run
	if run == nil {
		if len(o.covers) == 0 {
			return "", nil
		}
		run = &o.covers[len(o.covers)-1]
	}
	old := workspace.Side{Tree: before, Contents: e.pastOf(ctx, o.c)}
	d, err := diff.Compare(ctx, old, workspace.Side{Tree: tree, Contents: o.after.Contents}, diff.Options{NoRenames: true})
	if err != nil || d.Weight() > patchLimit {
		return "", err
	}
	failpoint.Step("write a patch of what was applied")
	f, err := evidence.CreateNext(run.Folder, "applied", ".patch")
	if err != nil {
		return "", err
	}
	err = d.Patch(ctx, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// past finds the contents of what a source was: each file comes from the import, or from
// what was applied since, so that some checkpoint has it.
type past struct {
	e    *Engine
	ctx  context.Context
	from []cell.CheckpointID // where to begin
}

// pastOf is the past of a cell's source.
func (e *Engine) pastOf(ctx context.Context, c *state.Cell) past {
	return past{e: e, ctx: ctx, from: append([]cell.CheckpointID{c.Head}, c.KnownAt...)}
}

// Open implements workspace.Contents.
func (p past) Open(path string, want workspace.Entry) (io.ReadCloser, error) {
	seen := map[cell.CheckpointID]bool{}
	for _, id := range p.from {
		for id != "" && !seen[id] {
			seen[id] = true
			k, err := p.e.reg.Checkpoint(id)
			if err != nil {
				break
			}
			id = k.Parent
			side, err := p.e.side(p.ctx, &k)
			if err != nil {
				continue // it has expired
			}
			if has, err := side.Tree.Lookup(path); err == nil && has.Type == want.Type && has.Digest == want.Digest {
				return side.Contents.Open(path, has)
			}
		}
	}
	return nil, cell.Errorf(cell.NotFound, "engine.past", "", "no checkpoint has %s as it was in the source", path)
}
