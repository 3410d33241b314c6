package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// tty runs a command at a terminal of its own. The steps in the KEYS file, one
// a line, are what the person does:
//
//	expect TEXT     wait until TEXT was shown since the last expect
//	send TEXT       type TEXT; \r, \x03 and the like as in Go
//	resize R C      change the terminal's size
//	signal NAME     send the command a signal: INT, TERM, KILL, HUP
//	sleep DURATION
//	hangup          close the terminal
//	exec COMMAND    run a command beside it, with success
//	also COMMAND    run another command, at a second terminal of the same size;
//	                a step behind "2: " is done there
//
// What the terminal showed becomes stdout. `! tty` wants a failure; a line
// "exit N" at the end compares the exit code.
func tty(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: tty ROWSxCOLS KEYS COMMAND…")
	}
	r, c, ok := strings.Cut(args[0], "x")
	rows, rerr := strconv.Atoi(r)
	cols, cerr := strconv.Atoi(c)
	if !ok || rerr != nil || cerr != nil {
		ts.Fatalf("%q is no size", args[0])
	}
	at := &pty.Winsize{Rows: uint16(rows), Cols: uint16(cols)}
	first := openTTY(ts, at, args[2:])
	terminals := []*onTTY{first}
	fail := func(format string, args ...any) {
		shown := ""
		for _, t := range terminals {
			t.cmd.Process.Kill()
			t.cmd.Wait()
			shown += "\n[terminal]\n" + t.scr.all()
		}
		ts.Fatalf("%s%s", fmt.Sprintf(format, args...), shown)
	}
	for n, line := range strings.Split(ts.ReadFile(args[1]), "\n") {
		t := first
		if rest, ok := strings.CutPrefix(line, "2: "); ok {
			t, line = terminals[len(terminals)-1], rest
		}
		verb, rest, _ := strings.Cut(line, " ")
		var err error
		switch verb {
		case "", "#":
		case "expect":
			if !t.scr.expect(rest, 20*time.Second) {
				err = fmt.Errorf("never saw %q", rest)
			}
		case "send":
			var text string
			if text, err = strconv.Unquote(`"` + rest + `"`); err == nil {
				_, err = t.f.WriteString(text)
			}
		case "resize":
			var s unix.Winsize
			if _, err = fmt.Sscan(rest, &s.Row, &s.Col); err == nil {
				err = resize(t.f, &s)
			}
		case "signal":
			sig, ok := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP}[rest]
			if !ok {
				err = fmt.Errorf("no signal %q", rest)
			} else {
				err = t.cmd.Process.Signal(sig)
			}
		case "sleep":
			var d time.Duration
			if d, err = time.ParseDuration(rest); err == nil {
				time.Sleep(d)
			}
		case "hangup":
			err = t.f.Close()
		case "exec":
			err = ts.Exec(strings.Fields(rest)[0], strings.Fields(rest)[1:]...)
		case "also":
			terminals = append(terminals, openTTY(ts, at, strings.Fields(rest)))
		case "exit":
			t.want, err = strconv.Atoi(rest)
		default:
			err = fmt.Errorf("no step %q", verb)
		}
		if err != nil {
			fail("%s line %d: %v", args[1], n+1, err)
		}
	}
	for _, t := range terminals {
		code := t.end(ts)
		switch {
		case t.want >= 0 && code != t.want:
			fail("exit code %d, want %d", code, t.want)
		case t.want < 0 && (code != 0) != neg:
			fail("exit code %d", code)
		}
		ts.Stdout().Write([]byte(strings.ReplaceAll(t.scr.all(), "\r\n", "\n")))
	}
}

// onTTY is a command at a terminal.
type onTTY struct {
	cmd  *exec.Cmd
	f    *os.File
	scr  *screen
	read chan struct{} // closed when nothing more is shown
	want int           // its exit code; -1: see neg
}

// openTTY starts a command at a terminal of its own.
func openTTY(ts *testscript.TestScript, size *pty.Winsize, args []string) *onTTY {
	path := args[0]
	for _, d := range filepath.SplitList(ts.Getenv("PATH")) { // the script's, not ours
		if st, err := os.Stat(filepath.Join(d, args[0])); err == nil && st.Mode()&0o111 != 0 {
			path = filepath.Join(d, args[0])
			break
		}
	}
	t := &onTTY{cmd: exec.Command(path, args[1:]...), scr: &screen{more: make(chan struct{}, 1)}, read: make(chan struct{}), want: -1}
	t.cmd.Dir = ts.MkAbs(".")
	for _, k := range ttyEnv {
		if v := ts.Getenv(k); v != "" {
			t.cmd.Env = append(t.cmd.Env, k+"="+v)
		}
	}
	t.cmd.Env = append(t.cmd.Env, "TERM=xterm")
	f, err := pty.StartWithSize(t.cmd, size)
	ts.Check(err)
	t.f, err = pollable(f)
	ts.Check(err)
	go func() {
		defer close(t.read)
		buf := make([]byte, 4096)
		for {
			n, err := t.f.Read(buf)
			t.scr.add(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return t
}

// end waits for the command, and returns its exit code.
func (t *onTTY) end(ts *testscript.TestScript) int {
	ended := make(chan error, 1)
	go func() { ended <- t.cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(testenv.Patience()):
		t.cmd.Process.Kill()
		ts.Fatalf("the command did not end\n[terminal]\n%s", t.scr.all())
	}
	select {
	case <-t.read:
	case <-time.After(time.Second): // a process still has the terminal open
	}
	t.f.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

// pollable exchanges a terminal for one with reads that end when it is closed: to set the
// initial size, the library made its file a blocking one.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func resize(f *os.File, to *unix.Winsize) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := c.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, to) })
	return errors.Join(cerr, err)
}

// ttyEnv is what of a script's environment a command at a terminal gets.
var ttyEnv = []string{"HOME", "PATH", "PANDO_HOME", "PANDO_IDLE", "NO_COLOR", "WORK", "PAGER", "TMPDIR"}

// screen collects what a terminal shows.
type screen struct {
	more chan struct{}

	mu   sync.Mutex // guards what follows
	text bytes.Buffer
	seen int // up to where the last expect came
}

func (s *screen) add(b []byte) {
	s.mu.Lock()
	s.text.Write(b)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *screen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) expect(text string, within time.Duration) bool {
	deadline := time.After(within)
	for {
		s.mu.Lock()
		i := strings.Index(s.text.String()[s.seen:], text)
		if i >= 0 {
			s.seen += i + len(text)
		}
		s.mu.Unlock()
		if i >= 0 {
			return true
		}
		select {
		case <-s.more:
		case <-deadline:
			return false
		}
	}
}
