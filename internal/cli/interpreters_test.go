package cli

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/interp"
)

func TestInterpretersAreThoseThatThereAre(t *testing.T) {
	if !slices.Equal(interpreters, interp.KindNames()) {
		t.Errorf("the command line knows %v, and there are %v", interpreters, interp.KindNames())
	}
}
