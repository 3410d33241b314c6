package evidence

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
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
		"Of a verdict": state.Act{},
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

// What is signed has types of its own: a change of the API's changes no receipt.
func TestStatementsHaveNoTypesOfTheAPI(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{}
	var look func(at string, typ reflect.Type)
	look = func(at string, typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			look(at, typ.Elem())
		case reflect.Struct:
			if strings.HasSuffix(typ.PkgPath(), "/pando/api") {
				t.Errorf("%s is an %s", at, typ)
			}
			for f := range typ.Fields() {
				look(at+"."+f.Name, f.Type)
			}
		}
	}
	look("run", reflect.TypeFor[runPredicate]())
	look("act", reflect.TypeFor[state.Act]())
	look("batch", reflect.TypeFor[Batch]())
	if len(seen) < 30 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}
