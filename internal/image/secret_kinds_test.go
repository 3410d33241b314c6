package image

import (
	"testing"

	"github.com/pando-dev/pando/internal/secret/secrettest"
)

// No kind of token comes into a cell in a variable or in a file of settings.
func TestEveryKindStaysOutside(t *testing.T) {
	for _, k := range secrettest.Tokens(t) {
		if k.Texts && (!hasToken(k.Value) || !hasToken("--flag="+k.Value+" more")) {
			t.Errorf("%s is not seen in %q", k.Name(), k.Value)
		}
	}
}
