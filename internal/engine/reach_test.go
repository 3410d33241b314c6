package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// answers are what questions about a living cell may get in its place.
var answers = map[string]error{
	"no connection": &cell.NoAnswer{Err: errors.New("too many open files")},
	"late":          cell.Errorf(cell.Timeout, "toy", "", "it did not answer in time"),
	"unavailable":   cell.Errorf(cell.Unavailable, "toy", "", "the guest does not answer"),
	"wrong":         cell.Errorf(cell.Internal, "toy", "", "the answer makes no sense"),
}

// refusedAgain returns when an act that fails was asked for twice more.
func (b *bed) refusedAgain(act string) {
	b.Helper()
	was := b.toys.timesRefused(act)
	b.until(act+" was asked for again", func() bool { return b.toys.timesRefused(act) >= was+2 })
}

// What goes on in a cell goes on when its keeper can't be asked about it: not one answer
// that is missing, late or wrong makes an act that was not asked for end it, and it
// is all there when questions are answered again.
func TestX14QuestionsWithoutAnAnswer(t *testing.T) {
	for name, err := range answers {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "f: 0")
			b.run("w", "true")
			id := b.id("w")
			x, xerr := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
			b.must(xerr)
			b.run("e", "true")
			b.eval("e", "x = 41")
			inst, einst := b.alive.Instance(id), b.alive.Instance(b.id("e"))
			for _, act := range []string{"list", "names", "process", "status", "warmth"} {
				b.toys.fail(act, err)
			}
			b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}, Wait: true})
			b.do(b.request("w", "echo 1 > f"))
			fails := b.request("w", "exit 1")
			fails.OnFailure = "pending" // else it ends what runs beside it, as it says
			b.do(fails)
			b.StartRun(b.ctx, api.RunRequest{Cell: "w", Command: []string{"no such program"}})
			b.Checkpoint(b.ctx, id, api.CheckpointRequest{})
			b.Fork(b.ctx, id, api.ForkRequest{Name: "d"})
			b.alive.Processes(b.ctx, id)
			b.Stats(b.ctx, id)
			b.alive.Rest(b.ctx, id)
			b.alive.Rest(b.ctx, b.id("e"))
			b.collected()
			if b.alive.Instance(id) != inst || b.alive.Instance(b.id("e")) != einst {
				t.Error("a cell was taken down")
			}
			for act := range b.toys.refuse {
				b.toys.fail(act, nil)
			}
			if b.ended(x.ID) {
				t.Error("a command has ended")
			}
			b.says("e", "x + 1", "42")
		})
	}
}

// A daemon that begins and gets no answer about a cell leaves it as it is, says so to
// its users, and finds it when it is answered.
func TestX14ADaemonThatGetsNoAnswer(t *testing.T) {
	for _, act := range []string{"attach", "names", "process", "status", "thaw", "warmth"} {
		t.Run(act, func(t *testing.T) {
			b := newBed(t, "f: 0")
			b.run("w", "true")
			x, err := b.StartExec(b.ctx, b.id("w"), api.ExecRequest{Command: []string{"sleep", "300"}})
			b.must(err)
			b.run("e", "true")
			b.eval("e", "x = 41")
			r, err := b.StartRun(b.ctx, b.request("r", "sleep 300"))
			b.must(err)
			b.starts(r)
			b.must(b.reg.Commit(&state.Approval{Ask: cell.Asked{ID: "q-1", Cell: b.id("w"), At: time.Now(), Expires: time.Now().Add(time.Hour)}, State: state.ApprovalWaiting}))
			b.close()
			err = answers["no connection"]
			if act == "attach" {
				err = cell.Errorf(cell.Unavailable, "toy", "", "no answer: %w", err)
			}
			b.toys.fail(act, err)
			defer b.toys.fail(act, nil) // or what fails here would wait for the toys at its end
			b.open()
			b.reopen() // nor does a second one end what the first could not reach
			id := b.id("w")
			if act == "attach" {
				_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}, Wait: true})
				b.wantKind("exec", err, cell.Unavailable, "cannot tell what goes on in cell w")
				_, err = b.Remove(b.ctx, id, false)
				b.wantKind("remove", err, cell.Unavailable, "cannot tell what goes on in cell w")
				_, err = b.Stop(b.ctx, id)
				b.wantKind("stop", err, cell.Unavailable, "cannot tell what goes on in cell w")
				_, err = b.alive.Processes(b.ctx, id)
				b.wantKind("ps", err, cell.Unavailable, "cannot tell what goes on in cell w")
				_, err = b.Stats(b.ctx, id)
				b.wantKind("stats", err, cell.Unavailable, "cannot tell what goes on in cell w")
				_, err = b.Pause(b.ctx, id)
				b.wantKind("pause", err, cell.Unavailable, "cannot tell what goes on in cell w")
				testenv.Eventually(t, func() bool { return b.runs.In(b.id("r")) != nil }, "the run that is found again")
				_, err = b.runs.Attach(cell.RunID(r.ID), true)
				b.wantKind("attaching to the run", err, cell.Unavailable, "cannot tell what goes on in cell r")
				_, err = b.alive.Dial(b.ctx, id, 80)
				b.wantKind("dial", err, cell.Unavailable, "cannot tell what goes on in cell w")
				b.wantKind("a change of what is allowed", b.govern.Refresh(b.ctx, id), cell.Unavailable, "cannot tell what goes on in cell w")
				if list := b.reg.Approvals(); len(list) != 1 || list[0].State != state.ApprovalWaiting {
					t.Errorf("what the cell asks for is %+v", list)
				}
				_, err = b.All().Answer(b.ctx, "q-1", true, "")
				b.wantKind("approve", err, cell.Unavailable, "cannot answer q-1")
				again, err := b.StartRun(b.ctx, b.request("w", "true"))
				if err == nil { // else it was refused at once: the daemon has noticed already
					again, err = b.runs.Wait(b.ctx, cell.RunID(again.ID))
				}
				if err == nil && again.Error != nil { // else waiting for it was refused
					err = cell.Errorf(cell.Kind(again.Error.Kind), "", "", "%s", again.Error.Message)
				}
				b.wantKind("a run", err, cell.Unavailable, "cannot tell what goes on in cell w")
			}
			for _, name := range []string{"w", "e", "r"} {
				if c, err := b.reg.Cell(b.id(name)); err != nil || c.State != cell.Running {
					t.Errorf("%s is %s (%q), %v", name, c.State, c.Cause, err)
				}
			}
			b.toys.fail(act, nil)
			b.until("the cell was found", func() bool {
				list, err := b.alive.Processes(b.ctx, id)
				return err == nil && len(list) == 1
			})
			if b.ended(x.ID) {
				t.Error("the command has ended")
			}
			b.says("e", "x + 1", "42")
			b.until("the run's cell was found", func() bool { return b.alive.Instance(b.id("r")) != nil })
			if run, err := b.Run(cell.RunID(r.ID)); err != nil || cell.Phase(run.Phase) == cell.Ended {
				t.Errorf("the run has ended: %+v, %v", run, err)
			}
			b.runs.Interrupt(cell.RunID(r.ID), "")
			run, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
			b.must(err)
			if run.Cause != "interrupted" {
				t.Errorf("the run ended as %+v", run)
			}
		})
	}
}

// A cell without a keeper that can be talked to refuses at once what it can't do, also while a
// run of an earlier daemon holds its lock, and says why; it is found when the keeper answers.
func TestKeepersOutOfReach(t *testing.T) {
	const versions = "its keeper speaks version 1 of the keepers' protocol, this daemon version 9"
	for name, x := range map[string]struct {
		err   error
		kind  cell.Kind
		words string
	}{
		"another protocol": {cell.Errorf(cell.Unsupported, "toy", "kill it", versions), cell.Unsupported, versions},
		"no answer":        {cell.Errorf(cell.Unavailable, "toy", "", "no answer: %w", answers["no connection"]), cell.Unavailable, "cannot tell what goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "f: 0")
			b.run("w", "true")
			_, err := b.StartExec(b.ctx, b.id("w"), api.ExecRequest{Command: []string{"sleep", "300"}})
			b.must(err)
			r, err := b.StartRun(b.ctx, b.request("r", "sleep 300"))
			b.must(err)
			b.starts(r)
			b.close()
			b.toys.fail("attach", x.err)
			b.open()
			b.until("the run goes on", func() bool { return b.runs.In(b.id("r")) != nil })
			for _, cellName := range []string{"w", "r"} {
				id := b.id(cellName)
				for what, do := range map[string]func() error{
					"exec": func() error {
						_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}, Wait: true})
						return err
					},
					"eval": func() error { _, err := b.Eval(b.ctx, id, api.EvalRequest{Code: "1"}, nil); return err },
					"stop": func() error { _, err := b.Stop(b.ctx, id); return err },
					"rm":   func() error { _, err := b.Remove(b.ctx, id, false); return err },
				} {
					done := make(chan error, 1)
					go func() { done <- do() }()
					err, _ := testenv.Receive(t, done, cellName+": "+what)
					b.wantKind(cellName+": "+what, err, x.kind, x.words, cellName)
				}
				if x.kind != cell.Unsupported && cellName != "r" {
					continue
				}
				for what, do := range map[string]func() error{
					"checkpoint": func() error { _, err := b.Checkpoint(b.ctx, id, api.CheckpointRequest{}); return err },
					"fork":       func() error { _, err := b.Fork(b.ctx, id, api.ForkRequest{Name: "d"}); return err },
				} {
					done := make(chan error, 1)
					go func() { done <- do() }()
					err, _ := testenv.Receive(t, done, cellName+": "+what)
					b.wantKind(cellName+": "+what, err, x.kind, x.words)
				}
			}
			if x.kind == cell.Unsupported {
				_, err := b.StartRun(b.ctx, b.request("r", "true"))
				b.wantKind("run", err, x.kind, x.words)
			}
			b.toys.fail("attach", nil)
			b.until("the cells were found", func() bool { return b.alive.Instance(b.id("w")) != nil && b.alive.Instance(b.id("r")) != nil })
			b.runs.Interrupt(cell.RunID(r.ID), "")
			if run, err := b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || run.Cause != "interrupted" {
				t.Errorf("the run ended as %+v, %v", run, err)
			}
		})
	}
}

// A connection that breaks while a command is waited for does not end it.
func TestX14AWaitThatBreaks(t *testing.T) {
	b := newBed(t, "f: 0")
	b.run("w", "true")
	r, err := b.StartRun(b.ctx, b.request("w", "sleep 300"))
	b.must(err)
	b.starts(r)
	inst := b.alive.Instance(b.id("w"))
	for range 3 {
		b.toys.fail("wait", answers["no connection"])
		b.refusedAgain("wait")
		b.toys.fail("wait", nil)
	}
	if run, err := b.Run(cell.RunID(r.ID)); err != nil || cell.Phase(run.Phase) == cell.Ended || b.alive.Instance(b.id("w")) != inst {
		t.Errorf("the run has ended: %+v, %v", run, err)
	}
	b.runs.Interrupt(cell.RunID(r.ID), "")
	if run, err := b.runs.Wait(b.ctx, cell.RunID(r.ID)); err != nil || run.Cause != "interrupted" {
		t.Errorf("the run ended as %+v, %v", run, err)
	}
}

// A cell that stood still for a checkpoint goes on when its keeper is there again.
func TestX14ThawThatFails(t *testing.T) {
	for name, err := range answers {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "f: 0")
			b.run("w", "true")
			x, xerr := b.StartExec(b.ctx, b.id("w"), api.ExecRequest{Command: []string{"sleep", "300"}})
			b.must(xerr)
			b.toys.fail("thaw", err)
			done := make(chan error, 1)
			go func() {
				_, err := b.Checkpoint(b.ctx, b.id("w"), api.CheckpointRequest{})
				done <- err
			}()
			b.refusedAgain("thaw")
			b.toys.fail("thaw", nil)
			cerr, _ := testenv.Receive(b.TB, done, "the checkpoint")
			b.must(cerr)
			b.run("w", "echo 1 > f")
			b.has("w", "f: 1")
			if b.ended(x.ID) {
				t.Error("the command has ended")
			}
		})
	}
}
