package interp

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Why an evaluation ended, when that was not the code's doing.
const (
	CauseTimeout     = "timeout"
	CauseInterrupted = "interrupted"
	CauseEnded       = "ended"
	CauseStuck       = "stuck"
)

const (
	// again is how long code that has swallowed an interruption goes on until
	// the next.
	again = time.Second
	// patience is how long an interrupted evaluation may go on until it is
	// called stuck.
	patience = 5 * time.Second
)

// Ready is what a program says of itself when it has started.
type Ready struct {
	Protocol int    `json:"protocol"`
	Kind     string `json:"kind"`
	Version  string `json:"version"`
	Fork     bool   `json:"fork"`
	Reason   string `json:"reason"` // why it can't be forked
}

// Ready reads the greeting of a program that has just been started. program is
// what it is sent before: the built-in one's own source.
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
		return Ready{}, c.broken("it did not begin by saying that it is ready, but %.100q", a.raw)
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

// Evaluation is one question.
type Evaluation struct {
	Code    string
	Name    string        // of the code in tracebacks; "": its number
	Limit   int64         // bytes of the value's repr
	Timeout time.Duration // from when it begins; 0: ctx alone bounds it
	Begin   func()        // called when it is its turn; may be nil
	// Interrupt is how the program is interrupted. It is called again while the
	// evaluation goes on.
	Interrupt func()
}

// Eval evaluates code. It waits for its turn until ctx ends; when ctx ends later,
// or after the time-out, it is interrupted. An error is only returned when
// nothing was evaluated; else the answer's Cause says what went wrong. After
// "stuck" the next question waits until this one is answered after all.
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
		return cell.Evaluated{Cause: CauseStuck, TookMS: took, N: n}, nil
	}
	defer c.yield()
	if err != nil {
		return cell.Evaluated{Cause: CauseEnded, TookMS: took, N: n}, nil
	}
	var got *cell.Evaluated
	if a.Evaluated != nil {
		got = &a.Evaluated.Evaluated
		got.Display = a.Evaluated.Display
	} else {
		if a.Error == "" {
			c.broken("it answered without saying what came of the evaluation")
			return cell.Evaluated{Cause: CauseEnded, TookMS: took, N: n}, nil
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

// insist interrupts when ctx ends or the time is over, until the function that it
// returns is called, which says which of them it was, if any. When patience is
// over nothing is read any more.
func (c *Conn) insist(ctx context.Context, ev Evaluation) (back func() (cause string)) {
	answered, over := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var cause string // written in once, read after over
	interrupt := func(why string) {
		once.Do(func() {
			defer close(over)
			cause = why
			enough := time.NewTimer(patience)
			defer enough.Stop()
			for {
				select {
				case <-answered: // just now: whoever is next must not be interrupted
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
		timer = time.AfterFunc(ev.Timeout, func() { interrupt(CauseTimeout) })
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
		<-over // one of them has begun
		c.c.SetReadDeadline(time.Time{})
		return cause
	}
}

func causeOf(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return CauseTimeout
	}
	return CauseInterrupted
}

// Busy reports whether somebody asks something, or an evaluation goes on that is
// stuck.
func (c *Conn) Busy() bool {
	select {
	case <-c.turn:
		c.yield()
		return false
	default:
		return true
	}
}
