package receipt

import (
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
	signer  Signer
	fs      durable.FS
	entries *durable.Log
	heads   *durable.Log

	// writer is full during an append; see durable.Log.
	writer chan struct{}
	tiles  tileStore

	mu   sync.Mutex
	next *batch

	// state guards what follows. It is written by the writer only.
	state      sync.RWMutex
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
// none. It reads all receipts and fails as Corrupt when they are not those
// that the newest head signs, or fewer. What a crash left undone (a head that
// was not signed, tiles that were not written) it completes.
func OpenLedger(fsys durable.FS, signer Signer) (*Ledger, error) {
	l := &Ledger{
		fs: fsys, signer: signer, writer: make(chan struct{}, 1), tiles: newTileStore(fsys),
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
	l.heads, err = durable.OpenLog(l.fs, headsFile, func(rec []byte) error {
		h, reason, what := checkHead(rec, l.signer.Public())
		if reason != "" {
			return corrupt("%s", what)
		}
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
	return l.settle()
}

// restore takes in one entry at opening. Those that a head covers are known
// to be genuine when the head's root comes out right.
func (l *Ledger) restore(at int64, rec []byte) error {
	e, err := parseEnvelope(rec)
	if err != nil {
		return corrupt("receipt %d: %v", l.tree.size, err)
	}
	_, b, _, err := parseBinding(e.payload)
	switch {
	case err != nil:
		return corrupt("receipt %d: %v", l.tree.size, err)
	case e.keyid != l.signer.Public().ID():
		return corrupt("receipt %d is signed by another key", l.tree.size)
	case b.Ledger.Index != l.tree.size:
		return corrupt("receipt %d stands where %d belongs", b.Ledger.Index, l.tree.size)
	}
	// What no head covers yet is about to be covered by a new one.
	if l.tree.size >= l.head.Size && (b.Ledger.Root != l.tree.root() || !e.signedBy(l.signer.Public())) {
		return corrupt("receipt %d, which no head covers, is not genuine", l.tree.size)
	}
	before := len(l.tree.full)
	l.tree.add(tlog.RecordHash(rec))
	l.enter(at, cell.Sum(rec), b)
	return l.checkTiles(before)
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
		h, err := signHead(l.signer, l.tree.size, l.tree.root())
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
