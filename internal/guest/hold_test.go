package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// Nothing that is under way is lost or doubled when the guest stands still and
// goes on, and nothing is said meanwhile.
func TestHoldAndGoOn(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		r, err := b.start(t, sh("a", "exec cat"), nil)
		if err != nil {
			t.Fatal(err)
		}
		const lines = 200000
		go func() {
			for i := range lines {
				fmt.Fprintf(r.in, "%d\n", i)
			}
			r.in.Close()
		}()
		done := make(chan string, 1)
		go func() { done <- readAll(r.out) }()
		for range 5 {
			time.Sleep(5 * time.Millisecond)
			if err := b.Hold(b.ctx, false); err != nil {
				t.Fatal(err)
			}
			asked := make(chan error, 1)
			go func() { _, err := b.List(b.ctx); asked <- err }()
			limited, cancel := context.WithTimeout(b.ctx, 5*time.Millisecond) // F28: a caller's limit holds meanwhile
			if _, err := b.Ports(limited); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("within a limit, while it stands still: %v", err)
			}
			if _, err := b.Dial(limited, 9); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a connection within a limit, while it stands still: %v", err)
			}
			if err := b.ReadFiles(limited, "/etc/hostname", io.Discard); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("files within a limit, while it stands still: %v", err)
			}
			cancel()
			select {
			case err := <-asked:
				t.Errorf("answered while it stands still: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			if err := b.goOn(); err != nil {
				t.Fatal(err)
			}
			if err := <-asked; err != nil {
				t.Error(err)
			}
		}
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "%d\n", i)
		}
		if out := <-done; out != want.String() {
			t.Errorf("%d bytes came back of %d", len(out), want.Len())
		}
		if exit, _ := r.Wait(func() {}); exit.Code != 0 {
			t.Errorf("ended with %+v", exit)
		}
		if err := b.goOn(); cell.KindOf(err) != cell.Conflict {
			t.Errorf("goes on without standing still: %v", err)
		}
	})
}

// Where it is asked for, the processes stand still, too, and those go on that did
// not stand still before.
func TestHoldStops(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		ticks := filepath.Join("/tmp", fmt.Sprintf("pando-ticks-%d-%v", os.Getpid(), b.gv != nil))
		t.Cleanup(func() { os.Remove(ticks) })
		size := func() int64 {
			st, err := os.Stat(ticks)
			if err != nil {
				t.Fatal(err)
			}
			return st.Size()
		}
		r, err := b.start(t, sh("a", "while :; do echo tick >> "+ticks+"; echo; sleep 0.01; done"), nil)
		if err != nil {
			t.Fatal(err)
		}
		self, err := b.start(t, sh("self", "echo here; kill -STOP $$; echo awake"), nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, self.out)
		readLine(t, r.out)
		time.Sleep(20 * time.Millisecond) // until it has stopped itself
		if err := b.Hold(b.ctx, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		then := size()
		time.Sleep(100 * time.Millisecond)
		if now := size(); now != then {
			t.Errorf("%d bytes more while it stands still", now-then)
		}
		if err := b.goOn(); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if time.Sleep(10 * time.Millisecond); size() > then {
				break
			}
		}
		if size() == then {
			t.Error("it does not go on")
		}
		self.out.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if out := readAll(self.out); out != "" {
			t.Errorf("who had stopped itself goes on: %q", out)
		}
		b.KillAll(b.ctx)
		r.Wait(func() {})
		self.Wait(func() {})
	})
}

// copied is a connection to a copy of a guest: in gVisor a real one; on Linux the
// guest itself, on another socket.
func (b *bed) copied(t *testing.T) net.Conn {
	t.Helper()
	c, theirs := sockets(t)
	if b.gv == nil {
		if err := unix.Sendmsg(int(b.swap.Fd()), []byte{1}, unix.UnixRights(int(theirs.Fd())), nil, 0); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		return c
	}
	b.gv.capture(t)
	if err := b.goOn(); err != nil {
		t.Fatal(err)
	}
	b.gv.restore(t, "copy", c, theirs)
	return c
}

// capture saves a sandbox with a paused guest.
func (g *gvisor) capture(t *testing.T) {
	t.Helper()
	if out, err := g.command("checkpoint", "--leave-running", "--image-path", filepath.Join(g.dir, "image"), g.id).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// restore makes a sandbox of what was saved. c is the keeper's end of theirs. gone is closed
// when the sandbox has ended.
func (g *gvisor) restore(t *testing.T, id string, c net.Conn, theirs *os.File) (gone <-chan struct{}) {
	t.Helper()
	cmd := g.command("restore", "--bundle", filepath.Join(g.dir, "bundle"), "--image-path", filepath.Join(g.dir, "image"), id)
	cmd.Stdin, cmd.Stderr = theirs, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		c.Close()
		g.command("delete", "--force", id).Run()
		cmd.Process.Kill()
		<-ended
	})
	return ended
}

// adopted is a copy of a guest that stands still, adopted as it is.
func (b *bed) adopted(t *testing.T) (*bed, []cell.Hazard) {
	t.Helper()
	c, err := Connect(b.ctx, b.copied(t), testToken)
	if err != nil {
		t.Fatal(err)
	}
	hazards, err := c.Adopt(b.ctx, Adoption{})
	if err != nil {
		t.Fatal(err)
	}
	return &bed{Client: c, ctx: b.ctx}, hazards
}

// A copy has another keeper, which must know the token. Its processes stand still
// until it is adopted, what they wrote is kept, and they go on with new streams.
func TestCopy(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		dir := filepath.Join("/tmp", fmt.Sprintf("pando-copy-%d-%v", os.Getpid(), b.gv != nil))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		r, err := b.start(t, sh("a", "echo began; read x; echo got $x; read y; echo got $y; exit 7"), nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, r.out)
		stopped, err := b.start(t, sh("stopped", "echo here; kill -STOP $$; echo awake"), nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, stopped.out)
		testenv.Eventually(t, func() bool { return b.stateOf(t, stopped.PID()) == "T" }, "that the process stops itself")
		ended, err := b.start(t, sh("ended", "exit 8"), nil)
		if err != nil {
			t.Fatal(err)
		}
		<-ended.ended
		r.in.WriteString("one\n")
		readLine(t, r.out)
		if err := b.Hold(b.ctx, false); err != nil {
			t.Fatal(err)
		}
		conn := b.copied(t)
		if b.gv == nil { // the guest itself is the copy, and refuses strangers
			if _, err := Connect(b.ctx, conn, []byte("another token")); cell.KindOf(err) != cell.Denied {
				t.Errorf("a stranger: %v", err)
			}
			time.Sleep(50 * time.Millisecond) // it has seen that the stranger is gone
			conn = b.copied(t)
		}
		c, err := Connect(b.ctx, conn, testToken)
		if err != nil {
			t.Fatal(err)
		}
		token := []byte("the token of the copy")
		hazards, err := c.Adopt(b.ctx, Adoption{Hostname: "copy", Files: map[string][]byte{dir + "/hosts": []byte("127.0.0.1 copy\n")}, Token: token})
		t.Logf("%+v %v", hazards, err)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(dir + "/hosts"); string(got) != "127.0.0.1 copy\n" {
			t.Errorf("%q, %v", got, err)
		}
		known, err := c.Processes(b.ctx)
		if len(known) != 3 || err != nil || known[0].ID != "a" || known[0].PID != r.PID() || known[0].Ended || known[2].ID != "ended" || !known[2].Ended {
			t.Fatalf("%+v, %v", known, err)
		}
		copied := &bed{Client: c, ctx: b.ctx}
		again := copied.reattach(t, "a")
		again.in.WriteString("two\n")
		if exit, _ := again.Wait(func() {}); exit.Code != 7 {
			t.Errorf("the copy's ended with %+v", exit)
		}
		if out := readAll(again.out); out != "got two\n" {
			t.Errorf("the copy's wrote %q", out)
		}
		was := copied.reattach(t, "ended")
		if exit, _ := was.Wait(func() {}); exit.Code != 8 {
			t.Errorf("what had ended did with %+v", exit)
		}
		if out := readAll(was.out); out != "" {
			t.Errorf("what had ended writes %q", out)
		}
		if _, out, _ := copied.run(t, sh("b", "hostname; ps -o state= -p "+fmt.Sprint(stopped.PID())), ""); out != "copy\nT\n" {
			t.Errorf("in the copy: %q", out)
		}
		if b.gv == nil {
			return
		}
		// The source has noticed nothing.
		r.in.WriteString("three\n")
		if exit, _ := r.Wait(func() {}); exit.Code != 7 {
			t.Errorf("the source's ended with %+v", exit)
		}
		if out := readAll(r.out); out != "got three\n" {
			t.Errorf("the source's wrote %q", out)
		}
		if _, out, _ := b.run(t, sh("b", "hostname"), ""); out != "cell\n" {
			t.Errorf("in the source: %q", out)
		}
	})
}

// stateOf is the state of a process, as ps shows it; "" when it is gone.
func (b *bed) stateOf(t *testing.T, pid int) string {
	t.Helper()
	list, err := b.List(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.PID == pid {
			return p.State
		}
	}
	return ""
}

// A copy's connections to others end, so that nothing hangs on them; those inside
// stay.
func TestCopyDisconnects(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		testenv.Program(t, "ip")
		c := sh("net", "ip addr add 198.51.100.7/32 dev lo")
		c.Caps |= 1 << unix.CAP_NET_ADMIN
		if exit, _, errs := b.run(t, c, ""); exit.Code != 0 {
			t.Fatalf("%+v %s", exit, errs)
		}
		c = sh("a", "")
		c.Process.Path = []string{"/usr/bin/python3"}
		c.Process.Args = []string{"python3", "-u", "-c", `
import socket
s = socket.create_server(("0.0.0.0", 0)); port = s.getsockname()[1]
out = socket.create_connection(("198.51.100.7", port)); out2 = s.accept()[0]
ins = socket.create_connection(("127.0.0.1", port)); ins2 = s.accept()[0]
print("ready")
try: print("out", out.recv(10))
except OSError as e: print("out", e.strerror)
ins2.sendall(b"hello"); print("in", ins.recv(10))
`}
		r, err := b.start(t, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, r.out)
		if err := b.Hold(b.ctx, true); err != nil {
			t.Fatal(err)
		}
		copied, hazards := b.adopted(t)
		found := 0
		for _, h := range hazards {
			if h.Name == "descriptors" && strings.HasPrefix(h.Value, "ended socket 198.51.100.7:") {
				found++
			}
		}
		if found == 0 && b.gv == nil {
			t.Errorf("nothing was ended: %+v", hazards)
		}
		again := copied.reattach(t, "a")
		l := readLine(t, again.out)
		t.Logf("%s; %+v", l, hazards)
		if !strings.HasPrefix(l, "out ") {
			t.Errorf("it says %q", l)
		}
		if l := readLine(t, again.out); l != "in b'hello'" {
			t.Errorf("it says %q", l)
		}
		again.Wait(func() {})
	})
}

// A copy's terminals and interpreters go on, on sockets of the keeper that took
// them over, in as many copies as are made.
func TestCopiedTerminalsAndInterpreters(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		c := sh("tty", "echo ready; while read x; do echo got $x; done")
		c.Process.TTY = true
		p, err := b.Start(b.ctx, c, [3]*os.File{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		readLine(t, p.Terminal())
		c = sh("interpreter", "")
		c.Process.Path = []string{"/usr/bin/python3"}
		c.Process.Args = []string{"python3", "-u", "-c", "import socket\ns=socket.socket(fileno=3)\nn=0\nwhile True:\n  b=s.recv(100)\n  if not b: break\n  n+=1; s.sendall(b'%d\\n' % n)\nprint('over', n)"}
		mine, theirs, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer mine.Close()
		_, err = b.start(t, c, theirs)
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		mine.WriteString("x")
		readLine(t, mine)
		if err := b.Hold(b.ctx, true); err != nil {
			t.Fatal(err)
		}
		copied, _ := b.adopted(t)
		known, err := copied.Processes(b.ctx)
		if len(known) != 2 || err != nil || !known[0].TTY || !known[1].Control {
			t.Fatalf("%+v, %v", known, err)
		}
		if p, err = copied.Reattach(b.ctx, known[0], [3]*os.File{}, nil); err != nil {
			t.Fatal(err)
		}
		p.Terminal().WriteString("two\n")
		if l := readLine(t, p.Terminal()) + readLine(t, p.Terminal()); l != "two\rgot two\r" {
			t.Errorf("the terminal says %q", l)
		}
		if err := p.Resize(10, 20); err != nil {
			t.Error(err)
		}
		mine, theirs, err = socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer mine.Close()
		out, out2 := pipe(t, 0)
		i, err := copied.Reattach(b.ctx, known[1], [3]*os.File{nil, out2, nil}, theirs)
		out2.Close()
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		mine.WriteString("x")
		if l := readLine(t, mine); l != "2" {
			t.Errorf("the interpreter says %q", l)
		}
		mine.Close()
		if exit, _ := i.Wait(func() {}); exit.Code != 0 {
			t.Errorf("it ended with %+v", exit)
		}
		if l := readAll(out); l != "over 2\n" {
			t.Errorf("it wrote %q", l)
		}
	})
}

func (b *bed) reattach(t *testing.T, id string) *running {
	t.Helper()
	in, in2 := pipe(t, 1)
	out, out2 := pipe(t, 0)
	errs, errs2 := pipe(t, 0)
	p, err := b.Reattach(b.ctx, Known{ID: id}, [3]*os.File{in2, out2, errs2}, nil)
	in2.Close()
	out2.Close()
	errs2.Close()
	if err != nil {
		t.Fatal(err)
	}
	return &running{p, in, out, errs}
}

// A little of the output is kept while no stream is attached, and the program goes on.
func TestKeptAndDropped(t *testing.T) {
	testenv.Root(t)
	b := onLinux(t)
	_, err := b.start(t, sh("loud", "sleep 0.1; head -c 1000000 /dev/zero; echo wrote >&2; read x; echo end"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Hold(b.ctx, false); err != nil {
		t.Fatal(err)
	}
	copied, _ := b.adopted(t)
	time.Sleep(400 * time.Millisecond)
	again := copied.reattach(t, "loud")
	if l := readLine(t, again.errs); l != "wrote" {
		t.Errorf("it says %q", l)
	}
	again.in.WriteString("\n")
	again.in.Close()
	out := readAll(again.out)
	if len(out) != keptLimit+len("end\n") || !strings.HasSuffix(out, "end\n") {
		t.Errorf("%d bytes were kept", len(out))
	}
	again.Wait(func() {})
}

// A lost connection ends all that waits, on both sides.
func TestLost(t *testing.T) {
	b := onLinux(t)
	r, err := b.start(t, sh("a", "sleep 60"), nil)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan cell.Exit, 1)
	go func() { exit, _ := r.Wait(func() {}); waited <- exit }()
	time.Sleep(10 * time.Millisecond)
	b.Close()
	select {
	case exit := <-waited:
		if exit.Cause == "" {
			t.Errorf("ended with %+v", exit)
		}
	case <-time.After(testenv.Patience()):
		t.Fatal("Wait does not return")
	}
	<-b.Done()
	if _, err := b.List(b.ctx); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("a question: %v", err)
	}
	if out := readAll(r.out); out != "" {
		t.Errorf("wrote %q", out)
	}
	if _, err := Connect(context.Background(), b.conn, testToken); err == nil {
		t.Error("greeted over a closed connection")
	}
}

// A guest is refused that does not know the token, and so is a keeper, which
// then can do nothing.
func TestStrangers(t *testing.T) {
	c, theirs := net.Pipe()
	go func() {
		g, _ := readGreeting(theirs)
		greetKeeper(theirs, g, []byte("another"), nil)
	}()
	if _, err := Connect(t.Context(), c, testToken); cell.KindOf(err) != cell.Denied {
		t.Errorf("a guest of another cell: %v", err)
	}
	c2, theirs2 := net.Pipe()
	go func() { // a guest that believes every keeper
		readGreeting(theirs2)
		sendGreeting(theirs2, greeting{Version: Version, Nonce: newNonce(), Proof: make([]byte, 32)})
		readGreeting(theirs2)
		sendGreeting(theirs2, greeting{})
	}()
	if _, err := Connect(t.Context(), c2, testToken); cell.KindOf(err) != cell.Denied {
		t.Errorf("a guest that can prove nothing: %v", err)
	}
	c3, theirs3 := net.Pipe()
	refused := make(chan error, 1)
	go func() {
		g, _ := readGreeting(theirs3)
		if g.Token != nil {
			refused <- fmt.Errorf("it was told the token")
		}
		_, err := greetKeeper(theirs3, g, testToken, nil)
		refused <- err
	}()
	go func() { // a keeper that believes every guest
		sendGreeting(c3, greeting{Version: Version, Nonce: newNonce()})
		readGreeting(c3)
		sendGreeting(c3, greeting{Proof: make([]byte, 32)})
		readGreeting(c3)
	}()
	if err := <-refused; cell.KindOf(err) != cell.Denied {
		t.Errorf("a keeper of another cell: %v", err)
	}
}
