package receipt

import (
	"math"

	"golang.org/x/mod/sumdb/tlog"
)

// Verify checks a bundle with the public key alone, which is any of those that the ledger has had: the bundle's history of keys
// has to lead from it or to it. known is the newest head that the
// verifier has seen, or nil; without it a missing end of the ledger is not detected.
func Verify(b *Bundle, key PublicKey, known *Head) *Report {
	r, _, _ := verify(b, key, known, nil)
	return r
}

// verify is Verify, and returns the history of keys, nil for one that is wrong, and the key that signed the bundle. whole, nil for
// none, is a history that is known to go on from the bundle's: the key then does not count.
func verify(b *Bundle, key PublicKey, known *Head, whole *Keys) (r *Report, keys *Keys, signer PublicKey) {
	r = &Report{Receipts: int64(len(b.Receipts))}
	if whole != nil {
		key = whole.links[0].key
	}
	own, broken := readKeys(key, b.Keys)
	if keys = own; broken == nil && whole != nil {
		if keys = whole; !whole.begin(own) {
			broken = &Problem{Reason: WrongKey, Index: -1, What: "its history of keys is another one"}
		}
	}
	if broken != nil { // nothing else can be judged
		r.Head, r.Problems = Head{Size: -1}, []Problem{*broken}
		return r, nil, key
	}
	head, headFault, headWhat := checkHead([]byte(b.Head), keys)
	if headFault == "" {
		headFault, headWhat = head.fresh(own)
	}
	r.Head = head
	c := newChecker(keys)
	for i := range b.Receipts {
		c.add(b.Receipts[i].Envelope)
	}
	items := c.wait()
	if b.All {
		s := sequence{items: items, head: head, headFault: headFault, headWhat: headWhat, known: known, exported: true}
		s.judge(r)
		for i := 0; i < len(items) && r.OK(); i++ {
			if index := b.Receipts[i].Index; index != int64(i) {
				r.add(Reordered, int64(i), "the bundle calls receipt %d receipt %d", i, index)
			}
		}
	} else {
		verifyPart(r, b, items, headFault, headWhat, known)
	}
	if known == nil {
		r.unproven("that no newer receipts were cut off: no newer head is known")
	}
	judgeChanges(r, b, items, headFault)
	return r, keys, own.Current()
}

// judgeChanges looks whether the changes of keys are among the receipts that a genuine head signs.
func judgeChanges(r *Report, b *Bundle, items []item, headFault Reason) {
	for i := range b.Keys {
		p := &b.Keys[i]
		leaf, fits := tlog.RecordHash(p.Envelope), true
		switch {
		case headFault != "" || p.Index >= r.Head.Size:
		case b.All:
			fits = !r.OK() || items[p.Index].leaf == leaf
		default:
			fits = tlog.CheckRecord(hashes(p.Proof), r.Head.Size, tlog.Hash(r.Head.Root), p.Index, leaf) == nil
		}
		if !fits {
			r.add(NotIncluded, p.Index, "the change of keys in receipt %d is not shown to be in the ledger that the head signs", p.Index)
		}
	}
}

// verifyPart judges receipts that are shown to be in a ledger by their proofs.
func verifyPart(r *Report, b *Bundle, items []item, headFault Reason, headWhat string, known *Head) {
	head := r.Head
	if len(items) == 0 {
		r.add(Dropped, -1, "the bundle has no receipt")
	}
	anyFits, there := false, map[int64]bool{}
	first, last, highest := int64(math.MaxInt64), int64(-1), int64(-1)
	for i := range items {
		it, p := &items[i], &b.Receipts[i]
		fits := tlog.CheckRecord(hashes(p.Proof), head.Size, tlog.Hash(head.Root), p.Index, it.leaf) == nil
		anyFits = anyFits || fits
		switch {
		case it.fault == foreign:
			r.add(WrongKey, p.Index, "receipt %d is signed by another key", p.Index)
		case it.fault == withdrawn:
			r.add(Revoked, p.Index, "receipt %d is signed by a key that is revoked from before it on", p.Index)
		case it.fault == apart:
			r.add(Forked, p.Index, "receipt %d changes keys, and the history of keys does not have it", p.Index)
		case it.fault != genuine && fits:
			r.add(Recomputed, p.Index, "the signature of receipt %d is not right, though its hash fits the ledger", p.Index)
		case it.fault != genuine:
			r.add(Edited, p.Index, "the signature of receipt %d is not right", p.Index)
		case it.index != p.Index:
			r.add(Reordered, p.Index, "receipt %d stands in the place of receipt %d", it.index, p.Index)
		case there[p.Index]:
			r.add(Repeated, p.Index, "receipt %d is there twice", p.Index)
		case p.Index < last:
			r.add(Reordered, p.Index, "receipt %d stands after receipt %d", p.Index, last)
		case headFault != "":
		case p.Index >= head.Size:
			r.add(Truncated, p.Index, "receipt %d is newer than the head of %d receipts", p.Index, head.Size)
		case !fits:
			r.add(NotIncluded, p.Index, "receipt %d is genuine, but it is not shown to be in the ledger that the head signs", p.Index)
		}
		there[p.Index] = true
		last = max(last, p.Index)
		if it.fault == genuine && p.Index < head.Size { // others say nothing of what is missing
			first, highest = min(first, p.Index), max(highest, p.Index)
		}
	}
	for index := first; index < highest && !b.Chosen && len(r.Problems) < maxProblems; index++ {
		if !there[index] {
			r.add(Dropped, index, "receipt %d is missing", index)
		}
	}
	switch {
	case headFault == WrongKey || headFault == Dropped:
		r.add(headFault, -1, "%s", headWhat)
	case headFault != "" && anyFits:
		r.add(Recomputed, -1, "%s, though it fits the receipts", headWhat)
	case headFault != "":
		r.add(Edited, -1, "%s", headWhat)
	case known != nil:
		judgeKnown(r, b, head, *known)
	}
	judgeLinks(r, items, false)
}

// judgeKnown compares a genuine head with the one that the verifier knows.
func judgeKnown(r *Report, b *Bundle, head, known Head) {
	switch {
	case known.Size > head.Size:
		r.add(Truncated, -1, "the head has %d receipts, a head of %d is known", head.Size, known.Size)
	case known.Size == head.Size && known.Root != head.Root:
		r.add(Forked, -1, "there are two signed heads of %d receipts", known.Size)
	case known.Size == head.Size || known.Size == 0:
	case b.Extends == nil || b.Extends.Size != known.Size:
		r.unproven("that the head of %d receipts goes on from the known one of %d: the bundle has no proof of it", head.Size, known.Size)
	case tlog.CheckTree(hashes(b.Extends.Proof), head.Size, tlog.Hash(head.Root), known.Size, tlog.Hash(known.Root)) != nil:
		r.add(Forked, -1, "the head of %d receipts does not go on from the known one of %d", head.Size, known.Size)
	}
}
