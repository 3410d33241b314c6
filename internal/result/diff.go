package result

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// ignoredBy reports which of the changes between two states git ignores. When git's index
// or its rules can't be read, it says so, and none is ignored.
func (m *Manager) ignoredBy(ctx context.Context, c *state.Cell, a, b workspace.Side) (ignored func(path string, isDir bool) bool, unreadable string, err error) {
	ignored, err = diff.IgnoredBy(ctx, a, b, c.Parts(), m.cfg.Parser)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, "", err
	case err != nil:
		return none, err.Error() + "; every change is listed, as if git ignored none", nil
	}
	return ignored, "", nil
}

// none ignores no file.
func none(string, bool) bool { return false }

// DiffRequest says what to compare and how to show it.
type DiffRequest struct {
	Target
	From int // numbers of checkpoints; 0, both: what there is to decide about
	To   int // 0: the cell's present state
	// FromCell is the cell that From is of; "": the same. With it From 0 is its present state.
	FromCell cell.ID
	// Form is "json", "text", "stat" or "patch".
	Form    string
	Colour  bool
	Width   int
	Ignored bool // show ignored files too
	// Include names what a patch has although accept would hold it back, exactly or by a
	// folder above; "." is all.
	Include []string
	// Only are patterns of the changed paths to show, as glob.Below has them; none: all.
	Only []string
}

// between reports whether two states are named, and not what there is to decide about.
func (r *DiffRequest) between() bool { return r.From > 0 || r.To > 0 || r.FromCell != "" }

// Diff compares two states of a cell, or of two.
func (m *Manager) Diff(ctx context.Context, req DiffRequest) (api.Diff, error) {
	defer m.cfg.Pin()()
	o, err := m.compared(ctx, req)
	if err != nil {
		return api.Diff{}, err
	}
	c, a, b := o.c, o.base, o.after
	out := api.Diff{Cell: string(c.ID), Isolation: api.IsolationOf(c.Backend), From: o.from, To: o.to, Runs: o.changed(), Digest: o.digest.String(),
		Files: []api.FileChange{}, Held: []api.Held{}, First: []api.Look{}, Notes: []string{}}
	if !c.NoSource {
		out.Source = c.Top()
	}
	commits, err := commitsIn(c, a, b)
	if out.Commits = commits.API(); err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("which commits were made in the cell can't be told: %v", err))
	}
	if !req.between() {
		out.Head = headMoved(c)
	}
	ignored, unreadable := none, ""
	if !req.Ignored {
		if ignored, unreadable, err = m.ignoredBy(ctx, c, a, b); err != nil {
			return out, err
		}
		if unreadable != "" {
			out.Notes = append(out.Notes, unreadable)
		}
	}
	first, held, err := m.review(c, a, b, ignored, req.Include)
	if err != nil {
		return out, err
	}
	out.First, out.Held = state.LooksAPI(first), held
	d, err := diff.Compare(ctx, a, b, diff.Options{Ignored: ignored, NoRenames: req.Form == "patch" && len(out.Held) > 0})
	if err != nil {
		return out, err
	}
	if first, err = narrow(d, &out, first, req.Only); err != nil {
		return out, err
	}
	if req.Form == "patch" {
		withoutHeld(d, out.Held)
	}
	if err := d.Count(ctx); err != nil {
		return out, err
	}
	out.Files = filesAPI(d)
	out.Ignored = d.Ignored.Count
	for _, n := range d.Unrepresented {
		out.Notes = append(out.Notes, n.Path+": "+n.What)
	}
	out.Text, err = textOf(ctx, d, first, req)
	return out, err
}

// narrow leaves what is at some paths. A pattern at which nothing changed is an error.
func narrow(d *diff.Diff, out *api.Diff, first []state.Look, only []string) ([]state.Look, error) {
	if len(only) == 0 {
		return first, nil
	}
	used := make([]bool, len(only))
	is := func(p string) (in bool) {
		for i, pattern := range only {
			if glob.Below(pattern, p) {
				used[i], in = true, true
			}
		}
		return in
	}
	d.Files = slices.DeleteFunc(d.Files, func(c diff.FileChange) bool { return !is(c.Path) && (c.OldPath == "" || !is(c.OldPath)) })
	for i, ok := range used {
		if !ok {
			return first, cell.Errorf(cell.NotFound, "result.Diff", "leave it out: all changes are shown", "there is no change at %s", diff.Quote(only[i]))
		}
	}
	d.Ignored = diff.IgnoredFiles{}
	d.Unrepresented = slices.DeleteFunc(d.Unrepresented, func(n diff.Note) bool { return !is(n.Path) })
	out.Held = slices.DeleteFunc(out.Held, func(h api.Held) bool { return !is(h.Path) })
	first = slices.DeleteFunc(slices.Clone(first), func(l state.Look) bool {
		return !slices.ContainsFunc(d.Files, func(c diff.FileChange) bool { return l.Covers(c.Path) })
	})
	out.First = state.LooksAPI(first)
	return first, nil
}

// filesAPI lists the files of a diff.
func filesAPI(d *diff.Diff) []api.FileChange {
	list := []api.FileChange{}
	for _, f := range d.Files {
		v := api.FileChange{Path: f.Path, OldPath: f.OldPath, Status: string(f.Status), Binary: f.Binary, Added: f.Added, Deleted: f.Deleted,
			OldDigest: f.OldDigest.String(), NewDigest: f.NewDigest.String()}
		if f.OldMode != 0 {
			v.OldMode = f.OldMode.String()
		}
		if f.NewMode != 0 {
			v.NewMode = f.NewMode.String()
		}
		list = append(list, v)
	}
	return list
}

// textOf is a diff in the form that is asked for.
func textOf(ctx context.Context, d *diff.Diff, first []state.Look, req DiffRequest) (string, error) {
	var text bytes.Buffer
	opts := diff.TextOptions{Colour: req.Colour, Width: req.Width}
	var err error
	switch req.Form {
	case "", "json":
	case "text":
		err = d.Text(ctx, &text, opts)
	case "stat":
		writeFirst(&text, first)
		err = d.Stat(ctx, &text, opts)
	case "patch":
		err = d.Patch(ctx, &text)
	default:
		err = cell.Errorf(cell.Invalid, "result.Diff", "use json, text, stat or patch", "%q is no form of a diff", req.Form)
	}
	return text.String(), err
}

// compared finds the two states to compare: what there is to decide about, or those of
// two checkpoints.
func (m *Manager) compared(ctx context.Context, req DiffRequest) (*offer, error) {
	id, err := m.cellOf(req.Target)
	if err != nil {
		return nil, err
	}
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return nil, err
	}
	if req.Run != "" && !req.between() {
		run, err := m.cfg.Records.Run(req.Run)
		if err != nil {
			return nil, err
		}
		return m.runOffer(ctx, &c, &run)
	}
	var to state.Checkpoint
	if req.To > 0 {
		to, err = m.cfg.Records.Numbered(id, req.To)
	} else {
		if c, err = m.cfg.Cells.Usable(id); err == nil {
			to, err = m.present(ctx, &c, true)
		}
	}
	if err != nil {
		return nil, err
	}
	if !req.between() {
		return m.cellOffer(ctx, &c, &to)
	}
	var from state.Checkpoint
	switch {
	case req.From > 0:
		from, err = m.cfg.Records.Numbered(cmp.Or(req.FromCell, id), req.From)
	case req.FromCell != "":
		var other state.Cell
		if other, err = m.cfg.Cells.Usable(req.FromCell); err == nil {
			from, err = m.present(ctx, &other, true)
		}
	default:
		from, err = m.firstOf(&c)
	}
	if err != nil {
		return nil, err
	}
	o := &offer{c: &c, at: to, from: c.Selector(&from), to: c.Selector(&to)}
	if up, err := m.cfg.Records.Cell(from.Cell); err == nil {
		o.from = up.Selector(&from)
	}
	if o.base, err = m.cfg.Side(ctx, &from); err != nil {
		return nil, err
	}
	o.after, err = m.cfg.Side(ctx, &to)
	return o, err
}
