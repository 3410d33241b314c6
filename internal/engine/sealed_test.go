package engine

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// TestF12RecordTriedAgain: a receipt is written, and then the record can't be;
// the next try to record the run says what its receipt says.
func TestF12RecordTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	run, err := b.reg.run(cell.RunID(r.ID))
	b.must(err)
	ended := run.Ended
	run.Ended, run.Error, run.Cause = time.Now().Add(time.Hour).UTC(), &api.Error{Kind: "internal", Message: "cannot do it"}, "interrupted"
	id, err := b.runReceipt(b.ctx, &run, nil)
	b.must(err)
	if id.String() != r.Receipt || !run.Ended.Equal(ended) || run.Error != nil || run.Cause != "" {
		t.Errorf("receipt %s, ended %v, error %v, cause %q; recorded was %s, %v", id, run.Ended, run.Error, run.Cause, r.Receipt, ended)
	}
	b.must(b.reg.commit(&run))
	b.verified()
}

// TestF12NamesThatAreNoUTF8: bytes that are no UTF-8 change once when a record is
// written. A receipt is no less true for them: neither in the daemon that made the
// run, nor in the next.
func TestF12NamesThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	run := Run{Run: api.Run{Command: []string{"printf", "\xff<"}, LeftOut: []api.LeftOut{{Path: "id\xfe_rsa"}}}}
	run.Error = &api.Error{Kind: "not-found", Message: "cannot find \xc3\x28"}
	p := runPredicate{Command: run.Command, Error: run.Error}
	p.Source.LeftOut = run.LeftOut
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var read runPredicate
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	for _, name := range unsealed(&run, &read) {
		if name == "command" || name == "left_out" || name == "error" {
			t.Errorf("the record's %s is not what the receipt says", name)
		}
	}
	read.Command[1] += "x"
	if !slices.Contains(unsealed(&run, &read), "command") {
		t.Error("another command is not noticed")
	}
}
