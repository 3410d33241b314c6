package engine

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// The URL of a model server becomes one host and port of a policy; what listens on the user's
// machine has its name in a cell.
func TestModelServer(t *testing.T) {
	for text, want := range map[string][2]string{
		"https://models.example.com":            {"https://models.example.com", "models.example.com:443"},
		"https://models.example.com/litellm/v1": {"https://models.example.com/litellm/v1", "models.example.com:443"},
		"http://10.1.2.3:4000/":                 {"http://10.1.2.3:4000/", "10.1.2.3:4000"},
		"http://[fd00::1]:4000":                 {"http://[fd00::1]:4000", "[fd00::1]:4000"},
		"http://localhost:11434":                {"http://host.pando.internal:11434", "host.pando.internal:11434"},
		"http://127.0.0.1:11434/v1":             {"http://host.pando.internal:11434/v1", "host.pando.internal:11434"},
		"http://[::1]:1":                        {"http://host.pando.internal:1", "host.pando.internal:1"},
		"http://0.0.0.0":                        {"http://host.pando.internal:80", "host.pando.internal:80"},
	} {
		base, allow, err := modelServer(text)
		if err != nil || base != want[0] || allow != want[1] {
			t.Errorf("%s is %s and allows %s (%v)", text, base, allow, err)
		}
	}
	for _, text := range []string{"models.example.com", "localhost:11434", "ftp://a.test", "http://", "http://u:p@a.test", "http://a.test?key=x", "http://a.test#x", "http://a.test/\"", "http://a.test/ x", "http://a.test/\n", ":"} {
		if base, _, err := modelServer(text); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q is %q (%v)", text, base, err)
		}
	}
}
