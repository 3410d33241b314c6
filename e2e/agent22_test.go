package e2e

import (
	"testing"
)

// TestAgentsAskNothing starts Claude Code as it comes from npm, with `pando claude` at a
// terminal: its first start asks nothing, it works, is left and come back to.
func TestAgentsAskNothing(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	m.turns = greeting(h.src)[:2]
	m.turns = append(m.turns, turn{text: "The greeting is friendlier now."})
	h.lend("anthropic", key)
	s := h.sit("claude")
	s.sees("shift+tab to cycle")
	s.presses("Make the greeting friendlier.", "Make the greeting friendlier.")
	s.presses("\r", "The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	if code := s.ends(); code != 0 {
		t.Errorf("detaching: exit code %d", code)
	}
	s = h.sit("attach")
	s.sees("The greeting is friendlier now.")
	s.presses("/exit", "/exit")
	s.types("\r")
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}
	if got := h.inSource("greet.sh"); got != "echo Hello, dear friend\n" {
		t.Errorf("after accept --apply the source has %q", got)
	}
}
