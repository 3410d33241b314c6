package repl

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	// again is the interval of repeated interruptions, for code that ignores the first.
	again = time.Second
	// patience is how long an interrupted evaluation may continue before it counts as stuck.
	patience = 5 * time.Second
)

// Ready is a program's description of itself after its start.
type Ready struct {
	Protocol int    `json:"protocol"`
	Kind     string `json:"kind"`
	Version  string `json:"version"`
	Fork     bool   `json:"fork"`
	Reason   string `json:"reason"` // why it cannot be forked
}

// Ready reads the greeting of a program that was just started. It first sends program: the
// source of a built-in one.
func (c *Conn) Ready(ctx context.Context, program []byte) (Ready, error) {
	if err := c.take(ctx); err != nil {
		return Ready{}, err
	}
	defer c.yield()
	if len(program) > 0 {
		if err := c.write(program); err != nil {
			return Ready{}, err
		}
	}
	back := c.until(ctx)
	defer back()
	a, err := c.hear(0)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Ready{}, c.broken("it did not say that it is ready")
	case err != nil:
		return Ready{}, err
	case a.Ready == nil:
		return Ready{}, c.broken("its first message is no greeting: %.100q", a.raw)
	case a.Ready.Protocol != Protocol:
		return Ready{}, c.broken("it speaks version %d of the protocol, not %d", a.Ready.Protocol, Protocol)
	}
	r := *a.Ready
	r.Kind, r.Version, r.Reason = bounded(r.Kind), bounded(r.Version), bounded(r.Reason)
	if !r.Fork && r.Reason == "" {
		r.Reason = "its program says that it can't be forked"
	}
	return r, nil
}

func bounded(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// Evaluation is one evaluation.
type Evaluation struct {
	Code    string
	Name    string        // of the code in tracebacks; "": its number
	Limit   int64         // maximum size of the value's repr, in bytes
	Timeout time.Duration // from its start; 0: only ctx limits it
	Begin   func()        // called at its turn; may be nil
	// Interrupt interrupts the program. It is called again while the evaluation continues.
	Interrupt func()
}

// Eval evaluates code. It waits for its turn until ctx ends. If ctx ends later, or after the
// time-out, it interrupts the evaluation. It returns an error only if nothing was evaluated;
// otherwise Cause in the answer says what went wrong. After "stuck" the next question waits
// until this one is answered.
func (c *Conn) Eval(ctx context.Context, ev Evaluation) (cell.Evaluated, error) {
	c.sit()
	if err := c.take(ctx); err != nil {
		return cell.Evaluated{}, err
	}
	c.last++
	if ev.Name == "" {
		c.n++
	}
	id, n, began := c.last, c.n, time.Now()
	if ev.Begin != nil {
		ev.Begin()
	}
	if err := c.send(struct {
		ID    int64  `json:"id"`
		Op    string `json:"op"`
		Code  string `json:"code"`
		Name  string `json:"name,omitempty"`
		Limit int64  `json:"limit"`
	}{id, "eval", ev.Code, ev.Name, ev.Limit}); err != nil {
		c.yield()
		return cell.Evaluated{}, err
	}
	back := c.insist(ctx, ev)
	a, err := c.hear(id)
	cause := back()
	took := float64(time.Since(began)) / float64(time.Millisecond)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		go c.late(id)
		return cell.Evaluated{Cause: cell.CauseStuck, TookMS: took, N: n}, nil
	}
	defer c.yield()
	if err != nil {
		return cell.Evaluated{Cause: cell.CauseEnded, TookMS: took, N: n}, nil
	}
	var got *cell.Evaluated
	if a.Evaluated != nil {
		got = &a.Evaluated.Evaluated
		got.Display = a.Evaluated.Display
	} else {
		if a.Error == "" {
			c.broken("its answer has no result")
			return cell.Evaluated{Cause: cell.CauseEnded, TookMS: took, N: n}, nil
		}
		got = &cell.Evaluated{Error: &cell.EvalError{Type: "error", Message: a.Error}}
	}
	got.N, got.Cause, got.Stdout, got.Stderr = n, cause, 0, 0
	if got.TookMS <= 0 || got.TookMS > took {
		got.TookMS = took
	}
	if cause != "" {
		got.OK = false
	}
	return *got, nil
}

// insist interrupts the evaluation when ctx ends or the time is over, until the returned
// function is called, which returns the cause, if any. After patience it stops reading.
func (c *Conn) insist(ctx context.Context, ev Evaluation) (back func() (cause string)) {
	answered, over := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var cause string // written by interrupt, read after over
	interrupt := func(why string) {
		once.Do(func() {
			defer close(over)
			cause = why
			enough := time.NewTimer(patience)
			defer enough.Stop()
			for {
				select {
				case <-answered: // answered just now: the next evaluation must not be interrupted
					return
				default:
				}
				ev.Interrupt()
				select {
				case <-answered:
					return
				case <-time.After(again):
				case <-enough.C:
					c.c.SetReadDeadline(time.Unix(1, 0))
					return
				}
			}
		})
	}
	stop := context.AfterFunc(ctx, func() { interrupt(causeOf(ctx)) })
	var timer *time.Timer
	if ev.Timeout > 0 {
		timer = time.AfterFunc(ev.Timeout, func() { interrupt(cell.CauseTimeout) })
	}
	return func() string {
		close(answered)
		stopped := stop()
		if timer != nil {
			stopped = timer.Stop() && stopped
		}
		if stopped {
			return ""
		}
		<-over // one of them has started
		c.c.SetReadDeadline(time.Time{})
		return cause
	}
}

func causeOf(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cell.CauseTimeout
	}
	return cell.CauseInterrupted
}

// Busy reports whether a question is in progress, or a stuck evaluation continues.
func (c *Conn) Busy() bool {
	select {
	case <-c.turn:
		c.yield()
		return false
	default:
		return true
	}
}
