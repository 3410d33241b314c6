package run

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// Attachment is a client's view of a run or an exec while it goes on.
type Attachment struct {
	Progress <-chan api.Progress // steps before the command runs; never closed
	Started  <-chan struct{}     // closed when Open works
	Done     <-chan struct{}     // closed when Result is there

	open    func(ctx context.Context, a backend.Attach) (net.Conn, error)
	result  func() (any, error)
	release func(gone bool)
	over    sync.Once // lets release be called
	told    func(signal string)
	tty     bool
}

// ErrLeft is the error in place of a result when the next daemon goes on with the run, since this one ends.
var ErrLeft = errors.New("the daemon ends")

// Signalled says that the client sends the command a signal. A run that ends
// with it was interrupted: that is no failure of its command. One that
// waits or is prepared ends now.
func (a *Attachment) Signalled(signal string) {
	if a.told != nil {
		a.told(signal)
	}
}

// Typed says what the client types. At a terminal without a started command, nothing
// else makes a signal of Ctrl-C.
func (a *Attachment) Typed(text []byte) {
	const ctrlC = 3
	if !a.tty || bytes.IndexByte(text, ctrlC) < 0 {
		return
	}
	select {
	case <-a.Started:
	default:
		a.Signalled("SIGINT")
	}
}

// Open returns the stream of the command, in frames of package api.
func (a *Attachment) Open(ctx context.Context, at backend.Attach) (net.Conn, error) {
	return a.open(ctx, at)
}

// Result returns the api.Run or api.Exec at its end.
func (a *Attachment) Result() (any, error) { return a.result() }

// Release ends the attachment. gone says that the client went away before the
// end: what it alone waited for is interrupted, and goes on while another client with input
// is attached. A run with a terminal goes on once its command has started: a client
// that lost its terminal attaches again. Later calls do nothing.
func (a *Attachment) Release(gone bool) { a.over.Do(func() { a.release(gone) }) }

// Attach attaches to a run. It may have ended: then Done is closed. It fails at once where the
// cell's keeper is out of reach.
func (m *Manager) Attach(id cell.RunID, input bool) (*Attachment, error) {
	run, err := m.cfg.Records.Run(id)
	if err != nil {
		return nil, err
	}
	if run.Phase != cell.Ended { // a run is found again after its cell
		if err := m.cfg.Commands.MayWait(run.CellID()); err != nil {
			return nil, err
		}
	}
	l := m.find(id)
	result := func() (any, error) {
		m.mu.Lock()
		lost := m.lost[id]
		m.mu.Unlock()
		r, err := m.cfg.Records.Run(id)
		if lost != nil && (err != nil || r.Phase != cell.Ended) {
			return nil, lost
		}
		if err == nil && r.Phase != cell.Ended && m.cfg.Life.Err() != nil {
			return nil, cell.Errorf(cell.Unavailable, "run.Attach", "ask again", "%w, and the next one goes on with run %s", ErrLeft, id)
		}
		return r.API(), err
	}
	if l == nil {
		closed := make(chan struct{})
		close(closed)
		return &Attachment{Started: nil, Done: closed, result: result, release: func(bool) {},
			open: func(context.Context, backend.Attach) (net.Conn, error) {
				return nil, cell.Errorf(cell.Conflict, "run.Attach", "", "run %s has ended", id)
			}}, nil
	}
	watch := make(chan api.Progress, 16)
	l.mu.Lock()
	l.watchers[watch] = true
	if input {
		l.clients++
	}
	if l.progress.Step != "" {
		watch <- l.progress
	}
	l.mu.Unlock()
	if input {
		l.once.Do(func() {
			select {
			case <-l.attached:
			default:
				close(l.attached)
			}
		})
	}
	return &Attachment{
		Progress: watch, Started: l.started, Done: l.done, result: result, tty: run.TTY && input,
		open: func(ctx context.Context, a backend.Attach) (net.Conn, error) {
			l.mu.Lock()
			p := l.proc
			l.mu.Unlock()
			return p.Attach(ctx, a)
		},
		told: func(signal string) {
			switch signal {
			case "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT":
				l.interrupted.Store(true)
				select {
				case <-l.started:
				default:
					l.stop(cell.Errorf(cell.Interrupted, "run.Attach", "", "it was interrupted by %s before its command started", signal))
				}
			}
		},
		release: func(gone bool) {
			l.mu.Lock()
			delete(l.watchers, watch)
			if input {
				l.clients--
			}
			last := input && l.clients == 0
			l.mu.Unlock()
			if gone && last && !(run.TTY && l.hasStarted()) {
				l.stop(cell.Errorf(cell.Interrupted, "run.Attach", "", "the client went away"))
			}
		},
	}, nil
}

// Wait waits for the end of a run.
func (m *Manager) Wait(ctx context.Context, id cell.RunID) (api.Run, error) {
	a, err := m.Attach(id, false)
	if err != nil {
		return api.Run{}, err
	}
	defer a.Release(false)
	select {
	case <-a.Done:
	case <-ctx.Done():
		return api.Run{}, context.Cause(ctx)
	}
	r, err := a.Result()
	if err != nil {
		return api.Run{}, err
	}
	return r.(api.Run), nil
}

// AttachmentOf is the attachment to a command that has started, beside runs.
func AttachmentOf(done <-chan struct{}, open func(context.Context, backend.Attach) (net.Conn, error), result func() (any, error), release func(gone bool)) *Attachment {
	started := make(chan struct{})
	close(started)
	return &Attachment{Started: started, Done: done, open: open, result: result, release: release}
}
