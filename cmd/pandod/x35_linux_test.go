package main

import "testing"

// A failed check is repeated until it succeeds.
func TestX35UnlessMended(t *testing.T) {
	asked, reason := 0, "no overlayfs"
	why := unlessMended(func() string { asked++; return reason })
	for n := 1; n <= 2; n++ {
		if got := why(); got != reason || asked != n {
			t.Errorf("it says %q, asked %d times", got, asked)
		}
	}
	reason = ""
	if why() != "" || asked != 3 {
		t.Errorf("after it was mended: asked %d times", asked)
	}
	if why() != "" || asked != 3 {
		t.Errorf("what works was asked about: %d times", asked)
	}
}
