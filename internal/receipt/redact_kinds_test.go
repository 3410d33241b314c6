package receipt

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/secret/secrettest"
)

// No kind of token that is kept out of workspaces is written into a record.
func TestEveryKindIsRedacted(t *testing.T) {
	r := new(Redactor)
	for _, k := range secrettest.Tokens(t) {
		if !k.Texts {
			continue
		}
		t.Run(k.Name(), func(t *testing.T) {
			for _, around := range [][2]string{{"", ""}, {"TOKEN=", " x"}, {`{"a":"`, `"}`}, {"\x1b[32m", "\x1b[0m"}} {
				text := around[0] + k.Value + around[1]
				if got := r.String(text); !strings.Contains(got, Redacted) || strings.Contains(got, k.Hidden) {
					t.Errorf("%q became %q", text, got)
				}
			}
		})
	}
}
