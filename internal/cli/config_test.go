package cli

import (
	"slices"
	"testing"
)

// The keys of defaults are those of the flags: each flag of a start has a default, or is about
// one start alone.
func TestKeysOfDefaults(t *testing.T) {
	keys := deaf(t).starting().keys()
	for _, key := range []string{"allow", "autonomy", "check", "env", "memory"} {
		if !slices.Contains(keys, key) {
			t.Errorf("%s has no default", key)
		}
	}
	for _, key := range []string{"cell", "from", "policy", "prompt", "tty"} {
		if slices.Contains(keys, key) {
			t.Errorf("%s, which is about one start, has a default", key)
		}
	}
	if got := completed(t, "config", "set", ""); !slices.Contains(got, "allow") || slices.Contains(got, "prompt") {
		t.Errorf("keys are completed as %q", got)
	}
	if got := completed(t, "config", "set", "autonomy", ""); !slices.Contains(got, "prompting") {
		t.Errorf("values are completed as %q", got)
	}
}
