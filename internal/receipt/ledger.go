package receipt

import (
	"bytes"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// The files of a ledger.
const (
	entriesFile = "entries"
	headsFile   = "heads"
	tileDir     = "tile"
)

// headsLimit is how many bytes of heads are kept before older ones go.
const headsLimit = 256 << 10

// A Ledger is the append-only log of an installation's receipts. It is safe
// for concurrent use; one process at a time may have it open.
type Ledger struct {
	signers []Signer // that can sign, of which one does
	keyFS   durable.FS
	// elsewhere is to sign after the next change of keys; nil for a key of keyFS.
	elsewhere Signer
	fs        durable.FS
	entries   *durable.Log
	heads     *durable.Log

	// writer is full during an append; see durable.Log.
	writer chan struct{}
	tiles  tileStore

	mu   sync.Mutex
	next *batch

	// state guards what follows. It is written by the writer only.
	state      sync.RWMutex
	signer     Signer
	history    *Keys
	tree       *tree
	at         []int64          // places in entries
	ids        []cell.Digest    // of the receipts, by index
	keys       map[string]int64 // index of the receipt with that key
	incomplete map[cell.Digest]bool
	head       Head // the newest that is signed and on disk
	sealed     time.Time
	unsealed   uint64
}

// OpenLedger opens the ledger in a directory and begins one where there is
// none, which the first of signers signs. One that is there is signed on by the one of
// them that its history of keys has come to; without that it is Denied. It reads all receipts and fails as Corrupt when they are not those
// that the newest head signs, or fewer. What a crash left undone (a head that
// was not signed, tiles that were not written) it completes.
func OpenLedger(fsys durable.FS, signers ...Signer) (*Ledger, error) {
	l := &Ledger{
		fs: fsys, signers: signers, writer: make(chan struct{}, 1), tiles: newTileStore(fsys),
		keys: map[string]int64{}, incomplete: map[cell.Digest]bool{},
	}
	l.tree = &tree{load: l.tiles.load}
	if err := l.open(); err != nil {
		l.closeFiles()
		return nil, err
	}
	return l, nil
}

// corrupt is the error for a ledger that was changed.
func corrupt(format string, args ...any) error {
	return cell.Errorf(cell.Corrupt, "receipt.OpenLedger", "run pando receipt verify --all to see what was changed, then restore the ledger from a backup",
		"cannot open the ledger: "+format, args...)
}

func (l *Ledger) open() (err error) {
	l.head.Size = -1
	roots := map[int64]cell.Digest{} // of all heads
	var notes [][]byte               // that are checked when the keys are known
	l.heads, err = durable.OpenLog(l.fs, headsFile, func(rec []byte) error {
		_, h, err := readHead(rec)
		if err != nil {
			return corrupt("%v", err)
		}
		notes = append(notes, bytes.Clone(rec))
		h.Note = notes[len(notes)-1]
		if h.Size < l.head.Size {
			return corrupt("a head of %d receipts was written after one of %d", h.Size, l.head.Size)
		}
		if root, ok := roots[h.Size]; ok && root != h.Root {
			return corrupt("there are two heads of %d receipts", h.Size)
		}
		roots[h.Size] = h.Root
		l.head = h
		return nil
	})
	if err != nil {
		return err
	}
	if root, ok := roots[0]; ok && root != l.tree.root() {
		return corrupt("its head of no receipts has a root")
	}
	l.entries, err = durable.OpenIndexed(l.fs, entriesFile, func(at int64, rec []byte) error {
		if err := l.restore(at, rec); err != nil {
			return err
		}
		if root, ok := roots[l.tree.size]; ok && root != l.tree.root() {
			return corrupt("its first %d receipts are not those that a head signs", l.tree.size)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if l.tree.size < l.head.Size {
		return corrupt("it has %d receipts, its newest head has %d", l.tree.size, l.head.Size)
	}
	if l.history == nil {
		l.history = keysOf(l.signers[0].Public())
	}
	for _, rec := range notes {
		if _, reason, what := checkHead(rec, l.history); reason != "" {
			return corrupt("%s", what)
		}
	}
	if l.signer = l.signerOf(l.history.Current().ID()); l.signer == nil {
		return cell.Errorf(cell.Denied, "receipt.OpenLedger", "give it the key that signed it last, or move the ledger and its keys away to begin anew",
			"cannot open the ledger: it is signed by the key %s, which is not at hand", l.history.Current().ID())
	}
	return l.settle()
}

// signerOf is the one with a key, nil for none.
func (l *Ledger) signerOf(id string) Signer {
	for _, s := range l.signers {
		if s.Public().ID() == id {
			return s
		}
	}
	return nil
}

// begin is the history of keys before the first receipt, and says which signer that is: one that is at hand, or one that a later receipt
// says more of.
func (l *Ledger) begin(keyid string) *Keys {
	if s := l.signerOf(keyid); s != nil {
		return keysOf(s.Public())
	}
	return keysOf(PublicKey{id: keyid})
}

// restore takes in one entry at opening. Those that a head covers are known
// to be genuine when the head's root comes out right.
func (l *Ledger) restore(at int64, rec []byte) error {
	e, err := parseEnvelope(rec)
	if err != nil {
		return corrupt("receipt %d: %v", l.tree.size, err)
	}
	kind, b, _, err := parseBinding(e.payload)
	if l.history == nil {
		l.history = l.begin(e.keyid)
	}
	switch {
	case err != nil:
		return corrupt("receipt %d: %v", l.tree.size, err)
	case e.keyid != l.history.Current().ID():
		return corrupt("receipt %d is signed by another key", l.tree.size)
	case b.Ledger.Index != l.tree.size:
		return corrupt("receipt %d stands where %d belongs", b.Ledger.Index, l.tree.size)
	}
	// What no head covers yet is about to be covered by a new one.
	if l.tree.size >= l.head.Size && (b.Ledger.Root != l.tree.root() || !e.signedBy(l.history.Current())) {
		return corrupt("receipt %d, which no head covers, is not genuine", l.tree.size)
	}
	if kind == PredicateKey {
		if err := l.follow(rec); err != nil {
			return err
		}
	}
	before := len(l.tree.full)
	l.tree.add(tlog.RecordHash(rec))
	l.enter(at, cell.Sum(rec), b)
	return l.checkTiles(before)
}

// follow takes in a change of keys at opening.
func (l *Ledger) follow(rec []byte) error {
	if first := &l.history.links[0]; first.key.key == nil { // as its id only
		_, c, err := parseChange(rec)
		if err != nil {
			return corrupt("receipt %d: %v", l.tree.size, err)
		}
		key, err := ParseKeyText(c.By)
		if err != nil || key.ID() != first.key.ID() {
			return corrupt("receipt %d names another key than its own", l.tree.size)
		}
		first.key = key
	}
	if reason, what := l.history.extend(l.tree.size, rec); reason != "" {
		return corrupt("%s", what)
	}
	return nil
}

// checkTiles compares the tiles that the last receipt completed, those of
// l.tree.full from index from on, with what is on the disk, and keeps those
// that are missing there.
func (l *Ledger) checkTiles(from int) error {
	fresh := l.tree.full[from:]
	l.tree.full = l.tree.full[:from]
	for _, t := range fresh {
		missing, err := l.tiles.check(t)
		if err != nil {
			return err
		}
		if missing {
			l.tree.full = append(l.tree.full, t)
		}
	}
	return nil
}

// enter adds a receipt to the indexes.
func (l *Ledger) enter(at int64, id cell.Digest, b Binding) {
	l.keys[b.Key] = int64(len(l.ids))
	l.at = append(l.at, at)
	l.ids = append(l.ids, id)
	if b.Incomplete {
		l.incomplete[id] = true
	}
	delete(l.incomplete, b.Completes)
}

// settle signs the head of what is on disk and writes complete tiles, where
// that has not been done. The caller is the writer.
func (l *Ledger) settle() error {
	if l.head.Size < l.tree.size {
		h, err := signHead(l.signer, l.history, l.tree.size, l.tree.root())
		if err != nil {
			return err
		}
		if err := l.heads.Append(h.Note); err != nil {
			return err
		}
		l.state.Lock()
		l.head = h
		l.state.Unlock()
	}
	if l.heads.Size() > headsLimit {
		err := l.heads.Rewrite(func(yield func([]byte) bool) { yield(l.head.Note) })
		if err != nil {
			return err
		}
	}
	for len(l.tree.full) > 0 {
		if err := l.tiles.write(l.tree.full[0]); err != nil {
			return err
		}
		l.state.Lock()
		l.tree.full = l.tree.full[1:]
		l.state.Unlock()
	}
	return nil
}

// Close waits for what is being appended and closes the files.
func (l *Ledger) Close() error {
	l.writer <- struct{}{}
	defer func() { <-l.writer }()
	return l.closeFiles()
}

func (l *Ledger) closeFiles() (err error) {
	if l.entries != nil {
		err = l.entries.Close()
	}
	if l.heads != nil {
		if e := l.heads.Close(); err == nil {
			err = e
		}
	}
	return err
}
