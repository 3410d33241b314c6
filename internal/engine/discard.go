package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Discard throws away what waits in a cell, or the result of its latest run: the cell goes
// back to before it, and what it was is kept as a checkpoint for a while.
func (e *Engine) Discard(ctx context.Context, t Target, req api.DiscardRequest, seen ...Seen) (out api.DiscardResult, err error) {
	err = e.decide(ctx, t, "discard", seen, func(c *Cell, run *Run) error {
		out, err = e.discardHeld(ctx, c, run, req)
		return err
	})
	return out, err
}

func (e *Engine) discardHeld(ctx context.Context, c *Cell, run *Run, req api.DiscardRequest) (out api.DiscardResult, err error) {
	const opName = "engine.Discard"
	o, err := e.offerNow(ctx, c, run)
	if err != nil {
		return out, err
	}
	var to Checkpoint
	if run != nil {
		if _, err := cell.Verdict(run.Verdict).To(cell.Discarded); err != nil {
			return out, err
		}
		if latest := e.latestResult(c.ID); latest != nil && latest.ID != run.ID {
			return out, cell.Errorf(cell.Conflict, opName, fmt.Sprintf("go back past it with pando restore %s@%d, or discard all that waits: pando discard %s", c.Title(), run.Before.Number, c.Title()),
				"run %s is not the latest of cell %s; that is %s", run.ID, c.Title(), latest.ID)
		}
		to, err = e.reg.checkpoint(run.In.Before)
	} else {
		o.covers, to, err = e.waiting(o)
	}
	if err != nil {
		return out, err
	}
	out = api.DiscardResult{CellName: c.Title(), Runs: runsAPI(o.covers), Number: to.Number, DryRun: req.DryRun}
	if len(o.covers) > 1 && !req.Lose && !req.DryRun {
		return out, cell.Errorf(cell.Conflict, opName, "confirm it with --yes, or name one run",
			"this throws away the results of %s", join(o.runs()))
	}
	if req.DryRun {
		out.Cell = e.cellView(c)
		return out, nil
	}
	if err := e.moveHead(ctx, c, to.ID); err != nil {
		return out, err
	}
	objects := []any{c}
	at := o.at
	if run != nil {
		if at, err = e.reg.checkpoint(run.In.After); err != nil {
			return out, err
		}
	}
	if at.ID != to.ID {
		at.Expires = time.Now().Add(keepResult).UTC()
		objects = append(objects, &at)
		out.Kept = at.Number
	}
	if c.Anonymous() {
		c.Expires = time.Now().Add(keepResult).UTC()
	}
	for i := range o.covers {
		r := &o.covers[i]
		r.Verdict, r.Reason, r.By = string(cell.Discarded), "discarded", "user"
		objects = append(objects, r)
	}
	d, err := e.seal(ctx, "discard/"+newKey(), endPredicate{
		Act: "discard", Cell: string(c.ID), CellName: c.Name, Verdict: &verdictFacts{string(cell.Discarded), "discarded", "user"},
		From: point(&at), To: point(&to), Proof: proofLayers, Backend: c.Backend, Downgrades: c.Setup.Downgrades,
	}, objects...)
	if err != nil {
		return out, err
	}
	out.Cell, out.Runs, out.Receipt = e.cellView(c), runsAPI(o.covers), d.String()
	return out, nil
}

// waiting returns the runs that wait for a verdict since something of the cell was
// accepted, oldest first, and the checkpoint before them.
func (e *Engine) waiting(o *offer) (runs []Run, to Checkpoint, err error) {
	at := map[cell.CheckpointID][]Run{}
	for _, r := range e.reg.listRuns(o.c.ID) {
		at[r.In.After] = append(at[r.In.After], r)
	}
	to = o.at
	for {
		decided := false
		for _, r := range at[to.ID] {
			if r.undecided() {
				runs = append(runs, r)
			} else if r.In.After != r.In.Before {
				decided = true
			}
		}
		if decided || to.Parent == "" {
			break
		}
		up, err := e.reg.checkpoint(to.Parent)
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
		return nil, to, cell.Errorf(cell.Conflict, "engine.Discard", "go back further with pando undo or pando restore CELL@N", "nothing waits in cell %s", o.c.Title())
	}
	return runs, to, nil
}
