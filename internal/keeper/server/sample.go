package server

import (
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Samples of use become fewer the longer a command takes, so that their number grows with the logarithm of its time alone.
const (
	sampleEvery = time.Second
	sampleRound = 120 // samples, after which the time between them doubles
	// sampleLeast is the part of a processor that a cell has to use for a sample: of one that waits there is nothing to tell.
	sampleLeast = 0.02
)

// sample writes what the cell uses into the events of a command, until that ends.
func (s *Server) sample(p *Proc) {
	every := sampleEvery
	t := time.NewTimer(every)
	defer t.Stop()
	last, told := cell.Stats{}, time.Now()
	for n := 1; ; n++ {
		select {
		case <-p.done:
			return
		case <-t.C:
		}
		if n%sampleRound == 0 {
			every *= 2
		}
		t.Reset(every)
		now, err := s.counted(p.cell)
		if err != nil || len(now.Measured) == 0 {
			continue
		}
		if float64(now.CPU-max(last.CPU, p.before.CPU)) < sampleLeast*float64(time.Since(told).Microseconds()) {
			continue
		}
		last, told = now, time.Now()
		p.mu.Lock()
		if p.gone { // its end is the last event
			p.mu.Unlock()
			return
		}
		p.emit("sample", cell.Sample{CPU: now.CPU - p.before.CPU, Memory: now.Memory, Written: now.Written - p.before.Written, Processes: now.Processes})
		p.mu.Unlock()
	}
}
