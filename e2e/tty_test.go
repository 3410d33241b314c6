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
	path := args[2]
	for _, d := range filepath.SplitList(ts.Getenv("PATH")) { // the script's, not ours
		if st, err := os.Stat(filepath.Join(d, args[2])); err == nil && st.Mode()&0o111 != 0 {
			path = filepath.Join(d, args[2])
			break
		}
	}
	cmd := exec.Command(path, args[3:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, k := range ttyEnv {
		if v := ts.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Env = append(cmd.Env, "TERM=xterm")
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: uint16(rows), Cols: uint16(cols)})
	ts.Check(err)
	f, err = pollable(f)
	ts.Check(err)
	scr := &screen{more: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			scr.add(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	fail := func(format string, args ...any) {
		cmd.Process.Kill()
		cmd.Wait()
		ts.Fatalf("%s\n[terminal]\n%s", fmt.Sprintf(format, args...), scr.all())
	}
	want := -1
	for n, line := range strings.Split(ts.ReadFile(args[1]), "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		var err error
		switch verb {
		case "", "#":
		case "expect":
			if !scr.expect(rest, 20*time.Second) {
				err = fmt.Errorf("never saw %q", rest)
			}
		case "send":
			var text string
			if text, err = strconv.Unquote(`"` + rest + `"`); err == nil {
				_, err = f.WriteString(text)
			}
		case "resize":
			var s unix.Winsize
			if _, err = fmt.Sscan(rest, &s.Row, &s.Col); err == nil {
				err = resize(f, &s)
			}
		case "signal":
			sig, ok := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP}[rest]
			if !ok {
				err = fmt.Errorf("no signal %q", rest)
			} else {
				err = cmd.Process.Signal(sig)
			}
		case "sleep":
			var d time.Duration
			if d, err = time.ParseDuration(rest); err == nil {
				time.Sleep(d)
			}
		case "hangup":
			err = f.Close()
		case "exit":
			want, err = strconv.Atoi(rest)
		default:
			err = fmt.Errorf("no step %q", verb)
		}
		if err != nil {
			fail("%s line %d: %v", args[1], n+1, err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(30 * time.Second):
		cmd.Process.Kill()
		ts.Fatalf("the command did not end\n[terminal]\n%s", scr.all())
	}
	select {
	case <-read:
	case <-time.After(time.Second): // somebody still holds the terminal
	}
	f.Close()
	ts.Stdout().Write([]byte(strings.ReplaceAll(scr.all(), "\r\n", "\n")))
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	switch {
	case want >= 0 && code != want:
		ts.Fatalf("exit code %d, want %d\n[terminal]\n%s", code, want, scr.all())
	case want < 0 && (code != 0) != neg:
		ts.Fatalf("exit code %d\n[terminal]\n%s", code, scr.all())
	}
}

// pollable exchanges a terminal for one whose reads end when it is closed: to
// start with a size, the library made its file a blocking one.
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
