package receipt

import (
	"bytes"
	"encoding/json"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// BundleFormat names the form of bundles.
const BundleFormat = "pando receipts 1"

// A Bundle is a set of receipts for a verifier that has only the public key. It contains no
// key: a key that came with the evidence would prove nothing.
type Bundle struct {
	Format string `json:"format"`
	// KeyID says which key to get. It is not believed.
	KeyID string `json:"keyid"`
	// Head is the signed head that the proofs lead to.
	Head string `json:"head"`
	// All says that these are all receipts that Head covers; they need no
	// proofs, because the head can be computed from them.
	All bool `json:"all,omitempty"`
	// Chosen says that they were chosen: those between them are not missing.
	Chosen bool `json:"chosen,omitempty"`
	// Keys are all receipts that changed the keys of the ledger, up to the one that Head names. Those that Head does not cover
	// have no proof.
	Keys     []Proven `json:"keys,omitempty"`
	Receipts []Proven `json:"receipts"`
	// Extends shows that Head goes on from an older head which the verifier
	// knows.
	Extends *Extension `json:"extends,omitempty"`
}

// A Proven is a receipt with the path from its hash to the head's root, after
// RFC 6962.
type Proven struct {
	Index    int64           `json:"index"`
	Envelope json.RawMessage `json:"envelope"` // DSSE; white space does not count
	Proof    []cell.Digest   `json:"proof,omitempty"`
}

// An Extension is a consistency proof, after RFC 6962.
type Extension struct {
	Size  int64         `json:"size"` // of the older head
	Proof []cell.Digest `json:"proof"`
}

// Export returns the receipts with indexes from up to, but not including, to.
// With known, an older head that the verifier remembers, it also shows that
// nothing before it was changed.
func (l *Ledger) Export(from, to int64, known *Head) (*Bundle, error) {
	l.state.RLock()
	head, tree, keys := l.head, l.tree, l.history
	l.state.RUnlock()
	if from < 0 || to > head.Size || from >= to {
		return nil, cell.Errorf(cell.NotFound, "receipt.Export", "", "cannot export receipts %d to %d: the ledger has %d", from, to-1, head.Size)
	}
	b := &Bundle{Format: BundleFormat, KeyID: keys.Current().ID(), Head: string(head.Note), All: from == 0 && to == head.Size}
	var err error
	if b.Keys, err = l.proveKeys(tree, head, keys, b.All); err != nil {
		return nil, err
	}
	for i := from; i < to; i++ {
		e, err := l.Entry(i)
		if err != nil {
			return nil, err
		}
		p := Proven{Index: i, Envelope: e.Envelope}
		if !b.All {
			if p.Proof, err = l.prove(tree, head, e); err != nil {
				return nil, err
			}
		}
		b.Receipts = append(b.Receipts, p)
	}
	if known != nil && known.Size > 0 && known.Size < head.Size && !b.All {
		l.state.RLock()
		proof, err := tlog.ProveTree(head.Size, known.Size, tree)
		l.state.RUnlock()
		if err == nil {
			err = tlog.CheckTree(proof, head.Size, tlog.Hash(head.Root), known.Size, tlog.Hash(known.Root))
		}
		if err != nil {
			return nil, cell.Errorf(cell.Corrupt, "receipt.Export", "run pando receipt verify --all", "cannot show that the ledger extends the known head of %d receipts: %w", known.Size, err)
		}
		b.Extends = &Extension{known.Size, digests(proof)}
	}
	return b, nil
}

// proveKeys returns the changes of keys up to the one that a head names, without proofs if all receipts are there.
func (l *Ledger) proveKeys(t *tree, head Head, keys *Keys, all bool) (list []Proven, err error) {
	for _, link := range keys.links[1:] {
		e, err := l.Entry(link.index)
		if err != nil {
			return nil, err
		}
		p := Proven{Index: link.index, Envelope: e.Envelope}
		if !all && link.index < head.Size {
			if p.Proof, err = l.prove(t, head, e); err != nil {
				return nil, err
			}
		}
		if list = append(list, p); link.change == head.change {
			return list, nil
		}
	}
	return nil, nil
}

// Changes returns the receipts that changed the keys, for ReadKeys.
func (l *Ledger) Changes() ([]Proven, error) {
	_, keys := l.signing()
	head := l.Head()
	return l.proveKeys(nil, head, keys, true)
}

// prove returns the path of one receipt, which it has tried.
func (l *Ledger) prove(t *tree, head Head, e Entry) ([]cell.Digest, error) {
	l.state.RLock()
	proof, err := tlog.ProveRecord(head.Size, e.Index, t)
	l.state.RUnlock()
	if err == nil {
		err = tlog.CheckRecord(proof, head.Size, tlog.Hash(head.Root), e.Index, tlog.RecordHash(e.Envelope))
	}
	if err != nil {
		return nil, cell.Errorf(cell.Corrupt, "receipt.Export", "run pando receipt verify --all", "cannot prove receipt %d: %w", e.Index, err)
	}
	return digests(proof), nil
}

func digests(hashes []tlog.Hash) []cell.Digest {
	ds := make([]cell.Digest, len(hashes))
	for i, h := range hashes {
		ds[i] = cell.Digest(h)
	}
	return ds
}

func hashes(ds []cell.Digest) []tlog.Hash {
	hs := make([]tlog.Hash, len(ds))
	for i, d := range ds {
		hs[i] = tlog.Hash(d)
	}
	return hs
}

// Statement is what the receipt says. Nothing of it is verified.
func (p Proven) Statement() (Statement, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, p.Envelope); err != nil {
		return Statement{}, err
	}
	e, err := parseEnvelope(b.Bytes())
	if err != nil {
		return Statement{}, err
	}
	return parseStatement(e.payload)
}

// Encode returns the bundle as JSON.
func (b *Bundle) Encode() ([]byte, error) {
	out, err := json.Marshal(b)
	if err != nil {
		return nil, cell.Errorf(cell.Internal, "receipt.Encode", "", "cannot write the bundle: %w", err)
	}
	return append(out, '\n'), nil
}

// DecodeBundle reads what Encode wrote. It says nothing about whether the
// bundle can be believed.
func DecodeBundle(text []byte) (*Bundle, error) {
	bad := func(why string) (*Bundle, error) {
		return nil, cell.Errorf(cell.Invalid, "receipt.DecodeBundle", "", "cannot read the bundle: %s", why)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	b := new(Bundle)
	if err := d.Decode(b); err != nil {
		return bad("it is not a bundle of receipts")
	}
	if len(bytes.TrimSpace(text[d.InputOffset():])) != 0 {
		return bad("something follows it")
	}
	if b.Format != BundleFormat {
		return bad("its format is not \"" + BundleFormat + "\"")
	}
	for _, list := range [][]Proven{b.Receipts, b.Keys} {
		for i := range list {
			var c bytes.Buffer
			if err := json.Compact(&c, list[i].Envelope); err != nil {
				return bad("an envelope is missing")
			}
			list[i].Envelope = c.Bytes()
		}
	}
	return b, nil
}
