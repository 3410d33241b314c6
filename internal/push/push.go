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
	"context"
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
	// Put writes a new object as a whole or not at all; fs.ErrExist is among the errors of one that is there.
	Put(ctx context.Context, name string, f *os.File) error
	// Replace writes a small object as a whole or not at all, in place of the one that is there.
	Replace(ctx context.Context, name string, text []byte) error
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

// Look returns how far a copy is, and the key of its ledger. It refuses a copy that this ledger does not go on from.
func Look(ctx context.Context, src Source, to Target) (Status, receipt.PublicKey, error) {
	s := Status{Target: to.String(), Problems: []string{}}
	pem, err := src.PublicKey(ctx)
	if err != nil {
		return s, receipt.PublicKey{}, err
	}
	key, err := receipt.ParsePublicKey(pem)
	if err != nil {
		return s, key, err
	}
	had, err := headOf(ctx, to, key)
	if err != nil {
		return s, key, err
	}
	l, err := src.Ledger(ctx, had.Size)
	if err != nil {
		return s, key, err
	}
	now, err := receipt.ParseHead([]byte(l.Head), key)
	if err != nil {
		return s, key, err
	}
	s.Receipts, s.Had = now.Size, had.Size
	s.count()
	switch {
	case had.Size > now.Size:
		return s, key, cell.Errorf(cell.Conflict, op, "receipts were lost here: restore the ledger from the copy, or copy to another place",
			"cannot copy receipts to %s: it has %d, the ledger has %d", to, had.Size, now.Size)
	case had.Size == 0 || had.Size == now.Size && had.Root == now.Root:
		return s, key, nil
	case had.Size == now.Size || !goesOn(l.Extends, now, had):
		return s, key, cell.Errorf(cell.Conflict, op, "compare both with pando receipt verify; copy to another place",
			"cannot copy receipts to %s: it has another history of %d receipts than the ledger", to, had.Size)
	}
	return s, key, nil
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

// headOf is the head of a copy; of one that there is not yet, a head of nothing.
func headOf(ctx context.Context, to Target, key receipt.PublicKey) (receipt.Head, error) {
	r, err := to.Get(ctx, headName)
	if errors.Is(err, fs.ErrNotExist) {
		return receipt.Head{}, nil
	}
	if err != nil {
		return receipt.Head{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return receipt.Head{}, fmt.Errorf("cannot read %s of %s: %w", headName, to, err)
	}
	h, err := receipt.ParseHead(text, key)
	if err != nil {
		return h, cell.Errorf(cell.Conflict, op, "copy to another place", "cannot copy receipts to %s: what is there is of another ledger, or its head was changed", to)
	}
	return h, nil
}

// Push copies all receipts that a copy does not have. Also when it fails the status says how far the copy is.
func Push(ctx context.Context, src Source, to Target) (Status, error) {
	s, key, err := Look(ctx, src, to)
	if err != nil || s.Behind == 0 {
		return s, err
	}
	if s.Had == 0 {
		if err := to.Replace(ctx, keyName, key.PEM()); err != nil {
			return s, err
		}
	}
	for from := s.Had; from < s.Receipts; from = s.Had + s.Copied {
		end := min(from+perBundle, s.Receipts)
		problems, err := copyBundle(ctx, src, to, key, from, end)
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
func copyBundle(ctx context.Context, src Source, to Target, key receipt.PublicKey, from, end int64) (problems []string, err error) {
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
	rep, err := verified(f, key)
	if err != nil {
		return nil, err
	}
	if rep.Head.Size != end { // broken off, or not of what was asked for
		return nil, cell.Errorf(cell.Unavailable, op, "try again", "cannot fetch receipts %d to %d: the daemon's answer is not whole", from, end-1)
	}
	for _, p := range rep.Problems {
		problems = append(problems, fmt.Sprintf("%s %s: %s", p.Reason, p.File, p.What))
	}
	name := bundleName(from, end)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return problems, err
	}
	err = to.Put(ctx, name, f)
	if errors.Is(err, fs.ErrExist) { // from a call that ended before it wrote the head
		err = same(ctx, to, name, rep.Head)
	}
	if err != nil {
		return problems, err
	}
	return problems, to.Replace(ctx, headName, rep.Head.Note)
}

func verified(f *os.File, key receipt.PublicKey) (*receipt.Report, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	rep, _, err := receipt.VerifyArchive(f, key, nil)
	return rep, err
}

// same refuses an object that is not the bundle with a head.
func same(ctx context.Context, to Target, name string, head receipt.Head) error {
	r, err := to.Get(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	if note, err := receipt.ArchiveHead(r); err != nil || note != string(head.Note) {
		return cell.Errorf(cell.Conflict, op, "remove it there, or copy to another place", "cannot copy receipts to %s: %s is there, and is something else", to, name)
	}
	return nil
}
