package e2e

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/pando-dev/pando/internal/terminal"
)

// seat is a command at a terminal, and somebody who reads its screen and types.
type seat struct {
	t    *testing.T
	cmd  *exec.Cmd
	f    *os.File
	more chan struct{}
	gone chan struct{} // closed when nothing more is shown

	mu  sync.Mutex // guards scr
	scr *terminal.Screen
}

// sit starts a command of pando's at a terminal.
func (h *host) sit(args ...string) *seat {
	h.t.Helper()
	s := &seat{t: h.t, cmd: h.cmd(h.bin, args...), more: make(chan struct{}, 1), gone: make(chan struct{}), scr: terminal.NewScreen(40, 120)}
	s.cmd.Env = append(slices.Clone(h.env), "TERM=xterm-256color")
	var err error
	s.f, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 40, Cols: 120})
	h.must(err)
	h.t.Cleanup(s.kill)
	go func() {
		defer close(s.gone)
		buf := make([]byte, 64<<10)
		for {
			n, err := s.f.Read(buf)
			s.mu.Lock()
			s.scr.Write(buf[:n])
			s.mu.Unlock()
			select {
			case s.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

// text is what is on the screen, line by line.
func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	drawn := regexp.MustCompile(`\x1b\[[0-9]+;1H`).ReplaceAllString(string(s.scr.Draw()), "\n")
	return regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()].|\x1b.|\x0e`).ReplaceAllString(drawn, "")
}

// sees waits until the screen has a text.
func (s *seat) sees(want string) {
	s.t.Helper()
	if !s.shows(want, 40*time.Second) {
		s.t.Fatalf("never saw %q; on the screen:\n%s", want, s.text())
	}
}

func (s *seat) shows(want string, within time.Duration) bool {
	deadline := time.After(within)
	for !strings.Contains(s.text(), want) {
		select {
		case <-s.more:
		case <-deadline:
			return false
		}
	}
	return true
}

// presses presses a key when the screen has come to rest, and waits until it has a text: a
// program that has just drawn a question does not listen at once.
func (s *seat) presses(key, want string) {
	s.t.Helper()
	latest := time.After(5 * time.Second)
	for rest := time.After(time.Second); rest != nil; {
		select {
		case <-s.more:
			rest = time.After(time.Second)
		case <-rest:
			rest = nil
		case <-latest:
			rest = nil
		}
	}
	s.types(key)
	s.sees(want)
}

// types types, a key after the other.
func (s *seat) types(keys ...string) {
	s.t.Helper()
	for _, k := range keys {
		if _, err := io.WriteString(s.f, k); err != nil {
			s.t.Fatal(err)
		}
	}
}

// ends waits for the command's end, and returns its exit code.
func (s *seat) ends() int {
	s.t.Helper()
	ended := make(chan struct{})
	go func() { s.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(40 * time.Second):
		s.t.Fatalf("it did not end; on the screen:\n%s", s.text())
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *seat) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.f.Close()
}

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
	if o := h.try("runs"); !strings.Contains(o.stderr, "no terminal is attached: pando attach r-") {
		t.Errorf("of a run that lost its terminal: %s%s", o.out, o.stderr)
	}
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

// lineOfPage is a line of docs/howto/agents.md, as arguments: it has to be there as it is.
func lineOfPage(t *testing.T, line string) []string {
	t.Helper()
	b, err := os.ReadFile("../docs/howto/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "\n"+line+"\n") {
		t.Fatalf("docs/howto/agents.md has no line %q", line)
	}
	return strings.Fields(line)[1:]
}
