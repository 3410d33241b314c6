package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Accept takes a run's result. It checks the run's receipt first, takes only
// the latest run of its cell, and refuses one that was restored or discarded.
func (e *Engine) Accept(ctx context.Context, id cell.RunID, req api.AcceptRequest, seen ...Seen) (api.AcceptResult, error) {
	run, err := e.reg.run(id)
	if err != nil {
		return api.AcceptResult{}, err
	}
	release, err := e.turns.take(ctx, run.CellID(), "accept "+run.ID, nil)
	if err != nil {
		return api.AcceptResult{}, err
	}
	defer release()
	defer e.under.begin().end()
	if run, err = e.reg.run(id); err != nil {
		return api.AcceptResult{}, err
	}
	if err := unless(func() string { return runTag(&run) }, seen); err != nil {
		return api.AcceptResult{}, err
	}
	c, err := e.reg.cell(run.CellID())
	if err != nil {
		return api.AcceptResult{}, err
	}
	return e.acceptHeld(ctx, &run, &c, req)
}

// acceptHeld is Accept for whoever holds the cell's turn. It changes run and c.
func (e *Engine) acceptHeld(ctx context.Context, run *Run, c *Cell, req api.AcceptRequest) (api.AcceptResult, error) {
	req.Reason = redactor.String(req.Reason)
	if err := e.mayAccept(run, c, req); err != nil {
		return api.AcceptResult{}, err
	}
	if req.DryRun {
		return e.doAccept(ctx, run, c, req, nil)
	}
	var out api.AcceptResult
	err := e.operate(ctx, opAccept, acceptArgs{Run: run.RunID(), Request: req}, func(ctx context.Context) (err error) {
		out, err = e.doAccept(ctx, run, c, req, nil)
		return err
	})
	return out, err
}

// resumeAccept finishes an accept that an earlier daemon began: the source
// may have all of the changes already, or none.
func (e *Engine) resumeAccept(ctx context.Context, args acceptArgs) error {
	run, err := e.reg.run(args.Run)
	if err != nil {
		return err
	}
	if run.Verdict == string(cell.Accepted) && run.By == "user" {
		return nil
	}
	c, err := e.reg.cell(run.CellID())
	if err != nil {
		return err
	}
	_, err = e.doAccept(ctx, &run, &c, args.Request, args.Applied)
	return err
}

// doAccept applies, if asked, and seals. applied is what an earlier try, whose
// receipt could not be written, has brought into the source.
func (e *Engine) doAccept(ctx context.Context, run *Run, c *Cell, req api.AcceptRequest, applied []string) (api.AcceptResult, error) {
	out := api.AcceptResult{Applied: []string{}, Held: []api.Held{}, First: []api.Look{}, Kept: []string{}, DryRun: req.DryRun}
	if !req.DryRun { // before anything outside is changed
		if err := e.syncLayers(); err != nil {
			return out, err
		}
	}
	if req.Apply {
		if err := e.apply(ctx, run, c, req, &out); err != nil {
			return out, err
		}
	} else {
		out.First = append(out.First, run.Changes.First...)
	}
	if req.DryRun {
		out.Run = run.Run
		return out, nil
	}
	out.Applied = append(slices.Clone(applied), out.Applied...)
	next, err := cell.Verdict(run.Verdict).To(cell.Accepted)
	if err != nil {
		return out, err
	}
	run.Verdict, run.Reason, run.By = string(next), req.Reason, "user"
	run.Applied += len(out.Applied)
	if c.Anonymous() {
		c.Expires = time.Now().Add(keepAnonymous).UTC()
	}
	key := fmt.Sprintf("%s/accepted/%d", run.ID, len(run.Receipts))
	_, err = e.seal(ctx, key, endPredicate{
		Act: "accept", Run: run.ID, Receipt: run.Receipts[0], Cell: run.Cell, CellName: c.Name, Verdict: &verdictFacts{run.Verdict, run.Reason, run.By},
		Forced: req.Force, From: run.Before, To: run.After, Applied: out.Applied, Held: out.Held, Source: run.Source, Backend: run.Backend, Downgrades: run.Downgrades,
	}, c, run)
	if err != nil && len(out.Applied) > 0 {
		e.acceptLater(acceptArgs{run.RunID(), req, out.Applied})
		return out, cell.Errorf(cell.Unavailable, "engine.Accept", "free some space or check the disk: the verdict and its receipt are written as soon as that works",
			"the changes are in the source, but the receipt is not written: %w", err)
	}
	if err != nil {
		return out, err
	}
	out.Run = run.Run
	return out, nil
}

// acceptLater tries again to seal an accept whose changes are in the source.
func (e *Engine) acceptLater(args acceptArgs) {
	e.background(func(ctx context.Context) {
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
		run, err := e.reg.run(args.Run)
		if err != nil {
			return
		}
		release, err := e.turns.take(ctx, run.CellID(), "accept "+run.ID, nil)
		if err != nil {
			return
		}
		defer release()
		err = e.operate(ctx, opAccept, args, func(ctx context.Context) error { return e.resumeAccept(ctx, args) })
		if err != nil {
			e.log.Warn("cannot write the receipt of an accept yet", "run", args.Run, "error", err)
		}
	})
}

func (e *Engine) mayAccept(run *Run, c *Cell, req api.AcceptRequest) error {
	const opName = "engine.Accept"
	if cell.Phase(run.Phase) != cell.Ended {
		return cell.Errorf(cell.Conflict, opName, "wait until it has ended", "run %s is %s", run.ID, run.Phase)
	}
	if c.State == cell.Removed && !run.neverStarted() && (req.Apply || run.Verdict != string(cell.Accepted)) {
		return resultGone(run, c)
	}
	if req.Apply && c.NoSource {
		return cell.Errorf(cell.Conflict, opName, "accept it without --apply, and take the files with pando cp or pando diff --patch",
			"cannot apply run %s: cell %s began with an empty workspace, so there is no source to apply it to", run.ID, c.Title())
	}
	if latest := e.latestResult(c.ID); latest != run.RunID() && !run.neverStarted() {
		return cell.Errorf(cell.Conflict, opName, "accept the latest run, or fork the checkpoint: pando fork "+fmt.Sprintf("%s@%d", c.Title(), numberOf(run.After)),
			"run %s is not the latest of cell %s; that is %s", run.ID, c.Title(), latest)
	}
	switch cell.Verdict(run.Verdict) {
	case cell.Restored, cell.Discarded:
		hint := "run it again"
		if run.After == nil {
			return cell.Errorf(cell.Conflict, opName, hint, "run %s never started: there is no result", run.ID)
		}
		if run.After != nil {
			hint = fmt.Sprintf("get its result back first: pando restore %s@%d", c.Title(), run.After.Number)
		}
		return cell.Errorf(cell.Conflict, opName, hint, "run %s was %s", run.ID, run.Verdict)
	}
	if run.Error != nil && run.ExitCode != nil && run.After == nil {
		return cell.Errorf(cell.Conflict, opName, "bring the cell back with pando restore "+c.Title()+"@N, and run it again",
			"run %s could not be finished, so its result is not known: %s", run.ID, run.Error.Message)
	}
	failed := run.Error != nil || run.ExitCode == nil || *run.ExitCode != 0 || run.Cause != "" || (run.Check != nil && run.Check.ExitCode != 0)
	if failed && !req.Force {
		return cell.Errorf(cell.Conflict, opName, "look at it with pando diff; to take it all the same: --force --reason TEXT", "run %s did not succeed", run.ID)
	}
	if req.Force && strings.TrimSpace(req.Reason) == "" {
		return cell.Errorf(cell.Invalid, opName, "say why with --reason TEXT", "--force needs a reason, which the receipt keeps")
	}
	return e.checkReceipt(run)
}

// resultGone says that a run's result went with its cell.
func resultGone(run *Run, c *Cell) error {
	return cell.Errorf(cell.Conflict, "engine.resultGone", "run it again; the patch is in "+filepath.Join(run.Folder, "patch"),
		"the result of run %s is gone: cell %s was removed", run.ID, c.Title())
}

// checkReceipt makes sure that the run's own receipt is whole and says what
// the registry says.
func (e *Engine) checkReceipt(run *Run) error {
	const opName = "engine.checkReceipt"
	if len(run.Receipts) == 0 {
		return cell.Errorf(cell.Corrupt, opName, "", "run %s has no receipt", run.ID)
	}
	entry, err := e.cfg.Ledger.Find(run.Receipts[0])
	if err != nil {
		return cell.Errorf(cell.Corrupt, opName, "run `pando receipt verify --all`", "cannot find the receipt of run %s: %w", run.ID, err)
	}
	p, err := readRunPredicate(entry)
	if err != nil {
		return err
	}
	same := p.Run == run.ID && p.After != nil && run.After != nil && p.After.TreeDigest == run.After.TreeDigest &&
		(p.ExitCode == nil) == (run.ExitCode == nil) && (p.ExitCode == nil || *p.ExitCode == *run.ExitCode)
	if !same {
		return cell.Errorf(cell.Corrupt, opName, "run `pando receipt verify "+run.ID+"`", "the receipt of run %s does not say what is recorded of it", run.ID)
	}
	k, err := e.reg.checkpoint(cell.CheckpointID(run.After.Checkpoint))
	if err != nil {
		return err
	}
	if k.Tree.String() != run.After.TreeDigest {
		return cell.Errorf(cell.Corrupt, opName, "", "checkpoint @%d is not the one that run %s produced", k.Number, run.ID)
	}
	return nil
}

// apply brings the run's changes into the source.
func (e *Engine) apply(ctx context.Context, run *Run, c *Cell, req api.AcceptRequest, out *api.AcceptResult) error {
	base, after, k, err := e.applySides(ctx, run, c)
	if err != nil {
		return err
	}
	known := base.Tree
	ignored := none
	if !req.Ignored {
		if ignored, err = diff.IgnoredBy(ctx, base, after, e.cfg.Parser); err != nil {
			return fmt.Errorf("cannot tell which changes git ignores (--ignored applies all of them): %w", err)
		}
	}
	if !c.Known.IsZero() {
		if known, err = e.trees.get(c.Known); err != nil {
			return err
		}
	}
	if !req.Force {
		if err := e.refuseSecrets(ctx, run, c, known, after, req.Ignored); err != nil {
			return err
		}
	}
	if out.First, err = e.lookFirst(c, workspace.Side{Tree: known, Contents: base.Contents}, after, ignored); err != nil {
		return err
	}
	var reserved, scrubbed []string
	for _, l := range c.LeftOut {
		switch {
		case l.Kind == workspace.Fields:
			scrubbed = append(scrubbed, l.Path)
		case l.Reserved():
			reserved = append(reserved, l.Path)
		}
	}
	backup := filepath.Join(e.cfg.Home.State, "apply", cell.Sum([]byte(run.Source)).Short())
	fault.Step("make the folder of an apply")
	if err := os.MkdirAll(filepath.Dir(backup), 0o700); err != nil {
		return err
	}
	res, err := apply.Do(ctx, apply.Request{
		Source: run.Source, Base: known, After: after, Include: req.Include, Strict: req.Strict, IsIgnored: ignored, Ignored: req.Ignored,
		Reserved: reserved, Scrubbed: scrubbed, Backup: backup, DryRun: req.DryRun,
		Homes: e.homesOf(run.Source), GitConfigs: gitConfigs(),
	})
	if err != nil {
		if ce, ok := errors.AsType[*apply.ConflictError](err); ok {
			whole := filepath.Join(run.Folder, "patch")
			return cell.Errorf(cell.Conflict, "engine.Accept", "the source is as it was; the changes are in "+whole+": git apply "+whole, "cannot apply: %w", ce)
		}
		return err
	}
	for _, f := range res.Applied {
		out.Applied = append(out.Applied, f.Path)
	}
	for _, h := range res.Held {
		out.Held = append(out.Held, api.Held{Path: h.Path, Why: h.Why})
	}
	for _, n := range res.Unrepresented {
		out.Kept = append(out.Kept, n.Path+": "+n.What)
	}
	out.Ignored = res.Ignored.Count
	if req.DryRun {
		return nil
	}
	if len(out.Applied) > 0 {
		if out.Patch, err = e.writeApplied(ctx, run, &k, known, after, out.Applied); err != nil {
			e.log.Warn("cannot write a patch of what was applied", "run", run.ID, "error", err)
		}
	}
	if known, err = workspace.Taken(known, after.Tree, out.Applied, res.Already); err != nil {
		return err
	}
	c.Known, err = e.trees.put(known)
	return err
}

// applySides are what the source was when it was imported, and what the cell
// made of it: an apply brings everything since the import, accepted runs of
// the cell included.
func (e *Engine) applySides(ctx context.Context, run *Run, c *Cell) (base, after workspace.Side, k Checkpoint, err error) {
	if k, err = e.reg.checkpoint(cell.CheckpointID(run.After.Checkpoint)); err != nil {
		return base, after, k, err
	}
	first, err := e.firstOf(c)
	if err != nil {
		return base, after, k, err
	}
	if base, err = e.side(ctx, &first); err != nil {
		return base, after, k, err
	}
	after, err = e.side(ctx, &k)
	return base, after, k, err
}

// firstOf is the checkpoint that a cell's source was imported into: its own
// first one, or that of the cell it was forked from.
func (e *Engine) firstOf(c *Cell) (Checkpoint, error) {
	e.reg.mu.RLock()
	defer e.reg.mu.RUnlock()
	if k := e.reg.founder(c.Head); k != nil {
		return *k, nil
	}
	return Checkpoint{}, cell.Errorf(cell.NotFound, "engine.firstOf", "", "cell %s has no checkpoint", c.Title())
}

// latestResult is the latest run of a cell that has, or may get, a result: one
// that never started stands in nobody's way.
func (e *Engine) latestResult(id cell.ID) cell.RunID {
	for _, r := range e.reg.listRuns(id) {
		if !r.neverStarted() {
			return r.RunID()
		}
	}
	return ""
}

func (e *Engine) latestRun(id cell.ID) cell.RunID {
	if list := e.reg.listRuns(id); len(list) > 0 {
		return list[0].RunID()
	}
	return ""
}

func numberOf(p *api.Point) int {
	if p == nil {
		return 0
	}
	return p.Number
}

func readRunPredicate(entry receipt.Entry) (p runPredicate, err error) {
	s, err := entry.Statement()
	if err != nil {
		return p, err
	}
	return p, unmarshal(s.Predicate, &p)
}

// Discard throws a run's result away: the cell goes back to before it, and
// the result is kept as a checkpoint for a while.
func (e *Engine) Discard(ctx context.Context, id cell.RunID, req api.DiscardRequest, seen ...Seen) (api.Run, error) {
	run, err := e.reg.run(id)
	if err != nil {
		return api.Run{}, err
	}
	release, err := e.turns.take(ctx, run.CellID(), "discard "+run.ID, nil)
	if err != nil {
		return api.Run{}, err
	}
	defer release()
	defer e.under.begin().end()
	if run, err = e.reg.run(id); err != nil {
		return api.Run{}, err
	}
	if err := unless(func() string { return runTag(&run) }, seen); err != nil {
		return api.Run{}, err
	}
	c, err := e.reg.cell(run.CellID())
	if err != nil {
		return api.Run{}, err
	}
	if cell.Phase(run.Phase) != cell.Ended || run.Before == nil {
		return api.Run{}, cell.Errorf(cell.Conflict, "engine.Discard", "", "run %s has no result to discard", run.ID)
	}
	if latest := e.latestResult(c.ID); latest != run.RunID() && !run.neverStarted() {
		return api.Run{}, cell.Errorf(cell.Conflict, "engine.Discard", "use pando restore to go back past several runs",
			"run %s is not the latest of cell %s; that is %s", run.ID, c.Title(), latest)
	}
	if c.State == cell.Removed {
		return api.Run{}, resultGone(&run, &c)
	}
	next, err := cell.Verdict(run.Verdict).To(cell.Discarded)
	if err != nil {
		return api.Run{}, err
	}
	if req.DryRun {
		return run.Run, nil
	}
	if err := e.moveHead(ctx, &c, run.In.Before); err != nil {
		return api.Run{}, err
	}
	after, err := e.reg.checkpoint(run.In.After)
	if err != nil {
		return api.Run{}, err
	}
	objects := []any{&c, &run}
	if after.ID != run.In.Before {
		after.Expires = time.Now().Add(keepResult).UTC()
		objects = append(objects, &after)
	}
	if c.Anonymous() {
		c.Expires = time.Now().Add(keepResult).UTC()
	}
	run.Verdict, run.Reason, run.By = string(next), "discarded", "user"
	_, err = e.seal(ctx, fmt.Sprintf("%s/discarded/%d", run.ID, len(run.Receipts)), endPredicate{
		Act: "discard", Run: run.ID, Receipt: first(run.Receipts), Cell: run.Cell, CellName: c.Name, Verdict: &verdictFacts{run.Verdict, run.Reason, run.By},
		From: run.After, To: run.Before, Proof: proofLayers, Backend: run.Backend, Downgrades: run.Downgrades,
	}, objects...)
	return run.Run, err
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
