package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Work is what comes before the command of a run.
type Work interface {
	// LookAgain brings the plan up to date, after other work in the cell.
	LookAgain() error
	// Prepare brings the cell to the state in which the command can start, and Start starts it.
	Prepare(context.Context, *Live) error
	Start(context.Context, *Live) error
	// Job is what these have come to.
	Job() Job
	// Close lets go of what is recorded by now. It may be called again.
	Close()
}

// Job is a run with its cell, checkpoint and process.
type Job struct {
	Run      *state.Run
	Planned  *state.Cell // as the cell was before
	Cell     state.Cell  // without an ID: nothing was done in it
	Before   state.Checkpoint
	Imported *workspace.Imported // of the source; nil when nothing is known of it
	Began    time.Time
	Inst     backend.Instance
	Proc     backend.Process
	Check    string        // the command of its check; the record has it without secrets
	Env      []string      // that the policy sets
	Workdir  func() string // where the command runs
	Alone    bool          // the caller does not see all of the installation
	Live     *Live         // set by the Manager
}

// Request is a run that was recorded.
type Request struct {
	Run     *state.Run
	Work    Work
	Release func() // releases the lock of the cell; nil: Start takes it
	// Await is how long the run waits for its client, from now on; 0: it waits for none.
	Await time.Duration
	// Along is a context as part of the trace of the request.
	Along func(context.Context) context.Context
	// Over is told how the run is recorded at its end in this daemon.
	Over func(state.Run, error)
}

// Start carries out a run, in the background.
func (m *Manager) Start(req Request) {
	l := newLive(req.Run.RunID())
	l.over = req.Over
	l.ctx, l.stop = context.WithCancelCause(req.Along(m.cfg.Life))
	if req.Await == 0 {
		close(l.attached)
	}
	m.add(l)
	if req.Await > 0 {
		m.Expect(l.id, req.Await)
	}
	m.cfg.Background(func(ctx context.Context) {
		defer m.ended(l)
		m.carryOut(req.Along(ctx), req, l)
	})
}

// carryOut is the life of a run.
func (m *Manager) carryOut(ctx context.Context, req Request, l *Live) {
	began := time.Now()
	w, run, release := req.Work, req.Run, req.Release
	var err error
	if release == nil {
		release, err = m.cfg.Locks.Acquire(l.ctx, run.CellID(), "run "+run.ID, func(holder string) {
			note := fmt.Sprintf("waiting for %s in cell %s", cmp.Or(holder, "other work"), w.Job().Planned.Title())
			if id, ok := strings.CutPrefix(holder, "run "); ok {
				if r, err := m.cfg.Records.Run(cell.RunID(id)); err == nil && m.Detached(&r) {
					note += ", which has a terminal and no client: pando attach " + r.ID
				}
			}
			l.Report(api.Progress{Step: "waiting", Note: note})
		})
		if err != nil {
			m.failedToStart(ctx, w.Job(), err)
			return
		}
	}
	defer release()
	l.working.Store(true)
	defer l.working.Store(false)
	if req.Release == nil {
		if err := w.LookAgain(); err != nil {
			m.failedToStart(ctx, w.Job(), err)
			return
		}
	}
	defer w.Close()
	in, prepared := m.cfg.Stage(l.ctx, "prepare")
	err = w.Prepare(in, l)
	if prepared(err); err == nil {
		var started func(error)
		in, started = m.cfg.Stage(l.ctx, "start")
		err = w.Start(in, l)
		started(err)
	}
	x := &execution{m: m, Job: w.Job()}
	x.Live, x.Began = l, began
	if err != nil {
		x.abandon(ctx, l.whyNot(err))
		return
	}
	w.Close() // all of it is recorded
	in, waited := m.cfg.Stage(l.ctx, "command")
	status, err := x.wait(in)
	waited(err)
	if m.leaves(err) {
		return // the next daemon goes on with it
	}
	in, finished := m.cfg.Stage(ctx, "finish")
	x.finish(in, status, err)
	finished(nil)
}

// leaves reports whether a command could not be waited for because the daemon ends.
func (m *Manager) leaves(err error) bool {
	return m.cfg.Life.Err() != nil && errors.Is(err, context.Cause(m.cfg.Life))
}

// closing reports whether something failed because the daemon ends.
func (m *Manager) closing(err error) bool {
	return m.leaves(err) || m.cfg.Life.Err() != nil && errors.Is(err, context.Canceled)
}

// execution is a run from the start of its command to its end, under the lock of its cell.
type execution struct {
	m *Manager
	Job
	services []any      // cells of services that went back with a run's, until these are recorded,
	moved    func(bool) // and what is called then; nil: none did
}

// wait waits for the command. When the run is interrupted meanwhile, the
// command is ended and waited for.
func (x *execution) wait(ctx context.Context) (cell.Status, error) {
	x.Live.Report(api.Progress{Step: "running"})
	if x.Cell.Talks() && !x.Run.TTY {
		defer x.tellDenials(ctx)()
	}
	return x.waitFor(ctx)
}

// waitFor waits for the end of the command, and does meanwhile what is asked for with Live.Within.
func (x *execution) waitFor(ctx context.Context) (status cell.Status, err error) {
	defer close(x.Live.waited)
	defer x.m.cfg.Locks.Serve(x.Cell.ID, x.Run.RunID())()
	if x.Run.In.IdlePause > 0 {
		ctx, stop := context.WithCancel(ctx)
		over := make(chan struct{})
		go func() {
			defer close(over)
			x.pauseIdle(ctx)
		}()
		defer func() {
			stop()
			<-over
		}()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		status, err = x.m.cfg.Commands.WaitFor(ctx, x.Inst, x.Proc)
	}()
	for {
		select {
		case <-ended:
			return status, err
		case do := <-x.Live.within:
			do()
			if c, err := x.m.cfg.Records.Cell(x.Cell.ID); err == nil { // it may have been changed
				x.Cell = c
			}
		}
	}
}

// toldAtOnce is how many denials a run tells while it goes on.
const toldAtOnce = 20

// tellDenials reports to the clients of a run what it is refused on the network,
// each thing once, while its command may still try for minutes. The end tells
// all. stop ends it.
func (x *execution) tellDenials(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		told := 0
		for d := range x.m.cfg.Files.Denials(ctx, x.Run) {
			x.Live.Report(api.Progress{Step: api.StepDenied, Note: d.String()})
			if told++; told == toldAtOnce {
				return
			}
		}
	}()
	return func() {
		cancel()
		<-over
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
