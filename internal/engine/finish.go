package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
	"github.com/pando-dev/pando/internal/workspace"
)

// finish brings a run whose command has ended to its verdict: it freezes the
// result, computes digests, restores or keeps, and writes the receipt. It may
// be repeated after a crash: each step finds out what has been done.
func (x *execution) finish(ctx context.Context, status cell.Status, waitErr error) {
	x.l.report(api.Progress{Step: "finishing"})
	defer x.e.pins.Begin().End()
	err := x.conclude(ctx, status, waitErr)
	if durable.IsFull(err) {
		done := x.e.gc.SpendReserve()
		if x.reread() {
			err = x.conclude(ctx, status, waitErr)
		}
		done()
	}
	if err == nil || x.e.closing(err) {
		return // or the next daemon goes on where this one was
	}
	x.e.log.Error("cannot finish a run", "run", x.run.ID, "error", err)
	if !durable.IsFull(err) && x.e.failRun(x.run, &x.c, err) == nil {
		return
	}
	x.e.finishLater(x.run.RunID(), cell.Errorf(cell.Unavailable, "engine.finish",
		"free some space; the run is finished, with its verdict and receipt, as soon as that works", "cannot finish run %s: %w", x.run.ID, err))
}

// reread forgets what could not be recorded.
func (x *execution) reread() bool {
	run, err := x.e.reg.Run(x.run.RunID())
	c, cerr := x.e.reg.Cell(x.c.ID)
	if err != nil || cerr != nil {
		return false
	}
	*x.run, x.c = run, c
	return true
}

func (x *execution) conclude(ctx context.Context, status cell.Status, waitErr error) error {
	if err := x.recordExit(status, waitErr); err != nil {
		return err
	}
	if err := x.e.govern.DropAnswers(ctx, &x.c, ""); err != nil { // the next run does it, or does not begin
		x.e.log.Error("cannot take back what was approved for a run", "run", x.run.ID, "error", err)
	}
	fp := x.lookAgain(ctx)
	t := time.Now()
	if err := x.quiesce(ctx); err != nil {
		return err
	}
	after, err := x.e.settle(ctx, &x.c, state.KindAfter, "", x.run.RunID())
	if err != nil {
		if after, err = x.letGo(ctx, err); err != nil {
			return err
		}
	}
	x.run.Timings.Freeze = ms(time.Since(t))
	t = time.Now()
	changed, err := x.e.results.Compare(ctx, x.run, &x.c, &x.before, &after)
	if err != nil {
		return err
	}
	if changed.Unread && !x.ownFailure() && x.run.Cause == "" {
		x.run.Cause = api.CauseUnreadable
	}
	x.run.Timings.Digest = ms(time.Since(t))
	was, err := x.e.evidence.Adopt(x.run)
	if err != nil {
		return err
	}
	switch {
	case was: // a daemon before this one judged it, and what it signed stands
		if x.run.After != nil {
			x.run.In.After = cell.CheckpointID(x.run.After.Checkpoint)
		}
	case x.succeeded() && x.run.In.Check != "":
		if err := x.check(ctx, &after); err != nil {
			return err
		}
	}
	if !was {
		if err := x.judge(changed); err != nil {
			return err
		}
	}
	if err := x.noteLeftOut(ctx, &after); err != nil {
		return err
	}
	x.run.In.SourceFP2 = <-fp
	if x.run.Verdict == cell.Restored {
		t = time.Now()
		if err := x.goBack(ctx, &after); err != nil {
			return err
		}
		x.run.Timings.Restore = ms(time.Since(t))
	}
	if !was {
		if err := x.writePatch(ctx, changed); err != nil {
			return err
		}
		if err := x.lookForSecrets(ctx, &after); err != nil {
			return err
		}
	}
	if x.p == nil || !x.p.made.restricted() { // its result is kept by now
		if w := x.e.gc.Note(ctx); w != "" {
			x.run.Notes = append(x.run.Notes, w)
		}
	}
	return x.close(ctx, &after)
}

// recordExit writes down how the command ended, before anything is done about
// it.
func (x *execution) recordExit(status cell.Status, waitErr error) error {
	run := x.run
	if run.Phase == cell.Finishing {
		return nil // a daemon before this one got here
	}
	if waitErr != nil {
		x.e.log.Warn("lost a command", "run", run.ID, "error", waitErr)
		status = cell.Status{Exit: &cell.Exit{Code: 255, Cause: "keeper lost"}, Started: run.Started, Ended: time.Now()}
	}
	x.status = status
	exit := cell.Exit{Code: 255, Cause: "keeper lost"}
	if status.Exit != nil {
		exit = *status.Exit
	}
	if exit.Cause == "" && exit.Code != 0 && x.l.interrupted.Load() {
		exit.Cause = "interrupted"
	}
	if exit.Cause == "" && x.c.Volume > 0 && volume.Full(x.e.private(x.c.ID)) {
		exit.Cause = api.CauseDiskLimit // whatever the command made of it
	}
	run.ExitCode, run.Signal, run.Cause = &exit.Code, exit.Signal, exit.Cause
	run.Ended, run.Interactive = status.Ended.UTC(), status.Typed
	run.Timings.Run = ms(status.Ended.Sub(status.Started))
	run.Usage = usageOf(status)
	run.Output = state.OutputsOf(status)
	var err error
	if run.Network, run.MissingCalls, err = evidence.Network(run.Folder, run.RunID()); err != nil {
		run.Notes = append(run.Notes, fmt.Sprintf("what the run said to the outside could not be read: %v", err))
	}
	if status.Unsealed != "" {
		run.Notes = append(run.Notes, "the event stream is incomplete: "+status.Unsealed)
	}
	if err := run.To(cell.Finishing); err != nil {
		return err
	}
	return x.e.reg.Commit(run)
}

// shortest is how long a command has to run for an average of processors to mean
// something: the time of processors has that in it which making the cell took.
const shortest = 100 * time.Millisecond

func usageOf(s cell.Status) state.Usage {
	u := state.Usage{
		WallMS: s.Ended.Sub(s.Started).Milliseconds(), CPUMS: s.Usage.UserMS + s.Usage.SystemMS, PeakMemory: s.Usage.MaxRSS,
		PeakPIDs: s.Stats.PeakPIDs, Written: s.Stats.Written, OOMKills: s.Stats.OOMKills, LeftOver: s.LeftOver, Measured: s.Stats.Measured,
	}
	cpu := (s.Usage.UserMS + s.Usage.SystemMS) * 1000
	if s.Stats.CPU > 0 {
		cpu = s.Stats.CPU
		u.CPUMS = cpu / 1000
	}
	if s.Stats.PeakMemory > 0 {
		u.PeakMemory = s.Stats.PeakMemory
	}
	if wall := s.Ended.Sub(s.Started).Microseconds(); wall >= shortest.Microseconds() {
		u.CPUAverage = float64(cpu) / float64(wall)
	}
	return u
}

// lookAgain takes the source's fingerprint while other things are done.
func (x *execution) lookAgain(ctx context.Context) <-chan cell.Digest {
	out := make(chan cell.Digest, 1)
	if x.imported == nil {
		out <- cell.Digest{}
		return out
	}
	go func() {
		ix, err := workspace.Fingerprint(ctx, x.imported, x.e.cfg.Parser)
		if err != nil {
			out <- cell.Digest{}
			return
		}
		out <- ix.Fingerprint()
	}()
	return out
}

// quiesce takes the instance down where nothing shall go on in it: anonymous
// cells, cells without processes, and those about to be restored.
func (x *execution) quiesce(ctx context.Context) error {
	inst := x.e.alive.Instance(x.c.ID)
	if inst == nil {
		return nil
	}
	back := x.ownFailure() && x.run.In.OnFailure == "restore" && !x.run.Interactive
	switch {
	case x.c.Anonymous() || x.l.ending.Load():
	case back:
		if list, err := inst.List(ctx); err == nil && len(list) > 0 {
			x.run.Notes = append(x.run.Notes, result.CountProcesses(len(list))+" of the cell ended with the restore")
		}
	case !live.NothingRuns(ctx, inst):
		return nil
	}
	if err := x.e.alive.Deactivate(ctx, x.c.ID, "the run ended"); err != nil {
		return err
	}
	return nil
}

// writePatch puts what the run changed, and accept would apply, into its folder.
func (x *execution) writePatch(ctx context.Context, changed *result.Changed) error {
	failpoint.Step("write a patch")
	f, err := evidence.CreateRecord(x.run.Folder, "patch")
	if err != nil {
		return err
	}
	defer f.Close()
	note, err := changed.WritePatch(ctx, f)
	if note != "" {
		x.run.Notes = append(x.run.Notes, note)
	}
	return err
}

// goBack restores the checkpoint before the run. The result stays as
// checkpoint after.
func (x *execution) goBack(ctx context.Context, after *state.Checkpoint) error {
	if err := x.e.alive.Deactivate(ctx, x.c.ID, "restored"); err != nil {
		return err
	}
	x.c.Head, x.c.Gen = x.before.ID, nil
	if after.ID != x.before.ID {
		after.Expires = time.Now().Add(state.KeepResult).UTC()
	}
	x.run.In.Proof = state.ProofLayers
	return nil
}

// close writes the receipt and makes the run's end durable.
func (x *execution) close(ctx context.Context, after *state.Checkpoint) error {
	e, run := x.e, x.run
	if e.alive.AtRest(x.c.ID) {
		if err := x.c.To(cell.Idle); err != nil {
			return err
		}
	}
	gone := false
	if x.c.Anonymous() {
		switch run.Verdict {
		case cell.Accepted:
			x.c.Expires = time.Now().Add(state.KeepAnonymous).UTC()
			gone = run.Reason == "no changes"
		case cell.Restored:
			x.c.Expires = time.Now().Add(state.KeepResult).UTC()
			gone = after.ID == x.before.ID
		}
	}
	t := time.Now()
	if run.Timings.Total == 0 {
		run.Timings.Total = ms(time.Since(x.began))
	}
	if run.Verdict == cell.Accepted && after.ID != x.before.ID {
		if err := e.gc.SyncLayers(); err != nil {
			return err
		}
	}
	if err := e.evidence.SealRun(ctx, run, &x.c); err != nil {
		return err
	}
	run.Timings.Receipt = ms(time.Since(t))
	if err := run.To(cell.Ended); err != nil {
		return err
	}
	if gone {
		if err := x.c.To(cell.Removed); err != nil {
			return err
		}
	}
	if err := e.reg.Commit(&x.c, after, run); err != nil {
		return err
	}
	if gone {
		e.gc.DropCell(&x.c)
	}
	if run.In.OnSuccess == "apply" && run.Verdict == cell.Pending && x.succeeded() {
		// The cell's lock is held: accept without taking it again.
		err := e.results.Apply(ctx, &x.c, run, "--on-success apply")
		if now, rerr := e.reg.Run(run.RunID()); rerr == nil {
			*run = now
		}
		if err != nil {
			run.Notes = append(run.Notes, fmt.Sprintf("not applied: %v", err))
			return e.reg.Commit(run)
		}
	}
	return nil
}
