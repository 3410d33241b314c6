package cli

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/repl"
)

func TestInterpretersAreThoseThatThereAre(t *testing.T) {
	if !slices.Equal(interpreters, repl.KindNames()) {
		t.Errorf("the command line knows %v, and there are %v", interpreters, repl.KindNames())
	}
}
