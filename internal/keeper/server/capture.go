package server

import (
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// capture writes what a frozen cell has in memory into files, and says how its
// interpreter stands.
func (s *Server) capture(q proto.OfCell, files []*os.File) (c proto.Captured, err error) {
	defer proto.CloseAll(files)
	d, ok := s.Driver.(Capturer)
	if !ok {
		return c, cell.Errorf(cell.Unsupported, "keeper.capture", cell.ForkSandbox, "cannot capture memory: this backend can't")
	}
	if h, err := s.interpreter(q.Cell); err == nil {
		if err := h.block(q.Cell); err != nil { // else a copy would answer a request that was sent to the source
			return c, err
		}
		defer h.unblock()
		c.Warmth = h.state()
	}
	c.More, err = d.Capture(q.Cell, files)
	return c, err
}

// resume makes the interpreter that a copy came with its own, which
// followInterpreter follows then.
func (s *Server) resume(id cell.ID, was *cell.Warmth) (*warm, error) {
	d, ok := s.Driver.(Capturer)
	if !ok {
		return nil, proto.Malformed("create")
	}
	h := &warm{kind: was.Kind, version: was.Version, cannotFork: was.CannotFork, started: was.Started, evals: was.Evals, gone: make(chan struct{}),
		in: Interpreter{Depth: was.Depth + 1}}
	if err := s.connect(h, func(theirs [3]*os.File, control *os.File) error { return d.Resume(id, &h.in, theirs, control) }); err != nil {
		return nil, err
	}
	return h, nil
}
