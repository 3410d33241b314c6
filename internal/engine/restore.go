package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// Restore brings a cell back to one of its checkpoints. Its processes end.
// What it was before stays as a checkpoint. Where the request is strict and the
// checkpoint has generators of random numbers that every cell going on there has in
// common, it is Unsupported, and the cell goes on as it was. What was applied to the
// source stays there.
func (e *Engine) Restore(ctx context.Context, id cell.ID, req api.RestoreRequest, seen ...Seen) (res api.RestoreResult, err error) {
	return e.restore(ctx, id, req, false, seen)
}

// restore is Restore. With takeBack what was applied of the results that leave the cell is
// taken back from the source first.
func (e *Engine) restore(ctx context.Context, id cell.ID, req api.RestoreRequest, takeBack bool, seen []Seen) (res api.RestoreResult, err error) {
	if !req.DryRun {
		var a *act
		ctx, a = e.act(ctx, "restore", id)
		defer a.over(&err)
	}
	began := time.Now()
	release, err := e.alive.Lock(ctx, id, "restore")
	if err != nil {
		return api.RestoreResult{}, err
	}
	defer release()
	defer e.pins.Begin().End()
	c, err := e.alive.Usable(id)
	if err != nil {
		return api.RestoreResult{}, err
	}
	if err := unless(func() string { return e.cellTag(&c) }, seen); err != nil {
		return api.RestoreResult{}, err
	}
	if err := e.govern.MayStart(&c); err != nil {
		return api.RestoreResult{}, err
	}
	k, err := e.reg.Numbered(c.ID, req.Number)
	if err != nil {
		return api.RestoreResult{}, err
	}
	if k.Gone {
		return api.RestoreResult{}, cell.Errorf(cell.NotFound, "engine.Restore", "pando history "+c.Title()+" shows those that are there", "checkpoint %s@%d was removed: it expired, was given up, or made room", c.Title(), k.Number)
	}
	want, err := termsOf(req.Certify, req.AtFork)
	if err == nil && (k.Memory == nil || req.Files) {
		err = want.filesAlone(fmt.Sprintf("%s@%d", c.Title(), k.Number))
	}
	if err != nil {
		return api.RestoreResult{}, err
	}
	res = api.RestoreResult{Number: k.Number, Lost: []string{}, Proof: proofLayers}
	lost := e.lostBy(&c, &k)
	for _, r := range lost {
		res.Lost = append(res.Lost, r.ID)
		if r.Applied > 0 && !takeBack {
			res.Applied = append(res.Applied, r.ID)
		}
	}
	var back []state.Applied // oldest first
	if takeBack && len(c.Applied) > 0 {
		here := e.reg.Ancestors(k.ID)
		for _, a := range c.Applied {
			if !here[a.Checkpoint] {
				back = append(back, a)
			}
		}
	}
	ask := len(lost) > 0 && !req.Lose
	if res.Ended, err = e.running(ctx, &c); err != nil && (req.DryRun || ask) { // else it is a way out of a cell that does not answer
		return res, err
	}
	if ask && !req.DryRun {
		return res, cell.Errorf(cell.Conflict, "engine.Restore", "confirm it with --yes",
			"going back to %s@%d takes the results of %s out of the workspace%s", c.Title(), k.Number, join(res.Lost), alsoEnds(res.Ended, k.Memory == nil || req.Files))
	}
	if len(back) > 0 {
		r, err := e.revertHeld(ctx, &c, back, api.RevertRequest{Reason: "undone", DryRun: req.DryRun})
		if err != nil {
			return res, cell.Errorf(cell.KindOf(err), "engine.Undo", "see to these files; or undo it in the cell alone: pando undo "+c.Title()+" --keep-source", "cannot undo what was applied: %w", err)
		}
		res.Reverted = r.Reverted
		for _, again := range r.Runs { // what was applied with what is undone, and is not undone itself
			if again.Verdict == string(cell.Pending) && !slices.Contains(res.Lost, again.ID) {
				res.Reopened = append(res.Reopened, again.ID)
			}
		}
		lost = e.lostBy(&c, &k) // with their verdicts of now
	}
	if req.DryRun {
		if k.Memory != nil && !req.Files {
			res.Memory = api.MemoryRestored
		}
		res.Cell = e.cellView(&c)
		return res, nil
	}
	var at *instant
	if k.Memory != nil && !req.Files { // before what runs now ends
		p, err := e.providerOf(c.Provider)
		if err != nil {
			return res, err
		}
		if at, err = e.instantAt(ctx, p, &k); err != nil {
			return res, cell.Errorf(cell.KindOf(err), "engine.Restore", fmt.Sprintf("restore its files alone: pando restore %s@%d --files", c.Title(), k.Number),
				"cannot restore %s@%d with its memory, and nothing was changed: %w", c.Title(), k.Number, err)
		}
		defer at.forget()
		if want.strict {
			if err := e.tryAt(ctx, at, &c, &k, want); err != nil {
				return res, cell.Errorf(cell.KindOf(err), "engine.Restore", cell.HintOf(err), "cannot restore %s@%d with its memory, and nothing was changed: %w", c.Title(), k.Number, err)
			}
		}
	}
	from, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return res, err
	}
	if err := e.moveHead(ctx, &c, k.ID); err != nil {
		return res, err
	}
	if req.Verify {
		if err := e.verifyTree(ctx, &k); err != nil {
			return res, err
		}
		res.Proof = proofWalk
	} else if _, err := e.tree(ctx, &k); err != nil {
		return res, err
	}
	objects := []any{&c}
	for i := range lost {
		r := &lost[i]
		if r.Applied > 0 || r.Verdict == cell.Restored { // applied: it is in the source
			continue
		}
		if r.Decide(cell.Restored, fmt.Sprintf("restored to @%d", k.Number), "user") == nil {
			objects = append(objects, r)
		}
	}
	act := "restore"
	for _, r := range e.reopened(c.ID, from.ID, k.ID) {
		if err := r.Decide(cell.Pending, fmt.Sprintf("its result was had back from @%d", k.Number), "user"); err != nil {
			return res, err
		}
		objects = append(objects, &r)
		res.Reopened, act = append(res.Reopened, r.ID), "reopen"
	}
	if act == "reopen" {
		if c.Anonymous() {
			c.Expires = time.Time{}
		}
		k.Expires = time.Time{}
		objects = append(objects, &k)
	}
	sealed := state.ActOn(&c, act, cell.Restored, "")
	sealed.From, sealed.To, sealed.Proof, sealed.Lost = point(&from), point(&k), res.Proof, res.Lost
	d, err := e.evidence.Seal(ctx, fmt.Sprintf("%s/restore/%d", c.ID, time.Now().UnixNano()), sealed, objects...)
	if err != nil {
		return res, err
	}
	res.Receipt = d.String()
	if at != nil {
		res.Memory = api.MemoryRestored
		var cert cell.Certificate
		if res.Resumed, cert, err = e.goOnAt(ctx, at, &c, &k, want); err != nil {
			res.Memory = err.Error()
		}
		res.Inherited, res.Renewed = cert.Inherited(), cert.Renewed()
		if t, err := e.tree(ctx, &k); err == nil { // it was read above
			res.Notes = e.unjoined(at.provider, t, "the cell")
		}
	}
	res.Cell, res.TreeDigest, res.TookMS = e.cellView(&c), k.Tree.String(), ms(time.Since(began))
	return res, nil
}

// running counts the processes of a cell.
func (e *Engine) running(ctx context.Context, c *state.Cell) (int, error) {
	inst, err := e.alive.InstanceOf(c)
	if inst == nil {
		return 0, err
	}
	list, err := inst.List(ctx)
	return len(list), err
}

// alsoEnds is what the question before an act says of the processes that end with it,
// forGood if no memory of theirs is anywhere afterwards.
func alsoEnds(n int, forGood bool) string {
	text := ""
	if n > 0 {
		text = ", and ends " + countProcesses(n)
	}
	if n > 0 && forGood {
		text += ", with what they have in memory"
	}
	return text
}

// countProcesses is so many processes in words.
func countProcesses(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// moveHead puts a cell at a checkpoint: its processes end, and what it was is
// kept as a checkpoint if it is not one. c is changed, not committed. The
// caller holds the cell's lock.
func (e *Engine) moveHead(ctx context.Context, c *state.Cell, to cell.CheckpointID) error {
	if err := e.unfinished(c, ""); err != nil {
		return err
	}
	if err := e.alive.Deactivate(ctx, c.ID, "restored"); err != nil {
		return err
	}
	if c.Gen != nil {
		head := c.Head
		k, err := e.settle(ctx, c, state.KindManual, "before the restore", "")
		switch {
		case err != nil && c.State == cell.Failed && ctx.Err() == nil && !durable.IsFull(err):
			// What can't be read can't be kept, and must not keep the cell from its
			// checkpoints. gc takes the layer.
			e.log.Warn("cannot keep the files of a failed cell before its restore", "cell", c.ID, "error", err)
			if k, err = e.reg.Checkpoint(head); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		if k.ID != head {
			k.Expires = time.Now().Add(keepResult).UTC()
			if err := e.reg.Commit(&k); err != nil {
				return err
			}
		}
	}
	c.Head, c.Gen, c.Cause = to, nil, ""
	return c.To(cell.Idle)
}

// lostBy lists the runs whose results are in the workspace now and would not
// be at k, newest first.
func (e *Engine) lostBy(c *state.Cell, k *state.Checkpoint) (lost []state.Run) {
	kept, here := e.reg.Ancestors(k.ID), e.reg.Ancestors(c.Head)
	for _, r := range e.reg.Runs(c.ID) {
		a := r.In.After
		if a != "" && a != r.In.Before && here[a] && !kept[a] {
			lost = append(lost, r)
		}
	}
	return lost
}

// reopened are the runs whose results come back into the workspace of a cell with a checkpoint,
// oldest first: they were restored or discarded, and wait for a verdict again.
func (e *Engine) reopened(id cell.ID, from, to cell.CheckpointID) (runs []state.Run) {
	here, there := e.reg.Ancestors(from), e.reg.Ancestors(to)
	for _, r := range slices.Backward(e.reg.Runs(id)) {
		if r.In.After == "" || r.In.After == r.In.Before || !there[r.In.After] || here[r.In.After] {
			continue
		}
		if _, err := r.Verdict.To(cell.Pending); err == nil && r.Verdict != cell.Accepted {
			runs = append(runs, r)
		}
	}
	return runs
}

// verifyTree reads everything of a checkpoint and compares digests.
func (e *Engine) verifyTree(ctx context.Context, k *state.Checkpoint) error {
	p, err := e.providerOf(k.State.Provider)
	if err != nil {
		return err
	}
	t, err := p.Walk(ctx, k.State, e.cfg.Objects)
	if err != nil {
		return err
	}
	d, err := e.trees.put(t)
	if err != nil {
		return err
	}
	if !k.Tree.IsZero() && d != k.Tree {
		return cell.Errorf(cell.Corrupt, "engine.verify", "", "checkpoint @%d is not what it was: expected %s, found %s", k.Number, k.Tree, d)
	}
	k.Tree, k.Content = d, t.ContentDigest()
	return nil
}

// Undo goes back to before the latest change of a cell, or to checkpoint To. What was
// applied of what is undone is taken back from the source: if a file is not what was
// written there, nothing is changed.
func (e *Engine) Undo(ctx context.Context, id cell.ID, req api.UndoRequest, seen ...Seen) (api.RestoreResult, error) {
	c, err := e.alive.Usable(id)
	if err != nil {
		return api.RestoreResult{}, err
	}
	want := api.RestoreRequest{Number: req.To, Lose: req.Lose || req.To == 0, DryRun: req.DryRun}
	if req.To == 0 {
		if want.Number, err = e.beforeLatest(ctx, &c); err != nil {
			return api.RestoreResult{}, err
		}
	}
	return e.restore(ctx, id, want, !req.KeepSource, seen)
}

// beforeLatest is the number of the checkpoint before the latest change of a cell.
func (e *Engine) beforeLatest(ctx context.Context, c *state.Cell) (int, error) {
	head, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return 0, err
	}
	now, err := e.present(ctx, c)
	if err != nil {
		return 0, err
	}
	if now.ID != head.ID {
		return head.Number, nil // something was written since: that is the latest step
	}
	up, err := e.reg.Checkpoint(head.Parent)
	if head.Parent == "" || err == nil && up.Cell != c.ID {
		return 0, cell.Errorf(cell.Conflict, "engine.Undo", "`pando runs` lists the runs of all cells; what was applied is taken back with pando revert", "cell %s is at its first checkpoint: there is nothing to undo", c.Title())
	}
	return up.Number, err
}

// Checkpoint makes the present state of a cell a checkpoint, with a message.
func (e *Engine) Checkpoint(ctx context.Context, id cell.ID, req api.CheckpointRequest) (_ api.Checkpoint, err error) {
	ctx, a := e.act(ctx, "checkpoint", id)
	defer a.over(&err)
	release, err := e.alive.Lock(ctx, id, "checkpoint")
	if err != nil {
		return api.Checkpoint{}, err
	}
	defer release()
	defer e.pins.Begin().End()
	c, err := e.alive.Usable(id)
	if err != nil {
		return api.Checkpoint{}, err
	}
	req.Message = redactor.String(req.Message)
	if e.isBuilt(id) && image.RootOf(c.Setup.Mounts) != "/" { // its forks stand on that
		if err := e.keepRoot(id); err != nil {
			return api.Checkpoint{}, err
		}
	}
	k, err := e.settleWith(ctx, &c, state.Checkpoint{Kind: state.KindManual, Message: req.Message}, true)
	if err != nil {
		return api.Checkpoint{}, err
	}
	if k.Message != req.Message && req.Message != "" {
		// Nothing changed since the last one: it gets the message.
		k.Message = req.Message
		if err := e.reg.Commit(&k); err != nil {
			return api.Checkpoint{}, err
		}
	}
	return e.checkpointView(&k, &c), nil
}
