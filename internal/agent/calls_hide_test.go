package agent

import (
	"strings"
	"testing"
	"time"
)

// A secret that the bound of a call's text would cut is taken out as a whole.
func TestHideBeforeCut(t *testing.T) {
	const secret = "token-0123456789"
	line := `{"tool":"t","input":"` + strings.Repeat("x", maxWhat-len(secret)) + secret + strings.Repeat("y", 50) + `"}` + "\n" + `{"tool":"t","files":["` + strings.Repeat("z", maxPath-10) + secret + `"]}`
	c := NewCalls(time.Time{}, time.Time{})
	c.Hide = func(s string) string { return strings.ReplaceAll(s, secret, "***") }
	if _, problem, err := c.Read(strings.NewReader(line), 1<<20, Generic); problem != "" || err != nil || len(c.List) != 2 {
		t.Fatal(problem, err, c.List)
	}
	for _, s := range append(c.List[1].Files, c.List[0].What) {
		if strings.Contains(s, "token-") {
			t.Errorf("a part of the secret is kept: %q", s[len(s)-40:])
		}
	}
}
