package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// finish brings a run to its verdict after its command has ended: it freezes the
// result, computes digests, restores or keeps, and writes the receipt. It may
// be repeated after a crash: each step finds out what has been done.
func (x *execution) finish(ctx context.Context, status cell.Status, waitErr error) {
	x.Live.Report(api.Progress{Step: "finishing"})
	defer x.m.cfg.Pin()()
	err := x.conclude(ctx, status, waitErr)
	if durable.IsFull(err) {
		done := x.m.cfg.Space.SpendReserve()
		if x.reread() {
			err = x.conclude(ctx, status, waitErr)
		}
		done()
	}
	if err == nil || x.m.closing(err) {
		return // or the next daemon goes on where this one was
	}
	x.m.cfg.Log.Error("cannot finish a run", "run", x.Run.ID, "error", err)
	if !durable.IsFull(err) && x.m.failRun(x.Run, &x.Cell, err) == nil {
		return
	}
	x.m.finishLater(x.Run.RunID(), cell.Errorf(cell.Unavailable, "run.finish",
		"free some space; the run is finished, with its verdict and receipt, as soon as that works", "cannot finish run %s: %w", x.Run.ID, err))
}

// reread forgets what could not be recorded.
func (x *execution) reread() bool {
	run, err := x.m.cfg.Records.Run(x.Run.RunID())
	c, cerr := x.m.cfg.Records.Cell(x.Cell.ID)
	if err != nil || cerr != nil {
		return false
	}
	*x.Run, x.Cell = run, c
	return true
}

func (x *execution) conclude(ctx context.Context, status cell.Status, waitErr error) (err error) {
	defer func() {
		if x.moved != nil {
			x.moved(err == nil)
			x.services, x.moved = nil, nil
		}
	}()
	if err := x.recordExit(status, waitErr); err != nil {
		return err
	}
	if err := x.m.cfg.EndAnswers(ctx, &x.Cell); err != nil { // the next run does it, or does not begin
		x.m.cfg.Log.Error("cannot take back what was approved for a run", "run", x.Run.ID, "error", err)
	}
	fp := x.fingerprint(ctx)
	t := time.Now()
	if err := x.quiesce(ctx); err != nil {
		return err
	}
	after, err := x.m.cfg.Checkpoint(ctx, &x.Cell, x.Run.RunID())
	if err != nil {
		if after, err = x.letGo(ctx, err); err != nil {
			return err
		}
	}
	x.Run.Timings.Freeze = ms(time.Since(t))
	t = time.Now()
	changed, err := x.m.cfg.Compare(ctx, x.Run, &x.Cell, &x.Before, &after)
	if err != nil {
		return err
	}
	if changed.Unread() && !x.ownFailure() && x.Run.Cause == "" {
		x.Run.Cause = api.CauseUnreadable
	}
	if after.ID != x.Before.ID && after.Kind == state.KindAfter {
		for _, name := range x.Cell.ServiceNames() {
			if after.Services[name] == "" {
				x.Run.Notes = append(x.Run.Notes, "what service "+name+" keeps is not a part of the result: it could not be kept; see the daemon's log")
			}
		}
	}
	x.Run.Applied = state.FilesOf(x.Cell.Applied, x.Run.RunID())
	x.Run.Timings.Digest = ms(time.Since(t))
	was, err := x.m.cfg.Evidence.Adopt(x.Run)
	if err != nil {
		return err
	}
	switch {
	case was: // a daemon before this one judged it, and what it signed stands
		if x.Run.After != nil {
			x.Run.In.After = cell.CheckpointID(x.Run.After.Checkpoint)
		}
	case x.succeeded() && x.Run.In.Check != "":
		x.Live.Report(api.Progress{Step: "checking", Note: x.Run.In.Check})
		if err := x.m.cfg.Check(ctx, &x.Job, &after); err != nil {
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
	x.Run.In.SourceFP2 = <-fp
	if x.Run.Verdict == cell.Restored {
		t = time.Now()
		if err := x.goBack(ctx, &after); err != nil {
			return err
		}
		x.Run.Timings.Restore = ms(time.Since(t))
	}
	if !was {
		if err := x.writePatch(ctx, changed); err != nil {
			return err
		}
		x.m.cfg.Calls(ctx, x.Run, &x.Cell, &after)
		if err := x.m.cfg.Secrets(ctx, x.Run, &x.Cell, &x.Before, &after); err != nil {
			return err
		}
	}
	if !x.Alone { // its result is kept by now
		if w := x.m.cfg.Space.Note(ctx, x.Run.Changes.Bytes); w != "" {
			x.Run.Notes = append(x.Run.Notes, w)
		}
	}
	return x.close(ctx, &after)
}

// recordExit writes down how the command ended, before anything is done about
// it.
func (x *execution) recordExit(status cell.Status, waitErr error) error {
	run := x.Run
	if run.Phase == cell.Finishing {
		return nil // a daemon before this one got here
	}
	if waitErr != nil {
		x.m.cfg.Log.Warn("lost a command", "run", run.ID, "error", waitErr)
		status = cell.Status{Exit: &cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}, Started: run.Started, Ended: time.Now()}
	}
	exit := cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}
	if status.Exit != nil {
		exit = *status.Exit
	}
	if exit.Cause == "" && exit.Code != 0 && x.Live.interrupted.Load() {
		exit.Cause = cell.CauseInterrupted
	}
	if exit.Cause == "" && x.Cell.Volume > 0 && x.m.cfg.DiskFull(x.Cell.ID) {
		exit.Cause = api.CauseDiskLimit // whatever the command made of it
	}
	run.ExitCode, run.Signal, run.Cause = &exit.Code, exit.Signal, exit.Cause
	run.Ended, run.Interactive = status.Ended.UTC(), status.Typed
	run.Timings.Run = ms(status.Ended.Sub(status.Started))
	run.Usage = usageOf(status)
	run.Output = state.OutputsOf(status)
	run.In.Replayed, run.Recording = status.Replayed, status.Recording
	if run.In.Record && run.Recording == nil && x.Cell.Talks() {
		run.Recording = &cell.Recording{Incomplete: "its keeper did not close it"}
	}
	var err error
	if run.Network, run.MissingCalls, err = x.m.cfg.Files.Network(run.Folder, run.RunID(), x.Cell.Setup.Prices()); err != nil {
		run.Notes = append(run.Notes, fmt.Sprintf("cannot read the network events of the run: %v", err))
	}
	if status.KilledAfter > 0 {
		run.Notes = append(run.Notes, fmt.Sprintf("the command had not ended %s after it was asked to (SIGTERM), and was killed", status.KilledAfter))
	}
	if status.Unsealed != "" {
		run.Notes = append(run.Notes, "the event stream is incomplete: "+status.Unsealed)
	}
	if err := run.To(cell.Finishing); err != nil {
		return err
	}
	return x.m.cfg.Records.Commit(run)
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

// fingerprint takes the source's fingerprint while other things are done.
func (x *execution) fingerprint(ctx context.Context) <-chan cell.Digest {
	out := make(chan cell.Digest, 1)
	if x.Imported == nil {
		out <- cell.Digest{}
		return out
	}
	go func() {
		now, err := workspace.Fingerprint(ctx, x.Imported, x.m.cfg.Parser)
		if err != nil {
			now = cell.Digest{}
		}
		out <- now
	}()
	return out
}

// quiesce takes the instance down where nothing shall go on in it: anonymous
// cells, cells without processes, and those about to be restored.
func (x *execution) quiesce(ctx context.Context) error {
	inst := x.m.cfg.Cells.Instance(x.Cell.ID)
	if inst == nil {
		return nil
	}
	back := x.goesBack(x.ownFailure()) && !x.Run.Interactive
	switch {
	case x.Cell.Anonymous() || x.Live.ending.Load():
	case back:
		if list, err := inst.List(ctx); err == nil && len(list) > 0 {
			x.Run.Notes = append(x.Run.Notes, state.CountProcesses(len(list))+" of the cell ended with the restore")
		}
	case !x.m.cfg.Idle(ctx, inst):
		return nil
	}
	if err := x.m.cfg.Cells.Deactivate(ctx, x.Cell.ID, "the run ended"); err != nil {
		return err
	}
	return nil
}

// writePatch puts what the run changed, and accept would apply, into its folder.
func (x *execution) writePatch(ctx context.Context, changed Changed) error {
	failpoint.Step("write a patch")
	f, err := x.m.cfg.Files.Create(x.Run.Folder, "patch")
	if err != nil {
		return err
	}
	defer f.Close()
	note, err := changed.WritePatch(ctx, f)
	if note != "" {
		x.Run.Notes = append(x.Run.Notes, note)
	}
	return err
}

// goBack restores the checkpoint before the run. The result stays as
// checkpoint after.
func (x *execution) goBack(ctx context.Context, after *state.Checkpoint) error {
	if err := x.m.cfg.Cells.Deactivate(ctx, x.Cell.ID, "restored"); err != nil {
		return err
	}
	x.Cell.Head, x.Cell.Gen = x.Before.ID, nil
	services, moved, err := x.m.cfg.ServicesTo(ctx, &x.Cell, &x.Before)
	switch {
	case ctx.Err() != nil: // the next daemon does it
		if err == nil {
			moved(false)
		}
		return context.Cause(ctx)
	case err != nil: // the files are there, all the same
		x.Run.Notes = append(x.Run.Notes, "not all services are back where they were before the run: "+err.Error())
	default:
		x.services, x.moved = services, moved
		if names := x.Cell.ServicesAt(&x.Before); len(names) > 0 {
			x.Run.Notes = append(x.Run.Notes, "its services are where they were before it, too: "+strings.Join(names, ", "))
		}
	}
	if after.ID != x.Before.ID {
		after.Expires = time.Now().Add(state.KeepResult).UTC()
	}
	x.Run.In.Proof = state.ProofLayers
	return nil
}

// close writes the receipt and makes the run's end durable.
func (x *execution) close(ctx context.Context, after *state.Checkpoint) error {
	m, run := x.m, x.Run
	if m.cfg.Cells.AtRest(x.Cell.ID) {
		if err := x.Cell.To(cell.Idle); err != nil {
			return err
		}
	}
	gone := false
	if x.Cell.Anonymous() {
		switch run.Verdict {
		case cell.Accepted:
			x.Cell.Expires = time.Now().Add(state.KeepAnonymous).UTC()
			gone = run.Reason == api.ReasonNoChanges
		case cell.Restored:
			x.Cell.Expires = time.Now().Add(state.KeepResult).UTC()
			gone = after.ID == x.Before.ID
		}
	}
	t := time.Now()
	if run.Timings.Total == 0 {
		run.Timings.Total = ms(time.Since(x.Began))
	}
	if run.Verdict == cell.Accepted && after.ID != x.Before.ID {
		if err := m.cfg.Space.SyncLayers(); err != nil {
			return err
		}
	}
	m.cfg.NoteCaches(ctx, &x.Cell, run)
	if err := m.cfg.Evidence.SealRun(ctx, run, &x.Cell); err != nil {
		return err
	}
	m.cfg.EndCaches(ctx, &x.Cell, run)
	run.Timings.Receipt = ms(time.Since(t))
	if err := run.To(cell.Ended); err != nil {
		return err
	}
	if gone {
		if err := x.Cell.To(cell.Removed); err != nil {
			return err
		}
	}
	objects := append([]any{&x.Cell, after, run}, x.services...)
	var owed *operation.Redo
	if run.In.OnSuccess == "apply" && run.Verdict == cell.Pending && x.succeeded() {
		args, err := json.Marshal(applyArgs{run.RunID()})
		if err != nil {
			return err
		}
		owed = &operation.Redo{ID: operation.NewID(), Kind: OpApply, Args: args, Phase: operation.Doing}
		objects = append(objects, owed)
	}
	if err := m.cfg.Records.Commit(objects...); err != nil {
		return err
	}
	if gone {
		m.cfg.Drops.DropCell(&x.Cell)
	}
	m.noteDemand(ctx, &x.Cell, run)
	if owed == nil {
		return nil
	}
	failpoint.Step("apply what a run made")
	err := m.apply(ctx, &x.Cell, run)
	if m.closing(err) {
		return err // the next daemon goes on
	}
	owed.Phase, owed.Args = operation.Done, nil
	if err = errors.Join(err, m.cfg.Records.Commit(owed)); err != nil { // the run has ended all the same; the next daemon looks again
		m.cfg.Log.Error("cannot record what became of an apply", "run", run.ID, "error", err)
	}
	return nil
}

// noteDemand notes in a run that has ended which sign-offs its result needs, for lists. Each accept looks again.
func (m *Manager) noteDemand(ctx context.Context, c *state.Cell, run *state.Run) {
	if run.Verdict != cell.Pending || run.In.After == "" {
		return
	}
	if demands, err := m.cfg.Demands(c, run); err == nil && !demands {
		return
	}
	need, err := m.cfg.Demand(ctx, c, run)
	if err == nil && need != nil {
		run.NeedsSignOff = need
		err = m.cfg.Records.Commit(run)
	}
	if err != nil {
		m.cfg.Log.Warn("cannot tell which sign-offs a run needs", "run", run.ID, "error", err)
	}
}

// OpApply is the kind of the operation in the journal that applies what a run made, which ends with --on-success apply.
const OpApply = "apply"

// applyArgs is an apply that is owed.
type applyArgs struct {
	Run cell.RunID `json:"run"`
}

// apply applies what a run made to its source. What keeps it from that is a note of the run. The caller holds the
// cell's lock.
func (m *Manager) apply(ctx context.Context, c *state.Cell, run *state.Run) error {
	err := m.cfg.Apply(ctx, c, run, "--on-success apply")
	if m.closing(err) {
		return err
	}
	if now, rerr := m.cfg.Records.Run(run.RunID()); rerr == nil {
		*run = now
	}
	if err == nil {
		return nil
	}
	run.Notes = append(run.Notes, fmt.Sprintf("not applied: %v", err))
	return m.cfg.Records.Commit(run)
}

// Resume applies what a run made that ended when an earlier daemon did. What that daemon began by itself has
// been finished.
func (m *Manager) Resume(ctx context.Context, rec operation.Redo) error {
	return operation.DoAgain(ctx, m.cfg.Records, rec, func(ctx context.Context, args applyArgs) error {
		run, err := m.cfg.Records.Run(args.Run)
		if err != nil || run.Verdict != cell.Pending {
			return err
		}
		c, err := m.cfg.Records.Cell(run.CellID())
		if err != nil {
			return err
		}
		return m.apply(ctx, &c, &run)
	})
}

// Unaffordable is why a cell's present files can't become a checkpoint.
type Unaffordable struct{ Claims, Limit int64 } // bytes

func (u *Unaffordable) Error() string {
	return fmt.Sprintf("its new files claim %s, and its disk limit is %s", policy.FormatSize(u.Claims), policy.FormatSize(u.Limit))
}

// letGo ends a run with a result that can't be kept: the cell is where it was before, or at what was accepted of it last.
func (x *execution) letGo(ctx context.Context, err error) (state.Checkpoint, error) {
	why, ok := errors.AsType[*Unaffordable](err)
	if !ok {
		return x.Before, fmt.Errorf("cannot keep the result: %w", err)
	}
	back := x.Before
	if taken := x.taken(); taken != nil {
		if back, err = x.m.cfg.Records.Checkpoint(taken.Checkpoint); err != nil {
			return x.Before, err
		}
	}
	if err := x.m.cfg.Cells.Deactivate(ctx, x.Cell.ID, why.Error()); err != nil {
		return x.Before, err
	}
	if x.Cell.Gen == nil { // they are not its own
		return x.Before, fmt.Errorf("cannot keep the result: %w", err)
	}
	provider, layer := x.Cell.Provider, x.Cell.Gen.Layer
	x.Cell.Head, x.Cell.Gen = back.ID, nil
	x.Run.Cause, x.Run.In.LetGo = api.CauseDiskLimit, why.Error()
	if err := x.m.cfg.Records.Commit(&x.Cell, x.Run); err != nil {
		return x.Before, err
	}
	x.m.cfg.Background(func(context.Context) { x.m.cfg.Drops.DropLayer(provider, layer) })
	return back, nil
}
