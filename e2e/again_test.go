package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// again runs scripts once more with cells of another backend.
type again struct {
	backend string
	not     map[string]string // skipped scripts, each with the reason
	often   []string          // scripts, of the common ones and its own, that every change must pass
	own     []string          // patterns of scripts for such cells alone
}

func (a again) run(t *testing.T) {
	known := map[string]bool{}
	var files []string
	n := 0
	take := func(f, name string) {
		soak := os.Getenv("E2E_SOAK") != ""
		if known[name] = true; a.not[name] != "" || !soak && !slices.Contains(a.often, name) {
			return
		}
		if n++; n%3 > 0 && os.Getuid() != 0 && !soak { // root has run all of them
			return
		}
		files = append(files, f)
	}
	for _, pattern := range append([]string{"*"}, a.own...) {
		all, err := filepath.Glob("testdata/" + pattern + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			name := strings.TrimSuffix(strings.TrimPrefix(f, "testdata/"), ".txt")
			take(f, name)
		}
	}
	for name := range a.not {
		if !known[name] {
			t.Errorf("there is no script %s", name)
		}
	}
	for _, name := range a.often {
		if !known[name] || a.not[name] != "" {
			t.Errorf("%s is no script, or one that is not run at all", name)
		}
	}
	runScripts(t, testscript.Params{Files: files}, map[string]string{"PANDO_BACKEND": a.backend})
}
