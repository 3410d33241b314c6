package server

import (
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
func (s *Server) seal(q proto.OfCell) (none cell.Warmth, err error) {
	f, err := s.forker("seal")
	if err != nil {
		return none, err
	}
	h, err := s.interpreter(q.Cell)
	if err != nil {
		return none, err
	}
	if h.cannotFork != "" {
		return none, cannotFork("keeper.seal", h.cannotFork)
	}
	if err := f.Seal(q.Cell); err != nil {
		return none, err
	}
	debug.SetGCPercent(familyGC)
	h.mu.Lock()
	h.sealed = true
	h.mu.Unlock()
	w := h.warmth()
	w.Slow = h.in.Conn.Slow()
	return *w, nil
}

// fork makes a cell out of a sealed interpreter.
func (s *Server) fork(q proto.NewFork, files []*os.File) (made proto.Made, err error) {
	driver, dirs, err := q.Split(files)
	var f Forker
	if err == nil {
		f, err = s.forker("fork")
	}
	var of *warm
	if err == nil {
		of, err = s.interpreter(q.Of)
	}
	defer s.turnToFork()()
	if err == nil {
		err = roomFor(1, q.Network != nil)
	}
	if err != nil {
		proto.CloseAll(files)
		return made, err
	}
	var in Interpreter
	if made.Measured, err = f.Fork(q.Of, q.Cell, q.Spec, &in, driver); err != nil {
		proto.CloseAll(dirs)
		return proto.Made{}, err
	}
	return made, s.register(&q.NewCell, in, of, q.Of, dirs)
}

// register makes a fork of an interpreter a cell that waits to be adopted. It takes the
// directories. When it fails nothing of it remains.
func (s *Server) register(q *proto.NewCell, in Interpreter, of *warm, trunk cell.ID, dirs []*os.File) (err error) {
	k := &kept{note: proto.Noted{Note: q.Note}, warm: s.copyOf(in, of)}
	if q.Network != nil {
		k.talk, err = s.open(q.Cell, *q.Network)
	}
	s.mu.Lock()
	if err == nil && s.cells[trunk] == nil { // it went meanwhile
		err = cell.Errorf(cell.NotFound, "keeper.fork", "", "cell %s was removed", trunk)
	}
	if err == nil {
		s.cells[q.Cell] = k
	}
	s.mu.Unlock()
	go s.followInterpreter(q.Cell, k, k.warm)
	if err != nil {
		proto.CloseAll(dirs)
		err = errors.Join(err, s.Driver.Remove(q.Cell))
		s.closing.Go(k.talk.close)
		return err
	}
	if err := s.watch(q.Cell, q.Watch, dirs); err != nil {
		return s.undo(q.Cell, err)
	}
	return nil
}

// adopt gives a fork its identity. One that can't take it is removed.
func (s *Server) adopt(q proto.Adoption) (none cell.Certificate, err error) {
	f, ok := s.Driver.(Adopter)
	if !ok {
		return none, cell.Errorf(cell.Unsupported, "keeper.adopt", "", "cannot adopt a fork: this backend makes none")
	}
	a := q.Adopt
	if t := s.talk(q.Cell); t != nil && a.Network != nil {
		if err := t.n.Govern(*a.Network); err != nil {
			return none, s.undo(q.Cell, err)
		}
	}
	a.Kind = ""
	if h, err := s.interpreter(q.Cell); err == nil {
		a.Kind = h.kind
	}
	var first func() error
	var ran []cell.Hazard
	if a.First != nil {
		first = func() error {
			said, err := s.atFork(q.Cell, a.First)
			ran = append(ran, said)
			return err
		}
	}
	c, err := f.Adopt(q.Cell, a, first)
	c.Hazards = append(c.Hazards, ran...)
	if err != nil {
		if cell.KindOf(err) == cell.Conflict || cell.KindOf(err) == cell.NotFound {
			return none, err // it was adopted before
		}
		return none, s.undo(q.Cell, err)
	}
	return c, nil
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
