package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/repl"
)

const (
	// unwatched is how long a streamed request goes on before it is looked
	// whether its client has hung up: most are over by then.
	unwatched = 20 * time.Millisecond
	// takeGrace is how long a client may take to read a piece of output.
	takeGrace = 30 * time.Second
	// deathGrace is how long it is waited for the cause of an interpreter's end.
	deathGrace = 500 * time.Millisecond
)

// causeBrokeOff is that of an interpreter that said what is no answer.
const causeBrokeOff = "it broke off the conversation"

var errHungUp = errors.New("the client has hung up")

// serveWarm starts an interpreter.
func (s *Server) serveWarm(c *reexec.Conn, q proto.Warming) bool {
	return streamed(c, proto.Warm, func(ctx context.Context, sink func(cell.Output) error) (w cell.Warmth, err error) {
		up, err := s.warmUp(ctx, q.Cell, q.Warm, sink)
		if err != nil {
			return w, err
		}
		return *up, nil
	})
}

// serveEval evaluates, and then accounts for what the evaluation wrote.
func (s *Server) serveEval(c *reexec.Conn, q proto.Evaluation) bool {
	evaluated := false
	ok := streamed(c, proto.Eval, func(ctx context.Context, sink func(cell.Output) error) (ev cell.Evaluated, err error) {
		ev, err = s.evaluate(ctx, q, sink)
		evaluated = err == nil
		return ev, err
	})
	if ok && evaluated {
		s.lookAfter(q.Cell)
	}
	return ok
}

// streamed answers with pieces of output, and then with what do returns. A client
// that hangs up interrupts. It reports whether the connection can go on.
func streamed[Q, A any](c *reexec.Conn, v proto.Verb[Q, A], do func(ctx context.Context, sink func(cell.Output) error) (A, error)) bool {
	ctx, hangUp := context.WithCancelCause(context.Background())
	defer hangUp(nil)
	sink := func(o cell.Output) error {
		c.Raw().SetWriteDeadline(time.Now().Add(takeGrace))
		err := proto.Emit(c, o)
		if err != nil {
			hangUp(errHungUp)
		}
		return err
	}
	stop := watchHangUp(c, hangUp)
	a, err := do(ctx, sink)
	stop()
	if ctx.Err() != nil {
		return false
	}
	end(v)
	c.Raw().SetWriteDeadline(time.Now().Add(takeGrace))
	if v.Reply(c, a, err) != nil {
		return false
	}
	c.Raw().SetWriteDeadline(time.Time{}) // the next answer may be asked for much later
	return true
}

// watchHangUp looks after a while whether the other end has closed the
// connection, until it is stopped.
func watchHangUp(c *reexec.Conn, hangUp context.CancelCauseFunc) (stop func()) {
	over := make(chan struct{})
	timer := time.AfterFunc(unwatched, func() {
		defer close(over)
		raw, err := c.Raw().SyscallConn()
		if err != nil {
			return
		}
		raw.Read(func(fd uintptr) bool {
			var one [1]byte
			n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if err == unix.EAGAIN || err == unix.EINTR {
				return false
			}
			if n <= 0 {
				hangUp(errHungUp)
			}
			return true // or it asks the next question already
		})
	})
	return func() {
		if !timer.Stop() {
			c.Raw().SetReadDeadline(time.Unix(1, 0))
			<-over
			c.Raw().SetReadDeadline(time.Time{})
		}
		c.Raw().SetWriteDeadline(time.Time{})
	}
}

// evaluate evaluates in a cell's interpreter.
func (s *Server) evaluate(ctx context.Context, q proto.Evaluation, sink func(cell.Output) error) (none cell.Evaluated, err error) {
	if q.Eval.Timeout <= 0 || q.Eval.Limit < 0 || q.Eval.Output < 0 {
		return none, proto.Malformed("eval")
	}
	h, err := s.interpreter(q.Cell)
	if err != nil {
		return none, err
	}
	if err := h.enter(q.Cell); err != nil {
		return none, err
	}
	defer h.leave()
	defer s.use(q.Cell)()
	h.mu.Lock()
	stuck := h.stuck
	h.mu.Unlock()
	if stuck && h.in.Conn.Busy() { // a wait for it may last for ever
		return none, cell.Errorf(cell.Conflict, "keeper.eval", "end it, and begin with a new interpreter: pando eval --fresh CELL CODE",
			"cannot evaluate: an earlier evaluation, which could not be interrupted, still goes on")
	}
	before := s.missingIn(q.Cell)
	ev, err := h.in.Conn.Eval(ctx, repl.Evaluation{
		Code: q.Eval.Code, Limit: q.Eval.Limit, Timeout: q.Eval.Timeout, Interrupt: h.interrupt,
		Begin: func() {
			for _, o := range h.out {
				o.begin(sink, max(q.Eval.Limit, q.Eval.Output))
			}
		},
	})
	if err != nil {
		return none, err
	}
	ev.Stdout, ev.Stderr = h.endOutput()
	var others int64
	if ev.MissingCalls, others = missed(before, s.missingIn(q.Cell)); others > 0 { // whatever the interpreter says
		ev.MissingCalls = append(ev.MissingCalls, MissingOthers)
	}
	h.mu.Lock()
	h.evals++
	h.stuck = ev.Cause == cell.CauseStuck
	h.mu.Unlock()
	if ev.Cause == cell.CauseEnded {
		h.endedIn(&ev)
	}
	return ev, nil
}

// endedIn says of an evaluation what the interpreter died of in it.
func (h *warm) endedIn(ev *cell.Evaluated) {
	select {
	case <-h.gone:
		h.mu.Lock()
		defer h.mu.Unlock()
		ev.Error = &cell.EvalError{Type: cell.CauseEnded, Message: h.death}
	case <-time.After(deathGrace): // it lives, and does not talk any more
		h.blame(causeBrokeOff)
		h.in.Process.Signal("SIGKILL")
		ev.Error = &cell.EvalError{Type: cell.CauseEnded, Message: causeBrokeOff}
	}
}

// blame makes cause that of the interpreter's end, if it comes now.
func (h *warm) blame(cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == "" {
		h.cause = cause
	}
}
