package durabletest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// CheckTrace compares a trace with testdata/NAME.trace. With the environment
// variable UPDATE_TRACES set it writes that file instead; what changes in it
// is to be read like code.
func CheckTrace(t testing.TB, name, trace string) {
	t.Helper()
	file := filepath.Join("testdata", name+".trace")
	if os.Getenv("UPDATE_TRACES") != "" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(trace), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), trace); diff != "" {
		t.Errorf("the order of calls differs from %s (-want +got):\n%s", file, diff)
	}
}
