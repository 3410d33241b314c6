package result

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// known is the tree of a cell's source, as far as pando knows it.
func (m *Manager) known(ctx context.Context, c *state.Cell) (*workspace.Tree, error) {
	if !c.Known.IsZero() {
		return m.cfg.Tree(c.Known)
	}
	k, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	return m.cfg.TreeOf(ctx, &k)
}

// applying is an apply that was carried out.
type applying struct {
	id               string
	base             *workspace.Tree // the old state of the source, and the new one
	after            workspace.Side
	taken            *workspace.Tree // what was asked for of the cell: without a merge, that is after
	written, already []string        // paths; already: that the source had as in after
	merge            *mergedState
	held             []apply.Held
	hunks            []cell.Digest // contents of files of which a part was taken
}

// remember notes what was written into a source, which had it already in some places. It
// returns nil when nothing was written. The cell is changed, not committed.
func (m *Manager) remember(ctx context.Context, o *offer, did applying, out *api.AcceptResult) (*state.Applied, error) {
	known, err := m.known(ctx, o.c)
	if err != nil {
		return nil, err
	}
	files, also, there := did.merge.in(did.written, did.already, did.held)
	before, err := workspace.Taken(known, did.base, did.written, also)
	if err != nil {
		return nil, err
	}
	if before, err = workspace.Taken(before, did.after.Tree, did.already); err != nil {
		return nil, err
	}
	after, err := workspace.Taken(before, did.after.Tree, did.written)
	if err != nil {
		return nil, err
	}
	at, during, err := m.placeOf(ctx, o, slices.Concat(did.written, also))
	if err != nil {
		return nil, err
	}
	a := &state.Applied{ID: did.id, At: time.Now().UTC(), Files: len(did.written), Checkpoint: at, During: during}
	agreed := state.Agreement{Checkpoint: at, Applied: did.id}
	if err := m.agree(ctx, o.c, agreed, did.taken, did.written, also); err != nil {
		return nil, err
	}
	agreed.There, agreed.Checkpoint = true, o.at.ID
	if err := m.agree(ctx, o.c, agreed, did.taken, did.already, there); err != nil {
		return nil, err
	}
	same, err := workspace.Taken(known, did.after.Tree, did.already)
	if err != nil {
		return nil, err
	}
	if known.ContentDigest() != same.ContentDigest() { // the source made the same of it by itself
		o.c.Apart = true
	}
	if did.merge != nil {
		a.Merged, o.c.Apart = files, true
		keep(o.c, did.merge.Contents)
	}
	keep(o.c, did.hunks)
	if a.Before, err = m.cfg.PutTree(before); err != nil {
		return nil, err
	}
	if a.After, err = m.cfg.PutTree(after); err != nil {
		return nil, err
	}
	if len(did.written) > 0 {
		if out.Patch, err = m.writeApplied(ctx, o, before, workspace.Side{Tree: after, Contents: did.after.Contents}); err != nil {
			m.cfg.Log.Warn("cannot write a patch of what was applied", "cell", o.c.ID, "error", err)
		}
	}
	o.c.Known, o.c.KnownHeads = a.After, HeadsOf(o.c)
	for _, id := range []cell.CheckpointID{at, o.at.ID} {
		if !slices.Contains(o.c.KnownAt, id) {
			o.c.KnownAt = append(slices.Clone(o.c.KnownAt), id)
		}
	}
	if len(did.written) == 0 {
		return nil, nil
	}
	return a, nil
}

// keep has contents of files kept in the store of objects, as long as a cell.
func keep(c *state.Cell, contents []cell.Digest) {
	c.Contents = slices.Clone(c.Contents)
	for _, d := range contents {
		if !slices.Contains(c.Contents, d) {
			c.Contents = append(c.Contents, d)
		}
	}
}

// writeApplied writes a patch of what an apply did to the source into the folder of the
// newest run that it is of: it is there when the cell is gone. Without a run it writes none,
// nor for more than patchLimit.
func (m *Manager) writeApplied(ctx context.Context, o *offer, before *workspace.Tree, after workspace.Side) (name string, err error) {
	run := o.run
	if o.during != "" {
		r, err := m.cfg.Records.Run(o.during)
		if err != nil {
			return "", err
		}
		run = &r
	}
	if run == nil {
		if len(o.covers) == 0 {
			return "", nil
		}
		run = &o.covers[len(o.covers)-1]
	}
	old := workspace.Side{Tree: before, Contents: m.pastOf(ctx, o.c)}
	d, err := diff.Compare(ctx, old, after, diff.Options{NoRenames: true})
	if err != nil || d.Weight() > patchLimit {
		return "", err
	}
	failpoint.Step("write a patch of what was applied")
	f, err := createNext(run.Folder, "applied", ".patch")
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
	m    *Manager
	ctx  context.Context
	from []cell.CheckpointID // where to begin
}

// pastOf is the past of a cell's source.
func (m *Manager) pastOf(ctx context.Context, c *state.Cell) past {
	return past{m: m, ctx: ctx, from: append([]cell.CheckpointID{c.Head}, c.KnownAt...)}
}

// Open implements workspace.Contents.
func (p past) Open(path string, want workspace.Entry) (io.ReadCloser, error) {
	seen := map[cell.CheckpointID]bool{}
	for _, id := range p.from {
		for id != "" && !seen[id] {
			seen[id] = true
			k, err := p.m.cfg.Records.Checkpoint(id)
			if err != nil {
				break
			}
			id = k.Parent
			side, err := p.m.cfg.Side(p.ctx, &k)
			if err != nil {
				continue // it has expired
			}
			if has, err := side.Tree.Lookup(path); err == nil && has.Type == want.Type && has.Digest == want.Digest {
				return side.Contents.Open(path, has)
			}
		}
	}
	if r, err := p.m.object(want.Digest); err == nil { // a merge made it, or took its place
		return r, nil
	}
	return nil, cell.Errorf(cell.NotFound, "result.past", "", "no checkpoint has %s as it was in the source", path)
}

// createNext creates stem.ext in a run's folder, or stem-2.ext and so on: a run may be applied
// again, with more included.
func createNext(folder, stem, ext string) (*os.File, error) {
	for n := 1; ; n++ {
		name := stem + ext
		if n > 1 {
			name = fmt.Sprintf("%s-%d%s", stem, n, ext)
		}
		f, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if !os.IsExist(err) {
			return f, err
		}
	}
}

// Recover brings sources in which an apply was interrupted back to
// before it, or to its end.
func (m *Manager) Recover(ctx context.Context) {
	dirs, _ := filepath.Glob(filepath.Join(m.cfg.Backups, "*"))
	for _, d := range dirs {
		if _, err := apply.Recover(ctx, d); err != nil {
			m.cfg.Log.Error("cannot bring a source back after an interrupted apply", "backup", d, "error", err)
		}
		os.Remove(d) // there is nothing in it any more, unless that failed
	}
}
