package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Accept takes what a cell is now, or what one run of it changed. It checks the records of
// all runs that contributed to that, and gives each of these runs its verdict.
func (e *Engine) Accept(ctx context.Context, t Target, req api.AcceptRequest, seen ...Seen) (out api.AcceptResult, err error) {
	err = e.decide(ctx, t, "accept", seen, func(c *state.Cell, run *state.Run) error {
		if run != nil && c.State == cell.Removed && run.Verdict == cell.Accepted && !req.Apply { // it changed nothing, and its cell went
			out = acceptResult(c, &offer{}, req)
			out.Runs = append(out.Runs, run.API())
			return nil
		}
		o, err := e.offerNow(ctx, c, run)
		if err != nil {
			return err
		}
		out, err = e.acceptHeld(ctx, o, req)
		return err
	})
	return out, err
}

// decide holds the turn of a target's cell while do decides about it.
func (e *Engine) decide(ctx context.Context, t Target, what string, seen []Seen, do func(c *state.Cell, run *state.Run) error) error {
	id, err := e.of(t)
	if err != nil {
		return err
	}
	release, err := e.alive.Lock(ctx, id, what)
	if err != nil {
		return err
	}
	defer release()
	defer e.pins.Begin().End()
	c, err := e.reg.Cell(id)
	if err != nil {
		return err
	}
	var run *state.Run
	tag := func() string { return e.cellTag(&c) }
	if t.Run != "" {
		r, err := e.reg.Run(t.Run)
		if err != nil {
			return err
		}
		run, tag = &r, func() string { return runTag(&r) }
	}
	if err := unless(tag, seen); err != nil {
		return err
	}
	return do(&c, run)
}

// offerNow is what there is to decide about. The caller holds the cell's lock.
func (e *Engine) offerNow(ctx context.Context, c *state.Cell, run *state.Run) (*offer, error) {
	if run != nil {
		if run.Phase != cell.Ended {
			return nil, cell.Errorf(cell.Conflict, "engine.Accept", "wait until it has ended", "run %s is %s", run.ID, run.Phase)
		}
		if c.State == cell.Removed && !run.NeverStarted() {
			return nil, resultGone(run, c)
		}
		return e.runOffer(ctx, c, run)
	}
	if c.State == cell.Removed {
		if r := e.reg.LatestResult(c.ID); r != nil {
			return nil, resultGone(r, c)
		}
	}
	if _, err := e.alive.Usable(c.ID); err != nil {
		return nil, err
	}
	at, err := e.presentHeld(ctx, c)
	if err != nil {
		if r := e.reg.LatestResult(c.ID); r != nil && r.In.After == "" && ctx.Err() == nil {
			return nil, unfinished(r, c)
		}
		return nil, err
	}
	return e.cellOffer(ctx, c, &at)
}

// acceptHeld is Accept for whoever holds the cell's lock. It changes the cell and the runs.
func (e *Engine) acceptHeld(ctx context.Context, o *offer, req api.AcceptRequest) (api.AcceptResult, error) {
	req.Reason = redactor.String(req.Reason)
	if err := e.mayAccept(o, req); err != nil {
		return api.AcceptResult{}, err
	}
	planned := req
	planned.DryRun = true
	out, err := e.doAccept(ctx, o, planned, acceptArgs{})
	if err != nil || req.DryRun {
		return out, err
	}
	args := acceptArgs{ID: "a-" + newKey(), Cell: o.c.ID, At: o.at.ID, Request: req, Planned: out.Applied}
	if o.run != nil {
		args.Run = o.run.RunID()
	}
	for _, r := range o.covers {
		args.Covers = append(args.Covers, r.RunID())
	}
	err = e.operate(ctx, opAccept, args, func(ctx context.Context) (err error) {
		out, err = e.doAccept(ctx, o, req, args)
		return err
	})
	return out, err
}

// acceptArgs is an accept that was begun.
type acceptArgs struct {
	ID      string            `json:"id"` // of what is applied, and of its receipt
	Cell    cell.ID           `json:"cell"`
	Run     cell.RunID        `json:"run,omitempty"`
	At      cell.CheckpointID `json:"at"` // whose files are accepted
	Covers  []cell.RunID      `json:"covers,omitempty"`
	Request api.AcceptRequest `json:"request"`
	Planned []string          `json:"planned,omitempty"` // paths that the source had not, before anything was written
	Written bool              `json:"written,omitempty"` // by an earlier try, whose receipt could not be written
}

// key is that of the receipt.
func (a *acceptArgs) key() string { return "accept/" + a.ID }

// resumeAccept finishes an accept that an earlier daemon began: the source may have all
// of the changes already, or none.
func (e *Engine) resumeAccept(ctx context.Context, args acceptArgs) error {
	if e.evidence.Sealed(args.key()) {
		return nil // its seal is an operation of its own
	}
	c, err := e.reg.Cell(args.Cell)
	if err != nil {
		return err
	}
	var o *offer
	if args.Run != "" {
		run, err := e.reg.Run(args.Run)
		if err != nil {
			return err
		}
		o, err = e.runOffer(ctx, &c, &run)
		if err != nil {
			return err
		}
	} else {
		at, err := e.reg.Checkpoint(args.At)
		if err != nil {
			return err
		}
		if o, err = e.cellOffer(ctx, &c, &at); err != nil {
			return err
		}
	}
	o.covers = nil
	for _, id := range args.Covers {
		r, err := e.reg.Run(id)
		if err != nil {
			return err
		}
		o.covers = append(o.covers, r)
	}
	_, err = e.doAccept(ctx, o, args.Request, args)
	return err
}

// doAccept applies, if asked, and seals.
func (e *Engine) doAccept(ctx context.Context, o *offer, req api.AcceptRequest, args acceptArgs) (api.AcceptResult, error) {
	c := o.c
	out := acceptResult(c, o, req)
	commits, err := commitsMade(o.base, o.after)
	if err != nil {
		e.log.Warn("cannot tell which commits were made in a cell", "cell", c.ID, "error", err)
	}
	out.Commits = commits.API()
	if req.Apply {
		out.Head = headMoved(c)
	}
	if !req.DryRun { // before anything outside is changed
		if err := full(e.gc.SyncLayers()); err != nil {
			return out, err
		}
	}
	var done *state.Applied
	if req.Apply {
		if done, err = e.apply(ctx, o, req, args, &out); err != nil {
			return out, err
		}
	}
	if req.DryRun {
		out.Runs = runsAPI(o.covers)
		return out, nil
	}
	objects := []any{c}
	for i := range o.covers {
		r := &o.covers[i]
		if err := r.Decide(cell.Accepted, req.Reason, "user"); err != nil {
			return out, err
		}
		objects = append(objects, r)
	}
	if o.run != nil && len(o.covers) == 0 { // it was accepted before, and more of it is applied
		objects = append(objects, o.run)
	}
	if done != nil {
		for _, r := range objects[1:] {
			r := r.(*state.Run)
			r.Applied += len(out.Applied)
			done.Runs = append(done.Runs, r.RunID())
		}
		if len(objects) == 1 { // what covers it was accepted before
			done.Runs = e.acceptedIn(o)
		}
		c.Applied = append(slices.Clone(c.Applied), *done)
	}
	if c.Anonymous() {
		c.Expires = time.Now().Add(keepAnonymous).UTC()
	}
	act := state.ActOn(c, "accept", cell.Accepted, req.Reason)
	act.Digest, act.Forced, act.To, act.Downgrades = o.digest.String(), req.Force, point(&o.at), c.Setup.Downgrades
	act.Applied, act.Source = out.Applied, c.Source
	for _, h := range out.Held {
		act.Held = append(act.Held, state.Held(h))
	}
	if h := out.Head; h != nil {
		act.Head = &state.HeadMoved{Was: gitdir.Head(h.Was), Now: gitdir.Head(h.Now), OtherFiles: h.OtherFiles}
	}
	if o.run != nil {
		act.From = o.run.Before
	}
	d, err := e.evidence.Seal(ctx, args.key(), act, objects...)
	if err != nil && (done != nil || args.Written) {
		args.Written = true
		e.acceptLater(args)
		return out, cell.Errorf(cell.Unavailable, "engine.Accept", "free some space or check the disk: the verdict and its receipt are written as soon as that works",
			"the changes are in the source, but the receipt is not written: %w", err)
	}
	if err != nil {
		return out, err
	}
	out.Receipt = d.String()
	for _, r := range objects[1:] {
		out.Runs = append(out.Runs, r.(*state.Run).API())
	}
	return out, nil
}

func acceptResult(c *state.Cell, o *offer, req api.AcceptRequest) api.AcceptResult {
	return api.AcceptResult{Cell: string(c.ID), CellName: c.Title(), Isolation: api.IsolationOf(c.Backend), Source: c.Source, Runs: []api.Run{}, Digest: o.digest.String(),
		Applied: []string{}, Held: []api.Held{}, First: []api.Look{}, Kept: []string{}, DryRun: req.DryRun}
}

// newKey makes the key of an act that is sealed once, whoever else does the same.
func newKey() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// acceptedIn are the runs whose accepted results are in an offer, newest first.
func (e *Engine) acceptedIn(o *offer) (ids []cell.RunID) {
	here := e.reg.Ancestors(o.at.ID)
	for _, r := range e.reg.Runs(o.c.ID) {
		if r.Verdict == cell.Accepted && r.In.After != r.In.Before && here[r.In.After] {
			ids = append(ids, r.RunID())
		}
	}
	return ids
}

// acceptLater tries again to seal an accept whose changes are in the source.
func (e *Engine) acceptLater(args acceptArgs) {
	e.background(func(ctx context.Context) {
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
		release, err := e.locks.Acquire(ctx, args.Cell, "accept", nil)
		if err != nil {
			return
		}
		defer release()
		err = e.operate(ctx, opAccept, args, func(ctx context.Context) error { return e.resumeAccept(ctx, args) })
		if err != nil {
			e.log.Warn("cannot write the receipt of an accept yet", "cell", args.Cell, "error", err)
		}
	})
}

func (e *Engine) mayAccept(o *offer, req api.AcceptRequest) error {
	const opName = "engine.Accept"
	c := o.c
	if req.Apply && c.NoSource {
		return cell.Errorf(cell.Conflict, opName, "take the changes where you want them, with pando diff --patch | git apply or pando cp, and accept them without --apply",
			"cannot apply the work of cell %s: it began with no directory of the daemon's host, so there is no source to apply it to", c.Title())
	}
	if err := o.expected(req.Expect); err != nil {
		return err
	}
	if err := refuseOtherBranch(o, headMoved(c), req); err != nil {
		return err
	}
	runs := o.covers
	if o.run != nil {
		runs = []state.Run{*o.run}
		switch o.run.Verdict {
		case cell.Restored, cell.Discarded:
			return decided(o.run, c)
		}
		for _, later := range e.reg.Runs(c.ID) {
			if later.ID == o.run.ID {
				break
			}
			if later.Undecided() && !later.OffersNothing() {
				return cell.Errorf(cell.Conflict, opName, fmt.Sprintf("decide on that first, or take all that is in the cell: pando diff %s, pando accept %s", c.Title(), c.Title()),
					"run %s is not the latest of cell %s that waits; that is %s", o.run.ID, c.Title(), later.ID)
			}
		}
	}
	if len(runs) == 0 {
		if err := e.nothing(o, req); err != nil {
			return err
		}
	}
	for i := range runs {
		run := &runs[i]
		failed := run.Error != nil || run.ExitCode == nil || *run.ExitCode != 0 || run.Cause != "" || (run.Check != nil && run.Check.ExitCode != 0)
		if failed && !req.Force {
			return cell.Errorf(cell.Conflict, opName, "look at it with pando diff "+run.ID+"; to take it all the same: --force --reason TEXT", "run %s did not succeed", run.ID)
		}
		if err := e.checkRecord(run); err != nil {
			return err
		}
	}
	if req.Force && strings.TrimSpace(req.Reason) == "" {
		return cell.Errorf(cell.Invalid, opName, "say why with --reason TEXT", "--force needs a reason, which the receipt keeps")
	}
	return nil
}

// nothing says why there is nothing to accept in a cell in which no run waits.
func (e *Engine) nothing(o *offer, req api.AcceptRequest) error {
	const opName = "engine.Accept"
	if o.base.Tree.ContentDigest() != o.after.Tree.ContentDigest() {
		if _, _, err := e.waiting(o); err == nil || req.Apply { // what no run did, or what is not applied yet
			return nil
		}
	}
	c := o.c
	switch r := e.reg.LatestResult(c.ID); {
	case r != nil && r.In.After == "":
		return unfinished(r, c)
	case r != nil && (r.Verdict == cell.Restored || r.Verdict == cell.Discarded):
		if !r.OffersNothing() { // else there is nothing to get back
			return decided(r, c)
		}
	case r != nil: // it was accepted; and somebody may have taken back by hand what was applied
		return nil
	}
	return cell.Errorf(cell.Conflict, opName, "run something in it first", "there is nothing to accept: cell %s is what its source is", c.Title())
}

// decided says that a run's result is not in its cell.
func decided(run *state.Run, c *state.Cell) error {
	return cell.Errorf(cell.Conflict, "engine.Accept", fmt.Sprintf("get its result back first: pando restore %s@%d", c.Title(), numberOf(run.After)), "run %s was %s", run.ID, run.Verdict)
}

// unfinished says that a run's result is not known.
func unfinished(run *state.Run, c *state.Cell) error {
	why := "it has not ended"
	if run.Error != nil {
		why = run.Error.Message
	}
	return cell.Errorf(cell.Conflict, "engine.Accept", "bring the cell back with pando restore "+c.Title()+"@N, and run it again",
		"run %s could not be finished, so its result is not known: %s", run.ID, why)
}

// resultGone says that a run's result went with its cell.
func resultGone(run *state.Run, c *state.Cell) error {
	return cell.Errorf(cell.Conflict, "engine.resultGone", "run it again; the patch is in "+filepath.Join(run.Folder, "patch"),
		"the result of run %s is gone: cell %s was removed", run.ID, c.Title())
}

// checkRecord makes sure that a run's record and files are what its receipts say, and that
// its checkpoint is the one that they name.
func (e *Engine) checkRecord(run *state.Run) error {
	const opName = "engine.checkRecord"
	if len(run.Receipts) == 0 {
		return cell.Errorf(cell.Corrupt, opName, "", "run %s has no receipt", run.ID)
	}
	if _, problems := e.evidence.VerifyRun(run); len(problems) > 0 {
		p := problems[0]
		return cell.Errorf(cell.Corrupt, opName, "see pando receipt verify "+run.ID+"; what was changed there is nobody's result",
			"the records of run %s are not what its receipt says: %s: %s", run.ID, p.File, p.What)
	}
	k, err := e.reg.Checkpoint(cell.CheckpointID(run.After.Checkpoint))
	if err != nil {
		return err
	}
	if k.Tree.String() != run.After.TreeDigest {
		return cell.Errorf(cell.Corrupt, opName, "", "checkpoint @%d is not the one that run %s produced", k.Number, run.ID)
	}
	return nil
}

// apply brings an offer into the source. It returns what it made of the source, nil when
// nothing was to be done.
func (e *Engine) apply(ctx context.Context, o *offer, req api.AcceptRequest, args acceptArgs, out *api.AcceptResult) (*state.Applied, error) {
	c, base, after := o.c, o.base, o.after
	ignored := none
	if !req.Ignored {
		var err error
		if ignored, err = diff.IgnoredBy(ctx, base, after, e.cfg.Parser); err != nil {
			return nil, fmt.Errorf("cannot tell which changes git ignores (--ignored applies all of them): %w", err)
		}
	}
	if !req.Force {
		if err := e.govern.RefuseSecrets(ctx, o.c, o.title(), o.base.Tree, o.after, req.Ignored); err != nil {
			return nil, err
		}
	}
	first, _, err := e.review(c, base, after, ignored, req.Include)
	if err != nil {
		return nil, err
	}
	out.First = state.LooksAPI(first)
	want := apply.Request{
		Base: base.Tree, After: after, Include: req.Include, Strict: req.Strict, IsIgnored: ignored, Ignored: req.Ignored, DryRun: req.DryRun,
	}
	res, err := e.bring(ctx, c, want)
	if err == nil && o.run == nil && len(res.Applied)+len(res.Already)+len(res.Held) == 0 {
		// The source should have it all. Somebody may have taken it back by hand.
		if k, kerr := e.firstOf(c); kerr == nil {
			if want.Base, err = e.tree(ctx, &k); err != nil {
				return nil, err
			}
			if again, aerr := e.bring(ctx, c, want); aerr == nil {
				res = again
			}
		}
	}
	if err != nil {
		if ce, ok := errors.AsType[*apply.ConflictError](err); ok {
			return nil, cell.Errorf(cell.Conflict, "engine.Accept", "the source is as it was; to merge the changes by hand, go by their patch: pando diff "+o.title()+" --patch",
				"cannot apply: %w", ce)
		}
		return nil, err
	}
	if len(res.UnusedInclude) > 0 && req.DryRun {
		return nil, cell.Errorf(cell.Invalid, "engine.Accept", "pando diff --stat lists the changes", "there is no change at %s, which --include names", diff.Quote(res.UnusedInclude[0]))
	}
	for _, f := range res.Applied {
		out.Applied = append(out.Applied, f.Path)
	}
	for _, p := range args.Planned { // what an earlier try wrote
		if slices.Contains(res.Already, p) {
			out.Applied = append(out.Applied, p)
		}
	}
	slices.Sort(out.Applied)
	out.Held = heldAPI(res.Held)
	for _, n := range res.Unrepresented {
		out.Kept = append(out.Kept, n.Path+": "+n.What)
	}
	out.Ignored = res.Ignored.Count
	if req.DryRun || len(out.Applied)+len(res.Already) == 0 {
		return nil, nil
	}
	already := slices.DeleteFunc(res.Already, func(p string) bool { return slices.Contains(out.Applied, p) })
	return e.remember(ctx, o, args.ID, want.Base, out.Applied, already, out)
}

// bring changes the source of a cell.
func (e *Engine) bring(ctx context.Context, c *state.Cell, req apply.Request) (apply.Result, error) {
	for _, l := range c.LeftOut {
		switch {
		case l.Kind == workspace.Fields:
			req.Scrubbed = append(req.Scrubbed, l.Path)
		case l.Reserved():
			req.Reserved = append(req.Reserved, l.Path)
		}
	}
	req.Source, req.Homes, req.GitConfigs = c.Source, e.homesOf(c.Source), gitConfigs()
	req.Backup = filepath.Join(e.cfg.Home.State, "apply", cell.Sum([]byte(c.Source)).Short())
	failpoint.Step("make the folder of an apply")
	if err := os.MkdirAll(filepath.Dir(req.Backup), 0o700); err != nil {
		return apply.Result{}, err
	}
	return apply.Do(ctx, req)
}

// firstOf is the checkpoint that a cell's source was imported into: its own
// first one, or that of the cell it was forked from.
func (e *Engine) firstOf(c *state.Cell) (state.Checkpoint, error) {
	if k, ok := e.reg.FounderOf(c.Head); ok {
		return k, nil
	}
	return state.Checkpoint{}, cell.Errorf(cell.NotFound, "engine.firstOf", "", "cell %s has no checkpoint", c.Title())
}

func (e *Engine) latestRun(id cell.ID) cell.RunID {
	if list := e.reg.Runs(id); len(list) > 0 {
		return list[0].RunID()
	}
	return ""
}

func numberOf(p *state.Point) int {
	if p == nil {
		return 0
	}
	return p.Number
}
