package evidence

import (
	"encoding/json"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
)

// A receipt and what it makes true are one: whether the daemon died before the
// receipt, or between it and the records, both are there afterwards, once.
func TestF04InterruptedSealIsCompleted(t *testing.T) {
	t.Parallel()
	for _, receipted := range []bool{false, true} {
		b := newBed(t)
		run := b.run()
		was := run.Receipt
		run.Verdict, run.By = cell.Accepted, "user"
		args := sealArgs{Key: run.ID + "/accepted/1", Predicate: state.Act{Act: "accept", Run: run.ID, Cell: run.Cell, Runs: []state.Decided{decided(&run)}, Verdict: &state.Verdict{Verdict: run.Verdict, By: run.By}}, Records: []state.Record{{Run: &run}}}
		if receipted {
			_, err := b.actReceipt(b.ctx, args.Key, args.Predicate)
			b.must(err)
		}
		raw, err := json.Marshal(args)
		b.must(err)
		b.interrupted(operation.Redo{ID: operation.NewID(), Kind: OpSeal, Args: raw, Phase: operation.Doing})
		now, err := b.reg.Run(run.RunID())
		if err != nil || now.Verdict != cell.Accepted || b.ledger.Len() != 2 || now.Receipt == was || len(now.Receipts) != 2 {
			t.Errorf("receipted %v: %d receipts; run %+v, %v", receipted, b.ledger.Len(), now, err)
		}
		b.verified()
	}
}

// An act has one receipt, which each run that it decides names.
func TestSealNamesItsRuns(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.run()
	c, err := b.reg.Cell(r.CellID())
	b.must(err)
	b.must(r.Decide(cell.Discarded, "not good", "user"))
	d, err := b.Seal(b.ctx, "discard/1", state.ActOn(&c, "discard", cell.Discarded, "not good"), &c, &r)
	b.must(err)
	now, err := b.reg.Run(r.RunID())
	if err != nil || now.Receipt != d.String() || len(now.Receipts) != 2 || now.Verdict != cell.Discarded || !b.Sealed("discard/1") || b.Sealed("discard/2") {
		t.Errorf("%+v, %v", now, err)
	}
	shown, err := b.Receipt(b.all(), d.String(), "")
	if err != nil || shown.Run != r.ID || shown.Verdict != string(cell.Discarded) || shown.Cell != "w" {
		t.Errorf("%+v, %v", shown, err)
	}
	if len(b.reg.OpenOps()) > 0 {
		t.Error("the operation is open")
	}
	if _, err := b.Seal(b.ctx, "discard/3", state.Act{}, &state.Template{}); err == nil {
		t.Error("a template is sealed")
	}
	b.verified()
}

// The receipt of a batch is owed from the moment at which its cells are recorded: the next daemon
// writes it, and the template names it.
func TestOwedReceiptIsWritten(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell()
	p := state.Batch{Act: state.BatchBuild}
	p.Template, p.Interpreter = "py", "3.12"
	p.Cells = []state.BatchCell{{Cell: string(c.ID), Name: "w", Certificate: &cell.Certificate{}}}
	i := state.Interp{Cell: c.ID, Version: "3.12", Template: "py", Batch: "batch/1"}
	_, err := b.CommitBatch(b.ctx, "batch/1", &c, p, &state.Template{Name: "py", Cell: c.ID}, &i) // what writes it is never called
	b.must(err)
	if b.ledger.Len() != 0 {
		t.Fatal("the receipt is written before the cells are used")
	}
	b.verified() // what is owed is not missing
	b.close()
	b.open()
	for _, o := range b.reg.OpenOps() {
		b.must(b.Resume(b.ctx, o))
	}
	tm, err := b.reg.Template("py")
	b.must(err)
	if b.ledger.Len() != 1 || tm.Receipt == "" || len(b.reg.OpenOps()) > 0 || b.Certificate(&c) == nil {
		t.Errorf("%d receipts, the template names %q", b.ledger.Len(), tm.Receipt)
	}
	b.verified()
	i.Version = "3.13"
	b.must(b.reg.Commit(&i))
	if v, err := b.Verify(b.all(), "all", ""); err != nil || v.OK {
		t.Errorf("another interpreter in the record: %+v, %v", v, err)
	}
}

// A caller sees the receipts of its cells, and no others.
func TestReaderSeesItsReceipts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	mine, other := b.run(), b.run()
	r := b.all()
	r.Sees = func(id cell.ID) bool { return id == mine.CellID() }
	list, err := b.Receipts(r, 0)
	if err != nil || len(list) != 1 || list[0].Run != mine.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := b.Receipts(b.all(), 1); err != nil || len(list) != 1 || list[0].Run != other.ID {
		t.Errorf("the newest: %+v, %v", list, err)
	}
	if one, err := b.Receipt(r, mine.Receipt, ""); err != nil || one.Run != mine.ID {
		t.Errorf("%+v, %v", one, err)
	}
	r.SelectRun = func(string, string) (cell.RunID, error) { return "", state.NoRun("r-0") }
	_, err = b.Receipt(r, other.Receipt, "")
	b.wantKind("another's", err, cell.NotFound, "no receipt, run or cell")
}
