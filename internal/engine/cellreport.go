package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/finding"
	"github.com/pando-dev/pando/internal/report"
	"github.com/pando-dev/pando/internal/result"
)

// Bounds of the report of a cell.
const (
	cellReportRuns  = 200
	cellReportSteps = 2000
)

// CellReport collects what was done in a cell since its beginning, for a person. Rules about files look at what the cell changed
// by now, in the words of its newest run's policy; those about what happened look at each run, as its own policy says.
func (v *View) CellReport(ctx context.Context, id cell.ID) (api.CellReport, error) {
	c, err := v.Record(id)
	if err != nil {
		return api.CellReport{}, err
	}
	c.Certificate = nil
	r := api.CellReport{Cell: c, Drawn: time.Now().UTC(), Version: v.e.cfg.Version, Findings: []api.RunFinding{}, Held: []api.Held{}, Files: []api.ReportFile{},
		Notes: []string{}, Steps: []api.Step{}, Runs: []api.CellRun{}, Weaker: []string{}, Problems: []string{}}
	lacks := func(what string, err error) {
		if err != nil {
			r.Problems = append(r.Problems, what+": "+err.Error())
		}
	}
	steps, err := v.Steps(ctx, id)
	lacks("steps", err)
	if r.MoreSteps = max(0, len(steps)-cellReportSteps); err == nil {
		r.Steps = steps[r.MoreSteps:]
	}

	runs := v.Runs(id)
	slices.SortStableFunc(runs, func(a, b api.Run) int { return a.Created.Compare(b.Created) })
	r.MoreRuns = max(0, len(runs)-cellReportRuns)
	whole := &finding.Evidence{Run: &api.Run{}}
	for _, run := range runs[r.MoreRuns:] {
		one, e := v.cellRun(&r, run)
		report.AddRun(&r, one)
		if run.Policy != "" {
			whole = e
		}
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	lacks("changes", v.cellChanges(ctx, id, &r, whole))
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	finding.Sort(r.Findings)
	report.CompleteCell(&r)
	return r, nil
}

// cellRun collects the evidence of one run, but for its files.
func (v *View) cellRun(of *api.CellReport, run api.Run) (*api.Report, *finding.Evidence) {
	r := newReport(of.Version, run)
	e := &finding.Evidence{Run: &r.Run, NoFiles: true}
	v.witnesses(cell.RunID(run.ID), r, e)
	if run.Phase == string(cell.Ended) && run.ExitCode != nil {
		r.Findings = finding.FindInRun(e)
	}
	v.proofs(r)
	report.Complete(&r.Report)
	return &r.Report, e
}

// cellChanges adds what a cell changed by now, and what the rules about files find in that. newest is the evidence of the newest run
// that began: rules may ask for the run in which something changed, and of several it is that one.
func (v *View) cellChanges(ctx context.Context, id cell.ID, r *api.CellReport, newest *finding.Evidence) error {
	return v.e.results.ExamineCell(ctx, id, func(x *result.Examined) error {
		r.Files, r.More, r.Ignored, r.Held, r.Notes = x.Files, x.More, x.Ignored, x.Held, append(r.Notes, x.Notes...)
		r.From, r.To = x.From, x.To
		run := *newest.Run
		run.ID, run.LeftOut = r.Cell.Name, r.Cell.LeftOut
		run.Changes = api.Changes{Files: len(x.Changed) + x.Ignored, Ignored: x.Ignored}
		for _, f := range x.Changed {
			switch f.Status {
			case "added":
				run.Changes.Added++
			case "deleted":
				run.Changes.Deleted++
			}
		}
		e := &finding.Evidence{Run: &run, Changed: x.Changed, Held: x.Held, Before: x.Before, After: x.After, Link: x.Link, Size: x.Size,
			Policy: newest.Policy, Origins: newest.Origins, Unread: newest.Unread}
		r.Findings = append(r.Findings, finding.FindInFiles(e)...)
		for _, rule := range newest.Policy.Off {
			r.Notes = append(r.Notes, fmt.Sprintf("the rule %s is off, by %s", rule, newest.Origins["off "+rule]))
		}
		return nil
	})
}
