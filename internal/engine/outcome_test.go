package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// gist is what of an answer is in records, as text.
func gist(answer any) string {
	ids := func(cells []api.Cell) (s string) {
		for _, c := range cells {
			s += " " + c.ID + " " + c.Name
		}
		return s
	}
	runs := func(list []api.Run) (s string) {
		for _, r := range list {
			s += " " + r.ID
		}
		return s
	}
	switch a := answer.(type) {
	case api.Cell:
		return ids([]api.Cell{a})
	case api.Run:
		return a.ID + " " + a.Cell
	case api.Template:
		return a.Name + " " + a.Cell + " " + a.Digest + " " + a.Receipt
	case api.ForkResult:
		return ids(a.Cells) + a.Receipt
	case api.WarmForkResult:
		var cells []api.Cell
		for _, f := range a.Forks {
			cells = append(cells, f.Cell)
		}
		return a.Template + ids(cells) + a.Took + a.Dropped + a.Receipt
	case api.BranchResult:
		return fmt.Sprint(a.Source, ids(a.Cells), a.Checkpoint, a.Took, a.Depth, a.PauseMS, a.Receipt)
	case api.AcceptResult:
		return fmt.Sprint(a.Cell, a.CellName, a.Isolation, a.Source, runs(a.Runs), a.Digest, a.Applied, a.Held, a.Head, a.Receipt)
	case api.RevertResult:
		return fmt.Sprint(ids([]api.Cell{a.Cell}), a.CellName, a.Source, runs(a.Runs), a.Reverted, a.Already, a.Receipt)
	case api.RestoreResult:
		return fmt.Sprint(ids([]api.Cell{a.Cell}), a.Number, a.Lost, a.Reverted, a.Proof, a.TreeDigest, a.Receipt, a.Reopened)
	case api.DiscardResult:
		return fmt.Sprint(ids([]api.Cell{a.Cell}), a.CellName, runs(a.Runs), a.Number, a.Kept, a.Receipt)
	}
	return fmt.Sprintf("%T", answer)
}

// A request that lost its daemon after its work, and before its answer, has the same answer of the
// next daemon; one that was not done is told so. Each kind of work leaves what tells it.
func TestOutcomesAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	var want []any
	act := func(do func(ctx context.Context, v *View) (any, error)) {
		t.Helper()
		ctx := operation.WithRequest(b.ctx, fmt.Sprintf("o-%d", len(want)))
		out, err := do(ctx, b.All())
		b.must(err)
		want = append(want, out)
	}
	target := func(name string) result.Target { return result.Target{Cell: b.id(name)} }
	act(func(ctx context.Context, v *View) (any, error) { return v.Create(ctx, api.CreateRequest{Name: "new"}) })
	act(func(ctx context.Context, v *View) (any, error) {
		r, err := v.StartRun(ctx, b.request("web", "echo 1 > f"))
		b.must(err)
		b.runs.Wait(b.ctx, cell.RunID(r.ID))
		return r, err
	})
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Accept(ctx, target("web"), api.AcceptRequest{Apply: true})
	})
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Revert(ctx, target("web"), api.RevertRequest{})
	})
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Fork(ctx, b.id("web"), api.ForkRequest{Count: 2})
	})
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Discard(ctx, target("web"), api.DiscardRequest{Lose: true})
	})
	kept := b.run("kept", "echo 1 > f")
	b.must(second(b.All().Discard(b.ctx, target("kept"), api.DiscardRequest{})))
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Discard(ctx, result.Target{Run: cell.RunID(kept.ID)}, api.DiscardRequest{Lose: true})
	})
	b.run("web", "echo 2 > f")
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Restore(ctx, b.id("web"), api.RestoreRequest{Number: 1, Lose: true})
	})
	b.run("web", "echo 3 > f")
	b.must(second(b.All().Accept(b.ctx, target("web"), api.AcceptRequest{Apply: true})))
	act(func(ctx context.Context, v *View) (any, error) { return v.Undo(ctx, b.id("web"), api.UndoRequest{}) })
	act(func(ctx context.Context, v *View) (any, error) {
		return v.BuildTemplate(ctx, api.TemplateRequest{Name: "py", From: b.src, Warm: "python", CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}}, nil)
	})
	act(func(ctx context.Context, v *View) (any, error) {
		return v.ForkTemplate(ctx, "py", api.WarmForkRequest{Count: 3}, nil)
	})
	b.run("live", "echo 1 > f")
	b.eval("live", "x = 41")
	act(func(ctx context.Context, v *View) (any, error) {
		return v.Branch(ctx, b.id("live"), api.BranchRequest{Count: 2})
	})
	b.reopen()
	for i, answer := range want {
		got, err := b.All().Outcome(fmt.Sprintf("o-%d", i), answer)
		if err != nil || gist(got) != gist(answer) {
			t.Errorf("%T:\n%s, %v, it was\n%s", answer, gist(got), err, gist(answer))
		}
		_, err = b.All().Outcome("o-other", answer)
		b.wantKind(fmt.Sprintf("%T that was not begun", answer), err, cell.Unavailable, "not done")
	}
	b.SettleAllBut([]string{"o-0"})
	b.SettleRequest("o-1")
	for i, answer := range want {
		if _, err := b.All().Outcome(fmt.Sprintf("o-%d", i), answer); (err == nil) != (i == 0) {
			t.Errorf("%T of a request that has ended: %v", answer, err)
		}
	}
}

// Work that was begun and can't be finished is told with its reason; what was done on the way to
// something else is not that.
func TestUnfinishedOutcomes(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	ctx := operation.WithRequest(b.ctx, "o-1")
	b.must(second(b.All().Accept(b.ctx, result.Target{Cell: b.id("w")}, api.AcceptRequest{Apply: true})))
	b.must(second(b.All().Revert(ctx, result.Target{Cell: b.id("w")}, api.RevertRequest{}))) // as an undo does first
	_, err = b.All().Outcome("o-1", api.RestoreResult{})
	b.wantKind("an undo that has taken back what was applied", err, cell.Unavailable, "not finished")
	b.write("f", "mine")
	b.interruptedOf("o-2", result.OpAccept, acceptOf(&run, api.AcceptRequest{Apply: true}))
	_, err = b.All().Outcome("o-2", api.AcceptResult{})
	b.wantKind("an accept that can't be finished", err, cell.Unavailable, "could not be finished", "f")
	b.write("f", "0")
	b.interruptedOf("o-3", result.OpAccept, acceptOf(&run, api.AcceptRequest{Apply: true}))
	out, err := b.All().Outcome("o-3", api.AcceptResult{})
	if a, ok := out.(api.AcceptResult); err != nil || !ok || len(a.Applied) != 1 || a.Receipt == "" || b.source("f") != "1\n" {
		t.Errorf("an accept that the next daemon finished: %+v, %v; the source has %q", out, err, b.source("f"))
	}
}

// Forks that the next daemon makes of the journal are their maker's.
func TestForksOfTheNextDaemonHaveTheirMaker(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	v := b.All().As(access.Principal{Name: "bot", Token: "t-1", Level: access.Run})
	res, err := v.Fork(operation.WithRequest(b.ctx, "o-1"), b.id("w"), api.ForkRequest{})
	b.must(err)
	sealed := b.reg.Outcomes("o-1")
	if len(sealed) != 1 {
		t.Fatalf("%+v", sealed)
	}
	id := cell.ID(res.Cells[0].ID)
	first, err := b.reg.Numbered(id, 1)
	b.must(err)
	b.must(b.reg.Commit(state.Forget(first.ID), state.Forget(id))) // as if it had not come to that
	b.interruptedOf("o-1", sealed[0].Kind, sealed[0].Args)
	if !b.All().As(access.Principal{Name: "bot", Token: "t-1", Level: access.Run}).Own(id) {
		t.Errorf("%+v", b.reg.Lease(id))
	}
	if out, err := b.All().Outcome("o-1", api.ForkResult{}); err != nil || !strings.Contains(gist(out), string(id)) {
		t.Errorf("%+v, %v", out, err)
	}
}

// What an earlier daemon made is told as far as the caller still sees it: what was given to another
// team, or has the name of something else by now, is not.
func TestOutcomesAreTheCallers(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	a := b.caller("t-a", team("a"))
	of := func(request string) context.Context { return operation.WithRequest(b.ctx, request) }
	made, err := a.Create(of("o-cell"), api.CreateRequest{Name: "made", From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.must(err)
	b.makes(a, "ran")
	r, err := a.StartRun(of("o-run"), b.request("ran", "echo 1 > f"))
	b.must(err)
	b.runs.Wait(b.ctx, cell.RunID(r.ID))
	forked, err := a.Fork(of("o-fork"), b.id("ran"), api.ForkRequest{})
	b.must(err)
	discarded, err := a.Discard(of("o-discard"), result.Target{Cell: b.id("ran")}, api.DiscardRequest{})
	if b.must(err); len(discarded.Runs) != 1 {
		t.Fatalf("%+v", discarded)
	}
	_, err = a.BuildTemplate(of("o-template"), b.spec("py", "x = 1"), nil)
	b.must(err)
	_, err = a.RemoveTemplate(b.ctx, "py", api.TemplateRemoval{})
	b.must(err)
	_, err = b.caller("t-b", team("b")).BuildTemplate(b.ctx, b.spec("py", "x = 2"), nil)
	b.must(err)
	for _, id := range []string{made.ID, string(b.id("ran")), forked.Cells[0].ID} {
		_, err := b.Lease(b.ctx, cell.ID(id), api.LeaseRequest{Labels: map[string]string{"team": "b"}})
		b.must(err)
	}
	b.reopen()
	a = b.caller("t-a", team("a"))
	for request, route := range map[string]any{"o-run": api.Run{}, "o-template": api.Template{}} {
		out, err := a.Outcome(request, route)
		b.wantKind(request, err, cell.NotFound, "what it made")
		if out != nil {
			t.Errorf("%s: %+v", request, out)
		}
	}
	out, err := a.Outcome("o-cell", api.Cell{})
	if c, ok := out.(api.Cell); err != nil || !ok || c.ID != made.ID || c.Name != made.ID || len(c.Labels) > 0 || c.State != string(cell.Removed) {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = a.Outcome("o-fork", api.ForkResult{})
	if f, ok := out.(api.ForkResult); err != nil || !ok || len(f.Cells) != 1 || f.Cells[0].ID != forked.Cells[0].ID || len(f.Cells[0].Labels) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = a.Outcome("o-discard", api.DiscardResult{})
	if d, ok := out.(api.DiscardResult); err != nil || !ok || len(d.Runs) != 0 || d.Cell.Runs > 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

// Forks that were removed again because their caller had gone are no answer for the next daemon; those
// that a repetition makes under the same request are.
func TestForksTakenBackAreNoOutcome(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")
	ctx, hangUp := context.WithCancel(operation.WithRequest(b.ctx, "o-1"))
	_, err := b.ForkTemplate(ctx, "warm", api.WarmForkRequest{Count: 2, Eval: "x"}, func(l api.StreamLine) {
		if l.Fork != nil {
			hangUp()
		}
	})
	if err == nil {
		t.Fatal("it was made for a caller that has gone")
	}
	b.reopen() // before the request had its end
	_, err = b.All().Outcome("o-1", api.WarmForkResult{})
	b.wantKind("forks that were removed again", err, cell.Unavailable, "removed again")
	res, err := b.ForkTemplate(operation.WithRequest(b.ctx, "o-1"), "warm", api.WarmForkRequest{Count: 2}, nil)
	b.must(err)
	b.reopen()
	if out, err := b.All().Outcome("o-1", api.WarmForkResult{}); err != nil || gist(out) != gist(res) {
		t.Errorf("%s, %v, it was\n%s", gist(out), err, gist(res))
	}
}
