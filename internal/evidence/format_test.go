package evidence

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/receipt"
)

// The page about what is on disk has every member of a receipt and of an export, and none
// that there is not.
func TestFormatPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile("`([a-z_]+)[][.a-z_]*`")
	for title, v := range map[string]any{
		"Of a run":     runPredicate{},
		"Of a verdict": Act{},
		"Of forks":     Batch{},
		"An export":    receipt.Bundle{},
		"The ledger":   receipt.Binding{},
	} {
		_, section, ok := strings.Cut(string(text), "# "+title)
		section, _, _ = strings.Cut(section, "\n#")
		if !ok {
			t.Errorf("no section %q", title)
			continue
		}
		names := map[string]bool{}
		for f := range reflect.TypeOf(v).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names[name] = true
			if !regexp.MustCompile("`" + name + "[`.[]").MatchString(section) {
				t.Errorf("%s: %s is not on the page", title, name)
			}
		}
		_, table, _ := strings.Cut(section, "| member | |")
		for line := range strings.Lines(table) {
			cells := strings.Split(line, "|")
			if len(cells) < 3 {
				continue
			}
			for _, m := range word.FindAllStringSubmatch(cells[1], -1) {
				if !names[m[1]] {
					t.Errorf("%s: there is no member %s", title, m[1])
				}
			}
		}
	}
}
