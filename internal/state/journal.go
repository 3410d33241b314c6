package state

import (
	"encoding/json"
	"iter"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// Names of the directories of an installation in records.
const (
	stateName = "@state/"
	cacheName = "@cache/"
)

// portable is a list of mounts without the place of this installation's directories.
func (r *Registry) portable(mounts []cell.Mount) []cell.Mount {
	return renamed(mounts, func(path string) string {
		if rest, ok := strings.CutPrefix(path, r.home.State+"/"); ok {
			return stateName + rest
		}
		if rest, ok := strings.CutPrefix(path, r.home.Cache+"/"); ok {
			return cacheName + rest
		}
		return path
	})
}

// locate gives the paths in a record that was read the place of the installation's directories.
func (r *Registry) locate(rec *Record) {
	full := func(path string) string {
		if rest, ok := strings.CutPrefix(path, stateName); ok {
			return filepath.Join(r.home.State, rest)
		}
		if rest, ok := strings.CutPrefix(path, cacheName); ok {
			return filepath.Join(r.home.Cache, rest)
		}
		return path
	}
	if rec.Cell != nil {
		rec.Cell.Setup.Mounts = renamed(rec.Cell.Setup.Mounts, full)
	}
	if rec.Shared != nil {
		rec.Shared.Setup.Mounts = renamed(rec.Shared.Setup.Mounts, full)
	}
}

// renamed is a copy of a list of mounts with other paths of the host.
func renamed(mounts []cell.Mount, name func(path string) string) []cell.Mount {
	mounts = slices.Clone(mounts)
	for i := range mounts {
		m := &mounts[i]
		m.Source, m.Upper, m.Work, m.Lower = name(m.Source), name(m.Upper), name(m.Work), slices.Clone(m.Lower)
		for k := range m.Lower {
			m.Lower[k] = name(m.Lower[k])
		}
	}
	return mounts
}

// encode is a record's line in the journal.
func (r *Registry) encode(rec Record) ([]byte, error) {
	if rec.Cell != nil && !rec.Cell.Shared.IsZero() {
		c := *rec.Cell
		c.Setup, c.LeftOut = Setup{}, nil
		rec.Cell = &c
	}
	if rec.Cell != nil {
		c := *rec.Cell
		c.Setup.Mounts = r.portable(c.Setup.Mounts)
		rec.Cell = &c
	}
	if rec.Shared != nil {
		s := *rec.Shared
		s.Setup.Mounts = r.portable(s.Setup.Mounts)
		rec.Shared = &s
	}
	return json.Marshal(rec)
}

// all yields every record, oldest first where that matters.
func (r *Registry) all() iter.Seq[[]byte] {
	r.mu.RLock()
	var recs []Record
	used := map[cell.Digest]bool{}
	for _, c := range r.cells.each() {
		used[c.Shared] = true
	}
	for d, s := range r.shared {
		if used[d] { // before the cells that need it
			recs = append(recs, Record{Shared: s})
		}
	}
	for _, t := range r.templates {
		recs = append(recs, Record{Template: t})
	}
	for _, c := range r.cells.each() {
		recs = append(recs, Record{Cell: c})
	}
	for _, k := range r.checkpoints.each() {
		recs = append(recs, Record{Checkpoint: k})
	}
	runs := make([]*Run, 0, len(r.runs.of))
	for _, v := range r.runs.each() {
		runs = append(runs, v)
	}
	sort.Slice(runs, func(i, j int) bool { return runs[i].Created.Before(runs[j].Created) })
	for _, v := range runs {
		recs = append(recs, Record{Run: v})
	}
	for _, ops := range []map[string]*operation.Redo{r.ops, r.outcomes} {
		for _, o := range ops {
			recs = append(recs, Record{Op: o})
		}
	}
	for _, of := range r.lent {
		for _, l := range of {
			recs = append(recs, Record{Lending: l})
		}
	}
	for id, n := range r.execs {
		recs = append(recs, Record{Spent: &Spent{id, n}})
	}
	recs = append(recs, r.budgetRecords()...)
	for _, i := range r.interps.each() {
		recs = append(recs, Record{Interp: i})
	}
	for _, c := range r.caches {
		recs = append(recs, Record{Cache: c})
	}
	for _, c := range r.cellCaches {
		recs = append(recs, Record{CellCaches: c})
	}
	for _, k := range r.retained {
		recs = append(recs, Record{Retained: k})
	}
	for id, l := range r.leases.each() {
		if c := r.cells.of[id]; c != nil && (c.State != cell.Removed || len(l.Labels) > 0) { // by its labels callers see what is left of it
			recs = append(recs, Record{Lease: l})
		}
	}
	for _, a := range r.approvals {
		recs = append(recs, Record{Approval: a})
	}
	for id, race := range r.races {
		recs = append(recs, Record{Race: race})
		for _, a := range r.attempts[id] {
			recs = append(recs, Record{Attempt: a})
		}
	}
	r.mu.RUnlock()
	return func(yield func([]byte) bool) {
		if !yield(versionLine()) {
			return
		}
		for i := range recs {
			b, err := r.encode(recs[i])
			if err != nil || !yield(b) {
				return
			}
		}
	}
}
