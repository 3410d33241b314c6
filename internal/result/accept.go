package result

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
	"github.com/pando-dev/pando/internal/commits"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Accept takes what a cell is now, or what one run of it changed. It checks the records of
// all runs that contributed to that, and gives each of these runs its verdict.
func (m *Manager) Accept(ctx context.Context, t Target, req api.AcceptRequest, seen ...Seen) (out api.AcceptResult, err error) {
	err = m.decide(ctx, t, "accept", seen, func(c *state.Cell, run *state.Run, within cell.RunID) error {
		if run != nil && c.State == cell.Removed && run.Verdict == cell.Accepted && !req.Apply { // it changed nothing, and its cell went
			out = acceptResult(c, &offer{}, req)
			out.Runs = append(out.Runs, run.API())
			return nil
		}
		var o *offer
		if within != "" && run == nil {
			o, err = m.offerSoFar(ctx, c, within, req)
		} else {
			o, err = m.offerNow(ctx, c, run)
		}
		if err != nil {
			return err
		}
		out, err = m.acceptHeld(ctx, o, req)
		return err
	})
	return out, err
}

// decide holds the lock of a target's cell while do decides about it. While the command of a run goes on in the cell,
// accepts and what is about earlier runs and the source alone are done within that, and the rest is refused.
func (m *Manager) decide(ctx context.Context, t Target, what string, seen []Seen, do func(c *state.Cell, run *state.Run, within cell.RunID) error) error {
	id, err := m.cellOf(t)
	if err != nil {
		return err
	}
	r, err := m.cfg.Records.Run(t.Run)
	if what == "revert" || what == "accept" || err == nil && (r.Verdict == cell.Restored || r.Verdict == cell.Discarded) {
		return m.cfg.Cells.Within(ctx, id, what, func(within cell.RunID) error { return m.decideHeld(id, t, seen, within, do) })
	}
	release, err := m.cfg.Cells.Lock(ctx, id, what)
	if err != nil {
		return err
	}
	defer release()
	return m.decideHeld(id, t, seen, "", do)
}

func (m *Manager) decideHeld(id cell.ID, t Target, seen []Seen, within cell.RunID, do func(c *state.Cell, run *state.Run, within cell.RunID) error) error {
	defer m.cfg.Pin()()
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return err
	}
	var run *state.Run
	if t.Run != "" {
		r, err := m.cfg.Records.Run(t.Run)
		if err != nil {
			return err
		}
		run = &r
	}
	if err := m.cfg.Decides.Unchanged(&c, run, seen); err != nil {
		return err
	}
	return do(&c, run, within)
}

// offerNow is what there is to decide about. The caller holds the cell's lock.
func (m *Manager) offerNow(ctx context.Context, c *state.Cell, run *state.Run) (*offer, error) {
	if run != nil {
		if run.Phase != cell.Ended {
			return nil, cell.Errorf(cell.Conflict, "result.Accept", "wait until it has ended; pando accept "+c.Title()+" --apply takes what it has made so far", "run %s is %s", run.ID, run.Phase)
		}
		if c.State == cell.Removed && !run.NeverStarted() {
			return nil, resultGone(run, c)
		}
		return m.runOffer(ctx, c, run)
	}
	if c.State == cell.Removed {
		if r := m.cfg.Records.LatestResult(c.ID); r != nil {
			return nil, resultGone(r, c)
		}
	}
	if _, err := m.cfg.Cells.Usable(c.ID); err != nil {
		return nil, err
	}
	at, err := m.presentHeld(ctx, c, "")
	if err != nil {
		if r := m.cfg.Records.LatestResult(c.ID); r != nil && r.In.After == "" && ctx.Err() == nil {
			return nil, noResult(r, c)
		}
		return nil, err
	}
	return m.cellOffer(ctx, c, &at)
}

// Apply accepts the result of a run and applies it to the source, for a caller with the lock of
// its cell. c and the record of the run are changed.
func (m *Manager) Apply(ctx context.Context, c *state.Cell, run *state.Run, reason string) error {
	o, err := m.runOffer(ctx, c, run)
	if err == nil {
		_, err = m.acceptHeld(ctx, o, api.AcceptRequest{Apply: true, Reason: reason})
	}
	return err
}

// acceptHeld is Accept for a caller with the cell's lock. It changes the cell and the runs.
func (m *Manager) acceptHeld(ctx context.Context, o *offer, req api.AcceptRequest) (api.AcceptResult, error) {
	req.Reason = m.cfg.Redactor.String(req.Reason)
	if err := m.mayAccept(o, req); err != nil {
		return api.AcceptResult{}, err
	}
	by, err := m.signedOff(ctx, o, req)
	if err != nil {
		return api.AcceptResult{}, err
	}
	if req.Commits {
		_, tip, _ := strings.Cut(req.Expect, "+")
		b, err := m.planBranch(ctx, o, tip, &req)
		if err != nil {
			return api.AcceptResult{}, err
		}
		defer b.close()
		o.branch = b
	}
	planned := req
	planned.DryRun = true
	out, err := m.doAccept(ctx, o, planned, acceptArgs{})
	if err == nil && len(by) > 0 && len(out.Merged) > 0 {
		return api.AcceptResult{}, cell.Errorf(cell.Unsigned, "result.Accept", "bring the source's changes into the cell with pando sync "+o.c.Title()+", and have that signed",
			"cannot merge %s with its source: what the merge makes is not what was signed", o.title())
	}
	if err != nil || req.DryRun {
		return out, err
	}
	args := acceptArgs{ID: "a-" + newKey(), Cell: o.c.ID, At: o.at.ID, Request: req, Planned: out.Applied, Merge: o.merge, During: o.during, SignedBy: by}
	if o.run != nil {
		args.Run = o.run.RunID()
	}
	for _, r := range o.covers {
		args.Covers = append(args.Covers, r.RunID())
	}
	if o.branch != nil {
		move := &o.branch.Move
		if err := o.branch.repo.Give(ctx, move.Common, move.Now, move.Was); err != nil {
			return api.AcceptResult{}, err
		}
		args.Branch, args.Also = &o.branch.branchArgs, out.Also
	}
	err = operation.Do(ctx, m.cfg.Records, operation.NewID(), OpAccept, args, func(ctx context.Context) (err error) {
		out, err = m.doAccept(ctx, o, req, args)
		return err
	})
	return out, err
}

// acceptArgs is an accept that was begun.
type acceptArgs struct {
	ID      string            `json:"id"` // of what is applied, and of its receipt
	Cell    cell.ID           `json:"cell"`
	Run     cell.RunID        `json:"run,omitempty"`
	At      cell.CheckpointID `json:"at"` // the files that are accepted
	Covers  []cell.RunID      `json:"covers,omitempty"`
	Request api.AcceptRequest `json:"request"`
	Planned []string          `json:"planned,omitempty"` // paths that the source had not, before anything was written
	Merge   *mergedState      `json:"merge,omitempty"`   // with what the source became
	During  cell.RunID        `json:"during,omitempty"`  // the run that went on
	Branch  *branchArgs       `json:"branch,omitempty"`  // the move of the source's branch
	Also    []string          `json:"also,omitempty"`    // paths that come with it, and that the source has
	// SignedBy are the approvals that it goes by.
	SignedBy []state.SignedBy `json:"signed_by,omitempty"`
	Written  bool             `json:"written,omitempty"` // by an earlier try that could not write its receipt
}

// key is that of the receipt.
func (a *acceptArgs) key() string { return "accept/" + a.ID }

// resumeAccept finishes an accept that an earlier daemon began: the source may have all
// of the changes already, or none.
func (m *Manager) resumeAccept(ctx context.Context, args acceptArgs) error {
	if m.cfg.Evidence.Sealed(args.key()) {
		return nil // the operation of its seal goes on by itself
	}
	c, err := m.cfg.Records.Cell(args.Cell)
	if err != nil {
		return err
	}
	var o *offer
	if args.Run != "" {
		run, err := m.cfg.Records.Run(args.Run)
		if err != nil {
			return err
		}
		o, err = m.runOffer(ctx, &c, &run)
		if err != nil {
			return err
		}
	} else {
		at, err := m.cfg.Records.Checkpoint(args.At)
		if err != nil {
			return err
		}
		if o, err = m.cellOffer(ctx, &c, &at); err != nil {
			return err
		}
	}
	o.covers, o.during = nil, args.During
	for _, id := range args.Covers {
		r, err := m.cfg.Records.Run(id)
		if err != nil {
			return err
		}
		o.covers = append(o.covers, r)
	}
	if o.branch, err = m.resumeBranch(ctx, &c, args.Branch); err != nil {
		m.cfg.Log.Error("cannot go on with the commits of an accept: its files are accepted without", "cell", c.ID, "branch", args.Branch.Move.Branch, "error", err)
		o.branch.close()
		o.branch = nil
	}
	defer o.branch.close()
	_, err = m.doAccept(ctx, o, args.Request, args)
	return err
}

// doAccept applies, if asked, and seals.
func (m *Manager) doAccept(ctx context.Context, o *offer, req api.AcceptRequest, args acceptArgs) (out api.AcceptResult, err error) {
	c := o.c
	out = acceptResult(c, o, req)
	made, err := commitsIn(c, o.base, o.after)
	if err != nil {
		m.cfg.Log.Warn("cannot tell which commits were made in a cell", "cell", c.ID, "error", err)
	}
	out.Commits = made.API()
	if req.Apply {
		out.Head = headMoved(c)
	}
	if !req.DryRun { // before anything outside is changed
		if err := m.cfg.Space.SyncLayers(); err != nil {
			return out, err
		}
	}
	var held *commits.Held
	if !req.DryRun {
		if held, err = m.hold(ctx, c, &o.branch); err != nil {
			return out, err
		}
		if held != nil {
			defer held.Release()
		}
		defer func() { // what is in the source is recorded, sooner or later
			if k := cell.KindOf(err); err != nil && args.Written && k != cell.Conflict && k != cell.Invalid {
				m.acceptLater(args)
				err = cell.Errorf(cell.Unavailable, "result.Accept", "free some space or check the disk: the verdict and its receipt are written as soon as that works",
					"the changes are in the source, but not all that goes with them: %w", err)
			}
		}()
	}
	out.Branch, out.Also = o.branch.api(), args.Also
	var done *state.Applied
	if req.Apply {
		if done, err = m.apply(ctx, o, req, args, &out); err != nil {
			return out, err
		}
	}
	if req.DryRun {
		if out.Left == 0 {
			out.Runs = runsAPI(o.covers)
		}
		return out, nil
	}
	args.Written = args.Written || done != nil
	if held != nil {
		if err := held.Do(); err != nil {
			return out, fmt.Errorf("its branch has not moved: %w", err)
		}
		args.Written, args.Branch.Moved = true, true
	}
	if o.branch != nil {
		if done, err = m.branched(ctx, o, args, done); err != nil {
			return out, err
		}
	}
	objects := []any{c}
	for i := range o.covers {
		r := &o.covers[i]
		if out.Left == 0 { // else the rest waits
			if err := r.Decide(cell.Accepted, req.Reason, "user"); err != nil {
				return out, err
			}
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
		switch {
		case done.During != "":
			done.Runs = append(done.Runs, done.During)
		case len(objects) == 1: // what covers it was accepted before
			done.Runs = m.acceptedIn(o)
		}
		done.Part, done.Held = out.Left > 0, len(out.Held) > 0 || out.Ignored > 0
		c.Applied = append(slices.Clone(c.Applied), *done)
	}
	if c.Anonymous() {
		c.Expires = time.Now().Add(state.KeepAnonymous).UTC()
	}
	act := state.ActOn(c, "accept", cell.Accepted, req.Reason)
	act.Digest, act.Forced, act.To, act.Downgrades = o.digest.String(), req.Force, o.at.Point(), c.Setup.Downgrades
	act.Applied, act.Source, act.Repositories, act.Paths, act.Left = out.Applied, c.Top(), c.Repositories, req.Paths, out.Left
	act.SignedBy = args.SignedBy
	act.Parts, act.Also, act.Branch, act.During = out.Parts, out.Also, o.branch.state(), o.during
	for _, f := range out.Merged {
		act.Merged = append(act.Merged, state.Merged(f))
	}
	for _, h := range out.Held {
		act.Held = append(act.Held, state.Held(h))
	}
	if h := out.Head; h != nil {
		act.Head = &state.HeadMoved{Source: h.Source, Was: gitdir.Head(h.Was), Now: gitdir.Head(h.Now), OtherFiles: h.OtherFiles}
	}
	if o.run != nil {
		act.From = o.run.Before
	}
	if out.Left == 0 && o.during == "" { // a run may still write to them
		act.Caches = m.cfg.Caches(c.ID, args.Covers)
	}
	records := slices.Clone(objects)
	if k := o.at; k.Kind == state.KindLooked && k.Message == state.LookedMessage {
		k.Message = state.AcceptedMessage // later looks don't take its place
		records = append(records, &k)
	}
	d, err := m.cfg.Evidence.Seal(ctx, args.key(), act, records...)
	if err != nil {
		return out, err
	}
	if out.Receipt = d.String(); out.Left == 0 && o.during == "" {
		m.cfg.KeepCaches(ctx, c.ID)
	}
	for _, r := range objects[1:] {
		if out.Left == 0 {
			out.Runs = append(out.Runs, r.(*state.Run).API())
		}
	}
	return out, nil
}

func acceptResult(c *state.Cell, o *offer, req api.AcceptRequest) api.AcceptResult {
	return api.AcceptResult{Cell: string(c.ID), CellName: c.Title(), Isolation: api.IsolationOf(c.Backend), Source: c.Top(), Runs: []api.Run{}, Digest: o.digest.String(),
		Applied: []string{}, Merged: []api.Merged{}, Held: []api.Held{}, First: []api.Look{}, Kept: []string{}, DryRun: req.DryRun, During: string(o.during), Looked: o.looked}
}

// newKey makes the key of an act that is sealed once.
func newKey() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// acceptedIn are the runs with accepted results in an offer, newest first.
func (m *Manager) acceptedIn(o *offer) (ids []cell.RunID) {
	here := m.cfg.Records.Ancestors(o.at.ID)
	for _, r := range m.cfg.Records.Runs(o.c.ID) {
		if r.Verdict == cell.Accepted && !r.OffersNothing() && here[r.In.After] {
			ids = append(ids, r.RunID())
		}
	}
	return ids
}

// acceptLater tries again to seal an accept after its changes came into the source.
func (m *Manager) acceptLater(args acceptArgs) {
	over := m.cfg.Pin() // of what a merge made, which no record names yet
	m.cfg.Background(func(ctx context.Context) {
		defer over()
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
		begun := false
		err := m.cfg.Cells.Within(ctx, args.Cell, "accept", func(cell.RunID) error {
			begun = true
			return operation.Do(ctx, m.cfg.Records, operation.NewID(), OpAccept, args, func(ctx context.Context) error { return m.resumeAccept(ctx, args) })
		})
		if err != nil {
			m.cfg.Log.Warn("cannot write the receipt of an accept yet", "cell", args.Cell, "error", err)
			if !begun && ctx.Err() == nil {
				m.acceptLater(args)
			}
		}
	})
}

func (m *Manager) mayAccept(o *offer, req api.AcceptRequest) error {
	const opName = "result.Accept"
	c := o.c
	if (len(req.Paths) > 0 || req.Patch != "") && !req.Apply {
		return cell.Errorf(cell.Invalid, opName, "add --apply", "cannot accept a part of the changes without applying it")
	}
	if (req.Merge || req.NoConflicts) && !req.Apply {
		return cell.Errorf(cell.Invalid, opName, "add --apply", "cannot merge the changes without applying them")
	}
	if req.Commits && (!req.Apply || len(req.Paths) > 0 || req.Patch != "") {
		return cell.Errorf(cell.Invalid, opName, "take all with --commits, or a part of the files without", "commits come with all changes, applied")
	}
	if req.Sign != "" && !req.Commits {
		return cell.Errorf(cell.Invalid, opName, "add --commits", "cannot sign what is not committed")
	}
	if req.NoConflicts && !req.Merge {
		return cell.Errorf(cell.Invalid, opName, "add --merge", "cannot refuse the conflicts of a merge that was not asked for")
	}
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
		for _, later := range m.cfg.Records.Runs(c.ID) {
			if later.ID == o.run.ID {
				break
			}
			if later.Undecided() && !later.OffersNothing() {
				return cell.Errorf(cell.Conflict, opName, fmt.Sprintf("decide on that first, or take all that is in the cell: pando diff %s, pando accept %s", c.Title(), c.Title()),
					"run %s is not the latest of cell %s that waits; that is %s", o.run.ID, c.Title(), later.ID)
			}
		}
	}
	if len(runs) == 0 && !req.Commits {
		if err := m.nothing(o, req); err != nil {
			return err
		}
	}
	for i := range runs {
		run := &runs[i]
		if failed := failure(run); failed != "" && !req.Force {
			return cell.Errorf(cell.Conflict, opName, "look at its changes with pando diff "+run.ID+"; to accept them all the same: --force --reason TEXT", "cannot accept run %s: %s", run.ID, failed)
		}
		if err := m.checkRecord(run); err != nil {
			return err
		}
	}
	if req.Force && strings.TrimSpace(req.Reason) == "" {
		return cell.Errorf(cell.Invalid, opName, "say why with --reason TEXT", "cannot accept with --force: there is no reason, which the receipt keeps")
	}
	return nil
}

// failure says why a run failed; "" if it succeeded.
func failure(run *state.Run) string {
	switch {
	case run.Error != nil:
		return "it could not be carried out: " + run.Error.Message
	case run.ExitCode == nil:
		return "its command did not start"
	case run.Cause != "":
		return "its command was ended: " + run.Cause
	case run.Signal != "":
		return "its command was ended by " + run.Signal
	case *run.ExitCode != 0:
		return fmt.Sprintf("its command failed with exit code %d", *run.ExitCode)
	case run.Check != nil && run.Check.ExitCode != 0:
		return fmt.Sprintf("its check failed with exit code %d", run.Check.ExitCode)
	}
	return ""
}

// nothing says why there is nothing to accept in a cell in which no run waits.
func (m *Manager) nothing(o *offer, req api.AcceptRequest) error {
	const opName = "result.Accept"
	if o.base.Tree.ContentDigest() != o.after.Tree.ContentDigest() {
		if _, _, err := m.waiting(o); err == nil || req.Apply { // what no run did, or what is not applied yet
			return nil
		}
	}
	c := o.c
	switch r := m.cfg.Records.LatestResult(c.ID); {
	case r != nil && r.In.After == "":
		return noResult(r, c)
	case r != nil && (r.Verdict == cell.Restored || r.Verdict == cell.Discarded):
		if !r.OffersNothing() { // else there is nothing to get back
			return decided(r, c)
		}
	case r != nil: // it was accepted; and what was applied may have been taken back by hand
		return nil
	}
	return cell.Errorf(cell.Conflict, opName, "run something in it first", "there is nothing to accept: cell %s is what its source is", c.Title())
}

// decided says that a run's result is not in its cell.
func decided(run *state.Run, c *state.Cell) error {
	return cell.Errorf(cell.Conflict, "result.Accept", fmt.Sprintf("get its result back first: pando restore %s@%d", c.Title(), numberOf(run.After)), "run %s was %s", run.ID, run.Verdict)
}

// noResult says that a run's result is not known.
func noResult(run *state.Run, c *state.Cell) error {
	why := "it has not ended"
	if run.Error != nil {
		why = run.Error.Message
	}
	return cell.Errorf(cell.Conflict, "result.Accept", "bring the cell back with pando restore "+c.Title()+"@N, and run it again",
		"run %s could not be finished, so its result is not known: %s", run.ID, why)
}

// resultGone says that a run's result went with its cell.
func resultGone(run *state.Run, c *state.Cell) error {
	return cell.Errorf(cell.Conflict, "result.resultGone", "run it again; the patch is in "+filepath.Join(run.Folder, "patch"),
		"the result of run %s is gone: cell %s was removed", run.ID, c.Title())
}

// checkRecord makes sure that a run's record and files are what its receipts say, and that
// its checkpoint is the one that they name.
func (m *Manager) checkRecord(run *state.Run) error {
	const opName = "result.checkRecord"
	if len(run.Receipts) == 0 {
		return cell.Errorf(cell.Corrupt, opName, "", "run %s has no receipt", run.ID)
	}
	if _, problems, _ := m.cfg.Evidence.VerifyRun(run); len(problems) > 0 {
		p := problems[0]
		return cell.Errorf(cell.Corrupt, opName, "see pando receipt verify "+run.ID+"; what was changed there is no run's result",
			"the records of run %s are not what its receipt says: %s: %s", run.ID, p.File, p.What)
	}
	k, err := m.cfg.Records.Checkpoint(cell.CheckpointID(run.After.Checkpoint))
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
func (m *Manager) apply(ctx context.Context, o *offer, req api.AcceptRequest, args acceptArgs, out *api.AcceptResult) (*state.Applied, error) {
	c, base, after := o.c, o.base, o.after
	ignored := none
	var err error
	if !req.Ignored {
		if ignored, err = diff.IgnoredBy(ctx, base, after, c.Parts(), m.cfg.Parser); err != nil {
			return nil, fmt.Errorf("cannot tell which changes git ignores (--ignored applies all of them): %w", err)
		}
	}
	var hunks []hunked
	if len(req.Paths) > 0 || req.Patch != "" {
		if hunks, err = m.hunks(ctx, o, req.Patch); err != nil {
			return nil, err
		}
		agreed, err := m.agreedAt(ctx, c, o.at.ID)
		if err != nil {
			return nil, err
		}
		if after, out.Left, err = o.choose(req.Paths, req.Exact, hunks, agreed, ignored); err != nil {
			return nil, err
		}
		if after, err = m.withHunks(o, after, hunks); err != nil {
			return nil, err
		}
	}
	if !req.Force {
		if err := m.cfg.Decides.Secrets(ctx, c, o.title(), base.Tree, after, req.Ignored); err != nil {
			return nil, err
		}
	}
	first, _, err := m.review(c, base, after, ignored, req.Include)
	if err != nil {
		return nil, err
	}
	out.First = state.LooksAPI(first)
	want := apply.Request{
		Base: base.Tree, After: after, Include: req.Include, Strict: req.Strict, IsIgnored: ignored, Ignored: req.Ignored, DryRun: req.DryRun,
	}
	merged := args.Merge
	if merged != nil {
		if want.Base, want.After, err = m.trees(merged, after.Contents); err != nil {
			return nil, err
		}
	}
	res, err := m.bring(ctx, c, want)
	found, conflict := errors.AsType[*apply.ConflictError](err)
	if conflict && (req.Merge || o.branch != nil) && merged == nil && req.DryRun { // the plan: what is written goes by it
		if merged, err = m.merge(ctx, o, after, ignored, found, req); err == nil {
			if want.Base, want.After, err = m.trees(merged, after.Contents); err == nil {
				res, err = m.bring(ctx, c, want)
			}
		}
		o.merge = merged
	}
	if err == nil && o.run == nil && len(res.Applied)+len(res.Already)+len(res.Held) == 0 {
		// The source should have it all, unless it was taken back by hand.
		if brought, berr := m.broughtAt(ctx, c, o.at.ID); berr == nil {
			want.Base = brought
			if again, aerr := m.bring(ctx, c, want); aerr == nil {
				res = again
			}
		}
	}
	if err != nil {
		if ce, ok := errors.AsType[*apply.ConflictError](err); ok {
			hint := "the source is as it was; --merge merges the changes with it; to merge them by hand, go by their patch: pando diff " + o.title() + " --patch"
			if req.Merge {
				hint = "the source is as it was; decide about these by hand, take the others by their paths (pando accept " + o.title() + " --apply --merge -- PATH…), or go by the patch: pando diff " + o.title() + " --patch"
			}
			return nil, cell.Errorf(cell.Conflict, "result.Accept", hint, "cannot apply: %w", ce)
		}
		return nil, err
	}
	if len(res.UnusedInclude) > 0 && req.DryRun {
		hint := "pando diff --stat lists the changes"
		if strings.Contains(res.UnusedInclude[0], "*") { // what a cell names must not become a pattern that takes more
			hint = "it takes files and folders, and no patterns; . is all"
		}
		return nil, cell.Errorf(cell.Invalid, "result.Accept", hint, "there is no change at %s, which --include names", diff.Quote(res.UnusedInclude[0]))
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
	for _, h := range hunks {
		out.Parts = append(out.Parts, h.path)
	}
	files, _, _ := merged.in(out.Applied, res.Already, res.Held)
	for _, f := range files {
		out.Merged = append(out.Merged, api.Merged(f))
	}
	out.Held = heldAPI(res.Held)
	for _, n := range res.Unrepresented {
		if o.branch != nil && n.Path == gitFolder { // what it has of commits comes
			continue
		}
		out.Kept = append(out.Kept, n.Path+": "+n.What)
	}
	out.Ignored = res.Ignored.Count
	if o.branch != nil && req.DryRun {
		if err := m.goesWith(ctx, o, want.After, ignored, out); err != nil {
			return nil, err
		}
	}
	if req.DryRun || len(out.Applied)+len(res.Already)+len(files) == 0 {
		return nil, nil
	}
	already := slices.DeleteFunc(res.Already, func(p string) bool { return slices.Contains(out.Applied, p) })
	return m.remember(ctx, o, applying{id: args.ID, base: want.Base, after: want.After, taken: after.Tree, written: out.Applied, already: already, merge: merged, held: res.Held, hunks: digests(hunks)}, out)
}

// bring changes the source of a cell.
func (m *Manager) bring(ctx context.Context, c *state.Cell, req apply.Request) (apply.Result, error) {
	for _, l := range c.LeftOut {
		switch {
		case l.Kind == workspace.Fields:
			req.Scrubbed = append(req.Scrubbed, l.Path)
		case l.Reserved():
			req.Reserved = append(req.Reserved, l.Path)
		}
	}
	failpoint.Step("make the folder of an apply")
	if err := os.MkdirAll(m.cfg.Backups, 0o700); err != nil {
		return apply.Result{}, err
	}
	return apply.Do(ctx, m.parts(c, req))
}

// parts are the shares of a cell's directories in a request.
func (m *Manager) parts(c *state.Cell, req apply.Request) (list []apply.Part) {
	for _, d := range c.Parts() {
		req.Source, req.Homes, req.GitConfigs = d.Source, m.homesOf(d.Source), gitConfigs()
		req.Backup = filepath.Join(m.cfg.Backups, cell.Sum([]byte(d.Source)).Short())
		list = append(list, apply.Part{At: d.At, Request: req})
	}
	return list
}

// firstOf is the checkpoint that a cell's source was imported into: the cell's
// first one, or that of the cell it was forked from.
func (m *Manager) firstOf(c *state.Cell) (state.Checkpoint, error) {
	if k, ok := m.cfg.Records.FounderOf(c.Head); ok {
		return k, nil
	}
	return state.Checkpoint{}, cell.Errorf(cell.NotFound, "result.firstOf", "", "cell %s has no checkpoint", c.Title())
}

func numberOf(p *state.Point) int {
	if p == nil {
		return 0
	}
	return p.Number
}
