package image

import (
	"math/rand/v2"
	"testing"
)

// The quick way to the same answers as the slow one, on lines made of what the hints
// and expressions are about.
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
