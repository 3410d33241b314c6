package keeper

import (
	"encoding/json"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/interp"
)

// capture writes what a frozen cell has in memory into files, and says how its
// interpreter stands; nil if it has none.
func (s *Server) capture(id cell.ID, files []*os.File) (json.RawMessage, *cell.Warmth, error) {
	d, ok := s.Driver.(Capturer)
	if !ok {
		return nil, nil, cell.Errorf(cell.Unsupported, "keeper.capture", "choose --backend gvisor", "cannot capture memory: this backend can't")
	}
	var w *cell.Warmth
	if h, err := s.interpreter(id); err == nil {
		if err := h.hold(id); err != nil { // a copy would answer whom it was not asked by
			return nil, nil, err
		}
		defer h.letGo()
		w = h.warmth()
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
	conn, control, err := interp.Pair()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	theirs, in, out, errs, err := stdioPipes()
	if err != nil {
		conn.Close()
		return nil, err
	}
	in.Close()
	h := &warm{kind: was.Kind, version: was.Version, cannotFork: was.CannotFork, started: was.Started, evals: was.Evals, gone: make(chan struct{}),
		in: Interpreter{Conn: conn, Stdout: out, Stderr: errs, Depth: was.Depth + 1}}
	err = d.Resume(id, &h.in, theirs, control)
	closeAll(theirs[:])
	if err != nil {
		conn.Close()
		closeAll([]*os.File{out, errs})
		return nil, err
	}
	h.out = [2]*drain{s.drain(out, 1), s.drain(errs, 2)}
	return h, nil
}
