package linux

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// listen runs a shell with a listener, and answers until its last process is gone. It returns what was asked, and
// the descriptors that came, of which only the first can be one.
func listen(t *testing.T, listeners int, command string) (asked []string, exit int) {
	t.Helper()
	if err := ExecNotices(); err != nil {
		t.Fatal(err)
	}
	p, err := NewSeccompProgram(ExecNoticeFilter())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var ours, theirs []*os.File
	for range listeners {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Raise(os.NewFile(uintptr(pair[1]), "theirs"))
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs = append(ours, os.NewFile(uintptr(pair[0]), "ours")), append(theirs, f)
	}
	var s Script
	s.Stdio([3]*os.File{}, theirs...)
	s.NoNewPrivs()
	for _, f := range theirs {
		s.Listen(p, f)
	}
	s.Exec([]string{"/nonexistent/sh", "/bin/sh"}, []string{"sh", "-c", command}, []string{"PATH=/bin:/usr/bin"})
	over := make(chan []string, 1)
	go func() {
		var list []string
		defer func() { over <- list }()
		f := ReceiveFile(ours[0])
		if f == nil {
			return
		}
		defer f.Close()
		l := NewExecListener(int(f.Fd()))
		var last ExecCall
		for {
			p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
			if _, err := unix.Poll(p, -1); err == unix.EINTR {
				continue
			}
			if p[0].Revents&unix.POLLIN == 0 {
				return
			}
			n, err := l.Receive()
			if err != nil {
				continue
			}
			path, words, more, err := n.Read()
			h := n.Process()
			line := path + ": " + strings.Join(words, " ")
			if more {
				line += " …"
			}
			if err != nil {
				line = err.Error()
			}
			if n.Call == last {
				line += " again"
			}
			if !l.Valid(n) || h.FD < 0 || h.Parent == 0 || !h.Still() {
				line += " without a process"
			}
			unix.Close(h.FD)
			last = n.Call
			list = append(list, line)
			l.Continue(n)
		}
	}()
	c, err := Spawn(&s, SpawnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.PIDFD.Close()
	for _, f := range theirs {
		f.Close()
	}
	ws, _, err := c.Wait()
	if err != nil {
		t.Fatal(err)
	}
	asked = <-over
	for _, f := range ours[1:] {
		if got := ReceiveFile(f); got != nil {
			t.Error("the kernel has two listeners")
			got.Close()
		}
	}
	if ws, ok := ExitStatus(c.PIDFD); TellsExits() != ok || ok && ws.ExitStatus() != 7 {
		t.Errorf("the kernel tells %v, %v of its exit", ws, ok)
	}
	return asked, ws.ExitStatus()
}

// Every execve of a process and its children waits for the listener, which reads what is asked. A second listener
// is refused by the kernel, and changes nothing.
func TestExecNotices(t *testing.T) {
	for _, listeners := range []int{1, 2} {
		asked, exit := listen(t, listeners, `/bin/true a 'b c'; /nonexistent/x; exit 7`)
		want := []string{"/nonexistent/sh: sh -c", "/bin/sh: sh -c", "/bin/true: /bin/true a b c", "/nonexistent/x: /nonexistent/x"}
		if exit != 7 || len(asked) != len(want) {
			t.Fatalf("exit %d, asked %q", exit, asked)
		}
		for i := range want {
			if !strings.HasPrefix(asked[i], want[i]) || strings.HasSuffix(asked[i], " again") != (i == 1) || strings.Contains(asked[i], "without") {
				t.Errorf("asked %q, want %q", asked[i], want[i])
			}
		}
	}
}

// What is read of a process is bounded, whatever it asks for.
func TestExecNoticesAreBounded(t *testing.T) {
	asked, exit := listen(t, 1, `x=$(printf '%070000d' 0); /bin/true $x $x; set --; i=0; while [ $i -lt 300 ]; do set -- "$@" w; i=$((i+1)); done; /bin/true "$@"; exit 7`)
	if exit != 7 || len(asked) != 4 {
		t.Fatalf("exit %d, %d asked", exit, len(asked))
	}
	if n := len(asked[2]); n > noticeBytes || n < 2*noticeWord || !strings.HasSuffix(asked[2], "0 …") {
		t.Errorf("%d bytes are read, %.40q", n, asked[2])
	}
	if n := strings.Count(asked[3], " w"); n != noticeWords-1 || !strings.HasSuffix(asked[3], " …") {
		t.Errorf("%d words are read", n)
	}
}
