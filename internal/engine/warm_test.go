package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/spawn"
)

// nothingLeft asserts that no layer or folder is there that no record names.
func (b *bed) nothingLeft(when string) {
	b.Helper()
	var s *gc.Strays
	defer func() {
		if b.Failed() {
			b.Logf("left: %+v", s)
		}
	}()
	b.until(when+": nothing is left", func() bool {
		s = b.gc.Strays()
		n := len(s.Folders) + len(s.Files)
		for _, l := range s.Layers {
			n += len(l)
		}
		_, ahead := b.spawn.Use(b.ctx) // in no record
		n -= ahead * (1 + 3)
		return n == 0
	})
}

func (b *bed) spec(name, setup string) api.TemplateRequest {
	return api.TemplateRequest{Name: name, From: b.src, Setup: setup, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}}
}

// G59: a rebuild that fails leaves the published template as it was; a first
// build that fails leaves nothing.
func TestG59FailedRebuild(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	if _, err := b.BuildTemplate(b.ctx, b.spec("warm", "raise no"), nil); cell.KindOf(err) != cell.Invalid {
		t.Fatalf("a set-up that fails: %v", err)
	}
	if n := len(b.Templates()); n != 0 {
		t.Fatalf("%d templates", n)
	}
	b.nothingLeft("after a first build")
	was := b.template("warm", "x = 1")
	for act, setup := range map[string]string{"": "raise no", "warm": "x = 2", "seal": "x = 2"} {
		b.toys.fail(act, errors.New("no"))
		if _, err := b.BuildTemplate(b.ctx, b.spec("warm", setup), nil); err == nil {
			t.Errorf("%s: no error", act)
		}
		b.toys.fail(act, nil)
		now, err := b.spawn.Template("warm")
		if err != nil || now.Digest != was.Digest || now.Cell != was.Cell || now.State != "warm" {
			t.Errorf("%q: template is %+v, %v", act, now, err)
		}
	}
	if r := b.fork("warm", api.WarmForkRequest{Eval: "x + 0"}); repr(r.Forks[0].Result) != "1" {
		t.Errorf("a fork says %s", r.Forks[0].Result)
	}
	now := b.template("warm", "x = 2")
	if now.Digest == was.Digest || now.Cell == was.Cell {
		t.Errorf("it was not built anew: %+v", now)
	}
	if r := b.fork("warm", api.WarmForkRequest{Eval: "x + 0"}); repr(r.Forks[0].Result) != "2" {
		t.Errorf("a fork says %s", r.Forks[0].Result)
	}
	b.says("warm-1", "x + 0", "1")
	b.says("warm-1", "read f", "0")
	b.nothingLeft("after a rebuild")
	b.verified()
}

// The digest covers what a template is built from, and nothing else.
func TestTemplateDigest(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	first := b.template("warm", "x = 1").Digest
	if again := b.template("warm", "x = 1").Digest; again != first {
		t.Error("the same template has another digest")
	}
	b.write("f", "1")
	if b.template("warm", "x = 1").Digest == first {
		t.Error("another source has the same digest")
	}
	b.write("f", "0")
	spec := b.spec("warm", "x = 1")
	spec.Env = []string{"A=1"}
	if tm, err := b.BuildTemplate(b.ctx, spec, nil); err != nil || tm.Digest == first {
		t.Errorf("another environment: %v", err)
	}
}

// D46: a template is not there before its probe has answered.
func TestD46ReadyIsProbed(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "ready: 0")
	spec := b.spec("warm", "x = 1")
	spec.Ready, spec.Timeout = "read nothing", "300ms"
	if _, err := b.BuildTemplate(b.ctx, spec, nil); cell.KindOf(err) != cell.Timeout {
		t.Errorf("a template that never became ready: %v", err)
	}
	if n := len(b.Templates()); n != 0 {
		t.Errorf("%d templates", n)
	}
	spec.Ready = "x + 0"
	if tm, err := b.BuildTemplate(b.ctx, spec, nil); err != nil || tm.State != "warm" {
		t.Errorf("%+v, %v", tm, err)
	}
}

// D40: a template with living forks is removed only when that is said.
func TestD40Dependents(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1\nwrite made 1")
	b.fork("warm", api.WarmForkRequest{Count: 2})
	_, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{})
	b.wantKind("removal", err, cell.Conflict, "warm-1, warm-2")
	if !strings.Contains(cell.HintOf(err), "--cascade") {
		t.Errorf("hint %q", cell.HintOf(err))
	}
	if v, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{DryRun: true}); err != nil || len(v.Cells) != 2 {
		t.Errorf("dry run: %+v, %v", v, err)
	}
	if _, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{Force: true}); err != nil {
		t.Fatal(err)
	}
	b.says("warm-1", "x + 0", "1")
	if _, err := b.Stop(b.ctx, b.id("warm-2")); err != nil {
		t.Fatal(err)
	}
	b.has("warm-2", "f: 0", "made: 1")
	b.run("warm-2", "test $(cat made) = 1 && echo 2 > f")
	b.template("warm", "x = 1")
	b.fork("warm", api.WarmForkRequest{Name: "other"})
	if _, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{Cascade: true}); err != nil {
		t.Fatal(err)
	}
	if n := len(listOf(b.All())); n != 0 { // warm-1 and warm-2 are of a template of that name, too
		t.Errorf("%d cells are left", n)
	}
	b.nothingLeft("after the removal")
	b.verified()
}

// D44: of several that take one name, one wins; what forks need is promised to
// no other, until they are there or given up.
func TestD44OneName(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	host := spawn.Needs{Memory: 8 << 30, Disk: 80 << 30, Processes: 30_000}
	b.hostHas = func() (spawn.Needs, error) { return host, nil }
	b.template("warm", "x = 1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	kinds := map[cell.Kind]int{}
	for range 8 {
		wg.Go(func() {
			_, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: "one"}, nil)
			mu.Lock()
			kinds[cell.KindOf(err)]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if kinds[""] != 1 || kinds[""]+kinds[cell.Conflict]+kinds[cell.Exists] != 8 {
		t.Errorf("forks under one name: %v", kinds)
	}
	kinds = map[cell.Kind]int{}
	for range 4 {
		wg.Go(func() {
			_, err := b.BuildTemplate(b.ctx, b.spec("two", "x = 2"), nil)
			mu.Lock()
			kinds[cell.KindOf(err)]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if kinds[""] == 0 || kinds[""]+kinds[cell.Conflict] != 4 {
		t.Errorf("builds under one name: %v", kinds)
	}
	_, err := b.BuildTemplate(b.ctx, b.spec("one", ""), nil)
	b.wantKind("a template with a cell's name", err, cell.Exists, "cell one exists")
	_, err = b.StartRun(b.ctx, b.request("warm", "true"))
	b.wantKind("a cell with a template's name", err, cell.Conflict, "template")
	_, err = b.Fork(b.ctx, b.id("one"), api.ForkRequest{Number: 1, Name: "warm"})
	b.wantKind("a fork with a template's name", err, cell.Exists, "template warm")
	_, err = b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: "two"}, nil)
	b.wantKind("a fork of a template with a template's name", err, cell.Exists, "template two")

	b.filled()
	ctx, cancel := context.WithCancel(b.ctx)
	b.toys.mu.Lock()
	b.toys.slow = make(chan struct{})
	b.toys.mu.Unlock()
	gone := make(chan error)
	go func() {
		_, err := b.ForkTemplate(ctx, "warm", api.WarmForkRequest{Count: 20}, nil)
		gone <- err
	}()
	left := func() api.ForkNeeds {
		r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 1, DryRun: true}, nil)
		b.must(err)
		return r.Needs
	}
	b.until("it is promised what it needs", func() bool { return left().ProcessesLeft == host.Processes-20 })
	if n := left(); n.Memory <= 0 || n.MemoryAvailable != host.Memory-20*n.Memory || n.DiskAvailable != host.Disk-20*n.Disk {
		t.Errorf("needs %+v of each, the host has %+v, of which 20 are promised", n, host)
	}
	cancel()
	if err := <-gone; err == nil {
		t.Error("a fork whose caller went away came to be")
	}
	if n := left(); n.ProcessesLeft != host.Processes || n.MemoryAvailable != host.Memory || n.DiskAvailable != host.Disk {
		t.Errorf("promised still: %+v of %+v", n, host)
	}
	b.toys.mu.Lock()
	close(b.toys.slow)
	b.toys.slow = nil
	b.toys.mu.Unlock()
	b.fork("warm", api.WarmForkRequest{Name: "warm-1", Remove: true}) // the name is free again
	b.filled()
	b.nothingLeft("after a fork that was given up")
}

// Before anything is made, a fork beyond what the host has is refused.
func TestForkBeyondTheHost(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	b.hostHas = func() (spawn.Needs, error) { return spawn.Needs{Memory: 1, Disk: 80 << 30, Processes: 30_000}, nil }
	made := b.toys.made()
	r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 3}, nil)
	b.wantKind("fork", err, cell.Unavailable, "3 forks", "of memory")
	if b.toys.made() > made+minPooled || len(listOf(b.All())) != 0 {
		t.Error("something was made")
	}
	if r, err = b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 3, DryRun: true}, nil); err != nil || r.Needs.Refused == "" || r.Needs.Memory < 3 {
		t.Errorf("dry run: %+v, %v", r.Needs, err)
	}
}

// A fork that fails does not fail the others, and nothing of it remains.
func TestForksFailAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	b.toys.fail("adopt warm-2", errors.New("no"))
	r := b.fork("warm", api.WarmForkRequest{Count: 3, Eval: "x + 0"})
	for i, f := range r.Forks {
		if bad := i == 1; bad != (f.Error != nil) || !bad && repr(f.Result) != "1" {
			t.Errorf("fork %d: %+v", i, f)
		}
	}
	if n := len(listOf(b.All())); n != 2 {
		t.Errorf("%d cells", n)
	}
	b.filled()
	b.nothingLeft("after a fork that failed")
	b.toys.fail("adopt warm-2", nil)
	// In an evaluation, and in a command.
	r = b.fork("warm", api.WarmForkRequest{Count: 2, Eval: "die memory limit"})
	var done cell.Evaluated
	b.must(json.Unmarshal(r.Forks[0].Result, &done))
	if done.Cause != "ended" {
		t.Errorf("%s", r.Forks[0].Result)
	}
	r = b.fork("warm", api.WarmForkRequest{Count: 2, Command: []string{"sh", "-c", "echo out; echo err >&2; cat f; exit 3"}})
	for _, f := range r.Forks {
		if f.Exit == nil || *f.Exit != 3 || f.Stdout != "out\n0" || f.Stderr != "err\n" {
			t.Errorf("%+v", f)
		}
	}
	b.verified()
}

// Each line of a fork that streams: what it needs first, then each cell once.
func TestD43ForkSaysWhatItTook(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	var lines []api.StreamLine
	r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 3, Eval: "env PANDO_CELL"}, func(l api.StreamLine) { lines = append(lines, l) })
	b.must(err)
	if len(lines) != 4 || lines[0].Needs == nil || lines[0].Needs.Cells != 3 {
		t.Fatalf("lines %+v", lines)
	}
	for _, l := range lines[1:] {
		if l.Fork == nil || repr(l.Fork.Result) != l.Fork.Cell.Name {
			t.Errorf("line %+v", l)
		}
	}
	if !strings.Contains(r.Took, "memory") || !strings.Contains(r.Dropped, "connections") {
		t.Errorf("took %q, dropped %q", r.Took, r.Dropped)
	}
	c, err := b.Cell(b.id("warm-2"))
	b.must(err)
	if c.Interpreter == nil || c.Interpreter.Template != "warm" || !strings.Contains(string(c.Certificate), `"value":"warm-2"`) || c.Parent == nil || c.Parent.Name != "warm" {
		t.Errorf("cell %+v", c)
	}
	rc, err := b.All().Receipt("warm-2", b.src)
	if err != nil || !strings.Contains(rc.Markdown, "Fork of template warm into 3 cells") || !strings.Contains(rc.Markdown, "warm-3") {
		t.Errorf("receipt %+v, %v", rc, err)
	}
}

// C31: what an evaluation may take is bounded, also when nothing is said.
func TestC31BudgetsOfEvaluations(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "true")
	for _, bad := range []string{"0", "0s", "-1s", "99999999999h", "never", "1"} {
		_, err := b.Eval(b.ctx, b.id("web"), api.EvalRequest{Code: "1", Timeout: bad}, nil)
		b.wantKind("a time-out of "+bad, err, cell.Invalid)
	}
	if ev, err := live.EvalOf("1", ""); err != nil || ev.Timeout != time.Minute || ev.Limit <= 0 {
		t.Errorf("%+v, %v", ev, err)
	}
	r, err := b.Eval(b.ctx, b.id("web"), api.EvalRequest{Code: "sleep", Timeout: "20ms"}, nil)
	b.must(err)
	var done cell.Evaluated
	b.must(json.Unmarshal(r.Result, &done))
	if done.Cause != "timeout" {
		t.Errorf("%+v", done)
	}
	b.says("web", "1 + 1", "2")
	for _, n := range []int{-1, spawn.MaxFork + 1} {
		_, err := b.Branch(b.ctx, b.id("web"), api.BranchRequest{Count: n})
		b.wantKind(fmt.Sprint(n, " branches"), err, cell.Invalid)
	}
	req := b.request("few", "true")
	req.Policy = "version: 1\nlimits: {executions: 3, forks: 1}"
	if r := b.do(req); r.Error != nil {
		t.Fatal(r.Error)
	}
	b.eval("few", "1")
	b.eval("few", "1")
	_, err = b.Eval(b.ctx, b.id("few"), api.EvalRequest{Code: "1"}, nil)
	b.wantKind("one evaluation too many", err, cell.Denied, "allows 3")
	_, err = b.Branch(b.ctx, b.id("few"), api.BranchRequest{Count: 2})
	b.wantKind("one branch too many", err, cell.Denied, "allows 1")
}

// A cell that has lost its interpreter rests, but not under its users.
func TestTheEndOfAnInterpreterWaitsForUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("web", "true")
		b.says("web", "1 + 1", "2")
		id := b.id("web")
		inst, release := b.alive.Ref(id)
		if inst == nil {
			t.Fatal("there is nothing to hold")
		}
		b.toys.kill(id, "exit 3")
		b.until("its end is known", func() bool { return b.reg.Interp(id).Ended != "" })
		synctest.Wait()
		if b.alive.Instance(id) != inst {
			t.Error("it was taken away from who holds it")
		}
		release()
		b.until("the cell rests", func() bool { c, _ := b.Cell(id); return c.State == string(cell.Idle) })
		if b.alive.Instance(id) != nil {
			t.Error("it rests and has an instance")
		}
		b.nothingLeft("at rest")
	})
}

// An interpreter that is gone is not replaced in silence.
func TestEvalAfterTheEndOfTheInterpreter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.template("warm", "x = 1")
		b.fork("warm", api.WarmForkRequest{})
		b.toys.kill(b.id("warm-1"), "memory limit")
		b.until("the cell rests", func() bool { c, _ := b.Cell(b.id("warm-1")); return c.State == string(cell.Idle) })
		c, err := b.Cell(b.id("warm-1"))
		b.must(err)
		if !strings.Contains(c.Cause, "memory limit") || c.Interpreter == nil || c.Interpreter.Ended != "memory limit" {
			t.Errorf("cell %+v", c)
		}
		_, err = b.Eval(b.ctx, b.id("warm-1"), api.EvalRequest{Code: "x + 0"}, nil)
		b.wantKind("eval", err, cell.Conflict, "memory limit", "variables")
		if !strings.Contains(cell.HintOf(err), "--fresh") {
			t.Errorf("hint %q", cell.HintOf(err))
		}
		_, err = b.Branch(b.ctx, b.id("warm-1"), api.BranchRequest{})
		b.wantKind("branch", err, cell.Conflict, "memory limit")
		b.reopen()
		r, err := b.Eval(b.ctx, b.id("warm-1"), api.EvalRequest{Code: "x + 0", Fresh: true}, nil)
		b.must(err)
		if repr(r.Result) != "NameError: no x" || len(r.Notes) == 0 {
			t.Errorf("%+v", r)
		}
		b.says("warm-1", "read f", "0")
		b.eval("warm-1", "x = 7")
		for _, name := range []string{"warm-1", "fork"} { // an ordinary interpreter, and one that is its cell
			if name == "fork" {
				b.fork("warm", api.WarmForkRequest{Name: name})
				b.eval(name, "write mine 5")
			}
			id := b.id(name)
			late := make(chan error)
			go func() {
				_, err := b.Eval(b.ctx, id, api.EvalRequest{Code: "sleep", Timeout: "500ms"}, nil)
				late <- err
			}()
			b.until("it is busy", func() bool { return b.toys.toy(id).busy() })
			_, err = b.Eval(b.ctx, id, api.EvalRequest{Code: "1", Fresh: true}, nil)
			b.wantKind("a fresh one while it evaluates", err, cell.Conflict, "under way")
			if !strings.Contains(cell.HintOf(err), "pando stop "+name) {
				t.Errorf("hint %q", cell.HintOf(err))
			}
			b.must(<-late)
			b.says(name, "x + 0", map[string]string{"warm-1": "7", "fork": "1"}[name])
			r, err = b.Eval(b.ctx, id, api.EvalRequest{Code: "x + 0", Fresh: true}, nil)
			b.must(err)
			if repr(r.Result) != "NameError: no x" {
				t.Errorf("a fresh one in %s: %+v", name, r)
			}
		}
		b.says("fork", "read mine", "5")
		if _, err := b.Stop(b.ctx, b.id("warm-1")); err != nil {
			t.Fatal(err)
		}
		_, err = b.Eval(b.ctx, b.id("warm-1"), api.EvalRequest{Code: "1"}, nil)
		b.wantKind("eval after a stop", err, cell.Conflict, "stopped")
		// Their template takes them along, whatever became of their interpreters.
		_, err = b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{})
		b.wantKind("removal", err, cell.Conflict, "warm-1, fork")
		if _, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{Cascade: true}); err != nil {
			t.Error(err)
		}
		if n := len(listOf(b.All())); n != 0 {
			t.Errorf("%d cells are left", n)
		}
	})
}

// All that can be done with a cell can be done with a fork, also after it rested.
func TestForksAreFullCells(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1\nwrite made 1\nwrite ~/dot 2")
	b.fork("warm", api.WarmForkRequest{Count: 2})
	b.eval("warm-1", "write f 1")
	k, err := b.Checkpoint(b.ctx, b.id("warm-1"), api.CheckpointRequest{Message: "now"})
	b.must(err)
	if k.Number != 2 || k.Under == "" {
		t.Errorf("checkpoint %+v", k)
	}
	b.run("warm-1", "echo 2 > f; echo 3 > more")
	b.has("warm-1", "f: 2", "made: 1", "more: 3")
	if _, err := b.results.Restore(b.ctx, b.id("warm-1"), api.RestoreRequest{Number: 2, Lose: true}); err != nil {
		t.Fatal(err)
	}
	b.has("warm-1", "f: 1", "made: 1")
	_, err = b.Eval(b.ctx, b.id("warm-1"), api.EvalRequest{Code: "x + 0"}, nil)
	b.wantKind("eval after a restore", err, cell.Conflict)
	if _, err := b.Fork(b.ctx, b.id("warm-1"), api.ForkRequest{Number: 1, Name: "copy"}); err != nil {
		t.Fatal(err)
	}
	b.has("copy", "f: 0", "made: 1")
	b.reopen()
	b.run("copy", "test $(cat made) = 1")
	b.run("warm-1", "test $(cat f) = 1")
	b.says("warm-2", "read ~/dot", "2")
	if _, err := b.GC(b.ctx, false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"warm-1", "warm-2", "copy"} {
		if _, err := b.Remove(b.ctx, b.id(name), false); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Remove(b.ctx, cell.ID(b.Templates()[0].Cell), false); cell.KindOf(err) != cell.Conflict {
		t.Errorf("the template's cell was removed beside it: %v", err)
	}
	b.filled()
	b.nothingLeft("after the removal")
	b.verified()
}

// A fork with --remove leaves nothing but its receipt.
func TestForkAndRemove(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	r := b.fork("warm", api.WarmForkRequest{Count: 3, Eval: "x + 1", Remove: true})
	if repr(r.Forks[2].Result) != "2" || r.Receipt == "" || len(listOf(b.All())) != 0 {
		t.Errorf("%+v", r)
	}
	b.filled()
	b.nothingLeft("after the forks")
	b.verified()
}

// A daemon that dies while a template is built leaves nothing of it.
func TestF19InterruptedBuild(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("old", "x = 1")
	b.filled()
	var made cell.ID
	ended := b.dieIn("seal", func() {
		for _, c := range b.reg.AllCells() {
			if c.Template == "new" {
				made = c.ID
			}
		}
	}, func() error {
		_, err := b.BuildTemplate(b.ctx, b.spec("new", "x = 2"), nil)
		return err
	})
	if b.toys.toy(made) == nil {
		t.Fatal("there was no interpreter yet")
	}
	b.open()
	defer ended()
	if b.toys.toy(made) != nil {
		t.Error("its interpreter lives on")
	}
	if n := len(b.Templates()); n != 1 {
		t.Errorf("%d templates", n)
	}
	b.filled()
	b.nothingLeft("after the restart")
}

// A daemon that dies in a branch: whether it came to be or not, the source is
// where its keeper says.
func TestF19InterruptedBranch(t *testing.T) {
	t.Parallel()
	for _, came := range []bool{false, true} {
		b := newBed(t, "f: 0")
		b.run("web", "true")
		b.eval("web", "x = 41\nwrite g 1")
		id := b.id("web")
		act := "branch"
		if came {
			act = "adopt web-b1"
		}
		var branches []cell.ID
		ended := b.dieIn(act, func() {
			if branches = b.ahead(); came {
				b.eval("web", "write g 2")
			}
		}, func() error {
			_, err := b.Branch(b.ctx, id, api.BranchRequest{})
			return err
		})
		if got := len(branches) == 1; got != came {
			t.Fatalf("there are %d branches", len(branches))
		}
		b.open()
		want := "1"
		if came {
			want = "2"
		}
		b.says("web", "read g", want)
		b.says("web", "x + 0", "41")
		if len(b.ahead()) > 0 || len(listOf(b.All())) != 1 {
			t.Errorf("came %v: the branch lives on", came)
		}
		if _, err := b.Stop(b.ctx, id); err != nil {
			t.Fatal(err)
		}
		b.run("web", "test $(cat g) = "+want)
		b.nothingLeft("after the restart")
		ended()
		b.verified()
	}
}

// Values that look like secrets are in no record of a template; without them it
// can't be warmed again, which is said.
func TestF09TemplateKeepsNoSecrets(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	const secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	spec := b.spec("warm", "x = 1")
	spec.Env = []string{"A=1", "GITHUB_TOKEN=" + secret}
	tm, err := b.BuildTemplate(b.ctx, spec, nil)
	b.must(err)
	raw, err := os.ReadFile(b.home.Registry())
	b.must(err)
	if strings.Contains(string(raw), secret) {
		t.Error("the registry has it")
	}
	if !strings.Contains(strings.Join(tm.Notes, " "), "GITHUB_TOKEN") {
		t.Errorf("notes %q", tm.Notes)
	}
	b.toys.kill(cell.ID(tm.Cell), "gone")
	b.until("the template is cold", func() bool { tm, _ := b.spawn.Template("warm"); return tm.State == "cold" })
	_, err = b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil)
	b.wantKind("fork", err, cell.Conflict, "GITHUB_TOKEN")
}

// What forks need is measured, also of those that are removed as soon as they have
// answered.
func TestD39RemovedForksAreMeasured(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	needs := func(eval string) api.ForkNeeds {
		r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 2, Eval: eval, Remove: eval != "", DryRun: eval == ""}, nil)
		b.must(err)
		return r.Needs
	}
	if n := needs("write much " + strings.Repeat("x", 1<<20)); len(n.Measured) != 0 {
		t.Errorf("before: %+v", n)
	}
	n := needs("")
	if strings.Join(n.Measured, " ") != "memory disk" || n.Memory != 2<<20 || n.Disk < 2<<20 || n.Disk > 4<<20 {
		t.Errorf("after: %+v", n)
	}
	if len(listOf(b.All())) != 0 {
		t.Error("they were not removed")
	}
}

// Cells that were made together are listed as people count.
func TestABatchIsListedInOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	b.fork("warm", api.WarmForkRequest{Count: 12})
	var want []string
	for n := range 12 {
		want = append(want, fmt.Sprintf("warm-%d", n+1))
	}
	var got []string
	for _, c := range listOf(b.All()) {
		got = append(got, c.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Removed forks leave no records, unless there is something to tell of them.
func TestRemovedForksAreForgotten(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	b.fork("warm", api.WarmForkRequest{Count: 3})
	b.run("warm-2", "true")
	b.branch("warm-3", api.BranchRequest{})
	before := len(b.reg.AllCells())
	for _, n := range []string{"warm-1", "warm-2", "warm-3"} {
		v, err := b.Remove(b.ctx, b.id(n), false)
		if err != nil || v.State != string(cell.Removed) || v.Name != n {
			t.Errorf("%+v, %v", v, err)
		}
	}
	b.until("one is forgotten", func() bool { return len(b.reg.AllCells()) == before-1 })
	b.reopen()
	if n := len(b.reg.AllCells()); n != before-1 {
		t.Errorf("%d cells, want %d", n, before-1)
	}
	if _, err := b.All().Tree(""); err != nil {
		t.Error(err)
	}
	b.verified()
}
