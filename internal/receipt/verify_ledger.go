package receipt

import (
	"bytes"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// VerifyLedger checks all receipts of a ledger on disk with the public key
// alone. It changes nothing and can run while the ledger is in use. known is
// the newest head that the verifier has seen, or nil. It fails only when the
// files can't be read; what is wrong with them is in the report.
func VerifyLedger(fsys durable.FS, key PublicKey, known *Head) (*Report, error) {
	r := &Report{}
	// Heads first: receipts that are written meanwhile are then newer than
	// the head, and not missing.
	s := sequence{known: known}
	notes, err := readNotes(fsys)
	if err != nil {
		return nil, err
	}
	changes, n, err := readChanges(fsys)
	if err != nil {
		return nil, err
	}
	keys, broken := readKeys(key, changes)
	if broken != nil { // nothing else can be judged
		r.Head, r.Receipts, r.Problems = Head{Size: -1}, n, []Problem{*broken}
		return r, nil
	}
	s.judgeHeads(notes, keys, r)
	r.Head = s.head
	frames, err := s.readEntries(fsys, keys, n, r)
	if err != nil {
		return nil, err
	}
	if len(s.items) == 0 && s.headFault == Truncated && known == nil {
		r.unproven("anything: there is no ledger here")
		return r, nil
	}
	r.Receipts = int64(len(s.items))
	before := len(r.Problems)
	var tiles []tile
	s.tiles = func(t tile) { tiles = append(tiles, t) }
	s.judge(r)
	if len(r.Problems) == before {
		judgeFrames(r, frames)
		if err := judgeTiles(r, fsys, tiles); err != nil {
			return nil, err
		}
	}
	if known == nil {
		r.unproven("that the newest receipts were not cut off together with their heads: no newer head is known")
	}
	return r, nil
}

// readNotes finds all heads.
func readNotes(fsys durable.FS) (notes [][]byte, err error) {
	err = durable.Scan(fsys, headsFile, func(f durable.Found) error {
		if !f.Intact && (!f.Whole || bytes.IndexByte(f.Rec, 0) >= 0) {
			return nil // torn, or the first line; a head that is missing shows by itself
		}
		notes = append(notes, bytes.Clone(f.Rec))
		return nil
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return notes, err
}

// readChanges finds the changes of keys, and says how many envelopes there are.
func readChanges(fsys durable.FS) (changes []Proven, n int64, err error) {
	err = durable.Scan(fsys, entriesFile, func(f durable.Found) error {
		if noEntry(f) {
			return nil
		}
		if mayBeChange(f.Rec) && f.Intact {
			changes = append(changes, Proven{Index: n, Envelope: bytes.Clone(f.Rec)})
		}
		n++
		return nil
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return changes, n, err
}

// noEntry reports whether what was found is the first line, without which no other is intact.
func noEntry(f durable.Found) bool {
	return !f.Intact && f.At == 0 && !bytes.Contains(f.Rec, []byte(envelope1))
}

// judgeHeads finds the newest head and what is wrong with those before it.
func (s *sequence) judgeHeads(notes [][]byte, keys *Keys, r *Report) {
	s.head, s.headFault, s.headWhat = Head{Size: -1}, Truncated, "the ledger has no signed head"
	type signed struct {
		Head
		fault Reason
		what  string
	}
	var all []signed
	for _, rec := range notes {
		var h signed
		h.Head, h.fault, h.what = checkHead(rec, keys)
		all = append(all, h)
	}
	newest := int64(-1)
	for i, h := range all {
		switch {
		case i == len(all)-1 && (h.fault != "" || h.Size >= newest):
			s.head, s.headFault, s.headWhat = h.Head, h.fault, h.what
		case h.fault != "":
			r.add(h.fault, -1, "an earlier head was changed: %s", h.what)
		case h.Size < newest:
			r.add(Reordered, -1, "a head of %d receipts was written after one of %d", h.Size, newest)
			s.others = append(s.others, h.Head)
		default:
			s.others = append(s.others, h.Head)
		}
		if h.fault == "" && h.Size >= newest {
			newest = h.Size
			if i < len(all)-1 {
				s.head, s.headFault, s.headWhat = h.Head, "", ""
			}
		}
	}
	// A crash leaves a change of keys that no head covers yet, and nothing else.
	if s.headFault == "" && s.head.Size > keys.last().index {
		s.headFault, s.headWhat = s.head.fresh(keys)
	}
}

// A frame is the line in which an envelope was found.
type frame struct {
	at     int64
	intact bool
}

// readEntries finds all envelopes, also where the lines around them were
// changed, up to n: those that come meanwhile may be signed by keys that are not known.
func (s *sequence) readEntries(fsys durable.FS, keys *Keys, n int64, r *Report) ([]frame, error) {
	c := newChecker(keys)
	var frames []frame
	torn := -1 // from here on nothing was intact
	err := durable.Scan(fsys, entriesFile, func(f durable.Found) error {
		if noEntry(f) || int64(len(frames)) == n {
			return nil
		}
		switch {
		case f.Intact:
			torn = -1
		case torn < 0:
			torn = len(frames)
		}
		frames = append(frames, frame{f.At, f.Intact})
		c.add(f.Rec)
		return nil
	})
	s.items = c.wait()
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	// What was being written when the power went away is no receipt, unless
	// a head covers it.
	for torn >= 0 && len(s.items) > torn && int64(len(s.items)) > s.head.Size && s.items[len(s.items)-1].fault != genuine {
		s.items = s.items[:len(s.items)-1]
	}
	if len(s.items) < len(frames) {
		r.unproven("what stands at the end of %s, from offset %d on: it is no complete receipt", entriesFile, frames[len(s.items)].at)
	}
	return frames[:len(s.items)], err
}

func judgeFrames(r *Report, frames []frame) {
	for i, f := range frames {
		if !f.intact {
			r.add(Damaged, int64(i), "the line around receipt %d, at offset %d of %s, was changed", i, f.at, entriesFile)
		}
	}
}

// judgeTiles compares the files of hashes with what they should be.
func judgeTiles(r *Report, fsys durable.FS, tiles []tile) error {
	for _, t := range tiles {
		data, err := durable.ReadFile(fsys, t.path())
		switch {
		case cell.KindOf(err) == cell.NotFound:
			r.unproven("%s: it is not there; pando makes it again", t.path())
		case err != nil:
			return err
		case !bytes.Equal(data, t.data):
			r.add(Edited, -1, "%s does not fit the receipts", t.path())
		}
	}
	return nil
}
