package engine

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
)

// lost forgets what waits in a template's pool, as a daemon does that dies, and
// returns it.
func (b *bed) lost(name string) []*child {
	b.Helper()
	b.filled()
	b.mu.Lock()
	defer b.mu.Unlock()
	slots := b.pools[name].slots
	b.pools = map[string]*pool{}
	return slots
}

func (b *bed) gone(slots []*child) {
	b.Helper()
	if len(slots) == 0 {
		b.Error("no fork waited in the pool")
	}
	for _, ch := range slots {
		if b.toys.toy(ch.c.ID) != nil {
			b.Errorf("fork %s, made ahead, lives on", ch.c.ID)
		}
	}
}

// A daemon dies when the new template is published and the old one's cell not
// yet removed.
func TestF19TemplateReplacedByADeadDaemon(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 1")
	x := &build{e: b.Engine, began: time.Now()}
	var err error
	x.p, err = b.planTemplate(b.spec("warm", "x = 41"))
	b.must(err)
	b.must(x.make(b.ctx))
	slots := b.lost("warm")
	next, err := b.reg.Template("warm")
	b.must(err)
	c := x.x.c
	next.Cell, c.State = c.ID, cell.Running
	b.must(b.reg.Commit(&c, &x.x.before, &next, &state.Interp{Cell: c.ID, Kind: x.warmth.Kind, Version: x.warmth.Version, Started: x.warmth.Started}))
	b.reopen()
	b.until("the old one is gone", func() bool { return b.toys.toy(cell.ID(tm.Cell)) == nil })
	b.gone(slots)
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
		slots := b.lost("warm")
		objects := []any{state.Forget(state.ForgetTemplate + "warm")}
		if removed {
			c, err := b.reg.Cell(cell.ID(tm.Cell))
			b.must(err)
			c.State = cell.Removed
			objects = append(objects, &c)
		}
		b.must(b.reg.Commit(objects...))
		b.reopen()
		b.until("its cell is gone", func() bool { return b.toys.toy(cell.ID(tm.Cell)) == nil })
		b.gone(slots)
		b.nothingLeft("after the restart")
	}
}

// A daemon dies in the middle of removing a branch. The next one removes it, and
// forgets it: its keeper must not be left with a cell that nobody knows.
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

// An evaluation in a cell whose keeper has died says what that means.
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

// A keeper dies, and its template is forked before anybody has noted it: it is
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
