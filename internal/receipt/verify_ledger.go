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
	if err := s.readHeads(fsys, key, r); err != nil {
		return nil, err
	}
	r.Head = s.head
	frames, err := s.readEntries(fsys, key, r)
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

// readHeads finds the newest head and what is wrong with those before it.
func (s *sequence) readHeads(fsys durable.FS, key PublicKey, r *Report) error {
	s.head, s.headFault, s.headWhat = Head{Size: -1}, Truncated, "the ledger has no signed head"
	type signed struct {
		Head
		fault Reason
		what  string
	}
	var all []signed
	err := durable.Scan(fsys, headsFile, func(f durable.Found) error {
		if !f.Intact && (!f.Whole || bytes.IndexByte(f.Rec, 0) >= 0) {
			return nil // torn, or the first line; a head that is missing shows by itself
		}
		var h signed
		h.Head, h.fault, h.what = checkHead(f.Rec, key)
		all = append(all, h)
		return nil
	})
	if err != nil && cell.KindOf(err) != cell.NotFound {
		return err
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
	return nil
}

// A frame is the line in which an envelope was found.
type frame struct {
	at     int64
	intact bool
}

// readEntries finds all envelopes, also where the lines around them were
// changed.
func (s *sequence) readEntries(fsys durable.FS, key PublicKey, r *Report) ([]frame, error) {
	c := newChecker(key)
	var frames []frame
	torn := -1 // from here on nothing was intact
	err := durable.Scan(fsys, entriesFile, func(f durable.Found) error {
		if !f.Intact && f.At == 0 && !bytes.Contains(f.Rec, []byte(envelope1)) {
			return nil // the first line; without it no other is intact
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
