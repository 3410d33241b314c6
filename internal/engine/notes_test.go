package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The source is imported while the image is planned, and the notes of both are the run's.
// The race detector sees notes that are written by both at once.
func TestNotesOfTheImage(t *testing.T) {
	t.Parallel()
	b := newBed(t, "go.mod: module x")
	b.must(os.WriteFile(filepath.Join(filepath.Dir(b.src), "go.work"), []byte("go 1.24\nuse ./src\n"), 0o644))
	r := b.run("w", "true")
	if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "go.work") }) {
		t.Errorf("no note of go.work: %q", r.Notes)
	}
}
