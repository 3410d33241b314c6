package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace/apply"
)

// recover brings what an earlier daemon left to an end, or on its way again:
// operations that were begun, applies that were interrupted, runs whose
// commands may still live, cells whose keepers may be gone.
func (e *Engine) recover(ctx context.Context) error {
	strays := e.strays()
	e.recoverApplies(ctx)
	e.openVolumes()
	e.endUnknown(ctx)
	for _, rec := range e.reg.openOps() {
		if err := e.resume(ctx, rec); err != nil {
			e.log.Warn("cannot finish an operation of an earlier daemon; it was taken back", "op", rec.ID, "kind", rec.Kind, "error", err)
		}
	}
	for _, c := range e.reg.everyCell() {
		if c.State == cell.Running || c.State == cell.Paused {
			e.recoverInstance(ctx, c)
		}
	}
	e.forgetMemory()
	e.recoverWhole()
	e.endReplaced()
	for _, b := range e.cfg.Backends { // before a run goes on, which may make a cell for its check
		if _, err := b.Leftovers(ctx, false); err != nil {
			e.log.Warn("cannot clean up after dead keepers", "backend", b.Name(), "error", err)
		}
	}
	for _, r := range e.reg.listRuns("") {
		if cell.Phase(r.Phase) != cell.Ended {
			e.recoverRun(r, cell.Errorf(cell.Interrupted, "engine.recover", "run it again", "the daemon ended before the command was started"))
		}
	}
	for _, c := range e.reg.listCells() {
		if c.State == cell.Creating && !e.inRun(c.ID) {
			// Its run has ended or was never recorded.
			e.removeUnmade(c)
		}
	}
	e.expireAsks()
	e.fillPools()
	e.background(func(context.Context) { strays.remove(e) })
	return nil
}

func (e *Engine) inRun(id cell.ID) bool {
	for _, r := range e.reg.listRuns(id) {
		if cell.Phase(r.Phase) != cell.Ended {
			return true
		}
	}
	return false
}

// recoverApplies brings sources in which an apply was interrupted back to
// before it, or to its end.
func (e *Engine) recoverApplies(ctx context.Context) {
	dirs, _ := filepath.Glob(filepath.Join(e.cfg.Home.State, "apply", "*"))
	for _, d := range dirs {
		if _, err := apply.Recover(ctx, d); err != nil {
			e.log.Error("cannot bring a source back after an interrupted apply", "backup", d, "error", err)
		}
		os.Remove(d) // there is nothing in it any more, unless that failed
	}
}

// recoverInstance finds the keeper of a cell that had processes.
func (e *Engine) recoverInstance(ctx context.Context, c Cell) {
	b, err := e.backend(c.Backend)
	if err == nil {
		inst, aerr := b.Attach(ctx, c.ID, c.Family)
		if aerr == nil {
			// It may have been frozen for a moment, or about to be.
			still := inst.Thaw
			if c.State == cell.Paused {
				still = inst.Freeze
			}
			if err := still(ctx); err != nil {
				e.log.Warn("cannot bring a cell back to where it was", "cell", c.ID, "state", c.State, "error", err)
			}
			e.mu.Lock()
			e.instances[c.ID] = inst
			e.mu.Unlock()
			if !e.recoverInterp(ctx, &c, inst) {
				e.watch(inst)
			}
			e.recoverExecs(ctx, inst)
			if c.talks() {
				e.countRefused(ctx, inst, true)
				e.followAsks(inst)
			}
			return
		}
		err = aerr
	}
	if e.inRun(c.ID) {
		return // the run's end says what became of it
	}
	c.State = cell.Idle
	c.Cause = causeKeeperLost + ", while no daemon was there"
	if cell.KindOf(err) != cell.NotFound {
		c.Cause += ": " + err.Error()
	}
	if err := e.reg.commit(&c); err != nil {
		e.log.Error("cannot record a cell", "cell", c.ID, "error", err)
	}
	e.endInterp(c.ID, c.Cause)
}

// recoverExecs finds the commands of a living cell that were started outside
// runs. Who waited for one can come back, and read on from where it was.
func (e *Engine) recoverExecs(ctx context.Context, inst backend.Instance) {
	names, err := inst.Names(ctx)
	if err != nil {
		e.log.Warn("cannot find the commands of a cell", "cell", inst.ID(), "error", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, execPrefix) {
			continue
		}
		proc, err := inst.Process(ctx, name)
		var st cell.Status
		if err == nil {
			st, err = proc.Status(ctx)
		}
		if err != nil {
			continue // its client has got its end in this moment
		}
		_, release := e.hold(inst.ID())
		x := e.newExec(name, inst.ID(), st.Started)
		x.proc, x.command = proc, redactor.Args(st.Args)
		e.follow(x, st.Awaited, release)
	}
}

// recoverInterp finds the interpreter of a living cell, if it has one, and
// reports whether it does.
func (e *Engine) recoverInterp(ctx context.Context, c *Cell, inst backend.Instance) bool {
	i := e.reg.interp(c.ID)
	if i == nil || i.Ended != "" {
		return false
	}
	w, err := e.warmer(inst)
	if err != nil {
		return false
	}
	st, err := w.Warmth(ctx)
	if err != nil {
		e.endInterp(c.ID, "it ended while no daemon was there")
		return false
	}
	e.mu.Lock()
	e.interps[c.ID] = &interp{template: orElse(c.Template, i.Template), sealed: st.Sealed, used: time.Now()}
	if st.Sealed && e.warmParentOf(c) {
		e.poolOf(c.Template, c.ID)
	}
	e.mu.Unlock()
	e.followDeaths(c)
	return true
}

// endUnknown ends the cells that have no business to live: those that an earlier
// daemon had made ahead or for itself, those it was making or had not recorded yet,
// those whose end it had recorded, and keepers without a cell.
func (e *Engine) endUnknown(ctx context.Context) {
	for _, b := range e.cfg.Backends {
		living, err := b.Living(ctx)
		if err != nil {
			e.log.Warn("cannot tell which cells live", "backend", b.Name(), "error", err)
		}
		for _, h := range living {
			if c, err := e.reg.cell(h.ID); err != nil || c.State != cell.Running && c.State != cell.Paused {
				e.endOrphan(ctx, b, h)
			}
		}
	}
}

// forgetMemory removes the images of captures, and of copies that were begun.
func (e *Engine) forgetMemory() {
	names, _ := filepath.Glob(filepath.Join(e.cfg.Home.Memory(), "*"))
	for _, n := range names {
		if err := os.RemoveAll(n); err != nil {
			e.log.Warn("cannot remove an image of memory", "path", n, "error", err)
		}
	}
}

// warmParentOf reports whether a cell is the present one of its template.
func (e *Engine) warmParentOf(c *Cell) bool {
	t, err := e.reg.template(c.Template)
	return c.Template != "" && err == nil && t.Cell == c.ID
}

// endReplaced removes the cells of templates that were built anew, or removed,
// when the daemon ended before it could.
func (e *Engine) endReplaced() {
	for _, c := range e.reg.everyCell() {
		if c.Template == "" || c.State == cell.Removed || c.State == cell.Creating || e.warmParentOf(&c) {
			continue
		}
		e.background(func(ctx context.Context) {
			if err := e.removeCell(ctx, c.ID); err != nil {
				e.log.Warn("cannot remove the cell of a template that is gone", "template", c.Template, "cell", c.ID, "error", err)
			}
		})
	}
}

// endOrphan ends a cell without whoever was to do it: that daemon has died.
func (e *Engine) endOrphan(ctx context.Context, b backend.Backend, h cell.Held) {
	inst, err := b.Attach(ctx, h.ID, h.Family)
	if cell.KindOf(err) == cell.NotFound {
		return // as it should be
	}
	if err != nil {
		e.log.Warn("cannot tell whether an orphaned cell lives", "cell", h.ID, "family", h.Family, "error", err)
		return
	}
	if err := e.removeInstance(ctx, inst, "its end was interrupted"); err != nil {
		e.log.Warn("cannot end an orphaned cell", "cell", h.ID, "error", err)
	}
}

// recoverRun goes on with a run where its record says it was. One whose
// command was not started ends for cause.
func (e *Engine) recoverRun(r Run, cause error) {
	run := &r
	c, err := e.reg.cell(run.CellID())
	if err != nil {
		c = Cell{ID: run.CellID(), Name: run.CellName, State: cell.Removed}
	}
	p := &runPlan{req: api.RunRequest{Command: run.Command, Check: run.In.Check}, source: run.Source, cell: &c, run: run}
	if cell.Phase(run.Phase) == cell.Preparing {
		e.failedToStart(e.life, p, cause)
		if c.State == cell.Creating {
			e.removeUnmade(c)
		}
		return
	}
	if run.In.Check != "" && (run.In.CheckHidden || len(run.In.EnvNames) > 0) {
		// What it needs was known to the earlier daemon alone.
		run.Notes = append(run.Notes, "the check was not run: the daemon ended meanwhile, and with it what the check needs")
		run.In.Check, run.In.OnSuccess = "", "pending"
	}
	l := &liveRun{id: run.RunID(), attached: make(chan struct{}), started: make(chan struct{}), done: make(chan struct{}), watchers: map[chan api.Progress]bool{}}
	close(l.attached)
	l.ctx, l.stop = context.WithCancelCause(e.life)
	x := &execution{e: e, p: p, l: l, run: run, c: c, began: run.Created}
	if run.In.Before != "" {
		if x.before, err = e.reg.checkpoint(run.In.Before); err != nil {
			e.failRun(run, &c, err)
			return
		}
	}
	if x.imported, err = e.lastImport(c.ImportKey); err != nil {
		x.imported = nil
	}
	e.mu.Lock()
	e.live[l.id] = l
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		defer e.ended(l)
		release, err := e.turns.take(ctx, c.ID, "run "+run.ID, nil)
		if err != nil {
			return
		}
		defer release()
		l.working.Store(true)
		defer l.working.Store(false)
		e.goOn(ctx, x)
	})
}

// goOn waits for the command of a recovered run, if it lives, and finishes.
func (e *Engine) goOn(ctx context.Context, x *execution) {
	run := x.run
	if cell.Phase(run.Phase) == cell.Finishing {
		x.finish(ctx, cell.Status{}, nil)
		return
	}
	if inst := e.instance(x.c.ID); inst != nil {
		proc, err := inst.Process(ctx, run.ID)
		if err == nil {
			x.inst, x.proc = inst, proc
			x.l.mu.Lock()
			x.l.proc = proc
			x.l.mu.Unlock()
			close(x.l.started)
			status, werr := e.waitFor(x.l.ctx, proc)
			if errors.Is(werr, errClosing) {
				return
			}
			if status.Exit != nil && status.Exit.Cause == "" && *status.Exit != (cell.Exit{}) {
				// The command failed while nobody could tell the person: the
				// result waits.
				run.In.OnFailure = "pending"
			}
			x.finish(ctx, status, werr)
			return
		}
	}
	status, err := exitFromEvents(run)
	x.finish(ctx, status, err)
}

// exitFromEvents reads how a command ended from what its keeper wrote before
// it was gone.
func exitFromEvents(run *Run) (cell.Status, error) {
	lost := cell.Errorf(cell.Unavailable, "engine.recover", "", "the keeper is gone, and did not write how the command ended")
	f, err := openRecord(run.Folder, "events.jsonl")
	if err != nil {
		return cell.Status{}, lost
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var ev struct {
			Kind   string    `json:"kind"`
			Time   time.Time `json:"time"`
			Fields struct {
				Code   int               `json:"code"`
				Signal string            `json:"signal"`
				Cause  string            `json:"cause"`
				Stdout cell.StreamStatus `json:"stdout"`
				Stderr cell.StreamStatus `json:"stderr"`
				Usage  cell.Usage        `json:"usage"`
				Stats  cell.Stats        `json:"stats"`
			} `json:"fields"`
		}
		if json.Unmarshal(sc.Bytes(), &ev) == nil && ev.Kind == "process.exit" {
			x := ev.Fields
			return cell.Status{Exit: &cell.Exit{Code: x.Code, Signal: x.Signal, Cause: orElse(x.Cause, "daemon lost")}, Started: run.Started,
				Ended: ev.Time, Stdout: x.Stdout, Stderr: x.Stderr, Usage: x.Usage, Stats: x.Stats}, nil
		}
	}
	return cell.Status{}, lost
}

// removeUnmade takes away a cell whose making never came to an end.
func (e *Engine) removeUnmade(c Cell) {
	c.State = cell.Removed
	if err := e.freeing(func() error { return e.reg.commit(&c) }); err != nil {
		e.log.Error("cannot record a cell", "cell", c.ID, "error", err)
		return
	}
	e.dropCell(&c)
}
