package result

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Bounds of what a report shows of changes.
const (
	reportFiles     = 400
	reportFileLines = 600
	reportLines     = 12_000
	reportLine      = 800 // bytes of a line
)

// Examined is what a run changed, or a cell since its source, for a report.
type Examined struct {
	Files   []api.ReportFile // those to look at first, then by path; the first of them have lines
	More    int              // further files
	Changed []api.FileChange // all of them, by path
	Ignored int
	Held    []api.Held
	Notes   []string
	From    string // what the changes lead from and to, for people
	To      string
	base    side
	after   side
}

// side is a state, and the entries of its files that changed: to look one up in the tree costs decoding each folder on the way.
type side struct {
	workspace.Side
	changed map[string]*workspace.Entry
}

func (s *side) lookup(path string) (workspace.Entry, error) {
	if e := s.changed[path]; e != nil {
		return *e, nil
	}
	return s.Tree.Lookup(path)
}

// Before and After read a file as it was before or after the run, if it has at most so many bytes. There being no such
// regular file is NotFound.
func (x *Examined) Before(path string, most int64) ([]byte, error) { return x.base.read(path, most) }

// After: see Before.
func (x *Examined) After(path string, most int64) ([]byte, error) { return x.after.read(path, most) }

// Link is the target of a symlink after the run.
func (x *Examined) Link(path string) (string, error) {
	e, err := x.after.lookup(path)
	return e.Target, err
}

// Size is that of a regular file after the run, in bytes.
func (x *Examined) Size(path string) (int64, error) {
	e, err := x.after.lookup(path)
	if err == nil && e.Type != workspace.File {
		err = cell.Errorf(cell.NotFound, "result.Examine", "", "%s is no regular file", path)
	}
	return e.Size, err
}

func (s *side) read(path string, most int64) ([]byte, error) {
	e, err := s.lookup(path)
	if err != nil {
		return nil, err
	}
	if e.Type != workspace.File {
		return nil, cell.Errorf(cell.NotFound, "result.Examine", "", "%s is no regular file", path)
	}
	if e.Size > most {
		return nil, bound.Exceed(path, most, "bytes")
	}
	f, err := s.Contents.Open(path, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bound.ReadAll(f, path, most)
}

// Examine tells what a run changed to do, which has the files of both states for as long as it goes on.
func (m *Manager) Examine(ctx context.Context, id cell.RunID, do func(*Examined) error) error {
	defer m.cfg.Pin()()
	run, err := m.cfg.Records.Run(id)
	if err != nil {
		return err
	}
	c, err := m.cfg.Records.Cell(run.CellID())
	if err != nil {
		return err
	}
	o, err := m.runOffer(ctx, &c, &run)
	if err != nil {
		return err
	}
	return m.examine(ctx, o, do)
}

// ExamineCell is Examine of what there is to decide about in a cell now: its changes from its source.
func (m *Manager) ExamineCell(ctx context.Context, id cell.ID, do func(*Examined) error) error {
	defer m.cfg.Pin()()
	o, err := m.compared(ctx, DiffRequest{Target: Target{Cell: id}})
	if err != nil {
		return err
	}
	return m.examine(ctx, o, do)
}

func (m *Manager) examine(ctx context.Context, o *offer, do func(*Examined) error) error {
	base, after := recall(o.base, o.after)
	x := &Examined{base: side{base, map[string]*workspace.Entry{}}, after: side{after, map[string]*workspace.Entry{}}, From: o.from, To: o.to, Files: []api.ReportFile{}, Held: []api.Held{}, Notes: []string{}}
	ignored, unreadable, err := m.ignoredBy(ctx, o.c, o.base, o.after)
	if err != nil {
		return err
	}
	if unreadable != "" {
		x.Notes = append(x.Notes, unreadable)
	}
	first, held, err := m.review(o.c, o.base, o.after, ignored, nil)
	if err != nil {
		return err
	}
	x.Held = held
	d, err := diff.Compare(ctx, base, after, diff.Options{Ignored: ignored})
	if err != nil {
		return err
	}
	if err := d.Count(ctx); err != nil {
		return err
	}
	x.Changed, x.Ignored = filesAPI(d), d.Ignored.Count
	for i := range d.Files {
		f := &d.Files[i]
		x.base.changed[cmp.Or(f.OldPath, f.Path)], x.after.changed[f.Path] = f.Entries()
	}
	for _, n := range d.Unrepresented {
		x.Notes = append(x.Notes, n.Path+": "+n.What)
	}
	if err := m.lines(ctx, x, d, first); err != nil {
		return err
	}
	return do(x)
}

// lines puts the files in order, and the lines to those that are shown. What has the form of a credential is not in them: a
// report is given to others.
func (m *Manager) lines(ctx context.Context, x *Examined, d *diff.Diff, first []state.Look) error {
	held := map[string]string{}
	for _, h := range x.Held {
		held[h.Path] = h.Why
	}
	order := make([]int, len(d.Files))
	why := make([]string, len(d.Files))
	for i := range d.Files {
		order[i] = i
		for _, l := range first {
			if l.Covers(d.Files[i].Path) {
				why[i] = l.Why
				break
			}
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case why[a] != "" && why[b] == "":
			return -1
		case why[a] == "" && why[b] != "":
			return 1
		}
		return 0
	})
	left := reportLines
	for _, i := range order {
		f := &d.Files[i]
		if len(x.Files) == reportFiles {
			x.More = len(order) - reportFiles
			break
		}
		v := api.ReportFile{File: x.Changed[i], First: why[i], Held: held[f.Path], Lines: []api.DiffLine{}}
		if left <= 0 {
			v.NoLines = fmt.Sprintf("not shown: the report has the first %d lines", reportLines)
			x.Files = append(x.Files, v)
			continue
		}
		lines, more, no, err := d.Hunks(ctx, f, min(left, reportFileLines))
		if err != nil {
			return err
		}
		for _, l := range lines {
			v.Lines = append(v.Lines, api.DiffLine{Kind: string(l.Kind), Old: l.Old, New: l.New, Text: cutLine(m.cfg.Redactor.String(l.Text))})
		}
		left -= len(lines)
		v.MoreLines, v.NoLines = more, no
		x.Files = append(x.Files, v)
	}
	return nil
}

// cutLine bounds a line of valid text.
func cutLine(s string) string {
	if len(s) <= reportLine {
		return s
	}
	end := reportLine
	for end > 0 && s[end]&0xc0 == 0x80 {
		end--
	}
	return fmt.Sprintf("%s… (%d more bytes)", s[:end], len(s)-end)
}
