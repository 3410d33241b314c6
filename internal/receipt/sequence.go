package receipt

import (
	"github.com/pando-dev/pando/internal/cell"
)

// A sequence is a whole ledger being judged: all its receipts from the first,
// in the order they were found, the head that should sign them, and what else
// is known about its history.
type sequence struct {
	items []item
	head  Head
	// headFault is what is wrong with the head's signature.
	headFault Reason
	headWhat  string
	// others are further heads that key has signed: older ones of the ledger,
	// and the one the verifier knows.
	others []Head
	known  *Head
	tiles  func(tile) // called for each complete tile as it should be
	// exported says that all receipts were exported under the head: one that is newer does not belong there.
	exported bool
}

// judge adds what is wrong to r, each wrong with the one reason that explains
// it: what merely follows from another problem is not reported.
func (s *sequence) judge(r *Report) {
	n := int64(len(s.items))
	roots, strange := s.grow()
	fits := s.head.Size >= 0 && s.head.Size <= n && roots[s.head.Size] == s.head.Root

	found := len(r.Problems)
	for i := range s.items {
		s.judgeItem(r, int64(i), fits)
	}
	s.judgeOrder(r)
	s.judgeHead(r, fits)
	broken := len(r.Problems) > found

	if !broken && strange >= 0 {
		r.add(Forked, strange, "receipt %d followed other receipts than those that are before it", strange)
	}
	if !broken && strange < 0 && !fits {
		r.add(Forked, -1, "the %d receipts are genuine, but they are not those that the head signs", s.head.Size)
	}
	s.judgeOthers(r, roots, broken || !fits)
	switch {
	case broken || n <= s.head.Size:
	case s.exported:
		r.add(Truncated, s.head.Size, "there are %d receipts, the head signs %d", n, s.head.Size)
	default:
		r.unproven("the newest %d receipts are signed, but no head covers them yet", n-s.head.Size)
	}
	judgeLinks(r, s.items, true)
}

// grow builds the tree. It returns the roots at the sizes that matter, and the index of the
// first genuine receipt that states a wrong ledger before it.
func (s *sequence) grow() (roots map[int64]cell.Digest, strange int64) {
	roots = map[int64]cell.Digest{s.head.Size: {}}
	for _, h := range s.others {
		roots[h.Size] = cell.Digest{}
	}
	if s.known != nil {
		roots[s.known.Size] = cell.Digest{}
	}
	strange = -1
	t := &tree{}
	roots[0] = t.root()
	for i := range s.items {
		it := &s.items[i]
		p := it.binding.Ledger
		if strange < 0 && it.fault == genuine && (p.Index != t.size || p.Size != t.size || p.Root != t.root()) {
			strange = t.size
		}
		t.add(it.leaf)
		if _, wanted := roots[t.size]; wanted {
			roots[t.size] = t.root()
		}
		for _, full := range t.full {
			if s.tiles != nil {
				s.tiles(full)
			}
		}
		t.full = t.full[:0]
	}
	return roots, strange
}

func (s *sequence) judgeItem(r *Report, i int64, fits bool) {
	it := &s.items[i]
	if it.fault != genuine && s.headFault == "" && i >= s.head.Size {
		r.add(Added, i, "what stands after the last receipt is not one")
		return
	}
	reason, how := Edited, "and does not fit the ledger"
	if fits {
		reason, how = Recomputed, "though its hash fits the ledger"
	}
	switch it.fault {
	case unreadable:
		r.add(reason, i, "receipt %d is not a receipt any more", i)
	case unsigned:
		r.add(reason, i, "the signature of receipt %d is not right, %s", i, how)
	case foreign:
		r.add(WrongKey, i, "receipt %d is signed by another key", i)
	case withdrawn:
		r.add(Revoked, i, "receipt %d is signed by a key that is revoked from before it on", i)
	case apart:
		r.add(Forked, i, "receipt %d changes keys, and the history of keys does not have it", i)
	}
}

// judgeOrder looks at the indexes that the receipts carry. One that is not
// genuine counts by where it stands.
func (s *sequence) judgeOrder(r *Report) {
	claimed, straight := map[int64]bool{}, true
	for i := range s.items {
		straight = straight && s.items[i].index == int64(i)
	}
	for i := range s.items {
		if s.items[i].fault == genuine && !straight {
			claimed[s.items[i].index] = true
		}
	}
	seen, last, highest := map[int64]bool{}, int64(-1), int64(-1)
	if straight { // the usual case, without maps
		highest = int64(len(s.items)) - 1
	}
	for i := 0; i < len(s.items) && !straight; i++ {
		it := &s.items[i]
		index := it.index
		if it.fault != genuine && (index < 0 || index >= int64(len(s.items)) || claimed[index]) {
			index = last + 1
		}
		switch {
		case seen[index]:
			if it.fault == genuine {
				r.add(Repeated, index, "receipt %d is there twice", index)
			}
		case index < highest:
			r.add(Reordered, index, "receipt %d stands after receipt %d", index, last)
		}
		seen[index] = true
		last = index
		highest = max(highest, index)
	}
	for index := int64(0); index < highest && !straight && int64(len(seen)) <= highest; index++ {
		if !seen[index] {
			r.add(Dropped, index, "receipt %d is missing", index)
			seen[index] = true
		}
	}
	if s.headFault == "" && highest+1 < s.head.Size {
		r.add(Truncated, highest+1, "the receipts end at %d, the head signs %d", highest+1, s.head.Size)
	}
}

// judgeHead looks at the head itself.
func (s *sequence) judgeHead(r *Report, fits bool) {
	switch {
	case s.headFault == "":
	case s.headFault == WrongKey, s.headFault == Truncated, s.headFault == Dropped:
		r.add(s.headFault, -1, "%s", s.headWhat)
	case fits && s.head.Size > 0:
		r.add(Recomputed, -1, "%s, though it fits the receipts", s.headWhat)
	default:
		r.add(Edited, -1, "%s", s.headWhat)
	}
}

// judgeOthers compares the heads that are known with the receipts.
func (s *sequence) judgeOthers(r *Report, roots map[int64]cell.Digest, broken bool) {
	n := int64(len(s.items))
	if k := s.known; k != nil {
		switch {
		case s.headFault == "" && k.Size > s.head.Size && k.Size > n:
			r.add(Truncated, -1, "the head has %d receipts, a head of %d is known", s.head.Size, k.Size)
		case k.Size == s.head.Size && k.Root != s.head.Root && s.headFault == "":
			r.add(Forked, -1, "there are two signed heads of %d receipts", k.Size)
		case !broken && k.Size <= n && roots[k.Size] != k.Root:
			r.add(Forked, -1, "the receipts are not those of the known head of %d receipts", k.Size)
		}
	}
	for _, h := range s.others {
		switch {
		case h.Size == s.head.Size && h.Root != s.head.Root && s.headFault == "":
			r.add(Forked, -1, "there are two signed heads of %d receipts", h.Size)
		case !broken && h.Size <= n && roots[h.Size] != h.Root:
			r.add(Forked, -1, "the receipts are not those of an earlier head of %d receipts", h.Size)
		}
	}
}

// judgeLinks follows incomplete receipts to those that complete them. When
// not all receipts are there, what is not found is not held against them.
func judgeLinks(r *Report, items []item, all bool) {
	open := map[cell.Digest]int64{}
	var order []cell.Digest
	for i := range items {
		it := &items[i]
		if it.fault != genuine {
			all = false
			continue
		}
		if c := it.binding.Completes; !c.IsZero() {
			if _, ok := open[c]; !ok && all {
				r.add(Unlinked, it.index, "receipt %d completes one that is not there or not incomplete", it.index)
			}
			delete(open, c)
		}
		if it.binding.Incomplete {
			open[it.id] = it.index
			order = append(order, it.id)
		}
	}
	for _, id := range order {
		if i, ok := open[id]; ok {
			r.Open = append(r.Open, i)
		}
	}
}
