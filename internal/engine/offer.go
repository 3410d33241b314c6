package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Target is what a verdict is about: a cell as it is now, or what one run of it
// changed.
type Target struct {
	Cell cell.ID
	Run  cell.RunID // "": the cell
}

// of is the cell that a target is in.
func (e *Engine) of(t Target) (cell.ID, error) {
	if t.Run == "" {
		return t.Cell, nil
	}
	r, err := e.reg.Run(t.Run)
	return r.CellID(), err
}

// An offer is what there is to decide about: the changes that diff shows, that accept
// brings into the source, and that the report speaks of. Of a cell they lead from what
// its source is known to be to what the cell is now; of a run, from before to after it.
type offer struct {
	c           *state.Cell
	run         *state.Run // nil: of the cell
	base, after workspace.Side
	from, to    string           // of base and after, for people
	at          state.Checkpoint // whose files after has
	covers      []state.Run      // runs that wait for a verdict, whose results are in it; oldest first
	digest      cell.Digest
}

// cellOffer is what there is to decide about in a cell, which is at a checkpoint.
func (e *Engine) cellOffer(ctx context.Context, c *state.Cell, at *state.Checkpoint) (*offer, error) {
	first, err := e.firstOf(c)
	if err != nil {
		return nil, err
	}
	o := &offer{c: c, at: *at, from: "the source", to: e.selector(c, at)}
	if o.base, err = e.side(ctx, &first); err != nil {
		return nil, err
	}
	if !c.Known.IsZero() {
		tree, err := e.trees.get(c.Known)
		if err != nil {
			return nil, err
		}
		o.base = workspace.Side{Tree: tree, Contents: e.pastOf(ctx, c)}
	}
	if o.after, err = e.side(ctx, at); err != nil {
		return nil, err
	}
	here := e.reg.Ancestors(at.ID)
	for _, r := range slices.Backward(e.reg.Runs(c.ID)) {
		if r.Undecided() && here[r.In.After] {
			o.covers = append(o.covers, r)
		}
	}
	o.digest = offerDigest(o.base.Tree, o.after.Tree)
	return o, nil
}

// runOffer is what one run changed.
func (e *Engine) runOffer(ctx context.Context, c *state.Cell, run *state.Run) (*offer, error) {
	const opName = "engine.offer"
	if run.In.After == "" && run.Error != nil && run.ExitCode != nil {
		return nil, unfinished(run, c)
	}
	if run.In.Before == "" || run.In.After == "" {
		hint, what := "wait until it has ended", "has no result yet"
		if run.NeverStarted() {
			hint, what = "run it again", "never started: there is no result"
		}
		return nil, cell.Errorf(cell.Conflict, opName, hint, "run %s %s", run.ID, what)
	}
	before, err := e.reg.Checkpoint(run.In.Before)
	if err != nil {
		return nil, err
	}
	after, err := e.reg.Checkpoint(run.In.After)
	if err != nil {
		return nil, err
	}
	o := &offer{c: c, run: run, at: after, from: e.selector(c, &before), to: e.selector(c, &after)}
	if o.base, err = e.side(ctx, &before); err != nil {
		return nil, err
	}
	if o.after, err = e.side(ctx, &after); err != nil {
		return nil, err
	}
	if run.Undecided() {
		o.covers = []state.Run{*run}
	}
	o.digest = offerDigest(o.base.Tree, o.after.Tree)
	return o, nil
}

// offerDigest names the changes from one tree to another: as git sees them, whatever
// their times.
func offerDigest(base, after *workspace.Tree) cell.Digest {
	return cell.Sum(fmt.Appendf(nil, "pando changes 1\n%s\n%s\n", base.ContentDigest(), after.ContentDigest()))
}

// expectDigits is how much of an offer's digest has to be given.
const expectDigits = 16

// expected refuses an offer that is not the one that was looked at.
func (o *offer) expected(want string) error {
	if want == "" {
		return nil
	}
	hex := strings.TrimPrefix(o.digest.String(), "sha256:")
	want = strings.TrimPrefix(want, "sha256:")
	if len(want) < expectDigits || len(want) > len(hex) || strings.Trim(want, "0123456789abcdef") != "" {
		return cell.Errorf(cell.Invalid, "engine.Accept", "take it from the last line of pando diff", "%q is no digest of changes: that has %d to %d digits", clip(want), expectDigits, len(hex))
	}
	if !strings.HasPrefix(hex, want) {
		return cell.Errorf(cell.Conflict, "engine.Accept", "look at them again: pando diff "+o.title(),
			"the changes are others than those that were looked at: their digest is %s", hex[:expectDigits])
	}
	return nil
}

// title is the selector of what an offer is of.
func (o *offer) title() string {
	if o.run != nil {
		return o.run.ID
	}
	return o.c.Title()
}

// runs are the names of what it covers.
func (o *offer) runs() []string {
	ids := []string{}
	for _, r := range o.covers {
		ids = append(ids, r.ID)
	}
	return ids
}

// changed are the names of the runs that it covers and that changed something.
func (o *offer) changed() []string {
	ids := []string{}
	for _, r := range o.covers {
		if !r.OffersNothing() {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// present is the cell's state now: its head, or what was written since, as a checkpoint
// that is made for the purpose.
func (e *Engine) present(ctx context.Context, c *state.Cell) (state.Checkpoint, error) {
	if c.Gen == nil {
		return e.reg.Checkpoint(c.Head)
	}
	if e.runIn(c.ID) != nil {
		return state.Checkpoint{}, cell.Errorf(cell.Conflict, "engine.Diff", "wait for it, or follow it with pando logs -f "+c.Title(), "a run is under way in cell %s", c.Title())
	}
	release, err := e.alive.Lock(ctx, c.ID, "diff")
	if err != nil {
		return state.Checkpoint{}, err
	}
	defer release()
	defer e.pins.Begin().End()
	fresh, err := e.alive.Usable(c.ID)
	if err != nil {
		return state.Checkpoint{}, err
	}
	*c = fresh
	return e.presentHeld(ctx, c)
}

// presentHeld is present, for whoever holds the cell's lock.
func (e *Engine) presentHeld(ctx context.Context, c *state.Cell) (state.Checkpoint, error) {
	k, err := e.settle(ctx, c, state.KindManual, "as it was looked at", "")
	if err != nil {
		return k, fmt.Errorf("cannot look at the workspace now: %w", err)
	}
	return k, nil
}

func runsAPI(list []state.Run) []api.Run {
	out := []api.Run{}
	for _, r := range list {
		out = append(out, r.API())
	}
	return out
}
