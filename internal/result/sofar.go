package result

import (
	"context"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// offerSoFar is what there is to take of a cell while a run goes on in it: all that waits, with what that run has made so far. What was
// looked at last is what is taken, although the cell may be another by now: the run's command could write something else between the look and
// the accept. Without a look since the last accept it is what the cell is now. The caller is within the run.
func (m *Manager) offerSoFar(ctx context.Context, c *state.Cell, run cell.RunID, req api.AcceptRequest) (*offer, error) {
	const opName = "result.Accept"
	if !req.Apply && !req.DryRun {
		return nil, cell.Errorf(cell.Conflict, opName, "take what it has made so far with --apply, or wait until it has ended: pando logs -f "+c.Title(),
			"cannot accept what cell %s is: run %s is under way in it", c.Title(), run)
	}
	if _, err := m.cfg.Cells.Usable(c.ID); err != nil {
		return nil, err
	}
	var o *offer
	looked, err := m.lookedAt(c, run)
	if err == nil && looked != nil {
		o, err = m.cellOffer(ctx, c, looked)
	}
	if err != nil {
		return nil, err
	}
	nothing := func() bool { return o.base.Tree.ContentDigest() == o.after.Tree.ContentDigest() && len(o.covers) == 0 }
	if o == nil || nothing() || o.expected(req.Expect) != nil {
		at, err := m.presentHeld(ctx, c, run)
		if err != nil {
			return nil, err
		}
		if o, err = m.cellOffer(ctx, c, &at); err != nil {
			return nil, err
		}
		o.looked = time.Now()
	} else {
		o.looked = looked.Created
	}
	if nothing() {
		return nil, cell.Errorf(cell.Conflict, opName, "watch it: pando diff --watch "+c.Title(), "there is nothing to accept yet: run %s, which goes on, has changed nothing since what is in the source", run)
	}
	o.during = run
	return o, nil
}

// lookedAt is what was looked at last of what a run has made so far, also where something else was kept since: a turn of an
// agent, say. It is nil without such a look, and after an accept.
func (m *Manager) lookedAt(c *state.Cell, run cell.RunID) (*state.Checkpoint, error) {
	r, err := m.cfg.Records.Run(run)
	if err != nil {
		return nil, err
	}
	for id := c.Head; id != "" && id != r.In.Before; {
		k, err := m.cfg.Records.Checkpoint(id)
		if err != nil {
			return nil, err
		}
		switch {
		case k.Cell != c.ID, slices.ContainsFunc(c.Applied, func(a state.Applied) bool { return a.Checkpoint == id }):
			return nil, nil
		case k.Kind == state.KindLooked && k.Message == state.LookedMessage && !k.Gone:
			return &k, nil
		}
		id = k.Parent
	}
	return nil, nil
}

// placeOf says at which checkpoint what was taken of some paths belongs to the cell, and of which run that goes on it is, if of one: where that
// made nothing of it, it is of before the run, which may be rolled back.
func (m *Manager) placeOf(ctx context.Context, o *offer, paths []string) (at cell.CheckpointID, during cell.RunID, err error) {
	if o.during == "" {
		return o.at.ID, "", nil
	}
	r, err := m.cfg.Records.Run(o.during)
	if err != nil {
		return "", "", err
	}
	before, err := m.cfg.Records.Checkpoint(r.In.Before)
	if err != nil {
		return "", "", err
	}
	was, err := m.cfg.TreeOf(ctx, &before)
	if err != nil {
		return "", "", err
	}
	made, err := changedPaths(was, o.after.Tree)
	if err != nil {
		return "", "", err
	}
	if slices.ContainsFunc(paths, func(p string) bool { return slices.Contains(made, p) }) {
		return o.at.ID, o.during, nil
	}
	return before.ID, "", nil
}
