package server

import "testing"

type noEvents struct{}

func (noEvents) Emit(string, any) {}
func (noEvents) Seal() error      { return nil }

// A sample is an event, as is the start of a process, and no sign that something happens: a cell that is idle is paused.
func TestSamplesAreNoWork(t *testing.T) {
	t.Parallel()
	p := &Proc{events: noEvents{}}
	for _, kind := range []string{"sample", "decision", "output", "process.exec", "process.ended", "process.lost", "process.unseen", "process.signal"} {
		p.emit(kind, nil)
	}
	if n := p.told.Load(); n != 2 {
		t.Errorf("%d events are told of, and two are signs of work", n)
	}
}
