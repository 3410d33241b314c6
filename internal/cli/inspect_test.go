package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// No line is wider than the terminal, and what is broken is indented; without one nothing is broken.
func TestSheet(t *testing.T) {
	var b strings.Builder
	s := &sheet{w: &b, width: 40}
	s.line("network", "allow a.example, b.example, c.example on port 443 (--allow x)")
	s.line("network", "deny the rest\x1b")
	s.gap()
	s.line("network", "a-word-that-is-wider-than-all-of-the-terminal-is x")
	want := `network      allow a.example, b.example,
               c.example on port 443
               (--allow x)
             deny the rest\x1b

network      a-word-that-is-wider-than-all-of-the-terminal-is
               x
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	s.line("limits", strings.Repeat("x ", 100))
	for l := range strings.Lines(b.String()) {
		if len(strings.TrimRight(l, " \n")) > 40 {
			t.Errorf("%q is too wide", l)
		}
	}
	long := strings.Repeat("word ", 40)
	if got := wrap(long, -13); !slices.Equal(got, []string{long}) {
		t.Errorf("%q", got)
	}
}

// The likely agent has a login and a program; a login counts more.
func TestLikelyAgent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got := likelyAgent([]api.Credential{{Name: "gemini"}}).About().Name; got != "gemini" {
		t.Errorf("with a login it is %s", got)
	}
	if got := likelyAgent([]api.Credential{{Name: "openai"}}).About().Name; got != "codex" {
		t.Errorf("with another login it is %s", got)
	}
	if got := likelyAgent(nil).About().Name; got != "claude" {
		t.Errorf("with nothing it is %s", got)
	}
}
