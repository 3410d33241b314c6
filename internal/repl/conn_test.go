package repl

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// liar is a program that says what a test wants.
func liar(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	c, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	nc, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); nc.Close() })
	return c, nc.(*net.UnixConn)
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestLiarsAreGone(t *testing.T) {
	for name, says := range map[string]string{
		"no JSON": "hello\n", "another question": `{"id": 7, "evaluated": {"ok": true}}` + "\n", "nothing": "", "half a line": `{"id": 1, "eval`,
		"no answer": `{"id": 1}` + "\n", "a list": "[1]\n", "another type": `{"id": 1, "evaluated": {"ok": "yes"}}` + "\n", "no end": strings.Repeat("x", maxLine+2),
	} {
		c, them := liar(t)
		go func() {
			them.Read(make([]byte, 4096))
			them.Write([]byte(says))
			them.Close()
		}()
		ev, err := c.Eval(soon(t), Evaluation{Code: "1", Interrupt: func() {}})
		if err != nil || ev.OK || ev.Cause != cell.CauseEnded {
			t.Errorf("%s: %v %s", name, err, show(ev))
		}
		if _, err := c.Check(soon(t)); cell.KindOf(err) != cell.Unavailable {
			t.Errorf("%s: it is asked again: %v", name, err)
		}
	}
}

// What it says of the keeper's own business is not believed.
func TestLiarsSayNothingOfOthers(t *testing.T) {
	c, them := liar(t)
	go func() {
		them.Read(make([]byte, 4096))
		them.Write([]byte(`{"id": 1, "evaluated": {"ok": true, "cause": "timeout", "n": 99, "took_ms": 1e9, "stdout_bytes": 5, "stderr_bytes": -5}}` + "\n"))
	}()
	ev, err := c.Eval(soon(t), Evaluation{Code: "1", Interrupt: func() {}})
	if err != nil || !ev.OK || ev.Cause != "" || ev.N != 1 || ev.TookMS > 1e4 || ev.Stdout != 0 || ev.Stderr != 0 {
		t.Errorf("%v %s", err, show(ev))
	}
}

func TestReadyBoundsWhatItSays(t *testing.T) {
	for _, says := range []string{`{"ready": {"protocol": 2}}`, `{}`, `{"id": 1, "ready": {"protocol": 1}}`} {
		c, them := liar(t)
		them.Write([]byte(says + "\n"))
		if r, err := c.Ready(soon(t), nil); err == nil {
			t.Errorf("%s is %+v", says, r)
		}
	}
	c, them := liar(t)
	go them.Write([]byte(`{"ready": {"protocol": 1, "version": "` + strings.Repeat("v", 100000) + `"}}` + "\n"))
	if r, err := c.Ready(soon(t), nil); err != nil || len(r.Version) > maxText || r.Reason == "" {
		t.Errorf("%v: %d bytes of version, %q", err, len(r.Version), r.Reason)
	}
	c, _ = liar(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Ready(ctx, nil); err == nil {
		t.Error("it was silent, and is ready")
	}
}

// A fork that does not come, does not say anything, or sends files of its own.
func TestForksOfLiars(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := descriptors()
	for name, act := range map[string]func(fork *net.UnixConn){
		"it is closed":     func(f *net.UnixConn) {},
		"it says nonsense": func(f *net.UnixConn) { f.Write([]byte("nonsense\n")) },
		"it sends files": func(f *net.UnixConn) {
			f.WriteMsgUnix([]byte("x\n"), unix.UnixRights(int(null.Fd()), int(null.Fd())), nil)
		},
		"it says much":      func(f *net.UnixConn) { f.Write(bytes.Repeat([]byte("x"), 100000)) },
		"it is another one": func(f *net.UnixConn) { f.Write([]byte(`{"ready": {}}` + "\n")) },
	} {
		c, them := liar(t)
		var acts sync.WaitGroup
		acts.Go(func() {
			buf, oob := make([]byte, 4096), make([]byte, 4096)
			them.Read(buf) // "stand"
			them.Write([]byte(`{"id": 1, "error": "no"}` + "\n"))
			_, n, _, _, err := them.ReadMsgUnix(buf, oob)
			if err != nil {
				return
			}
			msgs, _ := unix.ParseSocketControlMessage(oob[:n])
			fds, _ := unix.ParseUnixRights(&msgs[0])
			f := os.NewFile(uintptr(fds[0]), "fork")
			for _, fd := range fds[1:] {
				unix.Close(fd)
			}
			nc, _ := net.FileConn(f)
			f.Close()
			them.Write([]byte(`{"id": 2, "pid": 1}` + "\n"))
			act(nc.(*net.UnixConn))
			nc.Close()
		})
		f, err := c.Fork(soon(t), 0, ModeFork, [3]*os.File{null, null, null})
		if err == nil {
			t.Errorf("%s: a fork came of it", name)
			f.Close()
		}
		c.Close()
		them.Close()
		acts.Wait()
	}
	testenv.Eventually(t, func() bool { return descriptors() <= before }, "the closing of all descriptors")
}

func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

func FuzzInterp(f *testing.F) {
	for _, s := range []string{`{"ready":{"protocol":1,"kind":"x","version":"1","fork":true}}`, `{"id":1,"evaluated":{"ok":true,"value":{"type":"int","json":1,"repr":"1"}}}`,
		`{"id":2,"threads":["a"],"processes":[],"shared":null,"deleted":[],"sockets":[]}`, `{"id":3,"error":"no"}`, `{"id":1,"evaluated":null}`, "\n\n", `{"id":1e9}`} {
		f.Add([]byte(s + "\n"))
	}
	f.Fuzz(func(t *testing.T, says []byte) {
		boundtest.Allocates(t, len(says), func() {
			c, them := liar(t)
			go func() { // an answer to whatever is asked
				for line := range bytes.Lines(says) {
					if _, err := them.Write(line); err != nil {
						return
					}
				}
				them.Close()
			}()
			ctx := soon(t)
			if r, err := c.Ready(ctx, nil); err == nil && (r.Protocol != Protocol || len(r.Version) > maxText) {
				t.Errorf("ready: %+v", r)
			}
			ev, err := c.Eval(ctx, Evaluation{Code: "x", Interrupt: func() {}})
			if err == nil && ev.OK && ev.Cause != "" {
				t.Errorf("evaluated: %s", show(ev))
			}
			if o, err := c.Check(ctx); err == nil && len(o.Threads) > 65 {
				t.Errorf("%d threads", len(o.Threads))
			}
			c.Adopt(ctx, Adoption{UID: -1, GID: -1})
		})
	})
}

// Many that say much and come to no end can't make their keeper hold it all.
func TestFamiliesOfLiarsAreBounded(t *testing.T) {
	c, them := liar(t)
	c.large.Store(maxLarge - 4<<20) // others
	go func() {
		them.Read(make([]byte, 4096))
		them.Write(bytes.Repeat([]byte("x"), maxLine-1<<20))
	}()
	if ev, err := c.Eval(soon(t), Evaluation{Code: "1", Interrupt: func() {}}); err != nil || ev.Cause != cell.CauseEnded {
		t.Errorf("%v %s", err, show(ev))
	}
	if n := c.large.Load(); n != maxLarge-4<<20 {
		t.Errorf("%d bytes are held for others of %d", n, maxLarge-4<<20)
	}
	// A long answer counts only until it is there.
	c, them = liar(t)
	go func() {
		them.Read(make([]byte, 4096))
		them.Write([]byte(`{"id": 1, "evaluated": {"ok": true, "value": {"type": "str", "repr": "` + strings.Repeat("x", 3<<20) + `"}}}` + "\n"))
	}()
	ev, err := c.Eval(soon(t), Evaluation{Code: "1", Interrupt: func() {}})
	if err != nil || !ev.OK || len(ev.Value.Repr) != 3<<20 || c.large.Load() != 0 {
		t.Errorf("%v: %d bytes are held", err, c.large.Load())
	}
}
