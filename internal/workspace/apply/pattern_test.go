package apply

import (
	"path"
	"strings"
	"testing"
)

// A pattern of a name is that of path.Match, decided with less.
func TestNamePattern(t *testing.T) {
	names := []string{"", "a", ".env", ".envrc", "makefile", "x.yml", "git.yml", "jest.config.js", "*", "[", `\`, "a*b", "aXb", "aa"}
	patterns := []string{"a", "*", "*.yml", ".env*", "a*b", "a?b", "[ab]", `\*`, "*a", "a*a", "[!x].yml"}
	for _, row := range controlTable {
		for _, name := range strings.Fields(row.names) {
			patterns = append(patterns, strings.Split(name, "/")...)
			names = append(names, strings.Split(strings.ReplaceAll(name, "*", "zz"), "/")...)
		}
	}
	for _, p := range patterns {
		n := newNamePattern(p)
		for _, name := range names {
			if want, _ := path.Match(p, name); n.matches(name) != want {
				t.Errorf("%q matches %q: %v, not %v", p, name, !want, want)
			}
		}
	}
}
