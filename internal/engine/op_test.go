package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
)

// interrupted leaves an operation in the journal as a daemon does that dies
// under it, and starts the next daemon.
func (b *bed) interrupted(kind string, args any) {
	b.Helper()
	b.interruptedOf("", kind, args)
}

// interruptedOf is interrupted for work of a request.
func (b *bed) interruptedOf(request, kind string, args any) {
	b.Helper()
	raw, err := json.Marshal(args)
	b.must(err)
	b.must(b.reg.Write(operation.Redo{ID: "o-0000000000000001", Kind: kind, Args: raw, Phase: operation.Doing, Request: request}))
	b.reopen()
	if open := b.reg.OpenOps(); len(open) > 0 {
		b.Errorf("operations are open still: %+v", open)
	}
}

// acceptOf is what the journal has of an accept of a run that is to change f.
func acceptOf(run *state.Run, req api.AcceptRequest) any {
	return map[string]any{"id": "a-1", "cell": run.CellID(), "at": run.In.After, "covers": []cell.RunID{run.RunID()}, "planned": []string{"f"}, "request": req}
}

func TestF19InterruptedAcceptIsCompleted(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	b.interrupted(result.OpAccept, acceptOf(&run, api.AcceptRequest{Apply: true, Reason: "good"}))
	now, err := b.Engine.Run(cell.RunID(r.ID))
	if err != nil || now.Verdict != string(cell.Accepted) || now.Reason != "good" || b.source("f") != "1\n" {
		t.Errorf("%+v, %v; the source has %q", now, err, b.source("f"))
	}
	receipts, err := b.All().Receipts(0)
	b.must(err)
	// Once more: it has happened.
	b.interrupted(result.OpAccept, acceptOf(&run, api.AcceptRequest{Apply: true, Reason: "good"}))
	if again, err := b.All().Receipts(0); err != nil || len(again) != len(receipts) {
		t.Errorf("%d receipts, there were %d (%v)", len(again), len(receipts), err)
	}
	b.verified()
}

// An interrupted accept that has become impossible is taken back: the run
// waits, the source is as its owner made it.
func TestF19InterruptedAcceptIsTakenBack(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	b.write("f", "mine")
	b.interrupted(result.OpAccept, acceptOf(&run, api.AcceptRequest{Apply: true}))
	now, err := b.Engine.Run(cell.RunID(r.ID))
	if err != nil || now.Verdict != string(cell.Pending) || b.source("f") != "mine" {
		t.Errorf("%+v, %v; the source has %q", now, err, b.source("f"))
	}
	b.verified()
}

func TestF19InterruptedRemoveIsCompleted(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	id := b.id("w")
	b.interrupted(opRemove, removeArgs{Cell: id})
	if c, err := b.reg.Cell(id); err != nil || c.State != cell.Removed {
		t.Errorf("%+v, %v", c, err)
	}
	b.interrupted(opRemove, removeArgs{Cell: "c-00000000000000ff"}) // never was
}

// What an operation can't do leaves everything as it was, and nothing open.
func TestFailedAcceptChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	r := b.run("w", "echo 1 > f; echo 1 > g")
	b.write("f", "mine")
	receipts, err := b.All().Receipts(0)
	b.must(err)
	_, err = b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{Apply: true})
	b.wantKind("a source that changed meanwhile", err, cell.Conflict, "f")
	if !strings.Contains(cell.HintOf(err), "patch") {
		t.Errorf("nothing says where the changes are: %q", cell.HintOf(err))
	}
	now, _ := b.Engine.Run(cell.RunID(r.ID))
	again, _ := b.All().Receipts(0)
	if now.Verdict != string(cell.Pending) || now.Applied != 0 || len(again) != len(receipts) || len(b.reg.OpenOps()) > 0 || b.source("f") != "mine" || b.source("g") != "0" {
		t.Errorf("%+v; receipts %d, were %d; open %+v; the source has %q %q", now, len(again), len(receipts), b.reg.OpenOps(), b.source("f"), b.source("g"))
	}
	b.write("f", "0")
	if _, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{Apply: true}); err != nil || b.source("f") != "1\n" {
		t.Errorf("afterwards: %v; the source has %q", err, b.source("f"))
	}
}

// A receipt that can't be written makes the act fail, and the act has not
// happened: not now, and not after a restart.
func TestF11SealingFailuresAreErrors(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	id := b.id("w")
	b.must(b.ledger.Close())
	for what, err := range map[string]error{
		"accept":  second(b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{})),
		"discard": second(b.results.Discard(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.DiscardRequest{})),
		"fork":    second(b.Fork(b.ctx, id, api.ForkRequest{Name: "child"})),
		"restore": second(b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 1, Lose: true})),
	} {
		if err == nil {
			t.Errorf("%s works without a receipt", what)
		}
	}
	b.must(b.Engine.Close())
	b.must(b.objects.Close())
	b.open()
	now, err := b.Engine.Run(cell.RunID(r.ID))
	if err != nil || now.Verdict != string(cell.Pending) || now.Receipt != r.Receipt {
		t.Errorf("%+v, %v", now, err)
	}
	if _, there := b.findCell("child"); there {
		t.Error("there is a child")
	}
	b.has("w", "f: 1")
	b.verified()
}

func second[T any](_ T, err error) error { return err }

// A run with an end that can't be recorded is no run that succeeded, and is finished
// as soon as it can be.
func TestRunThatCannotBeDigested(t *testing.T) {
	t.Parallel()
	broken := &brokenStore{}
	b := newBedWith(t, func(s store.Store) store.Store { broken.Store = s; return broken }, "f: 0")
	b.run("w", "echo 1 > f")
	broken.why = errors.New("the disk is broken")
	r := b.do(b.request("w", "echo 2 > f"))
	if r.Verdict == string(cell.Accepted) || r.Error == nil || !strings.Contains(r.Error.Message, "the disk is broken") {
		t.Errorf("%+v", r)
	}
	_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{})
	if err == nil {
		t.Error("it can be accepted")
	}
	if c, err := b.reg.Cell(b.id("w")); err != nil || c.State != cell.Failed || !strings.Contains(c.Cause, "the disk is broken") {
		t.Errorf("its cell: %s %q, %v", c.State, c.Cause, err)
	}
	broken.why = nil
	if _, err := b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 2, Lose: true}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "f: 1")
	if r := b.run("w", "cat f"); *r.ExitCode != 0 {
		t.Errorf("afterwards: %+v", r)
	}
}

type brokenStore struct {
	store.Store
	why error
}

func (s *brokenStore) Put(d cell.Digest, b []byte) error {
	if s.why != nil {
		return s.why
	}
	return s.Store.Put(d, b)
}
