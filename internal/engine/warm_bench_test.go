package engine

import (
	"testing"

	"github.com/pando-dev/pando/api"
)

// What the engine adds to an evaluation: the toy costs next to nothing.
func BenchmarkEval(b *testing.B) {
	bed := newBed(b, "f: 0")
	bed.template("warm", "x = 41")
	bed.fork("warm", api.WarmForkRequest{Name: "one"})
	id := bed.id("one")
	for b.Loop() {
		if _, err := bed.Eval(bed.ctx, id, api.EvalRequest{Code: "x + 1"}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
