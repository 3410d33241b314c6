package gc

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// What no work needs any more is not remembered for ever.
func TestPinsForget(t *testing.T) {
	t.Parallel()
	p := NewPins(nothing{})
	w := p.Begin()
	for n := range 5000 {
		p.Put(cell.Sum([]byte{byte(n), byte(n >> 8)}), nil)
	}
	second := p.Begin()
	last := cell.Sum([]byte("last"))
	p.Put(last, nil)
	w.End()
	if len(p.puts) != 1 || !p.recent(last) {
		t.Errorf("%d puts are remembered while one is of work under way", len(p.puts))
	}
	done := p.collect()
	second.End()
	second.End()
	if !p.recent(last) {
		t.Error("what was put before the collection began was forgotten during it")
	}
	done()
	if len(p.puts) > 0 || len(p.pins) > 0 {
		t.Errorf("%d puts and %d pins are remembered at rest", len(p.puts), len(p.pins))
	}
}

// Images that work under way needs are known as such until it is over.
func TestPinsOfImages(t *testing.T) {
	t.Parallel()
	p := NewPins(nothing{})
	one, two := cell.Sum([]byte("1")), cell.Sum([]byte("2"))
	a, b := p.Begin(), p.Begin()
	a.UseImage(one)
	b.UseImage(one)
	b.UseImage(two)
	a.End()
	if !p.UsesImage(one) || !p.UsesImage(two) {
		t.Error("what is in use is not known")
	}
	b.End()
	if p.UsesImage(one) || p.UsesImage(two) {
		t.Error("what is not in use is kept")
	}
}
