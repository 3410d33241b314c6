package sshd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/testenv"
)

// fake is a cell with one command, that does what a test says with its frames.
type fake struct {
	mu       sync.Mutex
	req      api.ExecRequest     // the latest
	do       func(conn net.Conn) // the command, at the other end of its stream
	result   api.Exec
	fails    error
	released chan bool // whether the client was gone
	signals  chan string
	done     chan struct{}
}

func (f *fake) StartExec(_ context.Context, req api.ExecRequest) (api.Exec, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.req = req
	return api.Exec{ID: "x-1"}, f.fails
}

func (f *fake) AttachExec(string, bool) (*run.Attachment, error) {
	return run.AttachmentOf(f.done, func(context.Context, backend.Attach) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			f.do(theirs)
			theirs.Close()
			close(f.done)
		}()
		return ours, nil
	}, func() (any, error) { return f.result, nil }, func(gone bool) { f.released <- gone }), nil
}

func (f *fake) SignalExec(_ context.Context, _, signal string) error {
	f.signals <- signal
	return nil
}

func (f *fake) Dial(_ context.Context, port int) (net.Conn, error) {
	if port != 8000 {
		return nil, errors.New("nothing listens there")
	}
	ours, theirs := net.Pipe()
	go func() {
		io.Copy(theirs, theirs)
		theirs.Close()
	}()
	return ours, nil
}

func (f *fake) SFTP(context.Context) (net.Conn, error) { return f.Dial(context.Background(), 8000) }

// dial connects a client to a server in front of a fake.
func dial(t *testing.T, f *fake) (*ssh.Client, chan error) {
	t.Helper()
	if f.done == nil {
		f.done = make(chan struct{})
	}
	f.released, f.signals = make(chan bool, 4), make(chan string, 4)
	dir := t.TempDir()
	key, err := HostKey(durable.Disk(dir))
	if err != nil {
		t.Fatal(err)
	}
	again, err := HostKey(durable.Disk(dir))
	if err != nil || string(again.PublicKey().Marshal()) != string(key.PublicKey().Marshal()) {
		t.Fatal("the host key is another one at each start", err)
	}
	if st, err := os.Stat(dir + "/" + hostKey); err != nil || st.Mode() != 0o600 {
		t.Error(st, err)
	}
	ours, theirs := pair(t)
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), theirs, key, f, slog.New(slog.DiscardHandler)) }()
	conn, channels, requests, err := ssh.NewClientConn(ours, "pando", &ssh.ClientConfig{User: "anyone", HostKeyCallback: ssh.FixedHostKey(key.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() { c.Close() })
	return c, served
}

// pair is two ends of a connection that buffers: both sides of SSH begin by writing.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return ends[0], ends[1]
}

func open(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func say(conn io.Writer, kind api.FrameType, at int, text string) {
	conn.Write(api.AppendFrame(nil, api.Frame{Type: kind, Payload: append([]byte{0, 0, 0, 0, 0, 0, 0, byte(at)}, text...)}))
}

func end(conn io.Writer) {
	conn.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameExit, Payload: []byte("{}")}))
}

func TestCommand(t *testing.T) {
	code := 3
	f := &fake{result: api.Exec{ExitCode: &code}}
	f.do = func(conn net.Conn) {
		var buf []byte
		var in strings.Builder
		for {
			fr, err := api.ReadFrame(conn, &buf)
			if err != nil || fr.Type == api.FrameStdinEOF {
				break
			}
			in.Write(fr.Payload)
		}
		say(conn, api.FrameStdout, 0, "got "+in.String())
		say(conn, api.FrameStderr, 0, "bad")
		end(conn)
	}
	c, served := dial(t, f)
	s := open(t, c)
	s.Setenv("LANG", "C")
	var stderr strings.Builder
	s.Stdin, s.Stderr = strings.NewReader("input"), &stderr
	out, err := s.Output("make 'it'")
	var status *ssh.ExitError
	if string(out) != "got input" || stderr.String() != "bad" || !errors.As(err, &status) || status.ExitStatus() != 3 {
		t.Errorf("%q %q %v", out, stderr.String(), err)
	}
	if cmd := f.req.Command; len(cmd) != 4 || cmd[3] != "make 'it'" || f.req.TTY || !f.req.Attach || len(f.req.Env) != 1 || f.req.Env[0] != "LANG=C" {
		t.Errorf("%+v", f.req)
	}
	if gone, _ := testenv.Receive(t, f.released, "the release"); gone {
		t.Error("the command was given up")
	}
	c.Close()
	if err, _ := testenv.Receive(t, served, "the end of the connection"); err != nil {
		t.Error(err)
	}
}

func TestTerminal(t *testing.T) {
	sizes := make(chan api.Resize, 1)
	typed := make(chan string, 1)
	f := &fake{result: api.Exec{Signal: "SIGTERM", ExitCode: new(int)}}
	f.do = func(conn net.Conn) {
		var buf []byte
		for {
			fr, err := api.ReadFrame(conn, &buf)
			if err != nil {
				return
			}
			switch fr.Type {
			case api.FrameStdin:
				typed <- string(fr.Payload)
			case api.FrameResize:
				var r api.Resize
				json.Unmarshal(fr.Payload, &r)
				sizes <- r
				if r.Rows == 31 {
					end(conn)
					return
				}
			}
		}
	}
	c, _ := dial(t, f)
	s := open(t, c)
	if err := s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	in.Write([]byte("ls\r"))
	if got, _ := testenv.Receive(t, typed, "what was typed"); got != "ls\r" {
		t.Errorf("%q", got)
	}
	s.WindowChange(30, 100)
	if r, _ := testenv.Receive(t, sizes, "another size"); r.Rows != 30 || r.Cols != 100 {
		t.Errorf("%+v", r)
	}
	s.Signal(ssh.SIGTERM)
	if got, _ := testenv.Receive(t, f.signals, "the signal"); got != "SIGTERM" {
		t.Errorf("%q", got)
	}
	s.WindowChange(31, 100)
	var status *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &status) || status.Signal() != "TERM" {
		t.Error(err)
	}
	if q := f.req; !q.TTY || q.Rows != 24 || q.Cols != 80 || len(q.Env) != 1 || q.Env[0] != "TERM=xterm" {
		t.Errorf("%+v", q)
	}
}

// A client that goes away takes its command with it, and a terminal goes first: whether the command is silent, writes on and on,
// or reads nothing of much that was sent.
func TestClientThatIsGone(t *testing.T) {
	for name, do := range map[string]func(conn net.Conn){
		"silent": func(conn net.Conn) { io.Copy(io.Discard, conn) },
		"writing": func(conn net.Conn) {
			go io.Copy(io.Discard, conn)
			for at := 0; ; at++ {
				if _, err := conn.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdout, Payload: append(make([]byte, 8), strings.Repeat("x", 9000)...)})); err != nil {
					return
				}
			}
		},
		"deaf": func(conn net.Conn) { // until its end is closed
			for {
				if _, err := conn.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameProgress, Payload: []byte("{}")})); err != nil {
					return
				}
			}
		},
	} {
		for _, tty := range []bool{false, true} {
			f := &fake{do: do}
			c, served := dial(t, f)
			s := open(t, c)
			if tty {
				s.RequestPty("xterm", 24, 80, nil)
			}
			in, _ := s.StdinPipe() // stays open
			out, _ := s.StdoutPipe()
			if err := s.Start("sleep"); err != nil {
				t.Fatal(err)
			}
			go io.Copy(in, zeros{})
			go io.Copy(io.Discard, out)
			s.Signal(ssh.SIGUSR1) // it has started by then
			testenv.Receive(t, f.signals, "the signal")
			for range 100 { // none of which the connection waits for
				s.WindowChange(30, 100)
			}
			if _, err := c.Dial("tcp", "localhost:8000"); err != nil {
				t.Error(name, err)
			}
			c.Close()
			if tty {
				if got, _ := testenv.Receive(t, f.signals, "the end of the terminal"); got != "SIGHUP" {
					t.Errorf("%s: %q", name, got)
				}
			}
			if gone, _ := testenv.Receive(t, f.released, "the release"); !gone {
				t.Errorf("%s: the command goes on", name)
			}
			testenv.Receive(t, served, "the end of the connection")
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestWhatIsRefused(t *testing.T) {
	f := &fake{fails: cell.Errorf(cell.Conflict, "x", "pando resume c", "the cell is paused")}
	c, _ := dial(t, f)
	s := open(t, c)
	var stderr strings.Builder
	s.Stderr = &stderr
	var status *ssh.ExitError
	if err := s.Run("true"); !errors.As(err, &status) || status.ExitStatus() != failed || !strings.Contains(stderr.String(), "the cell is paused\r\nhint: pando resume c") {
		t.Errorf("%v %q", err, stderr.String())
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("it listens")
	}
	if _, err := c.ListenUnix("/tmp/x"); err == nil {
		t.Error("it listens on a socket")
	}
	for _, to := range []string{"example.org:80", "10.0.0.1:8000", "[2001:db8::1]:8000", "localhost:1"} {
		if conn, err := c.Dial("tcp", to); err == nil {
			conn.Close()
			t.Errorf("connected to %s", to)
		}
	}
	if _, err := c.Dial("unix", "/run/x"); err == nil {
		t.Error("connected to a socket")
	}
	for _, ask := range []string{"auth-agent-req@openssh.com", "x11-req", "subsystem", "nonsense"} {
		s := open(t, c)
		if ok, err := s.SendRequest(ask, true, ssh.Marshal(struct{ Name string }{"shell"})); ok || err != nil {
			t.Errorf("%s: %v %v", ask, ok, err)
		}
		s.Close()
	}
	s = open(t, c)
	for _, v := range [][2]string{{"", "x"}, {"A=B", "x"}, {"A", "\x00"}, {"A", strings.Repeat("x", longVar)}} {
		if s.Setenv(v[0], v[1]) == nil {
			t.Errorf("%q was taken", v)
		}
	}
	s.Close()
}

func TestPortsAndFiles(t *testing.T) {
	c, _ := dial(t, &fake{})
	for _, to := range []string{"localhost:8000", "127.0.0.1:8000", "[::1]:8000", "0.0.0.0:8000"} {
		conn, err := c.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("hello"))
		back := make([]byte, 5)
		if _, err := io.ReadFull(conn, back); string(back) != "hello" {
			t.Errorf("%q %v", back, err)
		}
		conn.Close()
	}
	s := open(t, c)
	in, _ := s.StdinPipe()
	out, _ := s.StdoutPipe()
	if err := s.RequestSubsystem("sftp"); err != nil {
		t.Fatal(err)
	}
	in.Write([]byte("bytes"))
	back := make([]byte, 5)
	if _, err := io.ReadFull(out, back); string(back) != "bytes" {
		t.Errorf("%q %v", back, err)
	}
	// More at once than there may be are refused, and those that end make room.
	var many []*ssh.Session
	for {
		s, err := c.NewSession()
		if err != nil {
			break
		}
		if many = append(many, s); len(many) > mostChannels {
			t.Fatal("there is no end")
		}
	}
	for _, s := range many {
		s.Close()
	}
	testenv.Eventually(t, func() bool { s, err := c.NewSession(); return err == nil && s.Close() == nil }, "room for a session")
}
