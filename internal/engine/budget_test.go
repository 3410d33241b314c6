package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// A budget of time pauses the command that has used it up, and what is forked of its cell can't start,
// until it is granted again. Undo needs no grant.
func TestBudgetPausesAndAsks(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.request("w", "echo 1 > f")
	req.Limits.Budget = "time=1h"
	b.do(req)
	id := b.id("w")
	if _, err := b.Fork(b.ctx, id, api.ForkRequest{Name: "child"}); err != nil {
		t.Fatal(err)
	}
	b.run("child", "echo 3 > f")
	goes := filepath.Join(t.TempDir(), "go")
	r, err := b.StartRun(b.ctx, b.request("w", "while [ ! -e "+goes+" ]; do sleep 0.01; done; echo 2 > f"))
	b.must(err)
	state := func() cell.State {
		c, err := b.reg.Cell(id)
		b.must(err)
		return c.State
	}
	testenv.Eventually(t, func() bool { return state() == cell.Running }, "the command")
	now := time.Now()
	for range 4000 { // each counts for two seconds at most
		if state() != cell.Running {
			break
		}
		now = now.Add(2 * time.Second)
		b.govern.TickBudgets(b.ctx, now)
	}
	testenv.Eventually(t, func() bool { return state() == cell.Paused }, "the pause")
	list := b.govern.Approvals(false)
	if len(list) != 1 || list[0].Run != r.ID || list[0].Want != "use 1h0m0s more, with its forks" {
		t.Fatalf("it asks %+v", list)
	}
	c, err := b.reg.Cell(id)
	b.must(err)
	if v := b.cellView(&c); v.Budget == nil || v.Budget.Reached != "time" || v.Budget.Approval != list[0].ID || len(v.Budget.Parts) != 1 || v.Budget.Parts[0].Used < time.Hour.Milliseconds() {
		t.Errorf("its view is %+v", v.Budget)
	}
	b.wantKind("a run in a fork", second(b.StartRun(b.ctx, b.request("child", "true"))), cell.Denied, "its budget of 1h0m0s is used up")
	b.wantKind("a fork", second(b.Fork(b.ctx, b.id("child"), api.ForkRequest{})), cell.Denied, "its budget of 1h0m0s is used up")
	b.wantKind("a resume", second(b.Resume(b.ctx, id)), cell.Denied, "its budget")
	b.must(second(b.All().Undo(b.ctx, b.id("child"), api.UndoRequest{})))
	b.must(second(b.govern.Answer(b.ctx, list[0].ID, true, "", func(cell.ID) bool { return true })))
	b.must(os.WriteFile(goes, nil, 0o644))
	b.must(second(b.runs.Wait(b.ctx, cell.RunID(r.ID))))
	b.has("w", "f: 2")
	b.run("child", "true")
}
