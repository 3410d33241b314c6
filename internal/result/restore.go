package result

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
)

// Restore brings a cell back to one of its checkpoints. Its processes end.
// What it was before stays as a checkpoint. Where the request is strict and the
// checkpoint has generators of random numbers that every cell going on there has in
// common, it is Unsupported, and the cell goes on as it was. What was applied to the
// source stays there.
func (m *Manager) Restore(ctx context.Context, id cell.ID, req api.RestoreRequest, seen ...Seen) (res api.RestoreResult, err error) {
	return m.restore(ctx, id, req, false, seen)
}

// restore is Restore. With takeBack what was applied of the results that leave the cell is
// taken back from the source first.
func (m *Manager) restore(ctx context.Context, id cell.ID, req api.RestoreRequest, takeBack bool, seen []Seen) (res api.RestoreResult, err error) {
	if !req.DryRun {
		var over func(*error)
		ctx, over = m.cfg.Act(ctx, "restore", id)
		defer over(&err)
	}
	began := time.Now()
	if !req.DryRun || !m.cfg.Working(id) { // a run has the lock to its end
		release, err := m.cfg.Cells.Lock(ctx, id, "restore")
		if err != nil {
			return api.RestoreResult{}, err
		}
		defer release()
	}
	defer m.cfg.Pin()()
	c, err := m.cfg.Cells.Usable(id)
	if err != nil {
		return api.RestoreResult{}, err
	}
	if err := m.cfg.Decides.Unchanged(&c, nil, seen); err != nil {
		return api.RestoreResult{}, err
	}
	if err := m.cfg.Decides.MayStart(&c); err != nil {
		return api.RestoreResult{}, err
	}
	k, err := m.cfg.Records.Numbered(c.ID, req.Number)
	if err != nil {
		return api.RestoreResult{}, err
	}
	if k.Gone {
		return api.RestoreResult{}, cell.Errorf(cell.NotFound, "result.Restore", "pando history "+c.Title()+" shows those that are there", "checkpoint %s@%d was removed: it expired, was given up, or made room", c.Title(), k.Number)
	}
	if err := m.cfg.MayReturn(&c, &k); err != nil {
		return api.RestoreResult{}, err
	}
	mem, err := m.cfg.Memory(req, &c, &k)
	if err != nil {
		return api.RestoreResult{}, err
	}
	res = api.RestoreResult{Number: k.Number, Lost: []string{}, Proof: state.ProofLayers}
	res.Services = c.ServicesAt(&k)
	lost := m.lostBy(&c, &k)
	for _, r := range lost {
		res.Lost = append(res.Lost, r.ID)
		if r.Applied > 0 && !takeBack {
			res.Applied = append(res.Applied, r.ID)
		}
	}
	var back []state.Applied // oldest first
	if takeBack && len(c.Applied) > 0 {
		here := m.cfg.Records.Ancestors(k.ID)
		for _, a := range c.Applied {
			if !here[a.Checkpoint] {
				back = append(back, a)
			}
		}
	}
	ask := len(lost) > 0 && !req.Lose
	if res.Ended, err = m.cfg.Processes(ctx, &c); err != nil && (req.DryRun || ask) { // else it is a way out of a cell that does not answer
		return res, err
	}
	if ask && !req.DryRun {
		return res, cell.Errorf(cell.Conflict, "result.Restore", "confirm it with --yes",
			"going back to %s@%d takes the results of %s out of the workspace%s", c.Title(), k.Number, names(res.Lost), alsoEnds(res.Ended, mem == nil))
	}
	if len(back) > 0 {
		r, err := m.revertHeld(ctx, &c, back, api.RevertRequest{Reason: "undone", DryRun: req.DryRun})
		if err != nil {
			return res, cell.Errorf(cell.KindOf(err), "result.Undo", "bring these files back to what was applied; or undo it in the cell alone: pando undo "+c.Title()+" --keep-source", "cannot undo what was applied: %w", err)
		}
		res.Reverted = r.Reverted
		for _, again := range r.Runs { // what was applied with what is undone, and is not undone itself
			if again.Verdict == string(cell.Pending) && !slices.Contains(res.Lost, again.ID) {
				res.Reopened = append(res.Reopened, again.ID)
			}
		}
		lost = m.lostBy(&c, &k) // with their verdicts of now
	}
	if req.DryRun {
		if mem != nil {
			res.Memory = api.MemoryRestored
		}
		res.Cell = m.cfg.Show(&c)
		return res, nil
	}
	if mem != nil { // before what runs now ends
		defer mem.Close()
		if err := mem.Load(ctx); err != nil {
			return res, err
		}
	}
	from, err := m.cfg.Records.Checkpoint(c.Head)
	if err != nil {
		return res, err
	}
	if _, err := m.moveHead(ctx, &c, &k, true); err != nil {
		return res, err
	}
	if req.Verify {
		if err := m.cfg.Verify(ctx, &k); err != nil {
			return res, err
		}
		res.Proof = state.ProofWalk
	} else if _, err := m.cfg.TreeOf(ctx, &k); err != nil {
		return res, err
	}
	homed, err := m.cfg.HomeAt(ctx, &c, &k)
	if err != nil {
		return res, err
	}
	recorded := false
	defer func() { homed(recorded) }()
	services, moved, err := m.cfg.ServicesTo(ctx, &c, &k)
	if err != nil {
		return res, err
	}
	defer func() { moved(recorded) }()
	objects := append([]any{&c}, services...)
	for i := range lost {
		r := &lost[i]
		if r.Applied > 0 && r.Verdict == cell.Accepted || r.Verdict == cell.Restored { // applied: it is in the source
			continue
		}
		if r.Decide(cell.Restored, fmt.Sprintf("restored to @%d", k.Number), "user") == nil {
			objects = append(objects, r)
		}
	}
	act := "restore"
	for _, r := range m.reopened(c.ID, from.ID, k.ID) {
		if err := r.Decide(cell.Pending, fmt.Sprintf("its result was had back from @%d", k.Number), "user"); err != nil {
			return res, err
		}
		objects = append(objects, &r)
		res.Reopened, act = append(res.Reopened, r.ID), "reopen"
		c.Applied = slices.Clone(c.Applied)
		for i := range c.Applied { // a part of it was kept when the rest was discarded: the whole has it, too
			if a := &c.Applied[i]; slices.Contains(a.Runs, r.RunID()) {
				a.Checkpoint = r.In.After
			}
		}
	}
	looked := k.Kind == state.KindLooked
	if looked { // it is more than that now, and no other takes its place
		k.Kind = state.KindManual
	}
	if act == "reopen" {
		if c.Anonymous() {
			c.Expires = time.Time{}
		}
		k.Expires = time.Time{}
	}
	if looked || act == "reopen" {
		objects = append(objects, &k)
	}
	sealed := state.ActOn(&c, act, cell.Restored, "")
	sealed.From, sealed.To, sealed.Proof, sealed.Lost = from.Point(), k.Point(), res.Proof, res.Lost
	d, err := m.cfg.Evidence.Seal(ctx, fmt.Sprintf("%s/restore/%d", c.ID, time.Now().UnixNano()), sealed, objects...)
	if err != nil {
		return res, err
	}
	res.Receipt, recorded = d.String(), true
	if mem != nil {
		moved(true) // what goes on uses them
		moved = func(bool) {}
		mem.Resume(ctx, &res)
	}
	res.Cell, res.TreeDigest, res.TookMS = m.cfg.Show(&c), k.Tree.String(), float64(time.Since(began).Microseconds())/1000
	return res, nil
}

// alsoEnds is what the question before an act says of the processes that end with it,
// forGood if no memory of theirs is anywhere afterwards.
func alsoEnds(n int, forGood bool) string {
	text := ""
	if n > 0 {
		text = ", and ends " + state.CountProcesses(n)
	}
	if n > 0 && forGood {
		text += ", with what they have in memory"
	}
	return text
}

// moveHead puts a cell at a checkpoint: its processes end, and what it was is
// kept as a checkpoint if it is not one, with its home if withHome gives it that of the checkpoint.
// c is changed, not committed; its services are where they were, see Config.ServicesTo. was is the checkpoint with what
// it was. The caller has the cell's lock.
func (m *Manager) moveHead(ctx context.Context, c *state.Cell, to *state.Checkpoint, withHome bool) (was cell.CheckpointID, err error) {
	if err := m.cfg.Records.Unfinished(c, ""); err != nil {
		return "", err
	}
	if err := m.cfg.Cells.Deactivate(ctx, c.ID, "restored"); err != nil {
		return "", err
	}
	was = c.Head
	if c.Gen != nil || withHome && to.Home != nil || len(c.Services) > 0 {
		head := c.Head
		k, err := m.cfg.Checkpoint(ctx, c, state.Checkpoint{Kind: state.KindManual, Message: "before the restore"}, "")
		switch {
		case err != nil && c.State == cell.Failed && ctx.Err() == nil && !durable.IsFull(err):
			// What can't be read can't be kept, and must not keep the cell from its
			// checkpoints. gc takes the layer.
			m.cfg.Log.Warn("cannot keep the files of a failed cell before its restore", "cell", c.ID, "error", err)
			if k, err = m.cfg.Records.Checkpoint(head); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		}
		was = k.ID
		if k.ID != head {
			k.Expires = time.Now().Add(state.KeepResult).UTC()
			if err := m.cfg.Records.Commit(&k); err != nil {
				return "", err
			}
		}
	}
	c.Head, c.Gen, c.Cause = to.ID, nil, ""
	return was, c.To(cell.Idle)
}

// lostBy lists the runs with results that are in the workspace now and would not
// be at k, newest first.
func (m *Manager) lostBy(c *state.Cell, k *state.Checkpoint) (lost []state.Run) {
	kept, here := m.cfg.Records.Ancestors(k.ID), m.cfg.Records.Ancestors(c.Head)
	for _, r := range m.cfg.Records.Runs(c.ID) {
		a := r.In.After
		if a != "" && a != r.In.Before && here[a] && !kept[a] {
			lost = append(lost, r)
		}
	}
	return lost
}

// reopened are the runs with results that come back into the workspace of a cell with a checkpoint,
// oldest first: they were restored or discarded, and wait for a verdict again.
func (m *Manager) reopened(id cell.ID, from, to cell.CheckpointID) (runs []state.Run) {
	here, there := m.cfg.Records.Ancestors(from), m.cfg.Records.Ancestors(to)
	for _, r := range slices.Backward(m.cfg.Records.Runs(id)) {
		if r.In.After == "" || r.In.After == r.In.Before || !there[r.In.After] || here[r.In.After] {
			continue
		}
		if _, err := r.Verdict.To(cell.Pending); err == nil && r.Verdict != cell.Accepted {
			runs = append(runs, r)
		}
	}
	return runs
}

// Undo goes back to before the latest change of a cell, or to checkpoint To. What was
// applied of what is undone is taken back from the source: if a file is not what was
// written there, nothing is changed.
func (m *Manager) Undo(ctx context.Context, id cell.ID, req api.UndoRequest, seen ...Seen) (api.RestoreResult, error) {
	c, err := m.cfg.Cells.Usable(id)
	if err != nil {
		return api.RestoreResult{}, err
	}
	want := api.RestoreRequest{Number: req.To, Lose: req.Lose || req.To == 0, DryRun: req.DryRun}
	if req.To == 0 {
		if want.Number, err = m.beforeLatest(ctx, &c); err != nil {
			return api.RestoreResult{}, err
		}
	}
	return m.restore(ctx, id, want, !req.KeepSource, seen)
}

// BeforeTurn makes an undo of a turn one to a checkpoint, which loses nothing of runs but of the
// turn's own: else it has to be confirmed.
func (m *Manager) BeforeTurn(id cell.ID, req api.UndoRequest, seen ...Seen) (api.UndoRequest, error) {
	c, err := m.cfg.Cells.Usable(id)
	if err == nil {
		err = m.cfg.Decides.Unchanged(&c, nil, seen)
	}
	if err != nil {
		return req, err
	}
	if req.To > 0 {
		return req, cell.Errorf(cell.Invalid, "result.Undo", "name the turn or the checkpoint", "cannot undo cell %s: both a turn and a checkpoint are named", c.Title())
	}
	k, err := m.cfg.Records.AtTurn(id, req.Turn)
	if err != nil {
		return req, err
	}
	var others []string
	for _, r := range m.lostBy(&c, &k) {
		if r.RunID() != k.Run {
			others = append(others, r.ID)
		}
	}
	if len(others) > 0 && !req.Lose && !req.DryRun {
		return req, cell.Errorf(cell.Conflict, "result.Undo", "confirm it with --yes", "undoing turn %d of %s takes the results of %s out of the workspace, too", req.Turn, c.Title(), names(others))
	}
	return api.UndoRequest{To: k.Number, Lose: true, DryRun: req.DryRun, KeepSource: req.KeepSource}, nil
}

// beforeLatest is the number of the checkpoint before the latest change of a cell.
func (m *Manager) beforeLatest(ctx context.Context, c *state.Cell) (int, error) {
	head, err := m.cfg.Records.Checkpoint(c.Head)
	if err != nil {
		return 0, err
	}
	if m.cfg.Working(c.ID) {
		return 0, cell.Errorf(cell.Conflict, "result.Undo", "wait until it has ended (pando logs -f "+c.Title()+"), or end it: pando stop "+c.Title(), "cannot undo in cell %s: a run is under way in it", c.Title())
	}
	now, err := m.Present(ctx, c)
	if err != nil {
		return 0, err
	}
	if now.ID != head.ID {
		return head.Number, nil // something was written since: that is the latest step
	}
	head = m.cfg.Records.FilesOf(head)
	up, err := m.cfg.Records.Checkpoint(head.Parent)
	for err == nil && up.Gone && up.Kind == state.KindLooked && up.Cell == c.ID { // another look took its place
		up, err = m.cfg.Records.Checkpoint(up.Parent)
	}
	if run, rerr := m.cfg.Records.Run(head.Run); rerr == nil && head.ID == run.In.After { // what was made in its middle is no step
		for err == nil && up.ID != run.In.Before && (up.Kind == state.KindLooked || up.Kind == state.KindFork || up.Kind == state.KindStep) {
			up, err = m.cfg.Records.Checkpoint(up.Parent)
		}
	}
	if head.Parent == "" || err == nil && up.Cell != c.ID {
		return 0, cell.Errorf(cell.Conflict, "result.Undo", "`pando runs` lists the runs of all cells; what was applied is taken back with pando revert", "cell %s is at its first checkpoint: there is nothing to undo", c.Title())
	}
	return up.Number, err
}
