package engine

import (
	"iter"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Selectors are what people write for cells, runs and checkpoints:
//
//	web  c-0123…        a cell, by name, id or a prefix of the id
//	web@3  web@latest   a checkpoint of it
//	web:latest  r-12…   a run
//	4f3a…  (digest)     a checkpoint, by a prefix of its id or tree digest
//
// An empty selector is the latest from a directory. What they find is what the
// caller sees: see View.

// checkCellName accepts what may name a cell, existing or new, before it
// becomes part of anything.
func (e *Engine) checkCellName(s string) error {
	if cell.IsID(s) && strings.HasPrefix(s, "c-") {
		return nil
	}
	return cell.CheckName(s)
}

// clip keeps what comes back of a selector short.
func clip(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// findCell finds a living or resting cell by name or id, of any caller.
func (e *Engine) findCell(s string) (state.Cell, bool) { return e.All().findCell(s) }

// findCell finds a living or resting cell by name or id.
func (v *View) findCell(s string) (state.Cell, bool) {
	if c, ok := v.e.reg.Named(s); ok && v.sees(c.ID) {
		return c, true
	}
	if !cell.IsID(s) || !strings.HasPrefix(s, "c-") {
		return state.Cell{}, false
	}
	var found []state.Cell
	for _, c := range v.e.reg.CellsBeginning(s) {
		if found = append(found, c); !v.sees(c.ID) {
			found = found[:len(found)-1]
		}
	}
	if len(found) == 1 {
		return found[0], true
	}
	return state.Cell{}, false
}

// SelectCell resolves a cell. dir is where the person is: for "" it is the cell of the
// newest result from there that waits for a verdict and changed something; without any,
// that of the latest run from there.
func (v *View) SelectCell(sel, dir string) (cell.ID, error) {
	e := v.e
	if sel == "" {
		r, err := v.latestOf(dir,
			func(r *state.Run) bool {
				return r.Verdict == cell.Pending && !r.OffersNothing() && e.usableCell(r)
			},
			func(r *state.Run) bool { return e.usableCell(r) },
			func(r *state.Run) bool { return !r.NeverStarted() })
		return r.CellID(), err
	}
	name := sel
	if at := strings.IndexAny(sel, "@:"); at > 0 && e.checkCellName(sel[:at]) == nil {
		what := map[byte]string{'@': "a checkpoint", ':': "a run"}[sel[at]]
		return "", cell.Errorf(cell.Invalid, "engine.SelectCell", "name a cell alone; new cells from a checkpoint: pando fork CELL@N", "%q is %s, not a cell", clip(sel), what)
	}
	if strings.HasPrefix(name, "r-") && cell.IsID(name) {
		r, err := v.SelectRun(name, dir)
		if err != nil {
			return "", err
		}
		run, err := e.reg.Run(r)
		return run.CellID(), err
	}
	if err := e.checkCellName(name); err != nil {
		return "", err
	}
	c, ok := v.findCell(name)
	if !ok {
		return "", cell.Errorf(cell.NotFound, "engine.SelectCell", "run `pando ls` to see the cells there are", "no cell %s", name)
	}
	return c.ID, nil
}

// SelectWatched is SelectCell. Of "" it is the cell of the newest run from dir that goes on, if there is one.
func (v *View) SelectWatched(sel, dir string) (cell.ID, error) {
	if sel == "" {
		if r, err := v.latestFrom(dir, func(r *state.Run) bool { return r.Phase != cell.Ended && v.e.usableCell(r) }); err == nil {
			return r.CellID(), nil
		}
	}
	return v.SelectCell(sel, dir)
}

// SelectApplied is SelectCell. Of "" it is the cell of dir with the changes that were applied to
// the source last.
func (v *View) SelectApplied(sel, dir string) (cell.ID, error) {
	if sel != "" {
		return v.SelectCell(sel, dir)
	}
	at := func(r *state.Run) (t time.Time) {
		if c, err := v.e.reg.Cell(r.CellID()); err == nil && len(c.Applied) > 0 {
			t = c.Applied[len(c.Applied)-1].At
		}
		return t
	}
	var newest *state.Run
	for _, r := range v.from(dir) {
		if t := at(&r); !t.IsZero() && (newest == nil || t.After(at(newest))) {
			newest = &r
		}
	}
	if newest == nil {
		return "", cell.Errorf(cell.NotFound, "engine.SelectApplied", "pando accept --apply brings changes there", "nothing that ran here is in the source")
	}
	return newest.CellID(), nil
}

// usableCell reports whether the cell of a run is there.
func (e *Engine) usableCell(r *state.Run) bool {
	c, err := e.reg.Cell(r.CellID())
	return err == nil && c.State != cell.Removed
}

// latestOf is latestFrom by the first of several rules by which there is one.
func (v *View) latestOf(dir string, rules ...func(*state.Run) bool) (r state.Run, err error) {
	for _, counts := range rules {
		if r, err = v.latestFrom(dir, counts); err == nil {
			return r, nil
		}
	}
	return r, err
}

// SelectRun resolves a run: an id or a prefix of one, CELL:latest, CELL (its
// latest run), or "" for the latest from dir.
func (v *View) SelectRun(sel, dir string) (cell.RunID, error) {
	const opName = "engine.SelectRun"
	e := v.e
	if sel == "" {
		r, err := v.latestFrom(dir, func(*state.Run) bool { return true })
		return r.RunID(), err
	}
	if strings.HasPrefix(sel, "r-") && cell.IsID(sel) {
		if r, err := e.reg.Run(cell.RunID(sel)); err == nil && v.sees(r.CellID()) {
			return r.RunID(), nil
		}
		var found []cell.RunID
		for _, r := range e.reg.RunsBeginning(sel) {
			if v.sees(r.CellID()) {
				found = append(found, r.RunID())
			}
		}
		switch len(found) {
		case 1:
			return found[0], nil
		case 0:
			return "", cell.Errorf(cell.NotFound, opName, "run `pando runs` to see the runs there are", "no run %s", sel)
		}
		return "", cell.Errorf(cell.Invalid, opName, "give more digits", "%s is the beginning of %d runs", sel, len(found))
	}
	name, which, has := strings.Cut(sel, ":")
	if has && (which != "latest" || name == "") {
		return "", cell.Errorf(cell.Invalid, opName, "write CELL:latest, or a run's id", "%q is no run", clip(sel))
	}
	id, err := v.SelectCell(name, dir)
	if err != nil {
		return "", err
	}
	r := e.latestRun(id)
	if r == "" {
		return "", cell.Errorf(cell.NotFound, opName, "", "cell %s has no runs", name)
	}
	return r, nil
}

// SelectCheckpoint resolves CELL@N, CELL@latest, CELL, a checkpoint's id, or
// a prefix of a tree digest.
func (v *View) SelectCheckpoint(sel, dir string) (state.Checkpoint, error) {
	const opName = "engine.SelectCheckpoint"
	e := v.e
	name, num, has := strings.Cut(sel, "@")
	if !has {
		if _, named := v.findCell(sel); !named {
			if k, ok, err := v.byDigest(sel); ok || err != nil {
				return k, err
			}
		}
		num = "latest"
	}
	id, err := v.SelectCell(name, dir)
	if err != nil {
		return state.Checkpoint{}, err
	}
	c, err := e.reg.Cell(id)
	if err != nil {
		return state.Checkpoint{}, err
	}
	if num == "latest" {
		return e.reg.Checkpoint(c.Head)
	}
	n, err := strconv.Atoi(num)
	if err != nil || n < 1 {
		return state.Checkpoint{}, cell.Errorf(cell.Invalid, opName, "write CELL@N; `pando history "+c.Title()+"` shows the numbers", "%q is no checkpoint", clip(sel))
	}
	return e.reg.Numbered(id, n)
}

// byDigest finds a checkpoint by a prefix, of at least six digits, of its id
// or of its tree digest. One that several cells are at is of none.
func (v *View) byDigest(s string) (state.Checkpoint, bool, error) {
	e := v.e
	hex := strings.TrimPrefix(strings.TrimPrefix(s, "sha256:"), "k-")
	if len(hex) < 6 || strings.Trim(hex, "0123456789abcdef") != "" {
		return state.Checkpoint{}, false, nil
	}
	var found []state.Checkpoint
	for _, k := range e.reg.DigestsBeginning(hex) {
		found = append(found, k)
	}
	found = slices.DeleteFunc(found, func(k state.Checkpoint) bool { return !v.sees(k.Cell) })
	if len(found) == 0 {
		return state.Checkpoint{}, false, nil
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Created.After(found[j].Created) })
	var names []string
	clear := true
	for _, k := range found {
		clear = clear && k.Cell == found[0].Cell && k.Tree == found[0].Tree
		if c, err := e.reg.Cell(k.Cell); err == nil {
			names = append(names, c.Selector(&k))
		}
	}
	if !clear {
		return state.Checkpoint{}, false, cell.Errorf(cell.Invalid, "engine.byDigest", "give more digits, or write CELL@N", "%s is each of %s", s, join(names))
	}
	return found[0], true, nil
}

// latestFrom is the newest run of a source that is dir or above it,
// the nearest such source winning; without any, the newest run of all would
// be a guess, so it is an error.
func (v *View) latestFrom(dir string, counts func(*state.Run) bool) (state.Run, error) {
	real := v.realDir(dir)
	var best *state.Run
	for _, r := range v.from(dir) {
		if r.ReplayOf == "" && counts(&r) && (best == nil || len(r.SourceAbove(real)) > len(best.SourceAbove(real))) {
			best = &r
		}
	}
	if best == nil {
		return state.Run{}, cell.Errorf(cell.NotFound, "engine.latest", "name a cell or a run (`pando ls`, `pando runs`), or start one: pando run -- COMMAND",
			"no run was started from %s", clip(dir))
	}
	return *best, nil
}

// realDir is a directory without symlinks. To a confined caller it is what it says, whatever the host has there.
func (v *View) realDir(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil && !v.isConfined() {
		return real
	}
	return filepath.Clean(dir)
}

// from yields the runs of sources that are dir or above it, newest first.
func (v *View) from(dir string) iter.Seq2[int, state.Run] {
	dir = v.realDir(dir)
	return func(yield func(int, state.Run) bool) {
		i := 0
		for r := range v.e.reg.RunsFrom(dir) {
			if !v.sees(r.CellID()) {
				continue
			}
			if !yield(i, r) {
				return
			}
			i++
		}
	}
}

func (e *Engine) latestRun(id cell.ID) cell.RunID {
	if list := e.reg.Runs(id); len(list) > 0 {
		return list[0].RunID()
	}
	return ""
}
