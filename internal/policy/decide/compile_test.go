package decide

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/policy"
)

// A canonical form is a policy with each of the words for isolation and secrets that there are,
// and is none without them or with others.
func TestCompileKnowsItsWords(t *testing.T) {
	text := string(policy.Defaults(machine).Canonical())
	for member, known := range map[string][]string{
		`"least":"none"`:   policy.Strengths(),
		`"secrets":"name"`: {string(policy.SecretsName), string(policy.SecretsMask)},
	} {
		if !strings.Contains(text, member) {
			t.Fatalf("the canonical form lacks %s: %s", member, text)
		}
		name, _, _ := strings.Cut(member, ":")
		for _, word := range append([]string{"", "other"}, known...) {
			_, err := Compile([]byte(strings.Replace(text, member, name+`:"`+word+`"`, 1)))
			if (err == nil) != slices.Contains(known, word) {
				t.Errorf("%s %q: %v", name, word, err)
			}
		}
	}
}
