package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/report"
	"github.com/pando-dev/pando/internal/result"
)

// Bounds of a comparison.
const (
	maxCompared     = 64
	maxComparedFile = 5000
)

// Compare sets runs, cells and checkpoints side by side, as selectors of a caller that stands in dir.
func (v *View) Compare(ctx context.Context, of []string, dir string) (api.Comparison, error) {
	const opName = "engine.Compare"
	of, names, notes, err := v.ofRaces(of)
	if err != nil {
		return api.Comparison{}, err
	}
	if len(of) < 2 {
		return api.Comparison{}, cell.Errorf(cell.Invalid, opName, "name two or more runs, cells or checkpoints", "cannot compare one thing with nothing")
	}
	if len(of) > maxCompared {
		return api.Comparison{}, cell.Errorf(cell.Invalid, opName, "", "cannot compare %d things: at most %d", len(of), maxCompared)
	}
	out := api.Comparison{Drawn: time.Now().UTC(), Version: v.e.cfg.Version, Subjects: []api.CompareSubject{}, Files: []api.CompareFile{}, Notes: notes}
	var changed [][]api.FileChange
	for _, sel := range of {
		s, files, err := v.subject(ctx, sel, dir)
		if err != nil {
			return out, err
		}
		s.Name = orElse(names[sel], s.Name)
		out.Subjects, changed = append(out.Subjects, s), append(changed, files)
	}
	report.SideBySide(&out, changed, maxComparedFile)
	return out, nil
}

// ofRaces puts the runs of a race in its place, the best first, with the names of their cells, and says how it ended.
func (v *View) ofRaces(of []string) (all []string, names map[string]string, notes []string, err error) {
	notes, names = []string{}, map[string]string{}
	for _, sel := range of {
		if !isRace(sel) {
			all = append(all, sel)
			continue
		}
		r, err := v.Race(cell.RaceID(sel))
		if err != nil {
			return nil, nil, nil, err
		}
		list := slices.DeleteFunc(r.Attempts, func(a api.RaceAttempt) bool { return a.Run == "" })
		slices.SortStableFunc(list, func(a, b api.RaceAttempt) int { // those without a rank last
			return cmp.Compare(cmp.Or(a.Rank, len(list)+1), cmp.Or(b.Rank, len(list)+1))
		})
		if len(list) > maxCompared {
			notes = append(notes, fmt.Sprintf("the %d best of %d attempts", maxCompared, len(list)))
			list = list[:maxCompared]
		}
		for _, a := range list {
			all, names[a.Run] = append(all, a.Run), a.CellName
		}
		notes = append(notes, raceNote(&r))
	}
	return all, names, notes, nil
}

// isRace reports whether a selector is the id of a race, or the beginning of one.
func isRace(sel string) bool { return strings.HasPrefix(sel, "x-") && cell.IsID(sel) }

// raceNote says how a race ended.
func raceNote(r *api.Race) string {
	switch {
	case r.State != api.RaceEnded:
		return fmt.Sprintf("race %s goes on", r.ID)
	case r.Winner == "":
		return fmt.Sprintf("race %s has no winner: %s", r.ID, r.Why)
	}
	return fmt.Sprintf("race %s: the winner is %s, since %s", r.ID, r.Winner, r.Why)
}

// subject is one of what is compared, with its changed files.
func (v *View) subject(ctx context.Context, sel, dir string) (s api.CompareSubject, files []api.FileChange, err error) {
	s = api.CompareSubject{Name: sel, Findings: map[string]int{}}
	req := result.DiffRequest{Form: "json"}
	var run cell.RunID
	switch {
	case strings.HasPrefix(sel, "r-") || strings.Contains(sel, ":"):
		s.Kind = "run"
		if run, err = v.SelectRun(sel, dir); err != nil {
			return s, nil, err
		}
		req.Run = run
	case strings.Contains(sel, "@"):
		s.Kind = "checkpoint"
		k, err := v.SelectCheckpoint(sel, dir)
		if err != nil {
			return s, nil, err
		}
		req.Cell, req.To = k.Cell, k.Number
	default:
		s.Kind = "cell"
		id, err := v.SelectCell(sel, dir)
		if err != nil {
			return s, nil, err
		}
		req.Cell = id
		if runs := v.Runs(id); len(runs) > 0 { // the newest
			newest := slices.MaxFunc(runs, func(a, b api.Run) int { return a.Created.Compare(b.Created) })
			run = cell.RunID(newest.ID)
		}
	}
	if run != "" {
		r, err := v.Report(ctx, run)
		if err != nil {
			return s, nil, err
		}
		s.Run, s.Outcome, s.Took, s.Evidence = &r.Run, report.Outcome(&r.Run), report.Took(&r.Run), r.Evidence
		for _, f := range r.Findings {
			s.Findings[f.Severity]++
		}
		if n := r.Run.Network; n != nil {
			for _, m := range n.Models {
				s.Tokens += m.Input + m.Output
				s.USD += float64(m.MicroUSD) / 1e6
			}
		}
		if p := r.Run.Before; p != nil && s.Kind == "run" {
			s.Base = p.TreeDigest
		}
	}
	d, err := v.Diff(ctx, req)
	if err != nil {
		if s.Run == nil || ctx.Err() != nil {
			return s, nil, err
		}
		s.Problem = "changes: " + err.Error() // what a run was is known without its files
		return s, nil, nil
	}
	s.From = d.From
	for _, f := range d.Files {
		s.Files++
		s.Added += f.Added
		s.Deleted += f.Deleted
	}
	slices.SortFunc(d.Files, func(a, b api.FileChange) int { return cmp.Compare(a.Path, b.Path) })
	return s, d.Files, nil
}
