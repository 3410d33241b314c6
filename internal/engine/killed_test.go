package engine

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// ahead are the cells that were made ahead: they live, and are in no record.
func (b *bed) ahead() (ids []cell.ID) {
	b.Helper()
	b.toys.mu.Lock()
	defer b.toys.mu.Unlock()
	for id := range b.toys.cells {
		if _, err := b.reg.Cell(id); err != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// die ends the daemon as kill -9 does: nothing that it began comes to an end, and what it had made
// ahead stays. What waits in an act goes on when that is over, and finds nothing of its daemon.
func (b *bed) die() {
	b.Helper()
	b.end(live.ErrClosing)
	b.watching.Wait()
	b.work.Wait()
	for _, i := range b.alive.Instances() {
		i.Close()
	}
	b.must(b.reg.Close())
	b.must(b.ledger.Close())
	b.must(b.objects.Close())
	b.toys.mu.Lock()
	defer b.toys.mu.Unlock()
	clear(b.toys.held)
}

// dieIn has the daemon die in an act that do comes to. at is called before it does. What it
// returns waits until do has ended.
func (b *bed) dieIn(act string, at func(), do func() error) (ended func()) {
	b.Helper()
	x := b.toys.hold(act)
	err := make(chan error, 1)
	go func() { err <- do() }()
	testenv.Receive(b.TB, x.begun, act)
	at()
	b.die()
	return func() {
		close(x.over)
		if err, _ := testenv.Receive(b.TB, err, "the end of "+act); err == nil {
			b.Errorf("%s came to an end without its daemon", act)
		}
	}
}

func (b *bed) gone(ahead []cell.ID) {
	b.Helper()
	if len(ahead) == 0 {
		b.Error("no fork waited in the pool")
	}
	for _, id := range ahead {
		if b.toys.toy(id) != nil {
			b.Errorf("fork %s, made ahead, lives on", id)
		}
	}
}

// A daemon dies when the new template is published and the old one's cell not
// yet removed.
func TestF19TemplateReplacedByADeadDaemon(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 1")
	b.filled()
	ahead := b.ahead()
	ended := b.dieIn("remove", func() {}, func() error { // of what was made ahead of the old one
		_, err := b.BuildTemplate(b.ctx, b.spec("warm", "x = 41"), nil)
		return err
	})
	b.open()
	defer ended()
	if next, err := b.reg.Template("warm"); err != nil || string(next.Cell) == tm.Cell {
		t.Fatalf("the new one was not published: %+v, %v", next, err)
	}
	b.until("the old one is gone", func() bool { return b.toys.toy(cell.ID(tm.Cell)) == nil })
	b.gone(ahead)
	b.ready("warm", minPooled)
	if r := b.fork("warm", api.WarmForkRequest{Eval: "x + 1", Remove: true}); repr(r.Forks[0].Result) != "42" {
		t.Errorf("%+v", r)
	}
	b.ready("warm", minPooled)
	b.nothingLeft("after the restart")
}

// A daemon dies in the middle of removing a template: its cell goes, and what
// was made ahead in its keeper.
func TestF19TemplateRemovedByADeadDaemon(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		b := newBed(t, "f: 0")
		tm := b.template("warm", "x = 1")
		b.filled()
		ahead := b.ahead()
		objects := []any{state.Forget(state.ForgetTemplate + "warm")}
		if removed {
			c, err := b.reg.Cell(cell.ID(tm.Cell))
			b.must(err)
			c.State = cell.Removed
			objects = append(objects, &c)
		}
		b.must(b.reg.Commit(objects...))
		b.die()
		b.open()
		b.until("its cell is gone", func() bool { return b.toys.toy(cell.ID(tm.Cell)) == nil })
		b.gone(ahead)
		b.nothingLeft("after the restart")
	}
}

// A daemon dies in the middle of removing a branch. The next one removes it, and
// forgets it: its keeper must not be left with a cell that no record names.
func TestF19BranchRemovedByADeadDaemon(t *testing.T) {
	t.Parallel()
	for _, forgotten := range []bool{false, true} {
		b := newBed(t, "f: 0")
		b.run("web", "true")
		b.eval("web", "x = 41")
		b.branch("web", api.BranchRequest{})
		id := b.id("web-b1")
		if forgotten {
			b.must(b.reg.Commit(state.Forget(id)))
		} else {
			args, err := json.Marshal(removeArgs{Cell: id})
			b.must(err)
			b.must(b.reg.Commit(&operation.Redo{ID: "o-1", Kind: opRemove, Args: args, Phase: operation.Doing}))
		}
		b.reopen()
		if b.toys.toy(id) != nil {
			t.Errorf("forgotten %v: the branch lives on", forgotten)
		}
		b.says("web", "x + 1", "42")
		b.nothingLeft("after the restart")
	}
}

// What a cell's home and /tmp were before it was branched goes with the last
// that stands on it, also while the template that all come from is there.
func TestC26LayersOfBranchedCells(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"web", "web-b1", "web-b2"}, {"web-b2", "web-b1", "web"}} {
		b := newBed(t, "f: 0")
		b.template("warm", "x = 1\nwrite ~/dot 2")
		b.fork("warm", api.WarmForkRequest{Name: "web"})
		b.branch("web", api.BranchRequest{})
		b.eval("web", "write ~/more 3")
		b.branch("web", api.BranchRequest{})
		for i, n := range order {
			_, err := b.Remove(b.ctx, b.id(n), false)
			b.must(err)
			for _, other := range order[i+1:] {
				b.says(other, "read ~/dot", "2")
			}
		}
		b.filled()
		b.nothingLeft("after the removal")
	}
}

// An evaluation in a cell that has lost its keeper says what that means.
func TestEvalWithoutAKeeper(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "true")
	b.eval("web", "x = 41")
	b.toys.fail("eval", cell.Errorf(cell.Unavailable, "toy", "", "cannot talk to the cell's keeper: EOF"))
	_, err := b.Eval(b.ctx, b.id("web"), api.EvalRequest{Code: "x + 1"}, nil)
	b.toys.fail("eval", nil)
	b.wantKind("eval", err, cell.Unavailable, "its interpreter is gone", "keeper")
	if cell.HintOf(err) == "" {
		t.Error("no hint")
	}
}

// A keeper that dies closes its connections one after the other: a new interpreter that is
// asked for in between is begun when it is gone.
func TestFreshEvalWhileAKeeperDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("web", "true")
		b.eval("web", "x = 41")
		b.toys.fail("warmth", cell.Errorf(cell.Unavailable, "toy", "", "cannot talk to the cell's keeper: connection reset by peer"))
		dies := time.AfterFunc(100*time.Millisecond, func() {
			b.toys.lose()
			b.toys.fail("warmth", nil)
		})
		defer dies.Stop()
		r, err := b.Eval(b.ctx, b.id("web"), api.EvalRequest{Code: "y = 42\ny", Fresh: true}, nil)
		b.must(err)
		if repr(r.Result) != "42" {
			t.Errorf("a new one says %s", r.Result)
		}
	})
}

// A keeper dies, and its template is forked before that is noted: it is
// warmed again first.
func TestF19ForkOfATemplateWhoseKeeperJustDied(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")

	b.toys.lose()
	r := b.fork("warm", api.WarmForkRequest{Count: 3, Eval: "x + 1"})
	for _, f := range r.Forks {
		if repr(f.Result) != "42" {
			t.Errorf("%+v", f)
		}
	}
	if len(r.Forks) != 3 {
		t.Errorf("%d forks", len(r.Forks))
	}
}
