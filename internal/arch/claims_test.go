package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestThreatModelNamesTests holds the threat model to its word: each claim names a
// test, and each test that is named exists. A test is a function of a _test.go file, a
// script one of e2e/testdata.
func TestThreatModelNamesTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(testSources(t), -1) {
		functions[m[1]] = true
	}
	if len(functions) < 500 {
		t.Fatalf("found only %d tests in the repository", len(functions))
	}
	test := regexp.MustCompile(`^(Test|Fuzz)\w+$`)
	script := regexp.MustCompile(`^(gvisor/|microvm/|whole/)?[a-z0-9]+(-[a-z0-9]+)+$`)
	named := 0
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(page), -1) {
		switch name := m[1]; {
		case test.MatchString(name):
			named++
			if !functions[name] {
				t.Errorf("docs/threat-model.md names %s, and there is no such test", name)
			}
		case script.MatchString(name) && !strings.HasPrefix(name, "runsc-"):
			named++
			if _, err := os.Stat(filepath.Join("..", "..", "e2e", "testdata", name+".txt")); err != nil {
				t.Errorf("docs/threat-model.md names the script %s: %v", name, err)
			}
		}
	}
	if named < 100 {
		t.Errorf("found %d names of tests in docs/threat-model.md, and expected 100 at least", named)
	}
}

// testSources returns the text of all test files of the repository.
func testSources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"internal", "e2e", "client", "cmd", "bench", "tools"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			b.Write(text)
			b.WriteByte('\n')
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}
