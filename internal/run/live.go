package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Live is a run that has not ended, in this daemon.
type Live struct {
	id   cell.RunID
	ctx  context.Context // ends when the run is interrupted
	stop context.CancelCauseFunc
	over func(state.Run, error) // is told the record at the end; nil: nothing is

	attached chan struct{} // closed when the client that asked is there
	started  chan struct{} // closed when proc is set
	done     chan struct{} // closed when the run has ended
	within   chan func()   // work for the run to do while it waits for its command
	waited   chan struct{} // closed when it does not wait for its command any more
	once     sync.Once

	interrupted atomic.Bool // its client has sent the command a signal that ends it
	ending      atomic.Bool // with it all that runs in its cell ends
	working     atomic.Bool // it has its cell's lock; before, it waits for that

	mu       sync.Mutex // guards what follows
	proc     backend.Process
	progress api.Progress
	watchers map[chan api.Progress]bool
	clients  int // that feed its input
}

func newLive(id cell.RunID) *Live {
	return &Live{id: id, attached: make(chan struct{}), started: make(chan struct{}), done: make(chan struct{}), within: make(chan func()), waited: make(chan struct{}), watchers: map[chan api.Progress]bool{}}
}

// Unwatched is for work that is prepared like a run and is none: nothing attaches to it.
func Unwatched(ctx context.Context) *Live { return &Live{ctx: ctx} }

// ID is that of the run.
func (l *Live) ID() cell.RunID { return l.id }

// Context ends when the run is interrupted.
func (l *Live) Context() context.Context { return l.ctx }

// Done is closed when the run has ended.
func (l *Live) Done() <-chan struct{} { return l.done }

// Interrupt ends the run's command.
func (l *Live) Interrupt(why error) { l.stop(why) }

// Stop asks the run's command to end, has it killed after grace, and ends everything else in its
// cell. A run without a started command does not start. It returns when the command has ended.
func (l *Live) Stop(ctx context.Context, why error, grace time.Duration) {
	l.ending.Store(true)
	l.mu.Lock()
	proc := l.proc
	l.mu.Unlock()
	if proc != nil && proc.End(ctx, cell.CauseInterrupted, grace) == nil {
		select {
		case <-l.waited:
		case <-l.done:
		case <-ctx.Done():
			return // it was asked to end all the same
		}
	}
	l.stop(why)
}

var errOver = errors.New("its command has ended")

// Within has the run, which has the lock of its cell, do something there while its command goes on. It is a
// Conflict when the command does not run (any more).
func (l *Live) Within(ctx context.Context, do func() error) error {
	over := cell.Errorf(cell.Conflict, "run.Within", "", "run %s: %w", l.id, errOver)
	done := make(chan error, 1)
	var panicked any
	work := func() {
		defer close(done)
		defer func() { // a panic is the caller's
			if p := recover(); p != nil {
				panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		done <- do()
	}
	select {
	case l.within <- work:
		err := <-done
		if panicked != nil {
			panic(panicked)
		}
		return err
	case <-l.waited:
		return over
	case <-l.done:
		return over
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Within is Live.Within of a run; without a run under way it is false, and do is not called.
func (m *Manager) Within(ctx context.Context, id cell.RunID, do func() error) (done bool, err error) {
	l := m.find(id)
	if l == nil {
		return false, nil
	}
	err = l.Within(ctx, func() error {
		done = true
		return do()
	})
	return done || !errors.Is(err, errOver), err
}

// Report tells its clients how far it is.
func (l *Live) Report(p api.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = p
	for w := range l.watchers {
		select {
		case w <- p:
		default: // a slow client misses steps, not the end
		}
	}
}

// AwaitClient holds the command back until the client that asked for it is there, so that it
// misses nothing and a terminal has a client.
func (l *Live) AwaitClient(ctx context.Context) error {
	select {
	case <-l.attached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Expect interrupts a run to which no client has come after grace, however far it is.
func (m *Manager) Expect(id cell.RunID, grace time.Duration) {
	m.mu.Lock()
	l := m.live[id]
	m.mu.Unlock()
	if l == nil {
		return
	}
	m.cfg.Background(func(ctx context.Context) {
		select {
		case <-l.attached:
		case <-l.done:
		case <-ctx.Done():
		case <-time.After(grace):
			l.stop(cell.Errorf(cell.Interrupted, "run.Expect", "", "cannot start: the client that asked never attached"))
		}
	})
}

// Started says that the command has started.
func (l *Live) Started(proc backend.Process) {
	l.mu.Lock()
	l.proc = proc
	l.mu.Unlock()
	close(l.started)
}

// hasStarted reports whether its command has started.
func (l *Live) hasStarted() bool {
	select {
	case <-l.started:
		return true
	default:
		return false
	}
}

// AwaitStarts waits until all runs that have their cell's lock have started their commands or
// ended, for at most limit. Those that wait for a lock do not count: what has it may take long.
func (m *Manager) AwaitStarts(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.live))
	m.mu.Unlock()
	for _, l := range all {
		if !l.working.Load() {
			continue
		}
		select {
		case <-l.started:
		case <-l.done:
		case <-late.C:
			return
		}
	}
}

// whyNot is why a run did not start that failed with err: when it was interrupted, that is
// the reason, whatever was broken off by it says.
func (l *Live) whyNot(err error) error {
	why := context.Cause(l.ctx)
	if cell.KindOf(why) != cell.Interrupted || cell.KindOf(err) == cell.Interrupted {
		return err
	}
	return cell.Errorf(cell.Interrupted, "run.Start", "", "%w, while it was being started (%w)", why, err)
}

// add makes a run known as living.
func (m *Manager) add(l *Live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[l.id] = l
}

// ended makes it known that a run is over, or left to the next daemon.
func (m *Manager) ended(l *Live) {
	if l.over != nil {
		l.over(m.cfg.Records.Run(l.id))
	}
	m.notice(l.id)
	m.mu.Lock()
	delete(m.live, l.id)
	m.mu.Unlock()
	l.stop(nil)
	close(l.done)
}

// notice gives notice of a run that has ended.
func (m *Manager) notice(id cell.RunID) {
	if r, err := m.cfg.Records.Run(id); err == nil && r.Phase == cell.Ended {
		m.cfg.Notice(m.cfg.Life, &r)
	}
}

// IDs are the runs that have not ended.
func (m *Manager) IDs() []cell.RunID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.live))
}

// find returns a run that has not ended; nil: it has.
func (m *Manager) find(id cell.RunID) *Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// Ends returns the channel that closes when a run ends, nil for a run that is not under way.
func (m *Manager) Ends(id cell.RunID) <-chan struct{} {
	if l := m.find(id); l != nil {
		return l.done
	}
	return nil
}

// UnderWay is In, or else the oldest run that waits for the cell's lock: nothing but other work
// than runs is before it.
func (m *Manager) UnderWay(id cell.ID) (first *Live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var created time.Time
	for rid, l := range m.live {
		r, err := m.cfg.Records.Run(rid)
		switch {
		case err != nil || r.CellID() != id:
		case l.working.Load():
			return l
		case first == nil || r.Created.Before(created):
			first, created = l, r.Created
		}
	}
	return first
}

// In returns the run that is under way in a cell. One that waits for its lock is not.
func (m *Manager) In(id cell.ID) *Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	for rid, l := range m.live {
		if r, err := m.cfg.Records.Run(rid); l.working.Load() && err == nil && r.CellID() == id {
			return l
		}
	}
	return nil
}

// Interrupt ends a run's command. The run becomes pending.
func (m *Manager) Interrupt(id cell.RunID, why string) {
	if l := m.find(id); l != nil {
		l.stop(cell.Errorf(cell.Interrupted, "run.Interrupt", "", "%s", why))
	}
}

// Detached reports whether a run's command has a terminal, and no client that feeds it.
func (m *Manager) Detached(r *state.Run) bool {
	if !r.TTY || r.Phase != cell.Executing {
		return false
	}
	l := m.find(r.RunID())
	if l == nil || !l.hasStarted() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients == 0
}
