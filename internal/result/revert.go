package result

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/commits"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
)

// Revert takes back from a source what an accept applied to it last, of a cell or of a run:
// all of it, or, when a file is not what was written there, nothing.
func (m *Manager) Revert(ctx context.Context, t Target, req api.RevertRequest, seen ...Seen) (out api.RevertResult, err error) {
	err = m.decide(ctx, t, "revert", seen, func(c *state.Cell, run *state.Run, _ cell.RunID) error {
		a, err := m.lastApplied(c, run)
		if err != nil {
			return err
		}
		out, err = m.revertHeld(ctx, c, []state.Applied{*a}, req)
		return err
	})
	return out, err
}

// lastApplied is the newest of what is in the source, of a cell or of one run.
func (m *Manager) lastApplied(c *state.Cell, run *state.Run) (*state.Applied, error) {
	for i := range slices.Backward(c.Applied) {
		if a := &c.Applied[i]; run == nil || slices.Contains(a.Runs, run.RunID()) {
			return a, nil
		}
	}
	what := "cell " + c.Title()
	if run != nil {
		what = "run " + run.ID
	}
	return nil, cell.Errorf(cell.Conflict, "result.Revert", "pando accept --apply brings changes there", "there is nothing to take back: nothing of %s is in %s", what, cmp.Or(c.Source, "its source"))
}

// revertArgs is a revert that was begun.
type revertArgs struct {
	Cell    cell.ID           `json:"cell"`
	ID      string            `json:"id"`  // of its receipt
	IDs     []string          `json:"ids"` // of what is taken back
	Request api.RevertRequest `json:"request"`
	Planned []string          `json:"planned,omitempty"` // paths that were to be written
	Branch  *branchArgs       `json:"branch,omitempty"`  // the move of the source's branch
}

// revertHeld takes things back, which are in the order in which they were applied. The
// caller holds the cell's lock. It changes the cell and the runs.
func (m *Manager) revertHeld(ctx context.Context, c *state.Cell, list []state.Applied, req api.RevertRequest) (api.RevertResult, error) {
	req.Reason = m.cfg.Redactor.String(req.Reason)
	b, err := m.backBranch(ctx, c, list)
	if err != nil {
		return api.RevertResult{}, err
	}
	defer b.close()
	planned := req
	planned.DryRun = true
	out, err := m.doRevert(ctx, c, list, b, planned, revertArgs{})
	if err != nil || req.DryRun {
		return out, err
	}
	args := revertArgs{ID: newKey(), Cell: c.ID, Request: req, Planned: out.Reverted}
	if b != nil {
		args.Branch = &b.branchArgs
	}
	for _, a := range list {
		args.IDs = append(args.IDs, a.ID)
	}
	err = operation.Do(ctx, m.cfg.Records, operation.NewID(), OpRevert, args, func(ctx context.Context) (err error) {
		out, err = m.doRevert(ctx, c, list, b, req, args)
		return err
	})
	return out, err
}

// key is that of the receipt.
func (a *revertArgs) key() string { return "revert/" + a.ID }

func (m *Manager) resumeRevert(ctx context.Context, args revertArgs) error {
	if m.cfg.Evidence.Sealed(args.key()) {
		return nil // the operation of its seal goes on by itself
	}
	c, err := m.cfg.Records.Cell(args.Cell)
	if err != nil {
		return err
	}
	var list []state.Applied
	for _, a := range c.Applied {
		if slices.Contains(args.IDs, a.ID) {
			list = append(list, a)
		}
	}
	b, err := m.resumeBranch(ctx, &c, args.Branch)
	if err != nil {
		m.cfg.Log.Error("cannot go on with the branch of a revert: its files are taken back", "cell", c.ID, "branch", args.Branch.Move.Branch, "error", err)
	}
	defer b.close()
	_, err = m.doRevert(ctx, &c, list, b, args.Request, args)
	return err
}

func (m *Manager) doRevert(ctx context.Context, c *state.Cell, list []state.Applied, b *branch, req api.RevertRequest, args revertArgs) (out api.RevertResult, err error) {
	out = api.RevertResult{CellName: c.Title(), Source: c.Top(), Runs: []api.Run{}, Reverted: []string{}, Already: []string{}, DryRun: req.DryRun}
	known, err := m.known(ctx, c)
	if err != nil {
		return out, err
	}
	base, want, err := m.without(known, c.Applied, list)
	if err != nil {
		return out, m.cannotRevert(c, list, err)
	}
	var held *commits.Held
	if !req.DryRun {
		if held, err = m.hold(ctx, c, &b); err != nil {
			return out, err
		}
		if held != nil {
			defer held.Release()
		}
	}
	out.Branch = b.api()
	res, err := m.bring(ctx, c, apply.Request{
		Base: base, After: workspace.Side{Tree: want, Contents: m.pastOf(ctx, c)}, Include: []string{"."}, IsIgnored: none, Ignored: true, DryRun: req.DryRun,
	})
	if err != nil {
		return out, m.cannotRevert(c, list, err)
	}
	if held != nil {
		if err := held.Do(); err != nil {
			return out, cell.Errorf(cell.Unavailable, "result.Revert", "do it again", "the files are taken back, and the branch is not: %w", err)
		}
	}
	for _, f := range res.Applied {
		out.Reverted = append(out.Reverted, f.Path)
	}
	for _, p := range res.Already {
		if slices.Contains(args.Planned, p) { // an earlier try wrote it
			out.Reverted = append(out.Reverted, p)
		} else {
			out.Already = append(out.Already, p)
		}
	}
	slices.Sort(out.Reverted)
	slices.Sort(out.Already)
	why := cmp.Or(req.Reason, "it was taken back from the source")
	if len(out.Reverted) == 0 {
		why = cmp.Or(req.Reason, "it was in the source no more: its files were there as before the accept")
	}
	var runs []state.Run
	here, left := m.cfg.Records.Ancestors(c.Head), slices.DeleteFunc(slices.Clone(c.Applied), func(a state.Applied) bool {
		return slices.ContainsFunc(list, func(l state.Applied) bool { return l.ID == a.ID })
	})
	for _, a := range list {
		for _, id := range a.Runs {
			r, err := m.cfg.Records.Run(id)
			if err != nil || r.Phase != cell.Ended || slices.ContainsFunc(runs, func(o state.Run) bool { return o.ID == r.ID }) {
				continue // one that goes on counts at its end
			}
			verdict := cell.Restored
			switch r.Applied = state.FilesOf(left, id); {
			case r.Applied > 0 && r.Verdict == cell.Accepted && here[r.In.After] && !takenWhole(left, id): // the rest waits again
				verdict = cell.Pending
			case r.Applied > 0, r.Verdict == cell.Discarded: // by an earlier accept; the rest was discarded
				verdict = r.Verdict
			case here[r.In.After]:
				verdict = cell.Pending
			}
			if err := r.Decide(verdict, why, "user"); err != nil {
				return out, err
			}
			runs = append(runs, r)
		}
	}
	if req.DryRun {
		out.Cell, out.Runs = m.cfg.Show(c), runsAPI(runs)
		return out, nil
	}
	if c.Known, err = m.cfg.PutTree(want); err != nil {
		return out, err
	}
	c.Applied = left
	c.Taken = slices.DeleteFunc(slices.Clone(c.Taken), func(b state.BranchMove) bool {
		return slices.ContainsFunc(list, func(a state.Applied) bool { return a.Branch != nil && *a.Branch == b })
	})
	if b != nil {
		c.KnownHeads = HeadsOf(c)
	}
	if err := m.disagree(c, list); err != nil {
		return out, err
	}
	objects := []any{c}
	for i := range runs {
		objects = append(objects, &runs[i])
	}
	act := state.ActOn(c, "revert", cell.Pending, why)
	act.Branch, act.Reverted, act.Already, act.Source, act.Repositories, act.Downgrades = b.state(), out.Reverted, out.Already, c.Top(), c.Repositories, c.Setup.Downgrades
	d, err := m.cfg.Evidence.Seal(ctx, args.key(), act, objects...)
	if err != nil {
		return out, err
	}
	out.Receipt, out.Cell, out.Runs = d.String(), m.cfg.Show(c), runsAPI(runs)
	return out, nil
}

// takenWhole reports whether an accept of all that a run had made is among those that are in the source.
func takenWhole(applied []state.Applied, run cell.RunID) bool {
	return slices.ContainsFunc(applied, func(a state.Applied) bool { return slices.Contains(a.Runs, run) && !a.Part && a.During != run })
}

// without is what a source that is known is, and what it was before some things were applied to it, which are in the
// order in which they were, of all that were applied. Where the source became something else since, and nothing was applied
// there, it is taken to be as it was applied: whether it is shows when it is written to.
func (m *Manager) without(known *workspace.Tree, all, list []state.Applied) (base, want *workspace.Tree, err error) {
	base, want = known, known
	for i, a := range slices.Backward(list) {
		before, err := m.cfg.Tree(a.Before)
		if err != nil {
			return nil, nil, err
		}
		after, err := m.cfg.Tree(a.After)
		if err != nil {
			return nil, nil, err
		}
		changes, err := workspace.Changes(before, after)
		if err != nil {
			return nil, nil, err
		}
		by, err := m.appliedAfter(all, list[i:], a.ID)
		if err != nil {
			return nil, nil, err
		}
		var paths, moved []string
		var later []apply.PathConflict
		for _, c := range changes {
			if !c.Git() {
				continue
			}
			if by[c.Path] {
				later = append(later, apply.PathConflict{Path: c.Path, Why: "was changed by a later accept, which is to be taken back first"})
				continue
			}
			now, err := want.Lookup(c.Path)
			if err != nil && cell.KindOf(err) != cell.NotFound {
				return nil, nil, err
			}
			if there := err == nil; there != (c.New != nil) || there && !sameFile(&now, c.New) {
				moved = append(moved, c.Path)
			}
			paths = append(paths, c.Path)
		}
		if len(later) > 0 {
			return nil, nil, &apply.ConflictError{Paths: later}
		}
		if base, err = workspace.Taken(base, after, moved); err != nil {
			return nil, nil, err
		}
		if want, err = workspace.Taken(want, before, paths); err != nil {
			return nil, nil, err
		}
	}
	return base, want, nil
}

// appliedAfter are the paths at which something was applied after what has an id, but for some that are taken back.
func (m *Manager) appliedAfter(all, but []state.Applied, id string) (map[string]bool, error) {
	by := map[string]bool{}
	at := slices.IndexFunc(all, func(a state.Applied) bool { return a.ID == id })
	for _, a := range all[at+1:] {
		if slices.ContainsFunc(but, func(b state.Applied) bool { return b.ID == a.ID }) {
			continue
		}
		paths, err := m.changed(a.Before, a.After)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			by[p] = true
		}
	}
	return by, nil
}

// sameFile reports whether two entries are the same to git.
func sameFile(a, b *workspace.Entry) bool {
	if a.Type == workspace.Folder || b.Type == workspace.Folder {
		return a.Type == b.Type
	}
	return a.Type == b.Type && a.Digest == b.Digest && a.Target == b.Target && a.Mode&0o111 == b.Mode&0o111
}

// cannotRevert says what is in the way, and what can be done.
func (m *Manager) cannotRevert(c *state.Cell, list []state.Applied, err error) error {
	const opName = "result.Revert"
	if ce, ok := errors.AsType[*apply.ConflictError](err); ok {
		return cell.Errorf(cell.Conflict, opName, "nothing was changed; bring these files back to what was applied, or take the rest back by hand",
			"cannot take it back from %s: %w", c.Top(), ce)
	}
	if c.State != cell.Removed || cell.KindOf(err) != cell.NotFound {
		return err
	}
	for _, a := range slices.Backward(list) {
		for _, id := range a.Runs {
			r, rerr := m.cfg.Records.Run(id)
			if rerr != nil {
				continue
			}
			patch := filepath.Join(r.Folder, "applied.patch")
			if _, serr := os.Stat(patch); serr == nil {
				return cell.Errorf(cell.NotFound, opName, fmt.Sprintf("take it back by its patch: git -C %s apply -R %s (of several, applied-2.patch and so on, the last first)", c.Source, patch),
					"cell %s was removed, and what its source was with it", c.Title())
			}
		}
	}
	return err
}
