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
//	daemon              keeper
//	  │ Branch ──────────▶ │  nothing is done yet
//	  │ Source ──────────▶ │  what the source is to go on with
//	  │ BranchTo ────────▶ │  a branch; as many as there are to be
//	  │ Hold ────────────▶ │  the cell stands still
//	  │ GoOn ────────────▶ │  the source goes on, in a fork of its own
//	  │ ◀────────── Pause  │
//	  │ Complete ────────▶ │  the branches can be adopted
//
// Each is answered; GiveUp ends it early. When anything fails, or the connection ends before that, the
// branches are removed. The source then goes on as it was, or, if it has gone on
// already, it stays where it is.

// branch serves that conversation. It reports whether the connection can go on.
func (s *Server) branch(c *reexec.Conn, q proto.OfCell) bool {
	t, err := s.beginBranch(q.Cell)
	if err != nil {
		return proto.Refuse(c, err) == nil
	}
	lost := proto.Branch.Reply(c, proto.None{}, nil)
	for lost == nil && !t.over {
		var req proto.Request
		var files []*os.File
		if files, lost = c.Recv(&req); lost == nil {
			lost = t.step(c, &req, files)
		}
	}
	if !t.over {
		t.end(false)
	}
	return lost == nil
}

// step serves one request. The files are its own.
func (t *branching) step(c *reexec.Conn, req *proto.Request, files []*os.File) (lost error) {
	switch req.Op {
	case proto.Source.Name:
		return part(t, c, proto.Source, req, files, t.source)
	case proto.BranchTo.Name:
		return part(t, c, proto.BranchTo, req, files, t.add)
	case proto.Hold.Name:
		return part(t, c, proto.Hold, req, files, alone(t.hold))
	case proto.GoOn.Name:
		return part(t, c, proto.GoOn, req, files, alone(t.goOn))
	case proto.Complete.Name:
		if lost = part(t, c, proto.Complete, req, files, alone(t.complete)); lost != nil && t.completed {
			for _, id := range t.made {
				t.s.unclaimed(id)
			}
		}
		return lost
	case proto.GiveUp.Name:
		return part(t, c, proto.GiveUp, req, files, alone(func() (proto.None, error) {
			t.over = true
			return proto.None{}, t.end(false)
		}))
	}
	return part(t, c, proto.Verb[json.RawMessage, proto.None]{Name: req.Op}, req, files, func(_ json.RawMessage, files []*os.File) (proto.None, error) {
		proto.CloseAll(files)
		return proto.None{}, proto.Malformed(req.Op)
	})
}

// alone is a part that brings neither a message nor files.
func alone[A any](do func() (A, error)) func(proto.None, []*os.File) (A, error) {
	return func(_ proto.None, files []*os.File) (A, error) {
		proto.CloseAll(files)
		return do()
	}
}

// part has do serve one part of a branch, which owns the files. When it fails the branch is
// over.
func part[Q, A any](t *branching, c *reexec.Conn, v proto.Verb[Q, A], req *proto.Request, files []*os.File, do func(q Q, files []*os.File) (A, error)) error {
	begin(v)
	var a A
	q, err := v.Read(req.Body)
	if err != nil {
		proto.CloseAll(files)
	} else {
		a, err = do(q, files)
	}
	if err != nil && !t.over {
		t.over = true
		err = joined(err, t.end(false))
	}
	end(v)
	return v.Reply(c, a, err)
}

// branching is a branch on its way.
type branching struct {
	s         *Server
	id        cell.ID // of the source
	h         *warm   // its interpreter
	b         Branch
	held      bool
	began     time.Time
	pause     cell.Pause
	self      toBe      // the source as it goes on
	asked     []toBe    // the branches
	made      []cell.ID // those that are cells
	completed bool      // all of them are
	over      bool
}

// toBe is a cell that a branch makes, with the directories to watch, until a cell has them.
type toBe struct {
	proto.NewCell
	dirs []*os.File
}

// take returns the directories, once.
func (b *toBe) take() []*os.File {
	dirs := b.dirs
	b.dirs = nil
	return dirs
}

func (s *Server) beginBranch(id cell.ID) (*branching, error) {
	b, ok := s.Driver.(Forker)
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

// source notes what the source goes on with.
func (t *branching) source(q proto.NewCell, files []*os.File) (none proto.None, err error) {
	driver, dirs, err := q.Split(files)
	if err == nil && t.self.dirs != nil {
		err = proto.Malformed("source")
	}
	if err != nil {
		proto.CloseAll(files)
		return none, err
	}
	t.self = toBe{q, dirs}
	return none, t.b.Source(q.Spec, driver)
}

// add notes a branch.
func (t *branching) add(q proto.NewCell, files []*os.File) (none proto.None, err error) {
	driver, dirs, err := q.Split(files)
	if err == nil {
		err = roomFor(int64(len(t.asked))+2, q.Network != nil) // with the source, which goes on in one
	}
	if err != nil {
		proto.CloseAll(files)
		return none, err
	}
	t.asked = append(t.asked, toBe{q, dirs})
	return none, t.b.Add(q.Cell, q.Spec, driver)
}

func (t *branching) hold() (none proto.None, err error) {
	if t.held {
		return none, proto.Malformed("hold")
	}
	t.began = time.Now()
	if err := t.h.block(t.id); err != nil {
		return none, err
	}
	t.pause.Shared = residentMemory(t.h.in.Process.PID())
	if t.pause.Dropped, err = t.b.Hold(); err != nil {
		t.h.unblock()
		return none, err
	}
	t.held = true
	failpoint.Step("stand still")
	return none, nil
}

// complete makes the branches cells.
func (t *branching) complete() (none proto.None, err error) {
	if t.pause.Gap == 0 {
		return none, proto.Malformed("complete")
	}
	if err := t.b.Settle(); err != nil {
		t.s.Log.Warn("cannot put away what was branched", "cell", t.id, "error", err)
	}
	var each sync.WaitGroup
	var mu sync.Mutex // guards errs and made
	var errs []error
	todo := make(chan *toBe, len(t.asked))
	for n := range t.asked {
		todo <- &t.asked[n]
	}
	close(todo)
	for range completeAtOnce {
		each.Go(func() {
			for b := range todo {
				err := t.one(b)
				mu.Lock()
				if err == nil {
					t.made = append(t.made, b.Cell)
				} else {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	each.Wait()
	if len(errs) > 0 {
		return none, errs[0]
	}
	t.over, t.completed = true, true
	return none, t.end(true)
}

// completeAtOnce is how many branches are furnished at a time.
const completeAtOnce = 4

func (t *branching) one(b *toBe) error {
	failpoint.Step("complete a branch")
	var in Interpreter
	if _, err := t.b.Complete(b.Cell, &in); err != nil {
		return err
	}
	return t.s.register(&b.NewCell, in, t.h, t.id, b.take())
}

// end takes away what was not completed, or all if the branch was not.
func (t *branching) end(complete bool) error {
	if !complete {
		for _, id := range t.made {
			t.s.remove(id, "the branch was given up")
		}
	}
	for n := range t.asked {
		proto.CloseAll(t.asked[n].take())
	}
	proto.CloseAll(t.self.take())
	err := t.b.End()
	if err != nil {
		t.s.Log.Error("cannot let a source go on", "cell", t.id, "error", err)
	}
	if t.held {
		t.h.unblock()
	}
	return err
}

// block keeps evaluations away from an interpreter that is to stand still.
func (h *warm) block(id cell.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blocked || h.busy > 0 {
		return cell.Errorf(cell.Conflict, "keeper.branch", "wait until it has ended", "cannot branch cell %s: an evaluation is under way in it", id)
	}
	h.blocked = true
	return nil
}

func (h *warm) unblock() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blocked = false
}

// free says whether nothing is under way in an interpreter.
func (h *warm) free(id cell.ID) error {
	if err := h.block(id); err != nil {
		return err
	}
	h.unblock()
	return nil
}

// enter begins an evaluation, which leave ends.
func (h *warm) enter(id cell.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.sealed:
		return cell.Errorf(cell.Conflict, "keeper.eval", "fork it, and evaluate in the fork", "cannot evaluate in cell %s: it is only forked", id)
	case h.blocked:
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
func (t *branching) goOn() (none cell.Pause, err error) {
	if !t.held || t.pause.Gap > 0 {
		return none, proto.Malformed("go on")
	}
	s, h := t.s, t.h
	s.mu.Lock()
	k := s.cells[t.id]
	s.mu.Unlock()
	if k == nil {
		return none, cell.Errorf(cell.NotFound, "keeper.branch", "", "cell %s was removed", t.id)
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
		return none, err
	}
	n := s.copyOf(in, h)
	h.mu.Lock()
	n.evals, n.started = h.evals, h.started
	h.mu.Unlock()
	s.mu.Lock()
	k.warm = n
	if t.self.Note != nil {
		k.note = proto.Noted{Note: t.self.Note}
	}
	s.mu.Unlock()
	t.pause.Gap = time.Since(t.began)
	go s.followInterpreter(t.id, k, n)
	if err := s.watch(t.id, t.self.Watch, t.self.take()); err != nil {
		return none, err
	}
	return t.pause, nil
}

// causeBranched is the cause of an interpreter's end after its cell went on in a fork of it:
// the cell does not end with it.
const causeBranched = "it was branched"
