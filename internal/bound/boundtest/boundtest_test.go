package boundtest

import (
	"testing"
)

type fake struct {
	testing.TB
	failed bool
}

func (f *fake) Helper()               {}
func (f *fake) Errorf(string, ...any) { f.failed = true }

var kept []byte

func TestX02AllocationIsMeasured(t *testing.T) {
	for _, c := range []struct {
		size, more, n int
		failed        bool
	}{{0, 0, 0, false}, {0, 0, Slack / 2, false}, {0, 0, 2 * Slack, true}, {Slack, 0, 2 * Slack, false}, {0, 4 * Slack, 2 * Slack, false}, {0, 4 * Slack, 8 * Slack, true}} {
		f := &fake{}
		AllocatesBeside(f, c.size, c.more, func() { kept = make([]byte, c.n) })
		if f.failed != c.failed {
			t.Errorf("%+v: failed is %v", c, f.failed)
		}
	}
}
