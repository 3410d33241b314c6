package policy

import (
	"strings"
)

// Origins says where the lines of a policy come from. It is kept beside the
// canonical form: two files with the same rules on other lines are one policy.
type Origins struct {
	// Lines has the place by name: "allow 2", "limits.memory" →
	// "pando.policy.yaml:31", "--allow @npm", "mode development @npm".
	Lines map[string]string `json:"lines,omitempty"`
	// Bound is the file that says what may be allowed at most; no flag can
	// allow more then.
	Bound string `json:"bound,omitempty"`
}

// What the origins begin with of what a request says by no flag.
const (
	OriginConfig = "config " // and the default of the user's configuration: "config allow @npm"
	OriginMode   = "mode "   // of an agent, and what it allows: "mode development @npm"
	OriginAgent  = "agent "  // and what it needs: "agent claude @anthropic"
)

// Quoted cuts a text of a caller to what an error can show of it, in quotes.
func Quoted(s string) string {
	if len(s) > 80 {
		s = s[:77] + "…"
	}
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '"' || r == 0xfffd {
			return '?'
		}
		return r
	}, s) + `"`
}

// Printable is Quoted without the quotes.
func Printable(s string) string {
	c := Quoted(s)
	return c[1 : len(c)-1]
}

// PortsText is "port 22", or "ports 22, 80-90".
func PortsText(ports []string) string {
	if len(ports) == 1 && !strings.Contains(ports[0], "-") {
		return "port " + ports[0]
	}
	return "ports " + strings.Join(ports, ", ")
}

// The rules that are part of every policy, as decisions name them.
const (
	RuleSpecial = "special address"
	RuleProgram = "deny program"
	RuleDefault = "default"
	RuleForm    = "form"  // what has no one form is denied
	RuleError   = "error" // a decision that failed is a denial
)
