package e2e

import (
	"strings"
	"testing"
)

// TestLoginAtATerminal: at a terminal it asks from where the key comes, and shows none of it.
func TestLoginAtATerminal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	key, _ := newAgentKey()
	s := h.sit("login", "claude")
	s.sees("Claude Code's key (not shown):")
	s.types(key + "\r")
	s.sees("Claude Code is logged in: credential anthropic, as ANTHROPIC_API_KEY")
	if code := s.ends(); code != 0 || strings.Contains(s.text(), key[:20]) {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}

	token := "sk-ant-oat01-" + key
	h.env = append(h.env, "CLAUDE_CODE_OAUTH_TOKEN="+token)
	s = h.sit("login", "claude")
	s.sees("1  the variable CLAUDE_CODE_OAUTH_TOKEN of this shell")
	s.sees("which? [1]")
	s.types("\r")
	s.sees("as CLAUDE_CODE_OAUTH_TOKEN, for https://api.anthropic.com/**")
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}
	for _, value := range []string{key, token} {
		if at := holding(h, h.work, value); len(at) > 0 {
			t.Errorf("the value is in %s", strings.Join(at, ", "))
		}
	}
}
