package result

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Target is what a verdict is about: a cell as it is now, or what one run of it
// changed.
type Target struct {
	Cell cell.ID
	Run  cell.RunID // "": the cell
}

// cellOf is the cell that a target is in.
func (m *Manager) cellOf(t Target) (cell.ID, error) {
	if t.Run == "" {
		return t.Cell, nil
	}
	r, err := m.cfg.Records.Run(t.Run)
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
	at          state.Checkpoint // with the files of after
	covers      []state.Run      // runs that wait for a verdict and have their results in it; oldest first
	digest      cell.Digest
	merge       *mergedState // with what the source became; nil: none was asked for, or needed
	branch      *branch      // what the source's branch becomes; nil: commits were not asked for
	during      cell.RunID   // the run that goes on in the cell, of which it is what that has made so far
	looked      time.Time    // with during: since when the state that is taken is known
}

// cellOffer is what there is to decide about in a cell, which is at a checkpoint.
func (m *Manager) cellOffer(ctx context.Context, c *state.Cell, at *state.Checkpoint) (*offer, error) {
	first, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	o := &offer{c: c, at: *at, from: "the source", to: c.Selector(at)}
	if o.base, err = m.cfg.Side(ctx, &first); err != nil {
		return nil, err
	}
	if !c.Known.IsZero() {
		tree, err := m.agreedAt(ctx, c, at.ID)
		if err != nil {
			return nil, err
		}
		o.base = workspace.Side{Tree: tree, Contents: m.pastOf(ctx, c)}
	}
	if o.after, err = m.cfg.Side(ctx, at); err != nil {
		return nil, err
	}
	here := m.cfg.Records.Ancestors(at.ID)
	for _, r := range slices.Backward(m.cfg.Records.Runs(c.ID)) {
		if r.Undecided() && here[r.In.After] {
			o.covers = append(o.covers, r)
		}
	}
	o.digest = offerDigest(o.base.Tree, o.after.Tree)
	return o, nil
}

// runOffer is what one run changed.
func (m *Manager) runOffer(ctx context.Context, c *state.Cell, run *state.Run) (*offer, error) {
	const opName = "result.offer"
	if run.In.After == "" && run.Error != nil && run.ExitCode != nil {
		return nil, noResult(run, c)
	}
	if run.In.Before == "" || run.In.After == "" {
		hint, what := "wait until it has ended", "has no result yet"
		if run.NeverStarted() {
			hint, what = "run it again", "never started: there is no result"
		}
		return nil, cell.Errorf(cell.Conflict, opName, hint, "run %s %s", run.ID, what)
	}
	before, err := m.cfg.Records.Checkpoint(run.In.Before)
	if err != nil {
		return nil, err
	}
	after, err := m.cfg.Records.Checkpoint(run.In.After)
	if err != nil {
		return nil, err
	}
	o := &offer{c: c, run: run, at: after, from: c.Selector(&before), to: c.Selector(&after)}
	if o.base, err = m.cfg.Side(ctx, &before); err != nil {
		return nil, err
	}
	if o.after, err = m.cfg.Side(ctx, &after); err != nil {
		return nil, err
	}
	if taken, err := m.withTaken(c, run, o.base.Tree, after.ID); err != nil {
		return nil, err
	} else if taken != o.base.Tree {
		o.base = workspace.Side{Tree: taken, Contents: m.pastOf(ctx, c)}
	}
	if run.Undecided() {
		o.covers = []state.Run{*run}
	}
	o.digest = offerDigest(o.base.Tree, o.after.Tree)
	return o, nil
}

// withTaken is the tree before a run, with what the cell and its source agreed on of what was taken while it went on: what is told from it is
// the rest. Later accepts are none of it.
func (m *Manager) withTaken(c *state.Cell, run *state.Run, before *workspace.Tree, after cell.CheckpointID) (*workspace.Tree, error) {
	taken := c.TakenDuring(run.RunID())
	if len(taken) == 0 {
		return before, nil
	}
	return m.replayOn(before, c, after, func(a state.Agreement) bool {
		return slices.ContainsFunc(taken, func(t state.Applied) bool { return t.ID == a.Applied })
	})
}

// offerDigest names the changes from one tree to another: as git sees them, without
// their times.
func offerDigest(base, after *workspace.Tree) cell.Digest {
	return receipt.ChangesDigest(base.ContentDigest().String(), after.ContentDigest().String())
}

// expectDigits is how much of an offer's digest has to be given.
const expectDigits = 16

// expected refuses an offer that is not the one that was looked at.
func (o *offer) expected(want string) error {
	if want == "" {
		return nil
	}
	want, _, _ = strings.Cut(want, "+") // behind it is what is wanted of commits
	hex := strings.TrimPrefix(o.digest.String(), "sha256:")
	want = strings.TrimPrefix(want, "sha256:")
	if len(want) < expectDigits || len(want) > len(hex) || strings.Trim(want, "0123456789abcdef") != "" {
		return cell.Errorf(cell.Invalid, "result.Accept", "take it from the last line of pando diff", "%.80q is no digest of changes: that has %d to %d digits", want, expectDigits, len(hex))
	}
	if !strings.HasPrefix(hex, want) {
		return cell.Errorf(cell.Conflict, "result.Accept", "look at them again: pando diff "+o.title(),
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

// Present is the cell's state now: its head, or what was written since, as a checkpoint
// that is made for the purpose, also while a run goes on.
func (m *Manager) Present(ctx context.Context, c *state.Cell) (k state.Checkpoint, err error) {
	return m.present(ctx, c, false)
}

// present is Present. With instead, the checkpoint takes the place of one that was made for the same purpose before.
func (m *Manager) present(ctx context.Context, c *state.Cell, instead bool) (k state.Checkpoint, err error) {
	if c.Gen == nil {
		return m.cfg.Records.Checkpoint(c.Head)
	}
	err = m.cfg.Cells.Within(ctx, c.ID, "diff", func(within cell.RunID) error {
		defer m.cfg.Pin()()
		fresh, err := m.cfg.Cells.Usable(c.ID)
		if err != nil {
			return err
		}
		*c = fresh
		before := c.Head
		if k, err = m.presentHeld(ctx, c, within); err == nil && instead && before != k.ID {
			err = m.cfg.Space.ForgetLooked(c, before)
		}
		return err
	})
	return k, err
}

// presentHeld is Present for a caller with the cell's lock: a run, or "". Of a cell at its head it makes no
// checkpoint: what a decision is about has no home.
func (m *Manager) presentHeld(ctx context.Context, c *state.Cell, within cell.RunID) (state.Checkpoint, error) {
	if c.Gen == nil {
		return m.cfg.Records.Checkpoint(c.Head)
	}
	k, err := m.cfg.Checkpoint(ctx, c, state.Checkpoint{Kind: state.KindLooked, Message: state.LookedMessage}, within)
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
