package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/op"
	"github.com/pando-dev/pando/internal/state"
)

// The kinds of operations in the journal.
const (
	opSeal   = "seal"
	opAccept = "accept"
	opRemove = "remove"
	opRevert = "revert"
	opBranch = "branch"
)

// sealArgs is an act with everything that it makes durable: its receipt, and
// the records that become true with it.
type sealArgs struct {
	Key       string         `json:"key"`
	Predicate endPredicate   `json:"predicate"`
	Records   []state.Record `json:"records"`
}

// seal writes the receipt of an act and the records that it changes. A crash
// between the two is made good by the next daemon: there is never an act
// without its receipt, nor a receipt of an act that did not happen. Runs among
// objects get the receipt's digest.
func (e *Engine) seal(ctx context.Context, key string, p endPredicate, objects ...any) (cell.Digest, error) {
	p.Pando, p.At = e.cfg.Version, time.Now().UTC()
	args := sealArgs{Key: key, Predicate: p}
	for _, o := range objects {
		switch v := o.(type) {
		case *state.Cell:
			args.Records = append(args.Records, state.Record{Cell: v})
		case *state.Checkpoint:
			args.Records = append(args.Records, state.Record{Checkpoint: v})
		case *state.Run:
			args.Records = append(args.Records, state.Record{Run: v})
			args.Predicate.Runs = append(args.Predicate.Runs, decidedRun{v.ID, first(v.Receipts), v.Verdict})
		default:
			return cell.Digest{}, fmt.Errorf("cannot seal a %T", o)
		}
	}
	if len(args.Predicate.Runs) == 1 {
		args.Predicate.Run = args.Predicate.Runs[0].Run
	}
	var d cell.Digest
	err := e.operate(ctx, opSeal, args, func(ctx context.Context) (err error) {
		d, err = e.doSeal(ctx, &args)
		return err
	})
	return d, err
}

func (e *Engine) doSeal(ctx context.Context, args *sealArgs) (cell.Digest, error) {
	d, err := e.endReceipt(ctx, args.Key, args.Predicate)
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
		case r.Run != nil:
			if r.Run.Receipt != d.String() {
				r.Run.Receipt = d.String()
				r.Run.Receipts = append(append([]string(nil), r.Run.Receipts...), d.String())
			}
			objects = append(objects, r.Run)
		}
	}
	return d, e.reg.Commit(objects...)
}

// operate does something that a restarted daemon must finish. do is
// idempotent and can be found again by kind and args (see resume).
func (e *Engine) operate(ctx context.Context, kind string, args any, do func(context.Context) error) error {
	var b [8]byte
	rand.Read(b[:])
	carryOut := func() error {
		return op.Run(ctx, e.reg, "o-"+hex.EncodeToString(b[:]), kind, args, op.Step{Name: kind, Do: do})
	}
	if kind == opRemove {
		return e.freeing(carryOut)
	}
	return carryOut()
}

// resume finishes an operation that an earlier daemon began.
func (e *Engine) resume(ctx context.Context, rec op.Record) error {
	var do func(context.Context) error
	switch rec.Kind {
	case opSeal:
		var args sealArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { _, err := e.doSeal(ctx, &args); return err }
	case opAccept:
		var args acceptArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { return e.resumeAccept(ctx, args) }
	case opRevert:
		var args revertArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { return e.resumeRevert(ctx, args) }
	case opRemove:
		var args removeArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { return e.resumeRemove(ctx, args) }
	case opBranch:
		var args branchArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { return e.resumeBranch(ctx, args) }
	case opBatch:
		var args batchArgs
		if err := json.Unmarshal(rec.Args, &args); err != nil {
			return err
		}
		do = func(ctx context.Context) error { return e.resumeBatch(ctx, args) }
	default:
		return fmt.Errorf("cannot resume an operation of kind %q", rec.Kind)
	}
	return op.Resume(ctx, e.reg, rec, op.Step{Name: rec.Kind, Do: do})
}

func unmarshal(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return cell.Errorf(cell.Corrupt, "engine", "", "cannot read a record: %w", err)
	}
	return nil
}
