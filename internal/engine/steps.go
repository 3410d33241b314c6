package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/step"
	"github.com/pando-dev/pando/internal/workspace"
)

// stepFiles bounds the changed files that are listed of a step.
const stepFiles = 20

// Steps lists what was done in a cell, oldest first, and what each step changed.
func (e *Engine) Steps(ctx context.Context, id cell.ID) ([]api.Step, error) {
	c, err := e.reg.Cell(id)
	if err != nil {
		return nil, err
	}
	kept, err := e.steps.List(id)
	if err != nil {
		return nil, err
	}
	by := map[int]*state.Checkpoint{}
	points := e.reg.Checkpoints(id)
	slices.SortFunc(points, func(a, b state.Checkpoint) int { return cmp.Compare(a.Number, b.Number) })
	for i := range points {
		by[points[i].Number] = &points[i]
	}
	runs := e.reg.Runs(id)
	here := e.reg.Ancestors(c.Head)
	list := stepsOf(kept, runs, points, func(id string) bool {
		x, err := e.alive.ShowExec(id)
		return err == nil && x.Running
	})
	for i := range list {
		s := &list[i]
		k := by[s.Number]
		s.Gone = k == nil || k.Gone
		if i := slices.IndexFunc(runs, func(r state.Run) bool { return s.Kind == "run" && r.ID == s.ID }); i >= 0 {
			after := runs[i].In.After
			s.Undone = after != "" && after != runs[i].In.Before && !here[after]
		}
		if s.Kind == "run" || s.Kind == "checkpoint" || s.Running {
			continue
		}
		if err := e.stepChanges(ctx, &c, s, list[i+1:], points, k, here); err != nil {
			s.Unknown = err.Error()
		}
	}
	return e.withCalls(list, runs), nil
}

// stepsOf puts the steps of a cell in the order in which they began. goesOn says so of a command.
func stepsOf(kept []step.Step, runs []state.Run, points []state.Checkpoint, goesOn func(id string) bool) []api.Step {
	list := []api.Step{}
	for _, s := range kept {
		v := api.Step{Number: s.Number, Kind: s.Kind, ID: s.ID, Without: s.Without, Text: s.Text, Began: s.Began, Signal: s.Signal, Cause: s.Cause}
		switch {
		case !s.Ended.IsZero():
			v.TookMS = ms(s.Ended.Sub(s.Began))
			if s.Cause != step.NotStarted {
				v.ExitCode = &s.Exit
			}
		case s.Kind == step.Command:
			v.Running = goesOn(s.ID)
		}
		list = append(list, v)
	}
	for i := range runs {
		if !runs[i].Started.IsZero() {
			list = append(list, stepOfRun(&runs[i]))
		}
	}
	for i := range points {
		switch k := &points[i]; {
		case k.Kind == state.KindTurn:
			list = append(list, api.Step{Number: k.Number, Kind: "turn", Text: k.Message, Turn: k.Turn, Within: string(k.Run), Began: k.Created})
		case k.Kind == state.KindManual:
			list = append(list, api.Step{Number: k.Number, Kind: "checkpoint", Text: k.Message, Within: string(k.Run), Began: k.Created})
		}
	}
	slices.SortStableFunc(list, func(a, b api.Step) int { return a.Began.Compare(b.Began) })
	for i := range list {
		if s := &list[i]; s.Kind != "run" && s.Within == "" {
			for j := range runs {
				if r := &runs[j]; !r.Started.IsZero() && s.Began.After(r.Started) && (r.Ended.IsZero() || s.Began.Before(r.Ended)) {
					s.Within = r.ID
				}
			}
		}
	}
	return list
}

func stepOfRun(r *state.Run) api.Step {
	s := api.Step{Kind: "run", ID: r.ID, Text: strings.Join(r.Command, " "), Began: r.Started, Signal: r.Signal, Cause: r.Cause, Verdict: string(r.Verdict),
		Running: r.Ended.IsZero(), ExitCode: r.ExitCode, Files: r.Changes.Files}
	if r.Before != nil {
		s.Number = r.Before.Number
	}
	if !r.Ended.IsZero() {
		s.TookMS = ms(r.Ended.Sub(r.Started))
	}
	if n := r.Network; n != nil {
		s.Denied = n.Denied
		for _, p := range n.Peers {
			if p.Host != "" && !slices.Contains(s.Hosts, p.Host) {
				s.Hosts = append(s.Hosts, p.Host)
			}
		}
	}
	return s
}

// stepChanges finds out what a step changed: from its checkpoint to that of the next step, to what was kept of the cell
// when it went back to another state, or to what it is now.
func (e *Engine) stepChanges(ctx context.Context, c *state.Cell, s *api.Step, later []api.Step, points []state.Checkpoint, from *state.Checkpoint, here map[cell.CheckpointID]bool) error {
	if from == nil {
		return cell.Errorf(cell.NotFound, "engine.Steps", "", "its checkpoint is removed")
	}
	ended := s.Began.Add(time.Duration(s.TookMS * float64(time.Millisecond)))
	next := slices.IndexFunc(later, func(l api.Step) bool { return !l.Began.Before(ended) })
	at := slices.IndexFunc(points, func(k state.Checkpoint) bool {
		return k.Parent == from.ID && !k.Created.Before(ended) && (next < 0 || !k.Created.After(later[next].Began))
	})
	var to *state.Checkpoint
	switch {
	case at >= 0:
		to = &points[at]
		s.Undone = !here[to.ID]
	case next >= 0 && later[next].Number != s.Number && later[next].Kind != "run":
		return cell.Errorf(cell.NotFound, "engine.Steps", "", "the checkpoint after it is removed")
	case next >= 0 && later[next].Without != "":
		return cell.Errorf(cell.NotFound, "engine.Steps", "", "the next step has no checkpoint of its own")
	case next >= 0 && s.Kind == step.Evaluation && later[next].Kind == step.Evaluation && later[next].Began.Sub(ended) < stepQuiet:
		return cell.Errorf(cell.NotFound, "engine.Steps", "", "they are told with those of the next evaluation")
	case next >= 0 || c.Head != from.ID || c.Gen == nil:
		return nil
	default:
		now, err := e.results.Present(ctx, c)
		if err != nil {
			return err
		}
		to = &now
	}
	if to.Tree == from.Tree && !to.Tree.IsZero() {
		return nil
	}
	a, err := e.tree(ctx, from)
	if err != nil {
		return err
	}
	b, err := e.tree(ctx, to)
	if err != nil {
		return err
	}
	changes, err := workspace.Changes(a, b)
	if err != nil {
		return err
	}
	for i := range changes {
		ch := &changes[i]
		if !ch.Git() {
			continue
		}
		if s.Files++; s.Files <= stepFiles {
			s.Changed = append(s.Changed, stepChange(ch))
		}
	}
	return nil
}

func stepChange(ch *workspace.Change) api.StepChange {
	out := api.StepChange{Path: ch.Path, Status: "modified"}
	switch {
	case ch.Old == nil:
		out.Status = "added"
	case ch.New == nil:
		out.Status = "deleted"
	}
	if ch.New != nil && ch.New.Type == workspace.File {
		out.Digest = ch.New.Digest.String()
	}
	return out
}

// Steps: see Engine.
func (v *View) Steps(ctx context.Context, id cell.ID) ([]api.Step, error) {
	return onCell(v, id, func() ([]api.Step, error) { return v.e.Steps(ctx, id) })
}

// stepCalls bounds the reported tool calls that are listed of a run.
const stepCalls = 500

// withCalls adds the tool calls that agents report in their runs. They are no states of the cell: what changed is told with the turn or
// the run. Those that can't be read are left out: the report of the run says why.
func (e *Engine) withCalls(list []api.Step, runs []state.Run) []api.Step {
	for i := range runs {
		t, err := evidence.ReadCalls(runs[i].Folder, stepCalls)
		if err != nil || t == nil {
			continue
		}
		for _, c := range t.Calls {
			s := api.Step{Kind: "tool", Basis: api.Reported, Tool: c.Tool, Text: c.What, Within: runs[i].ID, Began: c.Time, ExitCode: c.ExitCode}
			switch {
			case c.Failed && c.ExitCode == nil:
				s.Cause = "failed"
			case !c.Ended:
				s.Cause = "no result"
			}
			if c.Time.IsZero() || !runs[i].Ended.IsZero() && c.Time.After(runs[i].Ended) {
				s.Began = runs[i].Ended
			} else if c.Time.Before(runs[i].Started) { // some tell seconds alone
				s.Began = runs[i].Started
			}
			for _, t := range list {
				if t.Kind == "turn" && t.Within == s.Within && !t.Began.After(s.Began) {
					s.Turn = t.Turn
				}
			}
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b api.Step) int { return a.Began.Compare(b.Began) })
	return list
}
