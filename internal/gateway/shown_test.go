package gateway

import "testing"

func TestShownIsOneLineInItsOrder(t *testing.T) {
	for in, want := range map[string]string{
		"GET /a/b":             "GET /a/b",
		"GET /\x1b[2J\n\u009b": "GET /?[2J??",
		"GET /\u202egpj.exe":   "GET /?gpj.exe",
		"GET /\u2066a\u2069":   "GET /?a?",
		"GET /é\u202a\u2067":   "GET /é??",
		"GET /\xff":            "GET /?",
	} {
		if got := shown(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}
