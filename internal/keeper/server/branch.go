package server

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// A branch is a conversation of its own, on a connection that is used for
// nothing else until it is over:
//
//	daemon                                  keeper
//	  │ Request{Op: "branch", Cell} ───────▶  │  nothing is done yet
//	  │ Request{Op: "source", Spec, …} ─────▶ │  what the source is to go on with
//	  │ Request{Op: "fork", Cell, Spec, …} ▶  │  a branch; as many as there are to be
//	  │ Request{Op: "hold"} ────────────────▶ │  the cell stands still
//	  │ Request{Op: "go on"} ───────────────▶ │  the source goes on, in a fork of its own
//	  │ ◀── Response{Pause}                   │
//	  │ Request{Op: "complete"} ────────────▶ │  the branches can be adopted
//
// Each is answered; "give up" ends it early. When anything fails, or the connection ends before that, the
// branches are removed. The source then goes on as it was, or, if it has gone on
// already, it stays where it is.

// branch serves that conversation. It reports whether the connection can go on.
func (s *Server) branch(c *reexec.Conn, req *proto.Request) bool {
	failpoint.Step("begin to branch")
	t, err := s.beginBranch(req.Cell)
	if err != nil {
		return c.Send(proto.Response{Error: proto.Wire(err)}) == nil
	}
	err = c.Send(proto.Response{})
	for err == nil {
		var next proto.Request
		files, rerr := c.Recv(&next)
		if err = rerr; err != nil {
			break
		}
		var resp proto.Response
		ferr := t.step(&next, files, &resp)
		over := ferr != nil || next.Op == "complete" || next.Op == "give up"
		if over {
			ferr = joined(ferr, t.end(ferr == nil && next.Op == "complete"))
		}
		if ferr != nil {
			resp = proto.Response{Error: proto.Wire(ferr)}
		}
		if proto.Changes(next.Op) {
			failpoint.Step("answer to " + next.Op)
		}
		if err = c.Send(resp); over {
			if err != nil && ferr == nil && next.Op == "complete" {
				for _, id := range t.made {
					s.unclaimed(id)
				}
			}
			return err == nil
		}
	}
	t.end(false)
	return false
}

// branching is a branch on its way.
type branching struct {
	s     *Server
	id    cell.ID // of the source
	h     *warm   // its interpreter
	b     Branch
	held  bool
	began time.Time
	pause cell.Pause
	note  json.RawMessage // of the source
	asked []proto.Request // the branches
	made  []cell.ID       // those that are cells
}

func (s *Server) beginBranch(id cell.ID) (*branching, error) {
	b, ok := s.Driver.(Brancher)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "keeper.branch", cell.Isolated, "cannot branch the cell: this backend can't")
	}
	h, err := s.interpreter(id)
	if err == nil && h.cannotFork != "" {
		err = cannotFork("keeper.branch", h.cannotFork)
	}
	if err == nil {
		err = h.free(id)
	}
	if err != nil {
		return nil, err
	}
	t := &branching{s: s, id: id, h: h}
	t.b, err = b.Branch(id)
	return t, err
}

// step does what one request asks for. The files are its own.
func (t *branching) step(req *proto.Request, files []*os.File, resp *proto.Response) error {
	switch req.Op {
	case "source":
		t.note = req.Note
		return t.b.Source(req.Spec, files)
	case "fork":
		if err := roomFor(int64(len(t.asked))+2, req.Network != nil); err != nil { // with the source, which goes on in one
			proto.CloseAll(files)
			return err
		}
		t.asked = append(t.asked, *req)
		return t.b.Add(req.Cell, req.Spec, files)
	}
	proto.CloseAll(files)
	switch {
	case req.Op == "hold" && !t.held:
		return t.hold()
	case req.Op == "go on" && t.held:
		if err := t.goOn(); err != nil {
			return err
		}
		resp.Pause = &t.pause
		return nil
	case req.Op == "complete" && t.pause.Gap > 0:
		return t.complete()
	case req.Op == "give up":
		return nil
	}
	return malformed(req.Op)
}

func (t *branching) hold() error {
	t.began = time.Now()
	if err := t.h.hold(t.id); err != nil {
		return err
	}
	t.pause.Shared = residentMemory(t.h.in.Process.PID())
	var err error
	if t.pause.Dropped, err = t.b.Hold(); err != nil {
		t.h.letGo()
		return err
	}
	t.held = true
	failpoint.Step("stand still")
	return nil
}

// complete makes the branches cells.
func (t *branching) complete() error {
	if err := t.b.Settle(); err != nil {
		t.s.Log.Warn("cannot put away what was branched", "cell", t.id, "error", err)
	}
	var each sync.WaitGroup
	var mu sync.Mutex // guards errs and made
	var errs []error
	todo := make(chan *proto.Request, len(t.asked))
	for n := range t.asked {
		todo <- &t.asked[n]
	}
	close(todo)
	for range completeAtOnce {
		each.Go(func() {
			for req := range todo {
				err := t.one(req)
				mu.Lock()
				if err == nil {
					t.made = append(t.made, req.Cell)
				} else {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	each.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// completeAtOnce is how many branches are furnished at a time.
const completeAtOnce = 4

func (t *branching) one(req *proto.Request) error {
	failpoint.Step("complete a branch")
	s := t.s
	var in Interpreter
	if _, err := t.b.Complete(req.Cell, &in); err != nil {
		return err
	}
	return s.settle(req, in, t.h, t.id)
}

// end takes away what was not completed, or all if the branch was not.
func (t *branching) end(complete bool) error {
	if !complete {
		for _, id := range t.made {
			t.s.remove(id, "the branch was given up")
		}
	}
	err := t.b.End()
	if err != nil {
		t.s.Log.Error("cannot let a source go on", "cell", t.id, "error", err)
	}
	if t.held {
		t.h.letGo()
	}
	return err
}

// hold keeps evaluations away from an interpreter that is to stand still.
func (h *warm) hold(id cell.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.still || h.busy > 0 {
		return cell.Errorf(cell.Conflict, "keeper.branch", "wait until it has ended", "cannot branch cell %s: an evaluation is under way in it", id)
	}
	h.still = true
	return nil
}

func (h *warm) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.still = false
}

// free says whether nothing is under way in an interpreter.
func (h *warm) free(id cell.ID) error {
	if err := h.hold(id); err != nil {
		return err
	}
	h.letGo()
	return nil
}

// enter begins an evaluation, which leave ends.
func (h *warm) enter(id cell.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.sealed:
		return cell.Errorf(cell.Conflict, "keeper.eval", "fork it, and evaluate in the fork", "cannot evaluate in cell %s: it is only forked", id)
	case h.still:
		return cell.Errorf(cell.Conflict, "keeper.eval", "try again when it was branched", "cannot evaluate in cell %s: it is being branched", id)
	}
	h.busy++
	return nil
}

func (h *warm) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy--
}

func joined(err, more error) error {
	switch {
	case err == nil:
		return more
	case more == nil:
		return err
	}
	return cell.Errorf(cell.KindOf(err), "keeper.branch", cell.HintOf(err), "%w; %w", err, more)
}

// goOn lets the source go on, in a fork of its own.
func (t *branching) goOn() error {
	s, h := t.s, t.h
	s.mu.Lock()
	k := s.cells[t.id]
	s.mu.Unlock()
	if k == nil {
		return cell.Errorf(cell.NotFound, "keeper.branch", "", "cell %s was removed", t.id)
	}
	h.mu.Lock()
	before := h.cause
	h.cause = causeBranched // it may end as soon as its cell goes on elsewhere
	h.mu.Unlock()
	var in Interpreter
	if err := t.b.GoOn(&in); err != nil {
		h.mu.Lock()
		h.cause = before
		h.mu.Unlock()
		return err
	}
	n := s.graft(in, h)
	h.mu.Lock()
	n.evals, n.started = h.evals, h.started
	h.mu.Unlock()
	s.mu.Lock()
	k.warm = n
	if t.note != nil {
		k.note = t.note
	}
	s.mu.Unlock()
	t.pause.Gap = time.Since(t.began)
	go s.attend(t.id, k, n)
	return nil
}

// causeBranched is that of an interpreter whose cell has gone on in a fork of it:
// its end is not the cell's.
const causeBranched = "it was branched"
