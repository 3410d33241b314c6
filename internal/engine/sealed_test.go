package engine

import (
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
