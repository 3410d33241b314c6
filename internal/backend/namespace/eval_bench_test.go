package namespace

import (
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// BenchmarkEval is an evaluation as the daemon asks for it: through the keeper,
// with a value and nothing written.
func BenchmarkEval(b *testing.B) {
	g := newForkBed(b, "")
	b.ResetTimer()
	for b.Loop() {
		ev, err := g.warm.Eval(b.Context(), cell.Eval{Code: "1+1", Timeout: time.Minute, Limit: 1000}, nil)
		if err != nil || !ev.OK {
			b.Fatal(err, ev)
		}
	}
}
