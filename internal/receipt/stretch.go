package receipt

import (
	"io"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// A Stretches verifies bundles of consecutive receipts one after the other, and keeps what the next one goes on from. The zero
// value begins with the first receipt.
type Stretches struct {
	before Head            // of the last bundle, if there was nothing wrong with it
	ids    map[string]bool // of the receipts so far, that later ones come from
}

// Verify checks a bundle as VerifyArchive does, and that it has the receipts with indexes from up to, but not including, end,
// no others, and a head of that size that is shown to go on from the one of the bundle before it. keys is the history that the
// newest head knows; that of the bundle is a beginning of it.
func (s *Stretches) Verify(r io.Reader, keys *Keys, from, end int64) (rep *Report, files int, err error) {
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	known := s.before
	if known.Size != from || from == 0 {
		known = Head{Root: cell.Sum(nil)}
	}
	rep, b, files, err := verifyArchive(r, keys.links[0].key, &known, s.ids, keys)
	if err != nil {
		return nil, 0, err
	}
	if rep.OK() {
		judgeStretch(rep, b, known, from, end)
	}
	if s.before = (Head{}); rep.OK() {
		s.before = rep.Head
	}
	return rep, files, nil
}

// judgeStretch judges what is left to judge of a bundle that is as it was written.
func judgeStretch(r *Report, b *Bundle, known Head, from, end int64) {
	if r.Head.Size != end {
		r.add(Reordered, -1, "its head has %d receipts, not %d", r.Head.Size, end)
	}
	at := from
	missing := func(until int64) {
		for ; at < until && len(r.Problems) < maxProblems; at++ {
			r.add(Dropped, at, "receipt %d is missing", at)
		}
	}
	for _, p := range b.Receipts {
		missing(min(p.Index, end))
		if p.Index < from || p.Index >= end {
			r.add(Added, p.Index, "receipt %d is not one of those from %d to %d", p.Index, from, end-1)
		}
		at = max(at, p.Index+1)
	}
	missing(end)
	if r.OK() && !extends(b, r.Head, known) {
		r.add(Forked, -1, "the head of %d receipts is not shown to go on from the one of %d before it", r.Head.Size, known.Size)
	}
}

// extends reports whether a bundle shows that its head goes on from another. One of all receipts was compared with it.
func extends(b *Bundle, head, from Head) bool {
	if from.Size == 0 || b.All {
		return true
	}
	return b.Extends != nil && b.Extends.Size == from.Size &&
		tlog.CheckTree(hashes(b.Extends.Proof), head.Size, tlog.Hash(head.Root), from.Size, tlog.Hash(from.Root)) == nil
}

// Join adds what the report of a part says; file is the part, as each problem in it names it.
func (r *Report) Join(part *Report, file func(name string) string) {
	r.Receipts += part.Receipts
	r.More += part.More
	for _, p := range part.Problems {
		if len(r.Problems) == maxProblems {
			r.More++
			continue
		}
		p.File = file(p.File)
		r.Problems = append(r.Problems, p)
	}
	for _, what := range part.Unproven {
		if !slices.Contains(r.Unproven, what) {
			r.Unproven = append(r.Unproven, what)
		}
	}
}
