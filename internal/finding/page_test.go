package finding

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/policy"
)

// page is made from the table of rules. PANDO_UPDATE=1 writes it.
const page = "../../docs/reference/findings.md"

func TestPage(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Findings\n\nThe rules that `pando report` looks through the evidence of a run with, from their table. A finding says what there is, and not\nwhat was meant. RUN and PATH stand for those concerned.\n\n| rule | severity | found | why it matters | see |\n|---|---|---|---|---|\n")
	for _, r := range Rules() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` |\n", r.ID, r.Severity, r.Title, r.Why, r.See)
	}
	b.WriteString("\n## Rules of your own\n\nConditions (`if`) of rules in a policy are `FIELD OPERATOR VALUE`. [How to write them](../howto/report.md#rules-of-your-own).\nNumbers have `= != < <= > >=`; texts `=` and `!=`, in which `*` is any text, and `~` and `!~` with a regular expression of RE2.\nThe fields of the run are there in every rule. A field that is not known fulfils no condition.\n\n| `when` | field | value | |\n|---|---|---|---|\n")
	for _, f := range policy.Fields() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", f.When, f.Name, f.Kind(), f.About)
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
