package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// act is what the receipt of a later verdict says.
type act state.Act

func decided(run *state.Run) state.Decided {
	d := state.Decided{Run: run.ID, Verdict: run.Verdict}
	if len(run.Receipts) > 0 {
		d.Receipt = run.Receipts[0]
	}
	return d
}

// The kinds of operations in the journal that Resume finishes.
const (
	OpSeal  = "seal"
	OpBatch = "batch" // a receipt that is owed: the records that it is about were made durable with it
)

// sealArgs is an act with everything that it makes durable: its receipt, and
// the records that become true with it.
type sealArgs struct {
	Key       string         `json:"key"`
	Predicate state.Act      `json:"predicate"`
	Records   []state.Record `json:"records"`
}

// Seal writes the receipt of an act and the records that it changes. A crash
// between the two is made good by the next daemon: there is never an act
// without its receipt, nor a receipt of an act that did not happen. Runs among
// objects get the receipt's digest.
func (m *Manager) Seal(ctx context.Context, key string, act state.Act, objects ...any) (cell.Digest, error) {
	act.Pando, act.At = m.cfg.Version, cmp.Or(act.At, time.Now().UTC())
	args := sealArgs{Key: key, Predicate: act}
	for _, o := range m.cfg.Records.WithLeases(objects) { // a later daemon does not know the cells' maker
		switch v := o.(type) {
		case *state.Cell:
			args.Records = append(args.Records, state.Record{Cell: v})
		case *state.Checkpoint:
			args.Records = append(args.Records, state.Record{Checkpoint: v})
		case *state.Lease:
			args.Records = append(args.Records, state.Record{Lease: v})
		case *state.CellCaches:
			args.Records = append(args.Records, state.Record{CellCaches: v})
		case *state.Retained:
			args.Records = append(args.Records, state.Record{Retained: v})
		case *state.Run:
			args.Records = append(args.Records, state.Record{Run: v})
			args.Predicate.Runs = append(args.Predicate.Runs, decided(v))
		default:
			return cell.Digest{}, fmt.Errorf("cannot seal a %T", o)
		}
	}
	if len(args.Predicate.Runs) == 1 {
		args.Predicate.Run = args.Predicate.Runs[0].Run
	}
	args.Predicate.Parents = m.actParents(&args.Predicate)
	var d cell.Digest
	err := operation.Do(ctx, m.cfg.Records, operation.NewID(), OpSeal, args, func(ctx context.Context) (err error) {
		d, err = m.seal(ctx, args)
		return err
	})
	return d, err
}

func (m *Manager) seal(ctx context.Context, args sealArgs) (cell.Digest, error) {
	d, err := m.actReceipt(ctx, args.Key, args.Predicate)
	if err != nil {
		return d, err
	}
	var objects []any
	for _, r := range args.Records {
		switch {
		case r.Cell != nil:
			objects = append(objects, r.Cell)
		case r.Checkpoint != nil:
			objects = append(objects, r.Checkpoint)
		case r.Lease != nil:
			objects = append(objects, r.Lease)
		case r.CellCaches != nil:
			objects = append(objects, r.CellCaches)
		case r.Retained != nil:
			r.Retained.AddReceipt(d)
			objects = append(objects, r.Retained)
		case r.Run != nil:
			r.Run.AddReceipt(d)
			objects = append(objects, r.Run)
		}
	}
	return d, m.cfg.Records.Commit(objects...)
}

// SealRemoved writes the receipt of a result that goes with its cell, once, and has the run name
// it. The caller commits the run with the removal.
func (m *Manager) SealRemoved(ctx context.Context, run *state.Run, cellName string) error {
	d, err := m.actReceipt(ctx, run.ID+"/removed", state.Act{
		Act: "discard", Run: run.ID, Runs: []state.Decided{decided(run)}, Cell: run.Cell, CellName: cellName, Verdict: &state.Verdict{Verdict: run.Verdict, Reason: run.Reason, By: run.By},
		From: run.After, Backend: run.Backend, Downgrades: run.Downgrades, Pando: m.cfg.Version, At: time.Now().UTC(),
	})
	if err == nil {
		run.AddReceipt(d)
	}
	return err
}

// actReceipt writes the receipt of an act, once per key.
func (m *Manager) actReceipt(ctx context.Context, key string, p state.Act) (cell.Digest, error) {
	p.Isolation = api.IsolationOf(p.Backend)
	subject := receipt.Subject{Name: "cell " + p.Cell, Digest: cell.Sum([]byte(p.Cell))}
	if p.To != nil && p.To.TreeDigest != "" {
		subject = receipt.Subject{Name: "workspace", Digest: digest(p.To.TreeDigest)}
	} else if p.From != nil && p.From.TreeDigest != "" {
		subject = receipt.Subject{Name: "workspace", Digest: digest(p.From.TreeDigest)}
	}
	return m.once(ctx, receipt.Request{Key: key, Type: receipt.PredicateVerdict, Subjects: []receipt.Subject{subject}, Predicate: p})
}

// Told is what the receipt of an act or of a batch says.
type Told struct {
	Act   *state.Act // nil for a batch
	Batch *Batch     // nil for an act

	key string
}

// ToldBy reads what an operation seals; ok is false for one that seals nothing.
func ToldBy(rec *operation.Redo) (t Told, ok bool) {
	switch rec.Kind {
	case OpSeal:
		var a sealArgs
		if json.Unmarshal(rec.Args, &a) != nil {
			return t, false
		}
		return Told{Act: &a.Predicate, key: a.Key}, true
	case OpBatch:
		var a batchArgs
		if json.Unmarshal(rec.Args, &a) != nil {
			return t, false
		}
		return Told{Batch: &a.Predicate, key: a.Key}, true
	}
	return t, false
}

// ReceiptOf is the digest of the receipt that says it; "" while it is not written.
func (m *Manager) ReceiptOf(t Told) string {
	entry, err := m.cfg.Ledger.Lookup(t.key)
	if err != nil {
		return ""
	}
	return entry.ID.String()
}

// Resume finishes an operation of one of the kinds above that an earlier daemon began.
func (m *Manager) Resume(ctx context.Context, rec operation.Redo) error {
	switch rec.Kind {
	case OpSeal:
		return operation.DoAgain(ctx, m.cfg.Records, rec, func(ctx context.Context, args sealArgs) error {
			_, err := m.seal(ctx, args)
			return err
		})
	case OpBatch:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeBatch)
	}
	return fmt.Errorf("cannot resume an operation of kind %q", rec.Kind)
}
