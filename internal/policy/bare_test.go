package policy

import (
	"strings"
	"testing"
)

func TestX23BarePolicy(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"block", "# T0PSECRET\nversion: 1\nenvironment:\n  set: {A: T0PSECRET}\nlimits: {pids: 7}\n"},
		{"first and last", "environment: {set: {A: T0PSECRET}}\nlimits: {pids: 7}\nversion: 1\n"},
		{"JSON", `{"version": 1, "environment": {"set": {"A": "T0PSECRET"}}, "limits": {"pids": 7}}`},
		{"a text of lines", "version: 1\nlimits: {pids: 7}\nenvironment:\n  set:\n    A: |\n      T0PSECRET\n      T0PSECRET\n"},
	} {
		b, had, err := Bare([]byte(c.text))
		if err != nil || !had || strings.Contains(string(b), "T0PSECRET") {
			t.Errorf("%s: %q, %v, %v", c.name, b, had, err)
		}
		f, err := ParseFile("p", b)
		if err != nil || f.Limits.PIDs != "7" {
			t.Errorf("%s: %+v, %v", c.name, f, err)
		}
	}
	b, had, err := Bare([]byte("# T0PSECRET\nversion: 1 # T0PSECRET\nlimits: {pids: 7}\n"))
	if err != nil || had || strings.Contains(string(b), "T0PSECRET") {
		t.Errorf("%q, %v, %v", b, had, err)
	}
	if f, err := ParseFile("p", b); err != nil || f.Limits.PIDs != "7" {
		t.Errorf("%+v, %v", f, err)
	}
}
