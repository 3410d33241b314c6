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

	vt "github.com/pando-dev/pando/internal/terminal/screen"
	"github.com/pando-dev/pando/internal/testenv"
)

// seat is a command at a terminal, with its screen and keyboard for a test.
type seat struct {
	t    *testing.T
	cmd  *exec.Cmd
	f    *os.File
	more chan struct{}
	gone chan struct{} // closed when nothing more is shown

	mu  sync.Mutex // guards scr
	scr *vt.Screen
}

// sit starts a command of pando's at a terminal.
func (h *host) sit(args ...string) *seat {
	h.t.Helper()
	s := &seat{t: h.t, cmd: h.cmd(h.bin, args...), more: make(chan struct{}, 1), gone: make(chan struct{}), scr: vt.New(40, 120)}
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
	if !s.shows(want, testenv.Patience()) {
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
	case <-time.After(testenv.Patience()):
		s.t.Fatalf("it did not end; on the screen:\n%s", s.text())
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *seat) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.f.Close()
}
