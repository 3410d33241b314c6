package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
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

// streamed serves "warm" and "eval": pieces of output, then the answer. A client
// that hangs up interrupts. It reports whether the connection can go on.
func (s *Server) streamed(c *reexec.Conn, req *proto.Request) bool {
	if proto.Changes(req.Op) {
		failpoint.Step("begin to " + req.Op)
	}
	ctx, hangUp := context.WithCancelCause(context.Background())
	defer hangUp(nil)
	sink := func(o cell.Output) error {
		c.Raw().SetWriteDeadline(time.Now().Add(takeGrace))
		err := c.Send(proto.Response{Output: &o})
		if err != nil {
			hangUp(errHungUp)
		}
		return err
	}
	stop := watchHangUp(c, hangUp)
	var resp proto.Response
	var err error
	if req.Op == "warm" {
		if req.Warm == nil {
			err = malformed(req.Op)
		} else {
			resp.Warmth, err = s.warmUp(ctx, req.Cell, *req.Warm, sink)
		}
	} else {
		resp.Evaluated, err = s.evaluate(ctx, req, sink)
	}
	stop()
	if err != nil {
		resp = proto.Response{Error: proto.Wire(err)}
	}
	if ctx.Err() != nil {
		return false
	}
	if proto.Changes(req.Op) {
		failpoint.Step("answer to " + req.Op)
	}
	c.Raw().SetWriteDeadline(time.Now().Add(takeGrace))
	if c.Send(resp) != nil {
		return false
	}
	c.Raw().SetWriteDeadline(time.Time{}) // the next answer may be asked for much later
	if resp.Evaluated != nil {
		s.lookAfter(req.Cell)
	}
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
func (s *Server) evaluate(ctx context.Context, req *proto.Request, sink func(cell.Output) error) (*cell.Evaluated, error) {
	if req.Eval == nil || req.Eval.Timeout <= 0 || req.Eval.Limit < 0 || req.Eval.Output < 0 {
		return nil, malformed(req.Op)
	}
	h, err := s.interpreter(req.Cell)
	if err != nil {
		return nil, err
	}
	if err := h.enter(req.Cell); err != nil {
		return nil, err
	}
	defer h.leave()
	defer s.use(req.Cell)()
	h.mu.Lock()
	stuck := h.stuck
	h.mu.Unlock()
	if stuck && h.in.Conn.Busy() { // whoever waits for it may wait for ever
		return nil, cell.Errorf(cell.Conflict, "keeper.eval", "end it, and begin with a new interpreter: pando eval --fresh CELL CODE",
			"cannot evaluate: an earlier evaluation, which could not be interrupted, still goes on")
	}
	before := s.missingIn(req.Cell)
	ev, err := h.in.Conn.Eval(ctx, repl.Evaluation{
		Code: req.Eval.Code, Limit: req.Eval.Limit, Timeout: req.Eval.Timeout, Interrupt: h.interrupt,
		Begin: func() {
			for _, o := range h.out {
				o.begin(sink, max(req.Eval.Limit, req.Eval.Output))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	ev.Stdout, ev.Stderr = h.settle()
	var others int64
	if ev.MissingCalls, others = missed(before, s.missingIn(req.Cell)); others > 0 { // whatever the interpreter says
		ev.MissingCalls = append(ev.MissingCalls, MissingOthers)
	}
	h.mu.Lock()
	h.evals++
	h.stuck = ev.Cause == repl.CauseStuck
	h.mu.Unlock()
	if ev.Cause == repl.CauseEnded {
		h.endedIn(&ev)
	}
	return &ev, nil
}

// endedIn says of an evaluation what the interpreter died of in it.
func (h *warm) endedIn(ev *cell.Evaluated) {
	select {
	case <-h.gone:
		h.mu.Lock()
		defer h.mu.Unlock()
		ev.Error = &cell.EvalError{Type: "ended", Message: h.death}
	case <-time.After(deathGrace): // it lives, and does not talk any more
		h.blame(causeBrokeOff)
		h.in.Process.Signal("SIGKILL")
		ev.Error = &cell.EvalError{Type: "ended", Message: causeBrokeOff}
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
