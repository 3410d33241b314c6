package server

import (
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/wire"
)

// taped is the recording of a process, or what answers it. Its methods do nothing on nil.
type taped struct {
	n      Network
	file   *os.File
	record *wire.Recorder
	play   *wire.Player
}

// tape begins to record the HTTP of a cell, or to answer it, for a process. It owns file.
func (t *talk) tape(w *cell.Wire, file *os.File) (*taped, error) {
	if w == nil || file == nil || t == nil {
		if file != nil {
			file.Close()
		}
		return nil, nil
	}
	p := &taped{n: t.n, file: file}
	var err error
	if w.Recipient != "" {
		p.record, err = wire.NewRecorder(file, w.Recipient)
	} else {
		var list []*wire.Exchange
		var names []wire.Name
		if list, names, err = wire.Read(file); err == nil {
			p.play = wire.NewPlayer(list, names)
		}
	}
	if err != nil {
		file.Close()
		return nil, cell.Errorf(cell.Corrupt, "keeper.start", "", "cannot record or answer the network of the process: %w", err)
	}
	p.n.Wire(p.record, p.play)
	return p, nil
}

// end closes the recording, and notes in a status what it is.
func (p *taped) end(st *cell.Status) {
	if p == nil {
		return
	}
	p.n.Wire(nil, nil)
	if p.record != nil {
		done := p.record.Close()
		st.Recording = &done
	} else {
		done := p.play.Done()
		st.Replayed = &done
	}
	p.file.Close()
}
