package result

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// Discard throws away what waits in a cell, or the result of its latest run: the cell goes
// back to before it, and what it was is kept as a checkpoint for a while.
func (m *Manager) Discard(ctx context.Context, t Target, req api.DiscardRequest, seen ...Seen) (out api.DiscardResult, err error) {
	err = m.decide(ctx, t, "discard", seen, func(c *state.Cell, run *state.Run, _ cell.RunID) error {
		out, err = m.discardHeld(ctx, c, run, req)
		return err
	})
	return out, err
}

func (m *Manager) discardHeld(ctx context.Context, c *state.Cell, run *state.Run, req api.DiscardRequest) (out api.DiscardResult, err error) {
	const opName = "result.Discard"
	req.Reason = m.cfg.Redactor.String(req.Reason)
	if run != nil && c.State != cell.Removed && run.In.After != "" && (run.Verdict == cell.Restored || run.Verdict == cell.Discarded) {
		return m.giveUp(ctx, c, run, req)
	}
	o, err := m.offerNow(ctx, c, run)
	if err != nil {
		return out, err
	}
	var to state.Checkpoint
	if run != nil {
		if _, err := run.Verdict.To(cell.Discarded); err != nil {
			return out, err
		}
		if latest := m.cfg.Records.LatestResult(c.ID); latest != nil && latest.ID != run.ID {
			return out, cell.Errorf(cell.Conflict, opName, fmt.Sprintf("go back past it with pando restore %s@%d, or discard all that waits: pando discard %s", c.Title(), run.Before.Number, c.Title()),
				"run %s is not the latest of cell %s; that is %s", run.ID, c.Title(), latest.ID)
		}
		to, err = m.cfg.Records.Checkpoint(run.In.Before)
	} else {
		o.covers, to, err = m.waiting(o)
	}
	if err != nil {
		return out, err
	}
	if to.Gone {
		return out, cell.Errorf(cell.NotFound, opName, "accept it, or remove the cell: pando rm "+c.Title(), "checkpoint %s@%d, which it would go back to, was removed", c.Title(), to.Number)
	}
	parts := m.partsOf(c, o.at.ID, to.ID)
	out = api.DiscardResult{CellName: c.Title(), Runs: runsAPI(o.covers), Number: to.Number, Services: c.ServicesAt(&to), DryRun: req.DryRun}
	for _, a := range parts {
		out.Applied += a.Files
	}
	ask := len(o.covers) > 1 && !req.Lose
	if out.Ended, err = m.cfg.Processes(ctx, c); err != nil && (req.DryRun || ask) {
		return out, err
	}
	if ask && !req.DryRun {
		return out, cell.Errorf(cell.Conflict, opName, "confirm it with --yes, or name one run",
			"this throws away the results of %s%s", names(o.runs()), alsoEnds(out.Ended, true))
	}
	if req.DryRun {
		out.Cell = m.cfg.Show(c)
		return out, nil
	}
	args := discardArgs{ID: newKey(), Cell: c.ID, At: o.at.ID, To: to.ID, Reason: cmp.Or(req.Reason, "discarded")}
	for i := range o.covers {
		args.Covers = append(args.Covers, o.covers[i].RunID())
	}
	for _, a := range parts {
		args.Parts = append(args.Parts, a.ID)
	}
	goal, err := m.cfg.TreeOf(ctx, &to)
	if err != nil {
		return out, err
	}
	keeping, err := m.keeping(ctx, c, o.after.Tree, goal, parts)
	if err != nil {
		return out, err
	}
	if keeping.ContentDigest() != goal.ContentDigest() {
		if args.Tree, err = m.cfg.PutTree(keeping); err != nil {
			return out, err
		}
	}
	do := func(ctx context.Context) error { return m.doDiscard(ctx, c, o.at, to, o.covers, args, &out) }
	if args.Tree.IsZero() {
		err = do(ctx)
	} else {
		err = operation.Do(ctx, m.cfg.Records, operation.NewID(), OpDiscard, args, do)
		if cell.KindOf(err) == cell.Unsupported {
			err = cell.Errorf(cell.Unsupported, opName, "take that back first: pando revert "+c.Title()+"; or take the rest, too: pando accept "+c.Title()+" --apply",
				"cannot leave in cell %s what is in the source: %w", c.Title(), err)
		}
	}
	return out, err
}

// doDiscard carries out a discard. out is completed, unless it is nil.
func (m *Manager) doDiscard(ctx context.Context, c *state.Cell, at, to state.Checkpoint, covers []state.Run, args discardArgs, out *api.DiscardResult) error {
	if err := m.cfg.MayReturn(c, &to); err != nil {
		return err
	}
	was, err := m.moveHead(ctx, c, &to, false)
	if err != nil {
		return err
	}
	services, moved, err := m.cfg.ServicesTo(ctx, c, &to)
	if err != nil {
		return err
	}
	recorded := false
	defer func() { moved(recorded) }()
	agreed, knownAt := c.Agreed, c.KnownAt
	from, err := m.cfg.TreeOf(ctx, &to)
	if err != nil {
		return err
	}
	tree := from
	if !args.Tree.IsZero() {
		if tree, err = m.cfg.Tree(args.Tree); err != nil {
			return err
		}
		if err := m.cfg.Records.Commit(services...); err != nil { // the cell is used for what follows, and they with it
			return err
		}
		moved(true)
		services, moved = nil, func(bool) {}
		if to, err = m.bringIn(ctx, c, from, tree, state.Checkpoint{Kind: state.KindManual, Message: "what was applied, without the rest"}); err != nil {
			return errors.Join(err, m.putBack(c, was))
		}
		c.KnownAt = append(slices.Clone(c.KnownAt), to.ID)
	}
	if err := m.agreeOnRest(ctx, c, &to, from, tree, args.Parts); err != nil {
		if c.KnownAt, c.Agreed = knownAt, agreed; !args.Tree.IsZero() {
			err = errors.Join(err, m.putBack(c, was))
		}
		return err
	}
	applied := c.Applied
	c.Applied = slices.Clone(applied)
	for i := range c.Applied {
		if slices.Contains(args.Parts, c.Applied[i].ID) {
			c.Applied[i].Checkpoint, c.Applied[i].Part, c.Applied[i].Held = to.ID, false, false
		}
	}
	objects := append([]any{c}, services...)
	kept := 0
	if at.ID != to.ID {
		at.Expires = time.Now().Add(state.KeepResult).UTC()
		objects = append(objects, &at)
		kept = at.Number
	}
	if c.Anonymous() {
		c.Expires = time.Now().Add(state.KeepResult).UTC()
	}
	for i := range covers {
		r := &covers[i]
		if err := r.Decide(cell.Discarded, args.Reason, "user"); err != nil {
			return err
		}
		objects = append(objects, r)
	}
	act := state.ActOn(c, "discard", cell.Discarded, args.Reason)
	act.From, act.To, act.Proof, act.Downgrades = at.Point(), to.Point(), state.ProofLayers, c.Setup.Downgrades
	d, err := m.cfg.Evidence.Seal(ctx, args.key(), act, objects...)
	if err != nil && !args.Tree.IsZero() { // it is committed where the cell is
		c.Applied, c.Agreed, c.KnownAt = applied, agreed, knownAt
		return errors.Join(err, m.putBack(c, was))
	}
	recorded = err == nil
	if err != nil || out == nil {
		return err
	}
	out.Kept, out.Number = kept, to.Number
	out.Cell, out.Runs, out.Receipt = m.cfg.Show(c), runsAPI(covers), d.String()
	return nil
}

// giveUp frees what is kept of a result that was restored or discarded. It needs hardly any
// space itself: a disk that such results have filled has this way out.
func (m *Manager) giveUp(ctx context.Context, c *state.Cell, run *state.Run, req api.DiscardRequest) (out api.DiscardResult, err error) {
	const opName = "result.Discard"
	if err := m.cfg.Records.Unheld(c.ID, "give up", "the result of run "+run.ID); err != nil {
		return out, err
	}
	k, err := m.cfg.Records.Checkpoint(run.In.After)
	if err != nil {
		return out, err
	}
	switch {
	case k.Gone || k.ID == run.In.Before:
		return out, cell.Errorf(cell.Conflict, opName, "pando gc shows what pando can free", "nothing is kept of the result of run %s", run.ID)
	case m.cfg.Records.Ancestors(c.Head)[k.ID]:
		return out, cell.Errorf(cell.Conflict, opName, "go back before it first: pando undo "+c.Title(), "cannot discard the result of run %s: it is in the workspace of cell %s", run.ID, c.Title())
	case slices.Contains(c.KnownAt, k.ID) && !slices.ContainsFunc(c.Applied, func(a state.Applied) bool { return a.Checkpoint == k.ID }):
		return out, cell.Errorf(cell.Conflict, opName, "it goes with the cell: pando rm "+c.Title(), "cannot discard the result of run %s: it was in the source, which is known by the files of it", run.ID)
	case slices.Contains(c.KnownAt, k.ID):
		return out, cell.Errorf(cell.Conflict, opName, "take it back first: pando revert "+run.ID, "cannot discard the result of run %s: it is in the source", run.ID)
	case m.cfg.Records.IsPart(c, k.ID):
		return out, cell.Errorf(cell.Conflict, opName, "it goes with that", "cannot discard the result of run %s: a checkpoint of the cell that %s serves has it", run.ID, c.Title())
	}
	k.Gone = true
	if err := run.Decide(cell.Discarded, cmp.Or(req.Reason, "given up"), "user"); err != nil {
		return out, err
	}
	out = api.DiscardResult{CellName: c.Title(), Runs: []api.Run{run.API()}, Number: m.cfg.Records.HeadNumber(c), DryRun: req.DryRun}
	if out.Freed, err = m.cfg.Space.DropStates(&k, true); err != nil || req.DryRun {
		out.Cell = m.cfg.Show(c)
		return out, err
	}
	if !req.Lose {
		return out, cell.Errorf(cell.Conflict, opName, "confirm it with --yes", "this gives up for good what is kept of run %s, %s", run.ID, policy.FormatSize(out.Freed))
	}
	key := "discard/" + newKey()
	seal := func() error {
		act := state.ActOn(c, "discard", cell.Discarded, cmp.Or(req.Reason, "given up"))
		act.From, act.Downgrades = k.Point(), c.Setup.Downgrades
		d, err := m.cfg.Evidence.Seal(ctx, key, act, &k, run)
		out.Receipt = d.String()
		return err
	}
	err = m.cfg.Space.GiveUp(&k, seal)
	out.Cell, out.Runs = m.cfg.Show(c), []api.Run{run.API()}
	return out, err
}

// waiting returns the runs that wait for a verdict since something of the cell was
// accepted, oldest first, and the checkpoint before them.
func (m *Manager) waiting(o *offer) (runs []state.Run, to state.Checkpoint, err error) {
	at := map[cell.CheckpointID][]state.Run{}
	for _, r := range m.cfg.Records.Runs(o.c.ID) {
		at[r.In.After] = append(at[r.In.After], r)
	}
	to = o.at
	for {
		decided := false
		for _, r := range at[to.ID] {
			if r.Undecided() {
				runs = append(runs, r)
			} else if !r.OffersNothing() {
				decided = true
			}
		}
		if len(at[to.ID]) == 0 && slices.ContainsFunc(o.c.Applied, func(a state.Applied) bool { return a.Checkpoint == to.ID && !a.Part && !a.Held }) {
			decided = true // what was applied, without a rest
		}
		if decided || to.Parent == "" {
			break
		}
		up, err := m.cfg.Records.Checkpoint(to.Parent)
		if err != nil {
			return nil, to, err
		}
		if up.Cell != o.c.ID {
			break
		}
		to = up
	}
	slices.Reverse(runs)
	if to.ID == o.at.ID && len(runs) == 0 {
		return nil, to, cell.Errorf(cell.Conflict, "result.Discard", "go back further with pando undo or pando restore CELL@N", "nothing waits in cell %s", o.c.Title())
	}
	return runs, to, nil
}
