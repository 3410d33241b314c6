package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/evidence"
)

// What --kind completes is what there is.
func TestEventKindsThatAreCompleted(t *testing.T) {
	var want []string
	for _, k := range evidence.EventKinds() {
		want = append(want, k.Kind)
		if family, _, dotted := strings.Cut(k.Kind, "."); dotted && family != "network" {
			want = append(want, family)
		}
	}
	slices.Sort(want)
	got := slices.Sorted(slices.Values(eventKinds))
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("completes %v, want %v", got, want)
	}
}
