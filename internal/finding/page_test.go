package finding

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// page is made from the table of rules. PANDO_UPDATE=1 writes it.
const page = "../../docs/reference/findings.md"

func TestPage(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Findings\n\nThe rules that `pando report` looks through the evidence of a run with, from their table. A finding says what there is, and not\nwhat was meant. RUN and PATH stand for those concerned.\n\n| rule | severity | found | why it matters | see |\n|---|---|---|---|---|\n")
	for _, r := range Rules() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` |\n", r.ID, r.Severity, r.Title, r.Why, r.See)
	}
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(page, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("docs/reference/findings.md is not what the rules say (%v): run PANDO_UPDATE=1 go test ./internal/finding", err)
	}
}
