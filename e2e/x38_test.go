package e2e

import (
	"slices"
	"strings"
	"testing"
)

// TestX38AgentAtATerminal is the line of docs/howto/agents.md with which people begin, typed at
// a terminal, with Claude Code as it comes from npm: it asks its first questions, works, goes on
// when its client is killed and the daemon stopped, and is come back to.
func TestX38AgentAtATerminal(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	m.turns = greeting(h.src)[:2]
	m.turns = append(m.turns, turn{text: "The greeting is friendlier now."})
	h.lend("anthropic", key)
	s := h.sit(lineOfPage(t, "pando run --allow @anthropic --credential anthropic -- claude")...)
	s.sees("Choose the text style")
	s.presses("\r", "Do you want to use this API key?")
	s.presses("\x1b[A", "❯ Yes")
	s.presses("\r", "Press Enter to continue")
	s.presses("\r", "Quick safety check")
	s.presses("\x1b[B", "❯ Yes, I trust this folder")
	s.presses("\r", "shift+tab to cycle")

	// The terminal's window is lost, and the daemon replaced.
	s.kill()
	h.pando("daemon", "stop")
	s = h.sit("attach")
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
	for _, r := range m.requests() {
		if r.path == "/v1/messages?beta=true" && r.header.Get("X-Api-Key") != key {
			t.Errorf("%s %s came with the key %q", r.method, r.path, r.header.Get("X-Api-Key"))
		}
	}
}

// inSource applies the latest result, and reads a file of the source.
func (h *host) inSource(name string) string {
	h.t.Helper()
	h.pando("accept", "--apply")
	return h.read(name)
}

// TestX38LinesOfThePage runs the lines of the page for an agent without a person, as they are
// printed there.
func TestX38LinesOfThePage(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	h.write("go.mod", "module greet\n")
	h.write("greet_test.go", "package greet\n")
	says := func(block, want string) {
		t.Helper()
		c := h.cmd("sh", "-ec", block)
		c.Env = append(slices.Clone(h.env), "ANTHROPIC_API_KEY="+key)
		if o := h.exec(c); o.code != 0 || !strings.Contains(o.out+o.stderr, want) {
			t.Fatalf("%s\nexit code %d, and no %q in\n%s%s", block, o.code, want, o.out, o.stderr)
		}
	}
	says(blockOfPage(t, "pando login claude --from-env ANTHROPIC_API_KEY"), "anthropic")
	says(blockOfPage(t, "pando run --allow @anthropic --credential anthropic --env"), "The greeting is friendlier now.")
	says(blockOfPage(t, "pando events  "), "/v1/messages")
	says(blockOfPage(t, "pando run --cell try")+"\npando ls", "try-fork-3")
	if n := len(m.requests()); n < len(m.turns) {
		t.Errorf("the model was asked %d times", n)
	}
	if got := h.inSource("greet.sh"); got != "echo Hello, dear friend\n" {
		t.Errorf("after accept --apply the source has %q", got)
	}
}
