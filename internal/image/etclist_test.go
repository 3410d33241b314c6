package image

import (
	"math/rand/v2"
	"path"
	"slices"
	"testing"
)

// The quick ways to the same answers as the slow ones, on names and lines made of what
// the patterns and expressions are about.
func TestPatternsMatchAsPathMatchSays(t *testing.T) {
	t.Parallel()
	patterns := slices.Concat(etcHost, etcOwn, etcNever, etcNames)
	r := rand.New(rand.NewPCG(1, 2))
	hits := 0
	for range 20_000 {
		name := mixed(r, 4, "java", "-", "rc", "3", ".d", "passwd", "key", ".", "x", "secret", "release", "*", "auto.")
		p := patterns[r.IntN(len(patterns))]
		want, err := path.Match(p, name)
		if err != nil {
			t.Fatal(err)
		}
		if matches(p, name) != want {
			t.Errorf("%q matches %q: %v", p, name, !want)
		}
		if want {
			hits++
		}
	}
	if hits < 20 {
		t.Errorf("%d names matched: that shows nothing", hits)
	}
}

func TestSettingsAreFoundByTheirHints(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	hits := 0
	for range 20_000 {
		text := mixed(r, 9, "token", "Passw", "ord", "=", ":", " ", "\n", "API_key", "api", "-", "secret", "x1", "yes", `"`, "_PW", "access", "key", "İ", "cred", "entials", "/p", "12")
		want := hasSettingIn(text)
		if hasSetting(text) != want {
			t.Errorf("%q has a setting: %v", text, !want)
		}
		if want {
			hits++
		}
	}
	if hits < 200 {
		t.Errorf("%d texts have a setting: that shows nothing", hits)
	}
}

func mixed(r *rand.Rand, most int, parts ...string) (s string) {
	for range r.IntN(most) + 1 {
		s += parts[r.IntN(len(parts))]
	}
	return s
}
