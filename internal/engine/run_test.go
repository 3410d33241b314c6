package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/testenv"
)

// A command that a client wants to see ends when the client does not come, and not
// while it is there; a run does not begin.
func TestCommandWhoseClientDoesNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		id := cell.ID(b.run("w", "true").Cell)
		b.cfg.AttachGrace = 300 * time.Millisecond
		sleep := api.ExecRequest{Command: []string{"sleep", "300"}, Attach: true}
		came, err := b.StartExec(b.ctx, id, sleep)
		b.must(err)
		a, err := b.AttachExec(came.ID, true)
		b.must(err)
		lost, err := b.StartExec(b.ctx, id, sleep)
		b.must(err)
		ended := func(x api.Exec) api.Exec {
			x, err := b.alive.ShowExec(x.ID)
			b.must(err)
			return x
		}
		b.until("it is ended", func() bool { return !ended(lost).Running })
		if x := ended(lost); x.Cause != "interrupted" {
			t.Errorf("it ended with %+v", x)
		}
		if !ended(came).Running {
			t.Error("it ended while its client was there")
		}
		second, err := b.AttachExec(came.ID, true)
		b.must(err)
		looker, err := b.AttachExec(came.ID, false)
		b.must(err)
		for _, x := range []*run.Attachment{second, second, looker} { // one that leaves twice is one
			x.Release(true)
			synctest.Wait()
			if !ended(came).Running {
				t.Fatal("it ended with another client than its own")
			}
		}
		a.Release(true)
		b.until("it is ended, too", func() bool { return !ended(came).Running })
		run, err := b.StartRun(b.ctx, b.request("w", "sleep 300"))
		b.must(err)
		b.starts(run)
		first, err := b.runs.Attach(cell.RunID(run.ID), true)
		b.must(err)
		other, err := b.runs.Attach(cell.RunID(run.ID), true)
		b.must(err)
		first.Release(true)
		synctest.Wait()
		if now, err := b.Engine.Run(cell.RunID(run.ID)); err != nil || now.Phase != "executing" {
			t.Errorf("with one of two clients, the run is %s, %v", now.Phase, err)
		}
		other.Release(true)
		if run, err = b.runs.Wait(b.ctx, cell.RunID(run.ID)); err != nil || run.Cause != "interrupted" {
			t.Errorf("with the last client, the run is %+v, %v", run, err)
		}
		r, err := b.StartRun(b.ctx, api.RunRequest{Cell: "w", Command: []string{"true"}, Attach: true})
		b.must(err)
		if r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || r.ExitCode != nil || r.Error == nil || !strings.Contains(r.Error.Message, "never attached") {
			t.Errorf("a run nobody came to see: %+v, %v", r, err)
		}
		// A caller that goes away while it asks learns of no run, which does not go on long.
		b.cfg.AttachGrace = time.Hour
		gone, goAway := context.WithCancel(b.ctx)
		goAway()
		r, err = b.StartRun(gone, api.RunRequest{Cell: "w", Command: []string{"true"}, Attach: true})
		b.must(err)
		if r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || r.ExitCode != nil {
			t.Errorf("a run that its caller did not hear of: %+v, %v", r, err)
		}
	})
}

// A budget that is no budget is an error, never "unlimited"; nothing is
// recorded of such a run. One that is not asked for has a default.
func TestF31Budgets(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	for name, set := range map[string]func(*api.Limits, string){
		"memory":  func(l *api.Limits, s string) { l.Memory = s },
		"disk":    func(l *api.Limits, s string) { l.Disk = s },
		"pids":    func(l *api.Limits, s string) { l.PIDs = s },
		"cpus":    func(l *api.Limits, s string) { l.CPUs = s },
		"timeout": func(l *api.Limits, s string) { l.Timeout = s },
	} {
		for _, v := range []string{"0", "-1", "-0", "0s", "-5s", "NaN", "Inf", "-Inf", "1e400", "99999999999999999999T", "99999999999h", "1ns", "unlimited", " ", "none"} {
			req := b.request("w", "true")
			set(&req.Limits, v)
			_, err := b.StartRun(b.ctx, req)
			b.wantKind(name+" "+v, err, cell.Invalid)
			if _, err := b.Plan(b.ctx, req); cell.KindOf(err) != cell.Invalid {
				t.Errorf("%s %s: the plan of it: %v", name, v, err)
			}
		}
	}
	if n := len(b.Runs("")) + len(listOf(b.All())); n > 0 {
		t.Errorf("%d runs and cells are recorded", n)
	}
	b.run("w", "true")
	c, err := b.reg.Cell(b.id("w"))
	b.must(err)
	if l := c.Setup.Limits; l.Memory <= 0 || l.PIDs <= 0 || l.Disk <= 0 {
		t.Errorf("the defaults are %+v", l)
	}
	for _, v := range []string{"0", "-1s", "0s", "NaN", "99999999999h", "5"} {
		_, err := b.StartExec(b.ctx, c.ID, api.ExecRequest{Command: []string{"true"}, Timeout: v})
		b.wantKind("an exec for "+v, err, cell.Invalid)
	}
}

func TestBadRequestsAreRefusedBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "true")
	before := len(b.Runs(""))
	for what, x := range map[string]struct {
		req  api.RunRequest
		want cell.Kind
	}{
		"no command":           {api.RunRequest{From: b.src}, cell.Invalid},
		"an empty command":     {api.RunRequest{From: b.src, Command: []string{""}}, cell.Invalid},
		"a NUL":                {b.request("w", "a\x00b"), cell.Invalid},
		"no source":            {api.RunRequest{Command: []string{"true"}}, cell.Invalid},
		"a source not there":   {api.RunRequest{Command: []string{"true"}, From: b.src + "/none"}, cell.NotFound},
		"another source":       {api.RunRequest{Command: []string{"true"}, From: filepath.Dir(b.src), Cell: "w"}, cell.Conflict},
		"another backend":      {api.RunRequest{Command: []string{"true"}, From: b.src, Cell: "w", Backend: "namespace"}, cell.Conflict},
		"an unknown backend":   {api.RunRequest{Command: []string{"true"}, From: b.src, Backend: "x"}, cell.Unsupported},
		"an unknown image":     {api.RunRequest{Command: []string{"true"}, From: b.src, Image: "vm:x"}, cell.Invalid},
		"a name that is none":  {b.request("../x", "true"), cell.Invalid},
		"a bad on-failure":     {api.RunRequest{Command: []string{"true"}, From: b.src, OnFailure: "accept"}, cell.Invalid},
		"a bad on-success":     {api.RunRequest{Command: []string{"true"}, From: b.src, OnSuccess: "restore"}, cell.Invalid},
		"a limit not for here": {api.RunRequest{Command: []string{"true"}, From: b.src, Policy: "version: 7\n"}, cell.Invalid},
	} {
		_, err := b.StartRun(b.ctx, x.req)
		b.wantKind(what, err, x.want)
	}
	if n := len(b.Runs("")); n != before {
		t.Errorf("%d runs are recorded, there were %d", n, before)
	}
}

// A limit that the backend can't apply fails the start: the run is recorded as
// one that did nothing, its cell is gone.
func TestF33LimitThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.request("w", "echo 1 > f")
	req.Limits.Memory = "1G"
	r := b.do(req)
	if r.Error == nil || r.Error.Kind != api.Kind(cell.Unsupported) || r.Error.Hint == "" || r.Verdict != string(cell.Discarded) || r.ExitCode != nil || r.Receipt == "" {
		t.Errorf("%+v %+v", r, r.Error)
	}
	if n := len(listOf(b.All())); n != 0 {
		t.Errorf("there are %d cells", n)
	}
	b.Engine.work.Wait()
	if names, _ := os.ReadDir(b.home.Cells()); len(names) > 0 {
		t.Errorf("left over: %v", names)
	}
	b.verified()
}

func TestF18RunsInOneCellWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: ")
		b.run("w", "echo 0 > f")
		var wg sync.WaitGroup
		for n := range 5 {
			wg.Go(func() {
				r := b.do(b.request("w", fmt.Sprintf("cp f g; sleep 0.02; echo %d >> g; mv g f", n+1)))
				if r.Error != nil || *r.ExitCode != 0 {
					t.Errorf("run %d: %+v", n, r.Error)
				}
			})
		}
		wg.Wait()
		_, err := b.Fork(b.ctx, b.id("w"), api.ForkRequest{Name: "copy"})
		b.must(err)
		r := b.run("copy", "wc -l < f; test $(wc -l < f) = 6")
		if *r.ExitCode != 0 {
			t.Error("a run's work is lost")
		}
		if n := len(b.Runs(b.id("w"))); n != 6 {
			t.Errorf("%d runs are recorded", n)
		}
		b.verified()
	})
}

// The daemon's end is not the command's: the next one finds it and brings the
// run to its end.
func TestF19RunOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		exit string
		want cell.Verdict
	}{"good": {"0", cell.Pending}, "failed while nobody could be told": {"3", cell.Pending}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, "f: 0")
				flag := filepath.Join(t.TempDir(), "go")
				r, err := b.StartRun(b.ctx, b.request("w", "echo 1 > f; while ! test -e "+flag+"; do sleep 0.01; done; echo 2 > f; exit "+x.exit))
				b.must(err)
				b.starts(r)
				b.reopen()
				if _, err := b.results.Restore(soon(t), b.id("w"), api.RestoreRequest{Number: 1}); cell.KindOf(err) != cell.Conflict {
					t.Errorf("a restore under a run: %v", err)
				}
				if k, err := b.Checkpoint(b.ctx, b.id("w"), api.CheckpointRequest{}); err != nil || k.Kind != state.KindManual || k.Run != "" || k.Memory {
					t.Errorf("a checkpoint within the run: %+v, %v", k, err)
				}
				b.must(os.WriteFile(flag, nil, 0o644))
				end, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
				if err != nil || end.Verdict != string(x.want) || end.ExitCode == nil || fmt.Sprint(*end.ExitCode) != x.exit || end.Receipt == "" {
					t.Errorf("%+v, %v", end, err)
				}
				b.has("w", "f: 2")
				b.verified()
			})
		})
	}
}

// A client that waits for a run while the daemon ends is not given a record of a run that goes on:
// it is told to ask the next daemon.
func TestRunIsLeftToTheNextDaemon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		r, flag := b.goesOn("w")
		id := cell.RunID(r.ID)
		a, err := b.runs.Attach(id, true)
		b.must(err)
		waited, before := make(chan error, 1), b.runs
		go func() { _, err := before.Wait(b.ctx, id); waited <- err }()
		synctest.Wait()
		b.reopen()
		<-a.Done
		if v, err := a.Result(); !errors.Is(err, run.ErrLeft) || cell.KindOf(err) != cell.Unavailable {
			t.Errorf("the attachment says %+v, %v", v, err)
		}
		if err := <-waited; !errors.Is(err, run.ErrLeft) {
			t.Errorf("the wait ended with %v", err)
		}
		if _, err := before.Wait(b.ctx, id); !errors.Is(err, run.ErrLeft) {
			t.Errorf("a wait that came late ended with %v", err)
		}
		b.must(os.WriteFile(flag, nil, 0o644))
		if end, err := b.runs.Wait(b.ctx, id); err != nil || end.Phase != string(cell.Ended) {
			t.Errorf("%+v, %v", end, err)
		}
	})
}

// starts waits until a run's command is there.
func (b *bed) starts(r api.Run) {
	b.Helper()
	a, err := b.runs.Attach(cell.RunID(r.ID), false)
	b.must(err)
	defer a.Release(false)
	select {
	case <-a.Started:
	case <-a.Done:
		b.Fatal("the run ended")
	case <-b.ctx.Done():
		b.Fatal("the run never started")
	}
}

// What was only being prepared when the daemon ended did nothing.
func TestF19RunThatWasBeingPrepared(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	p, err := b.plan(b.ctx, b.request("w", "echo 1 > f"))
	b.must(err)
	run := &state.Run{ID: string(cell.NewRunID()), Cell: string(cell.NewID()), CellName: "w", Command: []string{"x"}, Source: b.src,
		Policy: p.policy.Digest().String(), Isolation: api.Isolated, Phase: cell.Preparing, Created: time.Now(), Folder: filepath.Join(b.home.Runs(), "x")}
	p.run = run
	b.must(b.record(b.ctx, p))
	b.reopen()
	r, err := b.Engine.Run(run.RunID())
	if err != nil || r.Phase != string(cell.Ended) || r.Verdict != string(cell.Discarded) || r.Error == nil || r.Receipt == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if n := len(listOf(b.All())); n != 0 {
		t.Errorf("there are %d cells", n)
	}
	b.run("w", "echo 1 > f") // the name is free
	b.verified()
}

// Interrupted, stopped or removed under it, a run is pending or gone with its
// cell, never accepted, and nothing runs on.
func TestStopEndsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		r, err := b.StartRun(b.ctx, b.request("w", "echo 1 > f; sleep 300"))
		b.must(err)
		b.starts(r)
		for b.source("f") == "" { // never: the source is not written
			t.Fatal("the source was written")
		}
		c, err := b.Stop(b.ctx, cell.ID(r.Cell))
		if err != nil || c.State != string(cell.Idle) || c.Processes != 0 {
			t.Errorf("%+v, %v", c, err)
		}
		end, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
		if err != nil || end.Verdict != string(cell.Pending) || end.Cause != "interrupted" {
			t.Errorf("%+v, %v", end, err)
		}
		if list, err := b.alive.Processes(b.ctx, cell.ID(r.Cell)); err != nil || len(list) > 0 {
			t.Errorf("%+v, %v", list, err)
		}
		b.verified()
	})
}

// An exec makes its cell live, and the cell rests when nothing happens in it;
// what it wrote is there for the next.
func TestExecWakesAndTheCellRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("w", "echo 1 > f")
		id := b.id("w")
		x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "echo 2 > f; exit 5"}})
		b.must(err)
		b.until("it ended", func() bool { return b.ended(x.ID) })
		if x, _ = b.alive.ShowExec(x.ID); *x.ExitCode != 5 {
			t.Errorf("%+v", x)
		}
		b.until("the cell rested", func() bool { c, _ := b.Cell(id); return c.State == string(cell.Idle) && b.alive.Instance(id) == nil })
		r := b.run("w", "grep -q 2 f")
		if *r.ExitCode != 0 {
			t.Error("what the exec wrote is gone")
		}
		y, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
		b.must(err)
		if c, err := b.Pause(b.ctx, id); err != nil || c.State != string(cell.Paused) {
			t.Errorf("%+v, %v", c, err)
		}
		b.wantKind("whether code may come to a paused cell", b.alive.MayEval(id, ""), cell.Conflict, "cell w is paused")
		for what, do := range map[string]func() error{
			"exec": func() error { _, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}}); return err },
			"run":  func() error { _, err := b.StartRun(b.ctx, b.request("w", "true")); return err },
			"eval": func() error { _, err := b.Eval(b.ctx, id, api.EvalRequest{Code: "1"}, nil); return err },
			"eval, anew": func() error {
				_, err := b.Eval(b.ctx, id, api.EvalRequest{Code: "1", Fresh: true}, nil)
				return err
			},
			"files":  func() error { _, err := b.alive.Files(b.ctx, id, cell.FileAct{Path: "f"}, nil); return err },
			"a port": func() error { _, err := b.alive.Dial(b.ctx, id, 80); return err },
		} {
			b.wantKind(what+" in a paused cell", do(), cell.Conflict, "cell w is paused")
		}
		if c, err := b.Engine.Resume(b.ctx, id); err != nil || c.State != string(cell.Running) {
			t.Errorf("%+v, %v", c, err)
		}
		b.reopen()
		if list, err := b.alive.Processes(b.ctx, id); err != nil || len(list) != 1 || !strings.Contains(list[0].Command, "sleep 300") {
			t.Errorf("after a restart, of %s: %+v, %v", y.ID, list, err)
		}
	})
}

// An exec that is waited for is answered with its end and its output; a caller
// that goes away ends it.
func TestExecAsAWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("w", "true")
		id := b.id("w")
		x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "cat; cat f; echo no >&2; exit 5"}, Wait: true})
		b.must(err)
		if x.Running || x.ExitCode == nil || *x.ExitCode != 5 || string(x.Stdout) != "0" || string(x.Stderr) != "no\n" || x.Output.Stderr.Bytes != 3 {
			t.Errorf("%+v", x)
		}
		b.until("the cell rested", func() bool { return b.alive.Instance(id) == nil })
		_, err = b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}, Wait: true, Attach: true})
		b.wantKind("both", err, cell.Invalid, "attaches")
		ctx, cancel := context.WithCancel(b.ctx)
		time.AfterFunc(300*time.Millisecond, cancel)
		if x, err = b.StartExec(ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}, Wait: true}); err != nil || x.Cause != "interrupted" {
			t.Errorf("%+v, %v", x, err)
		}
		b.until("the cell rested", func() bool { return b.alive.Instance(id) == nil })
	})
}

func (b *bed) until(what string, so func() bool) {
	b.Helper()
	testenv.Eventually(b.TB, so, what)
}

// ending is a store in which the first thing that is kept ends the daemon.
type ending struct {
	store.Store
	end func()
}

func (s *ending) Put(d cell.Digest, b []byte) error {
	if s.end != nil {
		s.end()
	}
	return s.Store.Put(d, b)
}

// A daemon that ends, in good order, while a run is brought to its verdict leaves
// that to the next one: no run is failed, or has a verdict without a receipt.
func TestF04TheDaemonEndsBeforeTheReceipt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		objects := &ending{}
		b := newBedWith(t, func(s store.Store) store.Store { objects.Store = s; return objects }, "f: 0")
		b.run("w", "echo 0 > f")
		flag := filepath.Join(t.TempDir(), "go")
		r, err := b.StartRun(b.ctx, b.request("w", "while ! test -e "+flag+"; do sleep 0.01; done; echo 1 > f"))
		b.must(err)
		b.starts(r)
		ended := make(chan struct{})
		objects.end = sync.OnceFunc(func() {
			b.Engine.end(live.ErrClosing)
			close(ended)
		})
		b.must(os.WriteFile(flag, nil, 0o644))
		<-ended
		b.reopen()
		end, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
		if c := b.reg.Cells()[0]; err != nil || end.Verdict != string(cell.Pending) || end.Receipt == "" || end.Error != nil || len(end.Notes) > 0 || c.State == cell.Failed {
			t.Errorf("%+v, %v; the cell is %s", end, err, c.State)
		}
		b.has("w", "f: 1")
		b.verified()
	})
}

// goesOn starts a run in a cell, with a command that goes on until there is a file.
func (b *bed) goesOn(cell string) (r api.Run, flag string) {
	b.Helper()
	flag = filepath.Join(b.TempDir(), "go")
	r, err := b.StartRun(b.ctx, b.request(cell, "while ! test -e "+flag+"; do sleep 0.01; done"))
	b.must(err)
	b.starts(r)
	return r, flag
}

// What is done in a cell in which the command of a run goes on does not wait for that: it is done within
// the run, or refused at once. The checkpoint that the run began at stays, and a collection leaves the cell alone.
func TestActsWithinARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		flag, more := filepath.Join(t.TempDir(), "go"), filepath.Join(t.TempDir(), "more")
		wait := func(path string) string { return "while ! test -e " + path + "; do sleep 0.01; done; " }
		b.run("parent", "echo 1 > f")
		_, err := b.Fork(b.ctx, b.id("parent"), api.ForkRequest{Name: "w"})
		b.must(err)
		r, err := b.StartRun(b.ctx, b.request("w", "echo 2 > f; "+wait(more)+"echo 3 > f; "+wait(flag)+"echo 4 > f"))
		b.must(err)
		b.starts(r)
		id := b.id("w")
		look := func(want string) {
			t.Helper()
			b.until(want+" is seen", func() bool {
				d, err := b.results.Diff(soon(t), result.DiffRequest{Target: result.Target{Cell: id}, Form: "text"})
				b.must(err)
				return strings.Contains(d.Text, "+"+want)
			})
		}
		look("2")
		b.must(os.WriteFile(more, nil, 0o644))
		look("3")
		if k, err := b.Checkpoint(soon(t), id, api.CheckpointRequest{Message: "kept"}); err != nil || k.Kind != state.KindManual || k.Message != "kept" {
			t.Errorf("a checkpoint of what was looked at: %+v, %v", k, err)
		}
		if _, err := b.NameCheckpoint(soon(t), id, 1, "named"); err != nil {
			t.Error(err)
		}
		b.wantKind("the removal of what the run began at", b.RemoveCheckpoint(soon(t), id, 1), cell.Conflict, "a run began at it")
		for what, do := range map[string]func() error{
			"restore": func() error { return second(b.results.Restore(soon(t), id, api.RestoreRequest{Number: 1})) },
			"accept":  func() error { return second(b.results.Accept(soon(t), result.Target{Cell: id}, api.AcceptRequest{})) },
			"discard": func() error { return second(b.results.Discard(soon(t), result.Target{Cell: id}, api.DiscardRequest{})) },
			"undo":    func() error { return second(b.results.Undo(soon(t), id, api.UndoRequest{})) },
			"fork":    func() error { return second(b.Fork(soon(t), id, api.ForkRequest{Name: "no"})) },
			"policy":  func() error { return b.govern.SetPolicy(soon(t), id, "version: 1\n", false) },
		} {
			b.wantKind(what, do(), cell.Conflict, "under way")
		}
		res, err := b.Fork(soon(t), id, api.ForkRequest{Name: "copy", Files: true})
		b.must(err)
		b.has(res.Cells[0].Name, "f: 3")

		for _, k := range b.reg.Checkpoints(id) {
			if k.Message == "kept" {
				k.Expires = time.Now().Add(-time.Hour)
				b.must(b.reg.Commit(&k))
			}
		}
		collect := func(want bool) {
			t.Helper()
			res, err := b.GC(soon(t), false)
			b.must(err)
			n := 0
			for _, i := range res.Items {
				if i.What == "checkpoint" {
					n++
				}
			}
			if n > 0 != want {
				t.Errorf("%d checkpoints are collected: %+v", n, res.Items)
			}
		}
		collect(false)
		b.must(os.WriteFile(flag, nil, 0o644))
		end, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
		b.must(err)
		if end.Before.Number != 1 || end.Verdict != string(cell.Pending) {
			t.Errorf("the run: %+v", end)
		}
		b.has("w", "f: 4")
		first, err := b.reg.Numbered(id, 1)
		b.must(err)
		first.Expires = time.Now().Add(-time.Hour)
		b.must(b.reg.Commit(&first))
		collect(true)
		b.must(second(b.results.Discard(b.ctx, result.Target{Cell: id}, api.DiscardRequest{})))
		b.has("w", "f: 1")
		b.verified()
	})
}

// A panic in what is done within a run is the caller's.
func TestPanicWithinARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		r, flag := b.goesOn("w")
		func() {
			defer func() {
				if p := recover(); !strings.Contains(fmt.Sprint(p), "a fault") {
					t.Errorf("the caller got %v", p)
				}
			}()
			b.alive.Within(b.ctx, b.id("w"), "test", func(cell.RunID) error { panic("a fault") })
		}()
		b.must(os.WriteFile(flag, nil, 0o644))
		if end, err := b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || end.ExitCode == nil || *end.ExitCode != 0 {
			t.Errorf("%+v, %v", end, err)
		}
	})
}
