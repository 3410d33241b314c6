package server

import (
	"encoding/json"
	"os"

	"github.com/pando-dev/pando/internal/cell"
)

// capture writes what a frozen cell has in memory into files, and says how its
// interpreter stands; nil if it has none.
func (s *Server) capture(id cell.ID, files []*os.File) (json.RawMessage, *cell.Warmth, error) {
	d, ok := s.Driver.(Capturer)
	if !ok {
		return nil, nil, cell.Errorf(cell.Unsupported, "keeper.capture", cell.ForkSandbox, "cannot capture memory: this backend can't")
	}
	var w *cell.Warmth
	if h, err := s.interpreter(id); err == nil {
		if err := h.hold(id); err != nil { // a copy would answer whom it was not asked by
			return nil, nil, err
		}
		defer h.letGo()
		w = h.standing()
	}
	more, err := d.Capture(id, files)
	return more, w, err
}

// resume makes the interpreter that a copy came with its own, which attend follows
// then.
func (s *Server) resume(id cell.ID, was *cell.Warmth) (*warm, error) {
	d, ok := s.Driver.(Capturer)
	if !ok {
		return nil, malformed("create")
	}
	h := &warm{kind: was.Kind, version: was.Version, cannotFork: was.CannotFork, started: was.Started, evals: was.Evals, gone: make(chan struct{}),
		in: Interpreter{Depth: was.Depth + 1}}
	if err := s.connect(h, func(theirs [3]*os.File, control *os.File) error { return d.Resume(id, &h.in, theirs, control) }); err != nil {
		return nil, err
	}
	return h, nil
}
