package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/agent/turn"
	"github.com/pando-dev/pando/internal/cell"
)

// This file finds the turns of an agent's conversation in its requests to a model. A turn is offered
// among what the cell asks, and the first byte of the model's answer is held back until a checkpoint
// was taken: the agent stands still in its own time, and has written nothing of the turn yet.

const (
	holdTurn = 15 * time.Second // then the answer goes on without a checkpoint
	maxTurns = 16               // that wait at once; the answers of others are not held back
	newTurns = 20               // within a minute: each stops the cell for a moment, and is kept
)

// turns are those of one agent.
type turns struct {
	g *Gateway

	coded chan struct{} // holds one for each request that is being decoded

	mu  sync.Mutex // guards now
	now turn.Turns
}

// turnWait is a turn that waits for its checkpoint.
type turnWait struct {
	asked cell.Asked
	taken chan struct{} // closed when it was taken, or is not waited for any more
}

// turnWatch watches one request to a model, and its answer. A nil one does nothing.
type turnWatch struct {
	t     *turns
	ctx   context.Context
	x     *exchange
	body  *turn.Reader
	coded *codedBody // decodes for body; nil: the request is not encoded

	mu   sync.Mutex // guards the fields below
	req  turn.Request
	read bool      // all of the request
	wait *turnWait // nil: no turn begins
}

// watch returns what watches a request; nil if no turn can begin with it.
func (t *turns) watch(ctx context.Context, x *exchange, r *http.Request) *turnWatch {
	if !x.l.turns || r.Method != http.MethodPost || !turn.Asks(x.access.Path) {
		return nil
	}
	w := &turnWatch{t: t, ctx: ctx, x: x, body: turn.NewReader()}
	codings := codingsOf(r.Header)
	if len(codings) == 0 {
		return w
	}
	open := decoders[codings[0]]
	if open == nil || len(codings) > 1 {
		return nil
	}
	select {
	case t.coded <- struct{}{}:
		w.coded = readCoded(open, w.reads, w.begins, func() { <-t.coded })
		return w
	default:
		return nil
	}
}

// sends reads a piece of the request, as it passes.
func (w *turnWatch) sends(b []byte) {
	switch {
	case w == nil || len(b) == 0:
	case w.coded != nil:
		w.coded.Write(b)
	default:
		w.reads(b)
		w.begins()
	}
}

// ends frees what a request costs.
func (w *turnWatch) ends() {
	if w != nil && w.coded != nil {
		w.coded.end()
	}
}

// reads reads a piece of what the request says.
func (w *turnWatch) reads(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, done := w.body.Done(); !done {
		w.body.Write(b)
	}
}

// begins offers the turn that the request begins, once all of that was read.
func (w *turnWatch) begins() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.read {
		return
	}
	if w.req, w.read = w.body.Done(); !w.read {
		return
	}
	w.t.mu.Lock()
	begins := w.t.now.Begins(w.req)
	w.t.mu.Unlock()
	if begins {
		w.wait = w.t.g.asks.turnBegins(w.x, w.req.Text)
	}
}

// answer holds the answer back until the turn was taken, and looks in it for calls of tools.
func (w *turnWatch) answer(from io.Reader) io.Reader {
	if w == nil {
		return from
	}
	return &turnAnswer{w: w, from: from}
}

type turnAnswer struct {
	w     *turnWatch
	from  io.Reader
	held  bool
	calls turn.Calls
}

// Read implements io.Reader.
func (a *turnAnswer) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	if !a.held {
		a.held = true
		a.w.hold()
	}
	a.calls.Write(p[:n])
	if err != nil {
		a.w.mu.Lock()
		req := a.w.req
		a.w.mu.Unlock()
		a.w.t.mu.Lock()
		a.w.t.now.Answered(req, a.calls.Found)
		a.w.t.mu.Unlock()
	}
	return n, err
}

// hold waits until the turn was taken.
func (w *turnWatch) hold() {
	w.ends() // all of an encoded request is read
	w.mu.Lock()
	wait := w.wait
	w.mu.Unlock()
	if wait == nil {
		return
	}
	late := time.NewTimer(time.Until(wait.asked.Expires))
	defer late.Stop()
	select {
	case <-wait.taken:
	case <-late.C:
		w.t.g.asks.turnTaken(wait.asked.ID)
	case <-w.ctx.Done():
	}
}

// turnBegins offers a turn; it is nil when nothing waits for it.
func (a *asks) turnBegins(x *exchange, text string) *turnWait {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.turns = slices.DeleteFunc(a.turns, func(w *turnWait) bool { return now.After(w.asked.Expires) })
	if now.Sub(a.turnMinute) > time.Minute {
		a.turnMinute, a.freshTurns = now, 0
	}
	if a.closed || len(a.turns) >= maxTurns || a.freshTurns >= newTurns {
		return nil
	}
	a.freshTurns++
	w := &turnWait{taken: make(chan struct{}), asked: cell.Asked{ID: cell.NewRequestID(), Cell: a.g.cfg.Cell, Access: x.access, Policy: x.l.policy, At: now, Expires: now.Add(holdTurn),
		Turn: &cell.Turn{Text: text}}}
	a.turns = append(a.turns, w)
	a.news()
	return w
}

// turnTaken lets the answer of a turn go on.
func (a *asks) turnTaken(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.turns, func(w *turnWait) bool { return w.asked.ID == id })
	if i < 0 {
		return cell.Errorf(cell.NotFound, "gateway.Answer", "", "the turn %s does not wait any more", id)
	}
	close(a.turns[i].taken)
	a.turns = slices.Delete(a.turns, i, i+1)
	a.news()
	return nil
}
