package vmmtest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/vmm"
)

// box is a machine that the suite has started, with the other ends of its connections.
type box struct {
	*bench
	m       vmm.Machine
	cmd     *exec.Cmd
	port    net.Conn
	in      *bufio.Reader
	console string // path of a file
	ended   chan struct{}
	longest time.Duration // longest gap that take has seen
}

// start starts a machine, without waiting for its guest.
func (k *bench) start(s *vmm.Spec) *box {
	k.Helper()
	b := &box{bench: k, console: filepath.Join(k.TempDir(), "console"), ended: make(chan struct{})}
	var monitor *os.File
	var other net.Conn
	monitor, other = k.pair(unix.SOCK_STREAM)
	s.Monitor = monitor
	defer monitor.Close()
	guest, port := k.pair(unix.SOCK_STREAM)
	defer guest.Close()
	s.Ports, b.port, b.in = []vmm.Port{{Name: "guest", Socket: guest}}, port, bufio.NewReader(port)
	var err error
	s.Console, err = os.OpenFile(b.console, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	k.must(err)
	defer s.Console.Close()
	if !s.Incoming {
		s.Kernel, err = os.Open(k.kernel)
		k.must(err)
		defer s.Kernel.Close()
		s.Initramfs = k.initramfs
	}
	args, files, err := k.driver.Command(k.program, s)
	k.must(err)

	b.cmd = exec.Command(args[0], args[1:]...)
	b.cmd.Env = []string{}
	b.cmd.Dir = "/"
	b.cmd.ExtraFiles = files
	var said said
	b.cmd.Stderr = &said
	k.must(b.cmd.Start())
	go func() {
		b.cmd.Wait()
		close(b.ended)
	}()
	k.Cleanup(func() {
		b.kill()
		other.Close()
		port.Close()
		if b.m != nil {
			b.m.Close()
		}
		if k.Failed() {
			console, _ := os.ReadFile(b.console)
			k.Logf("%q\nsays: %s\nconsole: %s", args, said.String(), console)
		}
	})
	b.m, err = k.driver.Open(k.ctx, other)
	if err != nil {
		k.Fatalf("cannot open the monitor: %v", err)
	}
	return b
}

// pair returns connected sockets: one for the program, one for the suite.
func (k *bench) pair(kind int) (*os.File, net.Conn) {
	k.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	k.must(err)
	f := os.NewFile(uintptr(fds[1]), "mine")
	defer f.Close()
	c, err := net.FileConn(f)
	k.must(err)
	return os.NewFile(uintptr(fds[0]), "its"), c
}

// kill kills the program unless it has ended.
func (b *box) kill() {
	b.cmd.Process.Kill()
	<-b.ended
}

// gone waits until the driver reports the end of the program.
func (b *box) gone() {
	b.Helper()
	select {
	case <-b.m.Done():
	case <-time.After(20 * time.Second):
		b.Fatal("the machine does not end")
	}
	<-b.ended
}

// say sends the guest a line and returns its answer.
func (b *box) say(line string) string {
	b.Helper()
	deadline, _ := b.ctx.Deadline()
	b.must(b.port.SetDeadline(deadline))
	if _, err := fmt.Fprintln(b.port, line); err != nil {
		b.Fatalf("cannot ask the guest: %v", err)
	}
	return b.hear()
}

func (b *box) hear() string {
	b.Helper()
	answer, err := b.in.ReadBytes('\n')
	if err != nil {
		b.Fatalf("cannot hear the guest: %v", err)
	}
	return string(bytes.TrimSpace(answer))
}

// ask fails unless the guest gives that answer.
func (b *box) ask(line, want string) {
	b.Helper()
	if got := b.say(line); got != want {
		b.Fatalf("the guest answers %q with %q, want %q", line, got, want)
	}
}

// said is the output of a program.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
