package engine

import (
	"bytes"
	"context"
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// side is a checkpoint as one side of a comparison.
func (e *Engine) side(ctx context.Context, k *Checkpoint) (workspace.Side, error) {
	if p, err := e.providerOf(k.State.Provider); k.Gone && (err != nil || !haveLayers(p, k.State)) {
		return workspace.Side{}, cell.Errorf(cell.NotFound, "engine.side", "", "checkpoint @%d expired and was removed", k.Number)
	}
	t, err := e.tree(ctx, k)
	if err != nil {
		return workspace.Side{}, err
	}
	p, err := e.providerOf(k.State.Provider)
	if err != nil {
		return workspace.Side{}, err
	}
	return workspace.Side{Tree: t, Contents: p.Contents(k.State)}, nil
}

// compareSides compares two states, and says which files git ignores. When git's
// index or its rules can't be read, it says so, and no change is left out as ignored.
func (e *Engine) compareSides(ctx context.Context, a, b workspace.Side) (d *diff.Diff, ignored func(path string, isDir bool) bool, unreadable string, err error) {
	ignored, err = diff.IgnoredBy(ctx, a, b, e.cfg.Parser)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, "", err
	case err != nil:
		ignored, unreadable = none, err.Error()+"; every change is listed, as if git ignored none"
	}
	d, err = diff.Compare(ctx, a, b, diff.Options{Ignored: ignored})
	return d, ignored, unreadable, err
}

// none ignores no file.
func none(string, bool) bool { return false }

// DiffRequest says what to compare and how to show it.
type DiffRequest struct {
	Cell cell.ID
	Run  cell.RunID // compare before and after of this run
	From int        // numbers of checkpoints; 0: what the source was, or before the run
	To   int        // 0: the cell's present head
	// Form is "json", "text", "stat" or "patch".
	Form    string
	Colour  bool
	Width   int
	Ignored bool // show ignored files too
}

// Diff compares two states of a cell.
func (e *Engine) Diff(ctx context.Context, req DiffRequest) (api.Diff, error) {
	defer e.under.begin().end()
	from, to, c, err := e.ends(ctx, req)
	if err != nil {
		return api.Diff{}, err
	}
	a, err := e.side(ctx, &from)
	if err != nil {
		return api.Diff{}, err
	}
	b, err := e.side(ctx, &to)
	if err != nil {
		return api.Diff{}, err
	}
	out := api.Diff{Cell: string(c.ID), Isolation: api.IsolationOf(c.Backend), From: e.selector(c, &from), To: e.selector(c, &to), Files: []api.FileChange{}, First: []api.Look{}, Notes: []string{}}
	if up, err := e.reg.cell(from.Cell); err == nil && up.ID != c.ID {
		out.From = e.selector(&up, &from)
	}
	var d *diff.Diff
	ignored := none
	if req.Ignored || req.Form == "patch" {
		d, err = diff.Compare(ctx, a, b, diff.Options{})
	} else {
		var unreadable string
		if d, ignored, unreadable, err = e.compareSides(ctx, a, b); unreadable != "" {
			out.Notes = append(out.Notes, unreadable)
		}
	}
	if err != nil {
		return out, err
	}
	if err := d.Count(ctx); err != nil {
		return out, err
	}
	for _, f := range d.Files {
		v := api.FileChange{Path: f.Path, OldPath: f.OldPath, Status: string(f.Status), Binary: f.Binary, Added: f.Added, Deleted: f.Deleted,
			OldDigest: f.OldDigest.String(), NewDigest: f.NewDigest.String()}
		if f.OldMode != 0 {
			v.OldMode = f.OldMode.String()
		}
		if f.NewMode != 0 {
			v.NewMode = f.NewMode.String()
		}
		out.Files = append(out.Files, v)
	}
	out.Ignored = d.Ignored.Count
	for _, n := range d.Unrepresented {
		out.Notes = append(out.Notes, n.Path+": "+n.What)
	}
	if req.Form != "patch" {
		if out.First, err = e.lookFirst(c, a, b, ignored); err != nil {
			return out, err
		}
	}
	var text bytes.Buffer
	opts := diff.TextOptions{Colour: req.Colour, Width: req.Width}
	switch req.Form {
	case "", "json":
	case "text":
		err = d.Text(ctx, &text, opts)
	case "stat":
		writeFirst(&text, out.First)
		err = d.Stat(ctx, &text, opts)
	case "patch":
		_, err = d.Patch(ctx, &text)
	default:
		err = cell.Errorf(cell.Invalid, "engine.Diff", "use json, text, stat or patch", "%q is no form of a diff", req.Form)
	}
	out.Text = text.String()
	return out, err
}

// ends finds the two states to compare: those of a run, two checkpoints, or
// what the source was and what the cell is now.
func (e *Engine) ends(ctx context.Context, req DiffRequest) (from, to Checkpoint, c *Cell, err error) {
	id := req.Cell
	var run *Run
	if req.Run != "" {
		r, err := e.reg.run(req.Run)
		if err != nil {
			return from, to, nil, err
		}
		if r.In.After == "" && r.Error != nil && r.ExitCode != nil {
			return from, to, nil, cell.Errorf(cell.Conflict, "engine.Diff", "", "run %s could not be finished, so its result is not known: %s", r.ID, r.Error.Message)
		}
		if r.In.Before == "" || r.In.After == "" {
			return from, to, nil, cell.Errorf(cell.Conflict, "engine.Diff", "", "run %s has no result yet", r.ID)
		}
		run, id = &r, r.CellID()
	}
	cc, err := e.reg.cell(id)
	if err != nil {
		return from, to, nil, err
	}
	c = &cc
	switch {
	case req.From > 0:
		from, err = e.reg.number(id, req.From)
	case run != nil:
		from, err = e.reg.checkpoint(run.In.Before)
	default:
		from, err = e.firstOf(c)
	}
	if err != nil {
		return from, to, c, err
	}
	switch {
	case req.To > 0:
		to, err = e.reg.number(id, req.To)
	case run != nil && req.From == 0:
		to, err = e.reg.checkpoint(run.In.After)
	default:
		to, err = e.present(ctx, c)
	}
	return from, to, c, err
}

// present is the cell's state now: its head, or what was written since, as a
// checkpoint that is made for the purpose.
func (e *Engine) present(ctx context.Context, c *Cell) (Checkpoint, error) {
	if c.Gen == nil {
		return e.reg.checkpoint(c.Head)
	}
	if e.runIn(c.ID) != nil {
		return Checkpoint{}, cell.Errorf(cell.Conflict, "engine.Diff", "wait for it, or follow it with pando logs -f "+c.Title(), "a run is under way in cell %s", c.Title())
	}
	release, err := e.turns.take(ctx, c.ID, "diff", nil)
	if err != nil {
		return Checkpoint{}, err
	}
	defer release()
	defer e.under.begin().end()
	fresh, err := e.usable(c.ID)
	if err != nil {
		return Checkpoint{}, err
	}
	k, err := e.settle(ctx, &fresh, kindManual, "as of a diff", "")
	if err != nil {
		return k, fmt.Errorf("cannot look at the workspace now: %w", err)
	}
	*c = fresh
	return k, nil
}
