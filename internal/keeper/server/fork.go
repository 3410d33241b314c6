package server

import (
	"encoding/json"
	"errors"
	"os"
	"runtime/debug"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// forker is the driver, if it can fork.
func (s *Server) forker(op string) (Forker, error) {
	if f, ok := s.Driver.(Forker); ok {
		return f, nil
	}
	return nil, cell.Errorf(cell.Unsupported, "keeper."+op, cell.Isolated, "cannot fork an interpreter: this backend can't")
}

// familyGC is how much garbage a keeper may have that makes forks, in percent of
// what it uses, which is little for each.
const familyGC = 400

// seal makes a cell's interpreter one that is only forked.
func (s *Server) seal(id cell.ID) (*cell.Warmth, error) {
	f, err := s.forker("seal")
	if err != nil {
		return nil, err
	}
	h, err := s.interpreter(id)
	if err != nil {
		return nil, err
	}
	if h.cannotFork != "" {
		return nil, cannotFork("keeper.seal", h.cannotFork)
	}
	if err := f.Seal(id); err != nil {
		return nil, err
	}
	debug.SetGCPercent(familyGC)
	h.mu.Lock()
	h.sealed = true
	h.mu.Unlock()
	w := h.warmth()
	w.Slow = h.in.Conn.Slow()
	return w, nil
}

// fork makes a cell out of a sealed interpreter.
func (s *Server) fork(req *proto.Request, files []*os.File) (measured json.RawMessage, err error) {
	f, err := s.forker("fork")
	var of *warm
	if err == nil {
		of, err = s.interpreter(req.Trunk)
	}
	defer s.turnToFork()()
	if err == nil {
		err = roomFor(1, req.Network != nil)
	}
	if err != nil {
		proto.CloseAll(files)
		return nil, err
	}
	var in Interpreter
	if measured, err = f.Fork(req.Trunk, req.Cell, req.Spec, &in, files); err != nil {
		return nil, err
	}
	return measured, s.settle(req, in, of, req.Trunk)
}

// settle makes a fork of an interpreter a cell that waits to be adopted. When it
// fails nothing of it remains.
func (s *Server) settle(req *proto.Request, in Interpreter, of *warm, trunk cell.ID) (err error) {
	k := &kept{note: req.Note, warm: s.graft(in, of)}
	if req.Network != nil {
		k.talk, err = s.open(req.Cell, *req.Network)
	}
	s.mu.Lock()
	if err == nil && s.cells[trunk] == nil { // it went meanwhile
		err = cell.Errorf(cell.NotFound, "keeper.fork", "", "cell %s was removed", trunk)
	}
	if err == nil {
		s.cells[req.Cell] = k
	}
	s.mu.Unlock()
	go s.attend(req.Cell, k, k.warm)
	if err != nil {
		err = errors.Join(err, s.Driver.Remove(req.Cell))
		s.closing.Go(k.talk.close)
	}
	return err
}

// adopt gives a fork its identity. One that can't take it is removed.
func (s *Server) adopt(req *proto.Request) (*cell.Certificate, error) {
	f, ok := s.Driver.(Adopter)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "keeper.adopt", "", "cannot adopt a fork: this backend makes none")
	}
	if req.Adopt == nil {
		return nil, malformed(req.Op)
	}
	if t := s.talk(req.Cell); t != nil && req.Adopt.Network != nil {
		if err := t.n.Govern(*req.Adopt.Network); err != nil {
			return nil, s.undo(req.Cell, err)
		}
	}
	a := *req.Adopt
	a.Kind = ""
	if h, err := s.interpreter(req.Cell); err == nil {
		a.Kind = h.kind
	}
	var first func() error
	var ran []cell.Hazard
	if a.First != nil {
		first = func() error {
			said, err := s.atFork(req.Cell, a.First)
			ran = append(ran, said)
			return err
		}
	}
	c, err := f.Adopt(req.Cell, a, first)
	c.Hazards = append(c.Hazards, ran...)
	if err != nil {
		if cell.KindOf(err) == cell.Conflict || cell.KindOf(err) == cell.NotFound {
			return nil, err // it was adopted before
		}
		return nil, s.undo(req.Cell, err)
	}
	return &c, nil
}

// undo takes a cell down that could not be completed.
func (s *Server) undo(id cell.ID, err error) error {
	_, rerr := s.remove(id, "it could not be completed")
	if cell.KindOf(rerr) == cell.NotFound {
		rerr = nil
	}
	if rerr == nil {
		return err
	}
	return errors.Join(err, rerr)
}
