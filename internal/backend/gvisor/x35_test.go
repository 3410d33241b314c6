package gvisor

import (
	"os"
	"path/filepath"
	"testing"
)

// A runtime that was installed or replaced while the daemon runs is the one that counts.
func TestX35RuntimeIsReadAgain(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pando-runsc")
	build := buildsOf(program)
	if b, err := build(); err == nil {
		t.Errorf("of no program: %q", b)
	}
	seen := map[string]bool{}
	for _, text := range []string{"one", "another"} {
		if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		b, err := build()
		if err != nil || b == "" || seen[b] {
			t.Errorf("of %q: %q, %v", text, b, err)
		}
		seen[b] = true
	}
}
