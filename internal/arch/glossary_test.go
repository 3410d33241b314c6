package arch

import (
	"os"
	"path"
	"strings"
	"testing"
)

// Each package's name is a word of the glossary or in its table of packages. A suite
// "xtest" belongs to x.
func TestGlossaryHasEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	words, packages, ok := strings.Cut(string(page), "\n## Packages\n")
	if !ok {
		t.Fatal("the glossary has no table of packages")
	}
	rows := func(text string) (n int) {
		for line := range strings.Lines(text) {
			cells := strings.Split(line, "|")
			if len(cells) < 4 {
				continue
			}
			for _, w := range strings.Split(cells[1], ",") {
				known[strings.TrimSpace(w)] = true
			}
			n++
		}
		return n - 2 // the head
	}
	if n := rows(words); n > 60 {
		t.Errorf("the glossary has %d words, and 60 are the most", n)
	}
	rows(packages)
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, "internal/") {
			continue
		}
		name := path.Base(p.ImportPath)
		if suite := strings.TrimSuffix(name, "test"); !known[name] && !known[suite] {
			t.Errorf("docs/glossary.md does not have %s", p.ImportPath)
		}
	}
}
