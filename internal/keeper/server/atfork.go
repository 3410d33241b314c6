package server

import (
	"bytes"
	"fmt"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// atForkTail is how much of each stream of a command that failed is in the error, in bytes.
const atForkTail = 2 << 10

// atFork runs the command that a copy begins with, and returns what its certificate says
// of it. It fails when the command does: kept is what the command wrote.
func (s *Server) atFork(id cell.ID, start *cell.Start) (cell.Hazard, error) {
	h := cell.Hazard{Name: cell.AtFork, Seen: "outside"}
	d, err := s.run(proto.NewProcess{Cell: id, Proc: "at-fork " + string(id), Start: *start})
	if err != nil {
		// Whatever its kind is: keeper.adopt takes some of them for the copy's own.
		return h, cell.Errorf(cell.Invalid, "keeper.adopt", atForkHint, "cannot run the command of --at-fork in a copy: %w", err)
	}
	exit := d.Status.Exit
	if exit == nil {
		return h, cell.Errorf(cell.Internal, "keeper.adopt", "", "cannot tell how the command of --at-fork ended")
	}
	h.Value = fmt.Sprintf("exit code %d, before anything else of the copy went on", exit.Code)
	if exit.Code == 0 && exit.Cause == "" {
		return h, nil
	}
	how := fmt.Sprintf("ended with exit code %d", exit.Code)
	if exit.Cause != "" {
		how += " (" + exit.Cause + ")"
	}
	for _, out := range [][]byte{d.Stdout, d.Stderr} {
		if out = bytes.TrimSpace(out[max(0, len(out)-atForkTail):]); len(out) > 0 {
			how += "\n" + string(bytes.ToValidUTF8(out, []byte("\ufffd")))
		}
	}
	return h, cell.Errorf(cell.Invalid, "keeper.adopt", atForkHint, "cannot adopt a copy: the command of --at-fork %s", how)
}

const atForkHint = "mend the command: it runs in each copy, and a copy in which it fails is removed"
