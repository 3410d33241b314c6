package result

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
	"github.com/pando-dev/pando/internal/workspace/merge"
)

// Sync brings into a cell what became of its source since both last had the same, by three ways. What the
// cell was stays as a checkpoint. Changes that git ignores, and git's own files, are left out.
func (m *Manager) Sync(ctx context.Context, id cell.ID, req api.SyncRequest, seen ...Seen) (out api.SyncResult, err error) {
	ctx, over := m.cfg.Act(ctx, "sync", id)
	defer over(&err)
	release, err := m.cfg.Cells.Lock(ctx, id, "sync")
	if err != nil {
		return out, err
	}
	defer release()
	defer m.cfg.Pin()()
	c, err := m.cfg.Cells.Usable(id)
	if err != nil {
		return out, err
	}
	if err := m.cfg.Decides.Unchanged(&c, nil, seen); err != nil {
		return out, err
	}
	if c.NoSource {
		return out, cell.Errorf(cell.Conflict, "result.Sync", "bring files in with pando cp", "cannot sync cell %s: it began with no directory of the daemon's host", c.Title())
	}
	if c.State == cell.Paused {
		return out, cell.Errorf(cell.Conflict, "result.Sync", "let it go on first: pando resume "+c.Title(), "cannot sync cell %s: it is paused", c.Title())
	}
	at, err := m.presentHeld(ctx, &c, "")
	if err != nil {
		return out, err
	}
	plan, err := m.planSync(ctx, &c, &at, req)
	if err != nil {
		return out, err
	}
	out = plan.result(&c)
	out.DryRun = req.DryRun
	if req.DryRun || len(out.Synced) == 0 {
		return out, nil
	}
	args := syncArgs{ID: newKey(), Cell: c.ID, At: at.ID}
	err = operation.Do(ctx, m.cfg.Records, operation.NewID(), OpSync, args, func(ctx context.Context) error {
		return m.doSync(ctx, &c, &at, plan, args, &out)
	})
	if cell.KindOf(err) == cell.Unsupported {
		err = cell.Errorf(cell.Unsupported, "result.Sync", "make a new cell of the source as it is now", "cannot write into cell %s: %w", c.Title(), err)
	}
	return out, err
}

// syncArgs is a sync that was begun.
type syncArgs struct {
	ID   string            `json:"id"` // of its receipt
	Cell cell.ID           `json:"cell"`
	At   cell.CheckpointID `json:"at"` // what the cell was
}

// key is that of the receipt.
func (a *syncArgs) key() string { return "sync/" + a.ID }

// resumeSync takes back a sync that an earlier daemon began: the cell may have a part of it.
func (m *Manager) resumeSync(ctx context.Context, args syncArgs) error {
	if m.cfg.Evidence.Sealed(args.key()) {
		return nil // the operation of its seal goes on by itself
	}
	c, err := m.cfg.Records.Cell(args.Cell)
	if err != nil {
		return err
	}
	if c.State == cell.Removed {
		return nil
	}
	m.cfg.EndOrphan(ctx, &c)
	return m.putBack(&c, args.At)
}

// syncing is what a sync is to do.
type syncing struct {
	from, to *workspace.Tree // the cell's files, before and after
	source   *workspace.Tree // what the source is
	all      bool            // no paths limit it
	contents stored          // of what the cell gets
	paths    []string        // that changed in the source
	brought  []string        // of these, what the cell gets as the source has it
	merged   []state.Merged
}

func (s *syncing) result(c *state.Cell) api.SyncResult {
	out := api.SyncResult{Cell: string(c.ID), CellName: c.Title(), Source: c.Top(), Synced: slices.Clone(s.brought), Merged: []api.Merged{}}
	for _, f := range s.merged {
		out.Merged = append(out.Merged, api.Merged(f))
		out.Synced = append(append(out.Synced, f.Path), f.Also...)
	}
	slices.Sort(out.Synced)
	out.Synced = append([]string{}, slices.Compact(out.Synced)...)
	return out
}

// sourceMoved is what became of the source of a cell.
type sourceMoved struct {
	base, now workspace.Side     // what both last had the same, and what the source is
	changes   []workspace.Change // between these, without what git ignores and git's own files
	ignored   func(path string, isDir bool) bool
}

// sourceMoved finds out what became of the source of a cell since both last had the same, at a checkpoint of the cell.
func (m *Manager) sourceMoved(ctx context.Context, c *state.Cell, at cell.CheckpointID) (s sourceMoved, err error) {
	agreed, err := m.replay(ctx, c, at, func(state.Agreement) bool { return true })
	if err != nil {
		return s, err
	}
	var left func(string) bool
	if s.now, left, err = m.cfg.SourceNow(ctx, c); err != nil {
		return s, err
	}
	s.base = workspace.Side{Tree: agreed, Contents: m.pastOf(ctx, c)}
	if s.ignored, err = diff.IgnoredBy(ctx, s.base, s.now, c.Parts(), m.cfg.Parser); err != nil {
		return s, fmt.Errorf("cannot tell which changes git ignores: %w", err)
	}
	if s.changes, err = workspace.Changes(agreed, s.now.Tree); err != nil {
		return s, err
	}
	s.changes = slices.DeleteFunc(s.changes, func(ch workspace.Change) bool {
		return !ch.Git() || s.ignored(ch.Path, false) || left(ch.Path) // what import leaves out now is not gone
	})
	return s, nil
}

// sourcePaths bounds the paths that SourceChanges lists.
const sourcePaths = 100

// SourceChanges lists what became of the source of a cell since both last had the same: what Sync would bring.
func (m *Manager) SourceChanges(ctx context.Context, id cell.ID) (out api.SourceChanges, err error) {
	defer m.cfg.Pin()()
	c, err := m.cfg.Cells.Usable(id)
	if err != nil {
		return out, err
	}
	out = api.SourceChanges{Cell: string(c.ID), CellName: c.Title(), Source: c.Top(), Paths: []string{}}
	if c.NoSource {
		return out, nil
	}
	moved, err := m.sourceMoved(ctx, &c, c.Head)
	if err != nil {
		return out, err
	}
	out.Files = len(moved.changes)
	for i := range moved.changes[:min(out.Files, sourcePaths)] {
		out.Paths = append(out.Paths, moved.changes[i].Path)
	}
	if len(c.Applied) > 0 {
		n, err := m.filesWaiting(ctx, &c)
		if err != nil {
			return out, err
		}
		out.Waiting = &n
	}
	return out, nil
}

// filesWaiting counts the changed files of a cell that no accept has brought into the source.
func (m *Manager) filesWaiting(ctx context.Context, c *state.Cell) (int, error) {
	at, err := m.cfg.Records.Checkpoint(c.Head)
	if err != nil {
		return 0, err
	}
	o, err := m.cellOffer(ctx, c, &at)
	if err != nil {
		return 0, err
	}
	ignored, _, err := m.ignoredBy(ctx, c, o.base, o.after)
	if err != nil {
		return 0, err
	}
	d, err := diff.Compare(ctx, o.base, o.after, diff.Options{Ignored: ignored})
	if err != nil {
		return 0, err
	}
	return len(d.Files), nil
}

// planSync finds out what a cell at a checkpoint gets of its source.
func (m *Manager) planSync(ctx context.Context, c *state.Cell, at *state.Checkpoint, req api.SyncRequest) (*syncing, error) {
	const opName = "result.Sync"
	ours, err := m.cfg.Side(ctx, at)
	if err != nil {
		return nil, err
	}
	moved, err := m.sourceMoved(ctx, c, at.ID)
	if err != nil {
		return nil, err
	}
	base, source, ignored, changes := moved.base, moved.now, moved.ignored, moved.changes
	used := make([]bool, len(req.Paths))
	wanted := map[string]bool{}
	for i := range changes {
		ch := &changes[i]
		wanted[ch.Path] = len(req.Paths) == 0
		for j, p := range req.Paths {
			if glob.Below(p, ch.Path) {
				used[j], wanted[ch.Path] = true, true
			}
		}
	}
	if j := slices.Index(used, false); j >= 0 {
		return nil, cell.Errorf(cell.Invalid, opName, "pando sync --dry-run lists the changes", "nothing changed in the source at %s", diff.Quote(req.Paths[j]))
	}
	res, err := merge.Merge(ctx, merge.Request{Path: m.cfg.Path, Base: base, Ours: ours, Theirs: source, Names: [2]string{"the cell", "the source"}, Labels: [2]string{c.Selector(at), "source"},
		Ignored: ignored, Wanted: func(p string) bool { return wanted[p] }})
	if err != nil {
		return nil, err
	}
	for _, f := range res.Files { // a file that has two names is brought with both
		for _, p := range append([]string{f.Path}, f.Also...) {
			wanted[p] = true
		}
	}
	if refused := refusals(res, req.NoConflicts); refused != nil {
		return nil, cell.Errorf(cell.Conflict, opName, "the cell is as it was; bring the others in by their paths: pando sync "+c.Title()+" -- PATH…",
			"cannot sync cell %s: %w", c.Title(), refused)
	}
	s := &syncing{from: ours.Tree, source: source.Tree, all: len(req.Paths) == 0}
	touched := map[string]bool{}
	contents := []cell.Digest{}
	for _, f := range res.Files {
		for _, p := range append([]string{f.Path}, f.Also...) {
			touched[p] = true
		}
		for _, b := range [][]byte{f.Content, f.Theirs} { // by the second, later changes are told
			if err := m.cfg.Objects.Put(cell.Sum(b), b); err != nil {
				return nil, err
			}
			contents = append(contents, cell.Sum(b))
		}
		s.merged = append(s.merged, state.Merged{Path: f.Path, Also: f.Also, Conflicts: f.Conflicts})
	}
	for i := range changes {
		ch := &changes[i]
		if !wanted[ch.Path] {
			continue
		}
		s.paths = append(s.paths, ch.Path)
		if touched[ch.Path] {
			continue
		}
		now, err := ours.Tree.Lookup(ch.Path)
		switch {
		case err != nil && cell.KindOf(err) != cell.NotFound:
			return nil, err
		case (err != nil || now.Git() == nil) && ch.New.Git() == nil, err == nil && ch.New != nil && sameFile(&now, ch.New):
			continue // the cell has it, or, of what the source removed, nothing that it had
		}
		s.brought = append(s.brought, ch.Path)
	}
	to, err := workspace.Taken(ours.Tree, source.Tree, s.brought)
	if err != nil {
		return nil, err
	}
	if s.to, err = withMerged(to, ours.Tree, source.Tree, res.Files); err != nil {
		return nil, err
	}
	s.contents = stored{m, source.Contents, contents}
	return s, nil
}

// doSync carries out a sync, and completes out.
func (m *Manager) doSync(ctx context.Context, c *state.Cell, at *state.Checkpoint, s *syncing, args syncArgs, out *api.SyncResult) error {
	write := func(inst backend.Instance) error { return change(ctx, inst, c, s.from, s.to, s.contents, false) }
	inst, err := m.cfg.Cells.Living(ctx, c)
	switch {
	case err != nil:
		return err
	case inst != nil:
		err = write(inst)
	default:
		err = m.cfg.Cells.Alone(ctx, c, write)
	}
	var after state.Checkpoint
	if err == nil {
		after, err = m.cfg.Checkpoint(ctx, c, state.Checkpoint{Kind: state.KindManual, Message: "with what the source had become"}, "")
	}
	if err != nil {
		return errors.Join(err, m.putBack(c, at.ID))
	}
	was := *c
	if err = m.record(ctx, c, at, &after, s, args, out); err != nil {
		c.Known, c.KnownHeads, c.KnownAt, c.Contents, c.Agreed, c.Apart = was.Known, was.KnownHeads, was.KnownAt, was.Contents, was.Agreed, was.Apart
		return errors.Join(err, m.putBack(c, at.ID))
	}
	out.Before, out.Number = at.Number, after.Number
	return nil
}

// record makes a sync that was carried out durable.
func (m *Manager) record(ctx context.Context, c *state.Cell, at, after *state.Checkpoint, s *syncing, args syncArgs, out *api.SyncResult) error {
	got, err := m.cfg.TreeOf(ctx, after)
	if err != nil {
		return err
	}
	// What runs in the cell may have written meanwhile: there the two have nothing in common.
	differ, err := changedPaths(s.to, got)
	if err != nil {
		return err
	}
	missed := func(p string) bool { return slices.Contains(differ, p) }
	out.Missed = slices.DeleteFunc(slices.Clone(out.Synced), func(p string) bool { return !missed(p) })
	out.Synced = slices.DeleteFunc(out.Synced, missed)
	out.Merged = slices.DeleteFunc(out.Merged, func(f api.Merged) bool { return missed(f.Path) })
	s.merged = slices.DeleteFunc(s.merged, func(f state.Merged) bool { return missed(f.Path) })
	paths := slices.DeleteFunc(slices.Clone(s.paths), missed)
	known, err := m.known(ctx, c)
	if err != nil {
		return err
	}
	if known, err = workspace.Taken(known, s.source, s.paths); err != nil {
		return err
	}
	if err := m.agree(ctx, c, state.Agreement{Checkpoint: after.ID}, s.source, paths); err != nil {
		return err
	}
	if c.Known, err = m.cfg.PutTree(known); err != nil {
		return err
	}
	if s.all {
		c.KnownHeads = HeadsOf(c)
	}
	c.KnownAt, c.Apart = append(slices.Clone(c.KnownAt), after.ID), true
	keep(c, s.contents.have)
	if err := m.cfg.Space.SyncLayers(); err != nil {
		return err
	}
	act := state.ActOn(c, "sync", cell.Pending, "")
	act.Verdict, act.From, act.To, act.Source, act.Repositories, act.Synced, act.Merged, act.Downgrades = nil, at.Point(), after.Point(), c.Top(), c.Repositories, out.Synced, s.merged, c.Setup.Downgrades
	d, err := m.cfg.Evidence.Seal(ctx, args.key(), act, c)
	out.Receipt = d.String()
	return err
}
