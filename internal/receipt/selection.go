package receipt

import (
	"bytes"
	"encoding/json"
	"io"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// A Selection is some receipts of a ledger, and the head that proves them.
type Selection struct {
	Head    Head
	Indexes []int64 // ascending
	Since   int64   // of an older head, that Head is shown to go on from; 0: none
}

// HeadAt returns a signed head of the first size receipts.
func (l *Ledger) HeadAt(size int64) (Head, error) {
	l.state.RLock()
	head, tree := l.head, l.tree
	l.state.RUnlock()
	if size == head.Size {
		return head, nil
	}
	if size < 0 || size > head.Size {
		return Head{}, cell.Errorf(cell.NotFound, "receipt.HeadAt", "", "cannot sign a head of %d receipts: the ledger has %d", size, head.Size)
	}
	root := tlog.Hash(cell.Sum(nil))
	if size > 0 {
		var err error
		l.state.RLock()
		root, err = tlog.TreeHash(size, tree)
		l.state.RUnlock()
		if err != nil {
			return Head{}, err
		}
	}
	signer, keys := l.signing()
	return signHead(signer, keys, size, cell.Digest(root))
}

// Extends proves that a head goes on from the older one of the first since receipts.
func (l *Ledger) Extends(head Head, since int64) ([]cell.Digest, error) {
	l.state.RLock()
	defer l.state.RUnlock()
	if since < 1 || since > head.Size {
		return nil, cell.Errorf(cell.NotFound, "receipt.Extends", "", "cannot show that a head of %d receipts goes on from one of %d", head.Size, since)
	}
	proof, err := tlog.ProveTree(head.Size, since, l.tree)
	return digests(proof), err
}

// WriteSelection writes a bundle of receipts as Encode does, one receipt after the other. Twice it writes the same.
func (l *Ledger) WriteSelection(w io.Writer, s Selection) error {
	l.state.RLock()
	tree, keys := l.tree, l.history
	l.state.RUnlock()
	n := int64(len(s.Indexes))
	b := Bundle{Format: BundleFormat, KeyID: keys.Current().ID(), Head: string(s.Head.Note), All: n > 0 && n == s.Head.Size, Receipts: []Proven{}}
	b.Chosen = n > 0 && s.Indexes[n-1]-s.Indexes[0] != n-1
	if s.Since > 0 && s.Since < s.Head.Size && !b.All {
		proof, err := l.Extends(s.Head, s.Since)
		if err != nil {
			return err
		}
		b.Extends = &Extension{s.Since, proof}
	}
	var err error
	if b.Keys, err = l.proveKeys(tree, s.Head, keys, b.All); err != nil {
		return err
	}
	frame, err := b.Encode()
	if err != nil {
		return err
	}
	// What Encode writes around the receipts.
	const before = `"receipts":[`
	at := len(before) + bytes.Index(frame, []byte(before))
	if _, err := w.Write(frame[:at]); err != nil {
		return err
	}
	for i, index := range s.Indexes {
		e, err := l.Entry(index)
		if err != nil {
			return err
		}
		p := Proven{Index: index, Envelope: e.Envelope}
		if !b.All {
			if p.Proof, err = l.prove(tree, s.Head, e); err != nil {
				return err
			}
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte(","), text...)
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err = w.Write(frame[at:])
	return err
}
