package arch

import (
	"os"
	"strings"
	"testing"
	"unicode"
)

// The index of CONTRIBUTING.md has one row for each package, and no other rows. A reader
// searching it for one of the words below finds it.
func TestIndexHasEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, index, ok := strings.Cut(string(page), "\n| package | look here for |\n|---|---|\n")
	if !ok {
		t.Fatal("CONTRIBUTING.md has no index of packages")
	}
	index, _, _ = strings.Cut(index, "\n\n")
	rows := map[string]string{}
	for line := range strings.Lines(index) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 {
			t.Fatalf("a row of the index is not PACKAGE | WORDS: %s", line)
		}
		name := strings.Trim(strings.TrimSpace(cells[1]), "`")
		if rows[name] != "" {
			t.Errorf("the index of CONTRIBUTING.md has %s twice", name)
		}
		rows[name] = strings.ToLower(cells[2])
	}
	for _, p := range list(t) {
		if rows[p.ImportPath] == "" {
			t.Errorf("the index of CONTRIBUTING.md has no row for %s", p.ImportPath)
		}
		delete(rows, p.ImportPath)
	}
	for name := range rows {
		t.Errorf("the index of CONTRIBUTING.md has a row for %s, and there is no such package", name)
	}
	words := " " + strings.Join(strings.FieldsFunc(strings.ToLower(index), func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }), " ") + " "
	for _, word := range []string{
		"idempotency", "gc", "presets", "exit codes", "status codes", "completion", "retries", "backoff", "etag", "if-match", "pagination", "snapshots", "lock", "leases", "undo",
		"redaction", "rate limits", "crash recovery", "conflicts", "health checks", "seccomp", "cgroups", "dns", "openapi", "websocket", "audit log", "fsync", "token shapes", "quotas", "metrics",
	} {
		if !strings.Contains(words, " "+word+" ") {
			t.Errorf("the index of CONTRIBUTING.md does not have the word %q", word)
		}
	}
}
