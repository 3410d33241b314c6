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

// sample writes into the events of a command what its cell uses, and how far its output is, until
// it ends.
func (s *Server) sample(p *Proc) {
	every := sampleEvery
	t := time.NewTimer(every)
	defer t.Stop()
	last, told := cell.Stats{}, time.Now()
	var written cell.Written
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
		if w := (cell.Written{Stdout: p.stdout.written(), Stderr: p.stderr.written()}); w != written {
			written = w
			if !p.during("output", w) {
				return
			}
		}
		now, err := s.counted(p.cell)
		if err != nil || len(now.Measured) == 0 {
			continue
		}
		if float64(now.CPU-max(last.CPU, p.before.CPU)) < sampleLeast*float64(time.Since(told).Microseconds()) {
			continue
		}
		last, told = now, time.Now()
		if !p.during("sample", cell.Sample{CPU: now.CPU - p.before.CPU, Memory: now.Memory, Written: now.Written - p.before.Written, Processes: now.Processes}) {
			return
		}
	}
}

// during writes an event while the command goes on: its end is the last one.
func (p *Proc) during(kind string, fields any) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	p.emit(kind, fields)
	return true
}
