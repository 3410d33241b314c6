package receipt

import (
	"bytes"
	"encoding/hex"
	"iter"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// An Entry is one receipt in its ledger.
type Entry struct {
	Index    int64
	ID       cell.Digest // of the envelope
	Envelope []byte      // DSSE, as JSON
	Repeated bool        // Append found it, it was written before
}

// Statement returns what the receipt says, without checking the signature.
func (e Entry) Statement() (Statement, error) {
	env, err := parseEnvelope(e.Envelope)
	if err == nil {
		var s Statement
		if s, err = parseStatement(env.payload); err == nil {
			return s, nil
		}
	}
	return Statement{}, cell.Errorf(cell.Corrupt, "receipt.Statement", "", "cannot read receipt %d: %w", e.Index, err)
}

// Len returns how many receipts there are.
func (l *Ledger) Len() int64 {
	l.state.RLock()
	defer l.state.RUnlock()
	return int64(len(l.ids))
}

// Sealed tells when a receipt was sealed last since the ledger was opened, zero
// if none was, and how many could not be.
func (l *Ledger) Sealed() (last time.Time, failed uint64) {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.sealed, l.unsealed
}

// Head returns the newest signed head.
func (l *Ledger) Head() Head {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.head
}

// Entry returns the receipt with that index.
func (l *Ledger) Entry(index int64) (Entry, error) {
	l.state.RLock()
	if index < 0 || index >= int64(len(l.ids)) {
		l.state.RUnlock()
		return Entry{}, cell.Errorf(cell.NotFound, "receipt.Entry", "", "cannot find receipt %d: the ledger has %d", index, l.Len())
	}
	at, id := l.at[index], l.ids[index]
	l.state.RUnlock()
	rec, err := l.entries.ReadAt(at)
	if err != nil {
		return Entry{}, err
	}
	if cell.Sum(rec) != id {
		return Entry{}, cell.Errorf(cell.Corrupt, "receipt.Entry", "", "cannot read receipt %d: it was changed", index)
	}
	return Entry{Index: index, ID: id, Envelope: rec}, nil
}

// Lookup returns the receipt that was appended with key.
func (l *Ledger) Lookup(key string) (Entry, error) {
	l.state.RLock()
	index, ok := l.keys[key]
	l.state.RUnlock()
	if !ok {
		return Entry{}, cell.Errorf(cell.NotFound, "receipt.Lookup", "", "cannot find receipt %.80q", key)
	}
	return l.Entry(index)
}

// Find returns the one receipt with an ID that begins with prefix: at least four
// hexadecimal digits, with or without "sha256:".
func (l *Ledger) Find(prefix string) (Entry, error) {
	digits := strings.TrimPrefix(prefix, "sha256:")
	whole, err := hex.DecodeString(digits[:len(digits)/2*2])
	if len(digits)%2 == 1 && strings.Trim(digits[len(digits)-1:], "0123456789abcdef") != "" {
		err = hex.ErrLength
	}
	if err != nil || len(digits) < 4 || len(digits) > 64 || strings.ToLower(digits) != digits {
		return Entry{}, cell.Errorf(cell.Invalid, "receipt.Find", "give at least four of its hexadecimal digits", "cannot find a receipt by %.80q", prefix)
	}
	found := int64(-1)
	l.state.RLock()
	for i := range l.ids {
		if !bytes.HasPrefix(l.ids[i][:], whole) || len(digits)%2 == 1 && hex.EncodeToString(l.ids[i][len(whole):])[0] != digits[len(digits)-1] {
			continue
		}
		if found >= 0 {
			l.state.RUnlock()
			return Entry{}, cell.Errorf(cell.Invalid, "receipt.Find", "give more of its digits", "cannot tell which receipt %s is: several begin like that", prefix)
		}
		found = int64(i)
	}
	l.state.RUnlock()
	if found < 0 {
		return Entry{}, cell.Errorf(cell.NotFound, "receipt.Find", "", "cannot find receipt %s", prefix)
	}
	return l.Entry(found)
}

// Iterate yields the receipts from index from on, in order, up to those that
// there are when it begins.
func (l *Ledger) Iterate(from int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for i, end := max(from, 0), l.Len(); i < end; i++ {
			e, err := l.Entry(i)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
