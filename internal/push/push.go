// Package push copies receipts, and the files of the runs that they name, off the machine: to a directory or to a server of
// objects. What is copied is bundles of consecutive receipts, each of which is verified by itself, and the newest head:
//
//	key.pub                                   the public key, for a start
//	receipts-000000000000-000000000099.tar    a bundle; its head covers these receipts and those before
//	head                                      the head of the last bundle: how far the copy is
//
// It promises that nothing which was copied is written again but head, that head is written after what it covers, so that the
// next call goes on after a failure at any point, and that a copy of another ledger, or of another history of this one, is
// refused before anything is written. The state of a copy is in the copy alone.
package push

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// The names of a copy's objects, beside its bundles.
const (
	headName = "head"
	keyName  = "key.pub"
)

// perBundle is how many receipts are copied at a time.
const perBundle = 100

// A Source is an installation with a ledger.
type Source interface {
	Ledger(ctx context.Context, since int64) (api.Ledger, error)
	BundleFrom(ctx context.Context, from, to int64) (io.ReadCloser, error)
	PublicKey(ctx context.Context) ([]byte, error)
}

// A Target is a place for objects. Its String has no credentials.
type Target interface {
	fmt.Stringer
	// Get opens an object; fs.ErrNotExist is among the errors of one that is not there.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// Create writes a new object as a whole or not at all; fs.ErrExist is among the errors of one that is there. The size is
	// that of what r has.
	Create(ctx context.Context, name string, r io.Reader, size int64) error
	// Replace is Create, in place of the object that is there.
	Replace(ctx context.Context, name string, r io.Reader, size int64) error
	// Lock keeps other calls from writing until unlock is called, as far as the place can.
	Lock(ctx context.Context) (unlock func(), err error)
}

// Status is how far a copy is.
type Status struct {
	Target   string   `json:"target"`   // without credentials
	Receipts int64    `json:"receipts"` // in the ledger
	Had      int64    `json:"had"`      // that the copy had before
	Copied   int64    `json:"copied"`   // that were copied now
	Behind   int64    `json:"behind"`   // that are not in the copy
	Problems []string `json:"problems"` // what verification of what was copied found
}

func (s *Status) count() { s.Behind = s.Receipts - s.Had - s.Copied }

const op = "receipt.Push"

// Look returns how far a copy is, and the keys of its ledger. It refuses a copy that this ledger does not go on from.
func Look(ctx context.Context, src Source, to Target) (Status, *receipt.Keys, error) {
	s := Status{Target: to.String(), Problems: []string{}}
	keys, err := keysOf(ctx, src)
	if err != nil {
		return s, nil, err
	}
	if err := ownKey(ctx, to, keys); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, nil, err
	}
	had, err := headOf(ctx, to, keys)
	if err != nil {
		return s, nil, err
	}
	l, err := src.Ledger(ctx, had.Size)
	if err != nil {
		return s, nil, err
	}
	now, err := receipt.ParseHead([]byte(l.Head), keys)
	if err != nil {
		return s, nil, err
	}
	s.Receipts, s.Had = now.Size, had.Size
	s.count()
	switch {
	case had.Size > now.Size:
		return s, nil, cell.Errorf(cell.Conflict, op, "receipts were lost here: restore the ledger from the copy, or copy to another place",
			"cannot copy receipts to %s: it has %d, the ledger has %d", to, had.Size, now.Size)
	case had.Size == 0 || had.Size == now.Size && had.Root == now.Root:
		return s, keys, nil
	case had.Size == now.Size || !goesOn(l.Extends, now, had):
		return s, nil, cell.Errorf(cell.Conflict, op, "compare both with pando receipt verify; copy to another place",
			"cannot copy receipts to %s: it has another history of %d receipts than the ledger", to, had.Size)
	}
	return s, keys, nil
}

// keysOf is the history of the keys of a source's ledger, which its key of now verifies.
func keysOf(ctx context.Context, src Source) (*receipt.Keys, error) {
	pem, err := src.PublicKey(ctx)
	if err != nil {
		return nil, err
	}
	key, err := receipt.ParsePublicKey(pem)
	if err != nil {
		return nil, err
	}
	l, err := src.Ledger(ctx, 0)
	if err != nil {
		return nil, err
	}
	var changes []receipt.Proven
	for _, c := range l.Changes {
		changes = append(changes, receipt.Proven{Index: c.Index, Envelope: c.Envelope})
	}
	return receipt.ReadKeys(key, changes)
}

func goesOn(extends []string, now, had receipt.Head) bool {
	var proof tlog.TreeProof
	for _, text := range extends {
		d, err := cell.ParseDigest(text)
		if err != nil {
			return false
		}
		proof = append(proof, tlog.Hash(d))
	}
	return tlog.CheckTree(proof, now.Size, tlog.Hash(now.Root), had.Size, tlog.Hash(had.Root)) == nil
}

// ownKey refuses a copy with a key that is none of the ledger's; of one without a key, fs.ErrNotExist is among the errors.
func ownKey(ctx context.Context, to Target, keys *receipt.Keys) error {
	text, err := small(ctx, to, keyName)
	if err != nil {
		return err
	}
	if there, err := receipt.ParsePublicKey(text); err != nil || !keys.Has(there) {
		return anotherLedger(to)
	}
	return nil
}

func anotherLedger(to Target) error {
	return cell.Errorf(cell.Conflict, op, "copy to another place", "cannot copy receipts to %s: what is there is of another ledger, or its head was changed", to)
}

// small is an object that is no longer than a head or a key.
func small(ctx context.Context, to Target, name string) ([]byte, error) {
	r, err := to.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of %s: %w", name, to, err)
	}
	return text, nil
}

// headOf is the head of a copy; of one that there is not yet, a head of nothing.
func headOf(ctx context.Context, to Target, keys *receipt.Keys) (receipt.Head, error) {
	text, err := small(ctx, to, headName)
	if errors.Is(err, fs.ErrNotExist) {
		return receipt.Head{}, nil
	}
	if err != nil {
		return receipt.Head{}, err
	}
	h, err := receipt.ParseHead(text, keys)
	if err != nil {
		return h, anotherLedger(to)
	}
	return h, nil
}

// Push copies all receipts that a copy does not have. Also when it fails the status says how far the copy is.
func Push(ctx context.Context, src Source, to Target) (Status, error) {
	s, _, err := Look(ctx, src, to)
	if err != nil || s.Behind == 0 {
		return s, err
	}
	unlock, err := to.Lock(ctx)
	if err != nil {
		return s, err
	}
	defer unlock()
	s, keys, err := Look(ctx, src, to) // again: another call may have copied since
	if err != nil {
		return s, err
	}
	pem := keys.Current().PEM()
	err = to.Create(ctx, keyName, bytes.NewReader(pem), int64(len(pem)))
	if errors.Is(err, fs.ErrExist) {
		err = ownKey(ctx, to, keys)
	}
	if err != nil {
		return s, err
	}
	for from := s.Had; from < s.Receipts; from = s.Had + s.Copied {
		end := min(from+perBundle, s.Receipts)
		problems, err := copyBundle(ctx, src, to, keys, from, end)
		s.Problems = append(s.Problems, problems...)
		if err != nil {
			return s, err
		}
		s.Copied += end - from
		s.count()
	}
	return s, nil
}

func bundleName(from, end int64) string { return fmt.Sprintf("receipts-%012d-%012d.tar", from, end-1) }

// copyBundle copies one bundle, and then has the copy say that it has it.
func copyBundle(ctx context.Context, src Source, to Target, keys *receipt.Keys, from, end int64) (problems []string, err error) {
	body, err := src.BundleFrom(ctx, from, end)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	f, err := os.CreateTemp("", "pando-push-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := io.Copy(f, body); err != nil {
		return nil, fmt.Errorf("cannot fetch receipts %d to %d: %w", from, end-1, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	rep, err := verified(f, keys, from, end)
	if err != nil {
		return nil, err
	}
	if rep.Head.Size != end { // broken off, or not of what was asked for
		return nil, cell.Errorf(cell.Unavailable, op, "try again", "cannot fetch receipts %d to %d: the daemon's answer is not whole", from, end-1)
	}
	for _, p := range rep.Problems {
		problems = append(problems, fmt.Sprintf("%s %s: %s", p.Reason, p.File, p.What))
	}
	if err := putBundle(ctx, to, bundleName(from, end), f, keys, rep.Head.Root, from, end); err != nil {
		return problems, err
	}
	// Where nothing keeps two calls from copying at once, what one copied is not taken back by the other.
	there, err := headOf(ctx, to, keys)
	if err != nil {
		return problems, err
	}
	if there.Size > from {
		return problems, cell.Errorf(cell.Unavailable, op, "try again", "cannot copy receipts to %s: another call copies there, up to %d", to, there.Size-1)
	}
	return problems, to.Replace(ctx, headName, bytes.NewReader(rep.Head.Note), int64(len(rep.Head.Note)))
}

// verified verifies the receipts from up to, but not including, end.
func verified(r io.Reader, keys *receipt.Keys, from, end int64) (*receipt.Report, error) {
	var s receipt.Stretches
	rep, _, err := s.Verify(r, keys, from, end)
	return rep, err
}

// putBundle writes a bundle. One that is there, from a call that ended before it wrote the head, is left if it has the same
// receipts, and replaced if it broke off.
func putBundle(ctx context.Context, to Target, name string, f *os.File, keys *receipt.Keys, root cell.Digest, from, end int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	whole := func() *io.SectionReader { return io.NewSectionReader(f, 0, st.Size()) }
	err = to.Create(ctx, name, whole(), st.Size())
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch is, err := compare(ctx, to, name, whole()); {
	case err != nil || is == same:
		return err
	case is == broken:
		return to.Replace(ctx, name, whole(), st.Size())
	}
	r, err := to.Get(ctx, name) // the same receipts in other words: of another version of pando, or before files were removed, or under an older key
	if err != nil {
		return err
	}
	defer r.Close()
	rep, err := verified(r, keys, from, end)
	if err != nil {
		return fmt.Errorf("cannot read %s of %s: %w", name, to, err)
	}
	if !rep.OK() || rep.Head.Root != root {
		return cell.Errorf(cell.Conflict, op, "remove it there, or copy to another place", "cannot copy receipts to %s: %s is there, and is something else", to, name)
	}
	return nil
}

// A likeness is how an object compares with what is to be there.
type likeness int

const (
	other  likeness = iota
	same            // all of it
	broken          // its beginning
)

func compare(ctx context.Context, to Target, name string, f *io.SectionReader) (likeness, error) {
	size := f.Size()
	r, err := to.Get(ctx, name)
	if err != nil {
		return other, err
	}
	defer r.Close()
	theirs, ours := sha256.New(), sha256.New()
	n, err := io.Copy(theirs, io.LimitReader(r, size+1))
	if err != nil {
		return other, fmt.Errorf("cannot read %s of %s: %w", name, to, err)
	}
	if _, err := io.Copy(ours, io.LimitReader(f, n)); err != nil {
		return other, err
	}
	switch alike := bytes.Equal(theirs.Sum(nil), ours.Sum(nil)); {
	case alike && n == size:
		return same, nil
	case alike && n < size:
		return broken, nil
	}
	return other, nil
}
