package engine

import (
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// Nothing of what is on hold is removed or erased, by a caller or by the policy; what is not goes when the policy says.
func TestHolds(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("web", "echo 1 > f")
	id := b.id("web")
	all := b.All()
	_, err := all.Hold(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.HoldRequest{Reason: "case"})
	b.must(err)
	_, err = all.Erase(b.ctx, cell.RunID(r.ID), api.EraseRequest{What: []string{"events"}, Reason: "x"})
	b.wantKind("erase", err, cell.Conflict, "on hold")
	_, err = b.Remove(b.ctx, id, false)
	b.wantKind("remove", err, cell.Conflict, "on hold")
	b.wantKind("remove, once it waits no more", b.remove(b.ctx, id), cell.Conflict, "on hold")
	b.wantKind("remove a checkpoint", b.RemoveCheckpoint(b.ctx, id, 1), cell.Conflict, "on hold")
	_, err = all.Discard(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.DiscardRequest{}, nil)
	b.must(err)
	_, err = all.Discard(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.DiscardRequest{Lose: true}, nil)
	b.wantKind("give it up", err, cell.Conflict, "on hold")
	c, err := b.reg.Cell(id)
	b.must(err)
	c.Expires = time.Now().Add(-time.Hour)
	b.must(b.reg.Commit(&c))
	b.must(os.WriteFile(b.cfg.Home.Policy, []byte("version: 1\nkeep:\n  events: 1s\n"), 0o600))
	later := time.Now().Add(time.Hour)
	expired := func() int {
		items, err := b.expireEvidence(b.ctx, false, later)
		b.must(err)
		return len(items)
	}
	if n := expired(); n > 0 {
		t.Errorf("%d runs on hold were erased", n)
	}
	res, err := b.gc.Collect(b.ctx, true)
	b.must(err)
	for _, i := range res.Items {
		if i.What == "cell" || i.What == "checkpoint" || i.What == "evidence" {
			t.Errorf("gc would take %+v", i)
		}
	}
	if v := all.As(access.Principal{Name: "ci", Token: "t-1", Level: access.Run}); len(v.Holds()) != 1 {
		t.Errorf("holds: %+v", v.Holds())
	}
	_, err = all.Hold(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.HoldRequest{Release: true})
	b.wantKind("release without a reason", err, cell.Invalid, "reason")
	_, err = all.Hold(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.HoldRequest{Release: true, Reason: "closed"})
	b.must(err)
	if n := expired(); n != 1 {
		t.Errorf("%d runs were erased", n)
	}
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	if len(run.Erased) != 1 || run.Erased[0].By != "pando" || len(run.Acts) != 3 {
		t.Errorf("erased %+v, receipts %v", run.Erased, run.Acts)
	}
	if n := expired(); n > 0 {
		t.Errorf("%d runs were erased again", n)
	}
	_, err = b.Remove(b.ctx, id, false)
	b.must(err)
}
