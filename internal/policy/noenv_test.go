package policy

import (
	"strings"
	"testing"
)

func TestX23WithoutEnvironment(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"block", "# T0PSECRET\nversion: 1\nenvironment:\n  set: {A: T0PSECRET}\nlimits: {pids: 7}\n"},
		{"first and last", "environment: {set: {A: T0PSECRET}}\nlimits: {pids: 7}\nversion: 1\n"},
		{"JSON", `{"version": 1, "environment": {"set": {"A": "T0PSECRET"}}, "limits": {"pids": 7}}`},
		{"a text of lines", "version: 1\nlimits: {pids: 7}\nenvironment:\n  set:\n    A: |\n      T0PSECRET\n      T0PSECRET\n"},
	} {
		b, had, err := WithoutEnvironment([]byte(c.text))
		if err != nil || !had || strings.Contains(string(b), "T0PSECRET") {
			t.Errorf("%s: %q, %v, %v", c.name, b, had, err)
		}
		f, err := ParseFile("p", b)
		if err != nil || f.Limits.PIDs != "7" {
			t.Errorf("%s: %+v, %v", c.name, f, err)
		}
	}
	text := "# a comment\nversion: 1\n"
	if b, had, err := WithoutEnvironment([]byte(text)); err != nil || had || string(b) != text {
		t.Errorf("%q, %v, %v", b, had, err)
	}
}
