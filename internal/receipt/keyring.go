package receipt

import (
	"context"
	"errors"
	"io/fs"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// nextFile is a key that has been made and that the ledger does not name yet, or that was not put in the place of KeyFile yet.
const nextFile = KeyFile + ".next"

// Elsewhere are signers with keys that are not in the directory of keys; nil for none.
type Elsewhere struct {
	Signs  Signer // that is to sign: a ledger that begins, and others after the next change of keys
	Before Signer // that signed until the next change of keys
}

// Open opens the ledger in a directory with the keys in another, and makes both on first use. Which key signs a ledger that is there says the ledger: a change
// of keys that a crash broke off is finished, or was none.
func Open(keys, ledger durable.FS, elsewhere Elsewhere) (*Ledger, error) {
	var signers []Signer
	if elsewhere.Signs != nil {
		signers = append(signers, elsewhere.Signs)
	}
	own, err := readKey(keys, KeyFile)
	if cell.KindOf(err) == cell.NotFound {
		own, err = nil, nil
		if elsewhere == (Elsewhere{}) {
			own, err = makeKey(keys)
		}
	}
	if err != nil {
		return nil, err
	}
	if own != nil {
		signers = append(signers, own)
	}
	next, err := readKey(keys, nextFile)
	if err == nil {
		signers = append(signers, next)
	} else if cell.KindOf(err) != cell.NotFound {
		return nil, err
	}
	if elsewhere.Before != nil {
		signers = append(signers, elsewhere.Before)
	}
	l, err := OpenLedger(ledger, signers...)
	if err != nil {
		return nil, err
	}
	l.keyFS, l.elsewhere = keys, elsewhere.Signs
	if err = l.ownPublic(); err == nil {
		err = l.adopt()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// ownPublic refuses a public key beside the ledger's that is none of its own.
func (l *Ledger) ownPublic() error {
	there, err := LoadPublicKey(l.keyFS)
	if cell.KindOf(err) == cell.NotFound {
		return nil
	}
	if err == nil && !l.Keys().Has(there) && l.signerOf(there.ID()) == nil {
		err = cell.Errorf(cell.Corrupt, "receipt.OpenKey", "restore both files from one backup", "cannot use %s: %s belongs to another key", KeyFile, PublicFile)
	}
	return err
}

// adopt has the files be those of the key that signs now. The public one is first: what a kill leaves, Open finishes.
func (l *Ledger) adopt() error {
	current := l.Keys().Current()
	if there, err := LoadPublicKey(l.keyFS); err != nil || there.ID() != current.ID() {
		if err := durable.WriteFile(l.keyFS, PublicFile, current.PEM(), 0o644); err != nil {
			return err
		}
	}
	if next, err := readKey(l.keyFS, nextFile); err == nil && next.Public().ID() == current.ID() {
		if err := l.keyFS.Rename(nextFile, KeyFile); err != nil {
			return err
		}
		return l.keyFS.SyncDir(".")
	}
	own, err := readKey(l.keyFS, KeyFile)
	if cell.KindOf(err) == cell.NotFound || err == nil && (own.Public().ID() == current.ID() || !l.Keys().Has(own.Public())) {
		return nil
	}
	if err == nil { // it signs no more
		err = l.keyFS.Remove(KeyFile)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = l.keyFS.SyncDir(".")
	}
	return err
}

// Rotate changes the keys as ChangeKey does, and the files of the ledger's keys with them. Without a next signer, where one is
// needed, it makes a key. The private half of the key that signed until then is removed.
func (l *Ledger) Rotate(ctx context.Context, req KeyRequest) (Entry, error) {
	if req.Next == nil && (req.Revoke == "" || req.Revoke == l.Keys().Current().ID()) {
		next, err := l.nextSigner()
		if err != nil {
			return Entry{}, err
		}
		req.Next = next
	}
	e, err := l.ChangeKey(ctx, req)
	if req.Next != nil && l.Keys().Current().ID() == req.Next.Public().ID() {
		if e := l.adopt(); err == nil {
			err = e
		}
	}
	return e, err
}

// Signer is what signs now.
func (l *Ledger) Signer() Signer {
	s, _ := l.signing()
	return s
}

func (l *Ledger) nextSigner() (Signer, error) {
	if l.elsewhere == nil {
		return l.nextKey()
	}
	if l.Keys().Has(l.elsewhere.Public()) {
		return nil, cell.Errorf(cell.Invalid, "receipt.Rotate", "name the next one as command in signer.yaml, and the one that signs now as previous; then restart the daemon",
			"cannot change the key: the configured signer has signed before")
	}
	return l.elsewhere, nil
}

// nextKey is the key that was made for a change of keys which did not come to be, or a new one. One that is there is kept: the
// ledger may have it on the disk after a failure to write.
func (l *Ledger) nextKey() (*Key, error) {
	k, err := readKey(l.keyFS, nextFile)
	if cell.KindOf(err) != cell.NotFound {
		return k, err
	}
	return newKeyFile(l.keyFS, nextFile)
}
