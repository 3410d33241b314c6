package cli

import (
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// receipt push --follow tries again what can be otherwise later, and nothing else.
func TestFollowEnds(t *testing.T) {
	for kind, want := range map[cell.Kind]bool{cell.Denied: true, cell.Conflict: true, cell.Invalid: true, cell.Unavailable: false} {
		if got := final(cell.Errorf(kind, "x", "", "x")); got != want {
			t.Errorf("%s of the place: %t", kind, got)
		}
		if got := final(&api.Error{Kind: api.Kind(kind)}); got != want {
			t.Errorf("%s of the daemon: %t", kind, got)
		}
	}
}
