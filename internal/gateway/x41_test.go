package gateway

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// TestX41OverlongPathsAreNone: a lenient server reads an overlong dot or slash as
// one, also behind a second escape.
func TestX41OverlongPathsAreNone(t *testing.T) {
	for p, want := range map[string]bool{
		"/a/%C0%AE%C0%AE/b": false, "/a%c0%afb": false, "/%e0%80%af": false, "/%f0%80%80%af": false, "/a%25c0%25af": false, "/%f8%80%80%80%af": false,
		"/%C3%A4": true, "/%e2%82%ac": true, "/%f0%9f%98%80": true, "/plain": true, "/%e9t%e9": true,
	} {
		if _, ok := pathForms(p); ok != want {
			t.Errorf("%s is a path: %v", p, ok)
		}
	}
}

// TestX41YourOwnMachineIsItsLoopback, whatever a resolver says.
func TestX41YourOwnMachineIsItsLoopback(t *testing.T) {
	list, err := Addresses(t.Context(), []string{"127.0.0.1:9"}, cell.HostName)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, a := range list {
		if !a.IsLoopback() {
			t.Errorf("it leads to %s", a)
		}
	}
}
