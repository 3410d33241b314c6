package cli

import "testing"

// A cell is paused for more than what a budget has: an answer can be impossible to count.
func TestReachedWords(t *testing.T) {
	for reached, want := range map[string]string{"tokens": "its budget of tokens is used up", "price": "the price of a model that it asked is not known", "usage": "an answer of a model did not say its use"} {
		if got := reachedWords(reached); got != want {
			t.Errorf("%s: %s", reached, got)
		}
	}
}
