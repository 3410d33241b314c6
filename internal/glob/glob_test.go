package glob

import (
	"path"
	"testing"
)

// FuzzMatch compares with path.Match, for which names are without a slash.
func FuzzMatch(f *testing.F) {
	for _, c := range [][2]string{
		{"", ""}, {"*", ""}, {"*", "x"}, {"**", ""}, {"a*", "a"}, {"a*", "a*"}, {"*-", "passwd-"}, {"rc*.d", "rc3.d"},
		{"rc*.d", "rc.d"}, {"rc*.d", "rc.dd"}, {"*a*a", "aa"}, {"*a*a", "a"}, {"*ab*b", "ab"}, {"exact", "exact"}, {"exact", "exac"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		for _, c := range pattern + name {
			if c == '/' || c == '?' || c == '[' || c == ']' || c == '\\' || c > 127 {
				return
			}
		}
		want, err := path.Match(pattern, name)
		if err != nil {
			t.Fatal(err)
		}
		if Match(pattern, name) != want {
			t.Errorf("%q matches %q: %v, which path.Match denies", pattern, name, !want)
		}
	})
}
