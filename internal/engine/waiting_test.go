package engine

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
)

// attached begins a run that a client is attached to, and returns what it is attached with.
func (b *bed) attached(name, script string, tty bool) (api.Run, *run.Attachment) {
	b.Helper()
	req := b.request(name, script)
	req.Attach, req.TTY = true, tty
	r, err := b.StartRun(b.ctx, req)
	b.must(err)
	a, err := b.runs.Attach(cell.RunID(r.ID), true)
	b.must(err)
	return r, a
}

// A run that waits for another is interrupted alone; stop ends the run that runs, and not
// the one that waits for it.
func TestX33WaitingRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		long := b.request("w", "sleep 40; echo slept > f")
		first, err := b.StartRun(b.ctx, long)
		b.must(err)
		synctest.Wait()

		for _, end := range []struct {
			tty bool
			do  func(a *run.Attachment)
		}{
			{false, func(a *run.Attachment) { a.Signalled("SIGTERM") }},
			{false, func(a *run.Attachment) { a.Signalled("SIGINT") }},
			{true, func(a *run.Attachment) { a.Typed([]byte("x\x03")) }},
			{false, func(a *run.Attachment) { a.Release(true) }},
		} {
			second, a := b.attached("w", "echo second > g", end.tty)
			synctest.Wait()
			for range 20 {
				if l := b.runs.In(b.id("w")); l == nil || string(l.ID()) != first.ID {
					t.Fatalf("the run in the cell is another than %s", first.ID)
				}
			}
			end.do(a)
			synctest.Wait()
			if now, _ := b.Engine.Run(cell.RunID(second.ID)); now.Phase != "ended" || now.Error == nil || now.Error.Kind != "interrupted" {
				t.Errorf("the run that waited is %s, %+v", now.Phase, now.Error)
			}
			a.Release(false)
		}
		if now, _ := b.Engine.Run(cell.RunID(first.ID)); now.Phase != "executing" {
			t.Fatalf("the run that was waited for is %s", now.Phase)
		}
		typed, a := b.attached("w", "true", false)
		synctest.Wait()
		a.Typed([]byte("\x03")) // of no terminal: it is input
		synctest.Wait()
		if now, _ := b.Engine.Run(cell.RunID(typed.ID)); now.Phase != "preparing" {
			t.Errorf("with input, the run that waits is %s", now.Phase)
		}
		if _, err := b.Stop(b.ctx, b.id("w")); err != nil {
			t.Fatal(err)
		}
		if now, _ := b.Engine.Run(cell.RunID(first.ID)); now.Phase != "ended" || now.Verdict != "pending" {
			t.Errorf("the run that was stopped is %s, %s", now.Phase, now.Verdict)
		}
		now, err := b.runs.Wait(b.ctx, cell.RunID(typed.ID))
		if err != nil || now.ExitCode == nil || *now.ExitCode != 0 {
			t.Errorf("the run that waited: %+v, %v", now, err)
		}
		a.Release(false)
	})
}

// Stopping and removing a cell ends a run that has not started its command: a new cell goes
// with it, one that was there stays.
func TestStopEndsARunThatStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("old", "true")
		b.until("the cell rested", func() bool { return b.alive.Instance(b.id("old")) == nil })
		b.toys.creating = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		for _, at := range []string{"as soon as it is recorded", "while its cell comes to life"} {
			for name, state := range map[string]cell.State{"new": cell.Removed, "old": cell.Idle} {
				r, err := b.StartRun(b.ctx, b.request(name, "true"))
				b.must(err)
				if at != "as soon as it is recorded" {
					synctest.Wait()
				}
				c, err := b.Stop(b.ctx, cell.ID(r.Cell))
				if err != nil || c.State != string(state) {
					t.Errorf("%s, stopped %s: %+v, %v", name, at, c, err)
				}
				now, err := b.Engine.Run(cell.RunID(r.ID))
				if err != nil || now.Phase != "ended" || now.Cause != "interrupted" || now.Error == nil {
					t.Errorf("%s, stopped %s: the run is %+v, %v", name, at, now, err)
				}
			}
		}
		r, err := b.StartRun(b.ctx, b.request("old", "true"))
		b.must(err)
		if c, err := b.Remove(b.ctx, b.id("old"), false); err != nil || c.State != string(cell.Removed) {
			t.Errorf("removed: %+v, %v", c, err)
		}
		if now, err := b.Engine.Run(cell.RunID(r.ID)); err != nil || now.Cause != "interrupted" {
			t.Errorf("the run in the removed cell is %+v, %v", now, err)
		}
		b.verified()
	})
}

// A run that is interrupted while its cell is being made says so, whatever that broke off.
func TestX33RunsThatAreBeingStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.toys.creating = func(ctx context.Context) error {
			<-ctx.Done()
			return cell.Errorf(cell.Internal, "toy", "", "cannot read the answer: unexpected EOF")
		}
		r, err := b.StartRun(b.ctx, b.request("w", "true"))
		b.must(err)
		synctest.Wait()
		b.runs.Interrupt(cell.RunID(r.ID), "it was cancelled")
		run, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
		b.must(err)
		if run.Cause != "interrupted" || run.Error == nil || run.Error.Kind != "interrupted" || run.Error.Message != "cannot start the run: it was cancelled, while it was being started (cannot read the answer: unexpected EOF)" {
			t.Errorf("it ended as %q, %+v", run.Cause, run.Error)
		}
	})
}

// A run that is interrupted when its command has started, before the daemon knows, ran: what it
// changed is its result.
func TestX33RunsThatHaveJustStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		attached := make(chan *run.Attachment, 1)
		b.toys.started = func(id cell.RunID) {
			if id != "" {
				time.Sleep(time.Second) // the command writes meanwhile
				(<-attached).Signalled("SIGINT")
			}
		}
		for _, name := range []string{"new", "new"} { // then it is an old one
			r, a := b.attached(name, "echo half > g; sleep 60", false)
			attached <- a
			run, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
			b.must(err)
			if run.Cause != "interrupted" || run.Verdict != "pending" || run.Error != nil || run.Changes.Added != 1 {
				t.Errorf("it ended as %q, %s, %+v, with %+v", run.Cause, run.Verdict, run.Error, run.Changes)
			}
			a.Release(false)
			_, err = b.results.Discard(b.ctx, runTarget(r), api.DiscardRequest{})
			b.must(err)
		}
		b.verified()
	})
}

// importing holds back the imports of the source until release is called.
func (b *bed) importing() (release func()) {
	b.Helper()
	p, _, err := b.provider(b.ctx, b.cfg.Backends[0])
	b.must(err)
	key := strings.TrimPrefix(cell.Sum([]byte(p.Name()+"\x00"+b.src)).String(), "sha256:")[:32]
	release, err = b.locks.Acquire(b.ctx, cell.ID("source "+key), "the test", nil)
	b.must(err)
	return release
}

// Runs in a cell that another run makes wait for it, and go on in it.
func TestRunsWaitForTheirCell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		release := b.importing()
		late, err := b.plan(b.ctx, b.request("w", "true")) // before anything makes the cell
		b.must(err)
		req := b.request("w", "echo first > f")
		req.Policy, req.PolicyName = "version: 1\nlimits: {executions: 9}\n", "p.yaml"
		first, err := b.StartRun(b.ctx, req)
		b.must(err)
		synctest.Wait()
		if c, err := b.reg.Cell(cell.ID(first.Cell)); err != nil || c.State != cell.Creating {
			t.Fatalf("the cell is %s, %v", c.State, err)
		}

		second, a := b.attached("w", "cat f > g; echo second >> g", false)
		third, gone := b.attached("w", "true", false)
		synctest.Wait()
		if p := <-a.Progress; p.Step != "waiting" || p.Note != "waiting for run "+first.ID+" in cell w" {
			t.Errorf("it is told %+v", p)
		}
		if second.Cell != first.Cell || third.Cell != first.Cell {
			t.Errorf("they are in cells %s, %s and %s", first.Cell, second.Cell, third.Cell)
		}
		_, err = b.Plan(b.ctx, b.request("w", "true"))
		b.wantKind("a dry run", err, cell.Conflict, "is being made")
		gone.Signalled("SIGINT")
		synctest.Wait()
		if now, _ := b.Engine.Run(cell.RunID(third.ID)); now.Phase != "ended" || now.Error == nil || now.Error.Kind != "interrupted" {
			t.Errorf("the one that was interrupted is %s, %+v", now.Phase, now.Error)
		}
		gone.Release(false)
		late.run = &state.Run{ID: string(cell.NewRunID()), Cell: string(cell.NewID())}
		if err := b.record(b.ctx, late); err != errMadeMeanwhile {
			t.Errorf("a cell of that name was made twice: %v", err)
		}
		release()
		for _, r := range []api.Run{first, second} {
			now, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
			b.must(err)
			if now.Verdict != "pending" || now.ExitCode == nil || *now.ExitCode != 0 {
				t.Errorf("%+v, %+v", now, now.Error)
			}
			if p, err := evidence.ManifestPolicy(&state.Run{Folder: now.Folder, Policy: now.Policy}); err != nil || p.Limits.Execs != 9 {
				t.Errorf("it does not go by what the cell keeps: %+v, %v", p, err)
			}
		}
		a.Release(false)
		b.has("w", "f: first", "g: first\nsecond")
		b.verified()
	})
}

// A run in a cell that is being forked waits for the fork, and goes on in it; or makes the cell when
// there is no fork.
func TestRunsWaitForForks(t *testing.T) {
	for name, works := range map[string]bool{"made": true, "not made": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, "f: 0")
				x := b.toys.hold("fork") // before the template's pool has a fork, which none would wait for
				x.works = works
				b.template("warm", "x = 1")
				forked := make(chan error, 1)
				go func() {
					_, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: "n", Count: 1}, nil)
					forked <- err
				}()
				<-x.begun
				synctest.Wait() // that may have been a fork for the pool: by now this one has its name
				ctx, cancel := context.WithCancelCause(b.ctx)
				began := make(chan error, 2)
				start := func(ctx context.Context) {
					r, err := b.StartRun(ctx, b.request("n", "true"))
					if err == nil {
						_, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
					}
					began <- err
				}
				go start(ctx)
				synctest.Wait()
				gone := errors.New("the client is gone")
				cancel(gone)
				if err := <-began; !errors.Is(err, gone) {
					t.Errorf("a run that waits, after its client went: %v", err)
				}
				go start(b.ctx)
				synctest.Wait()
				if len(began) > 0 {
					t.Fatalf("the run did not wait: %v", <-began)
				}
				close(x.over)
				if err := <-forked; (err == nil) != works {
					t.Fatalf("the fork: %v", err)
				}
				b.must(<-began)
				if c, err := b.reg.Cell(b.id("n")); err != nil || (c.Parent != nil) != works {
					t.Errorf("it ran in %+v, %v", c, err)
				}
			})
		})
	}
}

// When the cell that a run waits for can't be made, the run says why, and what to do.
func TestRunsWaitForACellThatIsNeverMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		release := b.importing()
		first, err := b.StartRun(b.ctx, b.request("w", "true"))
		b.must(err)
		synctest.Wait()
		second, err := b.StartRun(b.ctx, b.request("w", "true"))
		b.must(err)
		synctest.Wait()
		b.must(os.RemoveAll(b.src))
		release()
		now, err := b.runs.Wait(b.ctx, cell.RunID(second.ID))
		b.must(err)
		if now.Error == nil || now.Error.Kind != "conflict" || !strings.Contains(now.Error.Message, "cell w: run "+first.ID+" was to make it: ") || !strings.Contains(now.Error.Hint, "run it again") {
			t.Errorf("%+v", now.Error)
		}
		b.write("f", "0")
		b.run("w", "echo again > f")
		b.has("w", "f: again")
		b.verified()
	})
}
