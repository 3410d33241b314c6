package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// Whatever one connection brings, the next is served.
func TestServerSurvivesRubbish(t *testing.T) {
	k := newKit(t)
	k.start("p", "sleep")
	size := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	message := func(s string) []byte { return append(size(uint32(len(s))), s...) }
	for name, b := range map[string][]byte{
		"nothing":              nil,
		"half a length":        {1, 2},
		"a length alone":       size(100),
		"half a message":       message(`{"op":"hello"}`)[:9],
		"too large":            size(reexec.MaxMessage + 1),
		"the largest length":   size(1<<32 - 1),
		"no JSON":              message("\x00\x01rubbish"),
		"another type":         message(`[1,2,3]`),
		"a field's other type": message(`{"op":17}`),
		"text":                 []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		c := k.raw()
		c.Raw().Write(b)
		c.Raw().CloseWrite()
		if _, err := io.Copy(io.Discard, c.Raw()); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the keeper did not hang up: %v", name, err)
		}
		if st := ok(k, proto.Status, proto.OfProcess{Proc: "p"}).Status; !st.Running {
			t.Fatalf("%s ended a process", name)
		}
	}
	k.until("connections were let go of", func() bool {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		return k.s.conns <= 1
	})
}

// What can't be answered is an error, and the connection goes on.
func TestServerAnswersWhatItCannotDo(t *testing.T) {
	k := newKit(t)
	k.start("there", "true")
	k.wait("there")
	c := k.raw()
	start := cell.Start{Process: cell.Process{Args: []string{"nowhere"}}}
	for _, x := range []struct {
		op   string
		body any
		want cell.Kind
	}{
		{"", proto.None{}, cell.Unsupported},
		{"fly", proto.None{}, cell.Unsupported},
		{strings.Repeat("x", 1<<20), proto.None{}, cell.Unsupported},
		{"hello", proto.Greeting{Version: proto.Version + 2}, cell.Unsupported},
		{"hello", proto.Greeting{Version: -1}, cell.Unsupported},
		{"hello", []int{1, 2, 3}, cell.Invalid},
		{"create", proto.NewCell{Cell: one}, cell.Exists},
		{"create", proto.NewCell{Cell: "c-2", Spec: []byte(`"impossible"`)}, cell.Unsupported},
		{"create", proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1}}, cell.Invalid},
		{"create", proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1, Dirs: 3}}, cell.Invalid},
		{"create", proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1, Dirs: -1}}, cell.Invalid},
		{"create", proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 0, Dirs: 1}}, cell.Invalid},
		{"create", proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: -1, Dirs: 2}}, cell.Invalid},
		{"fork", proto.NewFork{Of: one, NewCell: proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1, Dirs: 3}}}, cell.Invalid},
		{"start", proto.NewProcess{Cell: one, Proc: "p"}, cell.Invalid},
		{"start", json.RawMessage(`{"start": {"log_limit": 1e99}}`), cell.Invalid},
		{"start", proto.NewProcess{Cell: one, Proc: "p", Start: start}, cell.NoSuchBinary},
		{"start", proto.NewProcess{Cell: "c-none", Proc: "p", Start: start}, cell.NotFound},
		{"start", proto.NewProcess{Cell: one, Proc: "p", Start: start, NoLogs: []int{-1, 7}}, cell.NoSuchBinary},
		{"run", proto.NewProcess{Cell: one, Proc: "p"}, cell.Invalid},
		{"attach", proto.Attachment{Proc: "p"}, cell.NotFound},
		{"attach", proto.Attachment{Proc: "there", Stdout: -1}, cell.Invalid},
		{"attach", proto.Attachment{Proc: "there", Stderr: -1 << 60}, cell.Invalid},
		{"status", proto.OfProcess{Proc: "p"}, cell.NotFound},
		{"wait", proto.OfProcess{Proc: "p"}, cell.NotFound},
		{"signal", proto.ToProcess{Proc: "p", Signal: "SIGTERM"}, cell.NotFound},
		{"end", proto.EndProcess{Proc: "p"}, cell.NotFound},
		{"forget", proto.OfProcess{Proc: "p"}, cell.NotFound},
		{"govern", proto.Governance{Cell: "c-none"}, cell.NotFound},
		{"govern", proto.Governance{Cell: one}, cell.Unsupported},
		{"asked", proto.Since{Cell: one}, cell.Unsupported},
		{"decide", proto.Decision{Cell: one}, cell.Unsupported},
		{"note", proto.OfCell{Cell: "c-none"}, cell.NotFound},
		{"list", proto.OfCell{Cell: "c-none"}, cell.NotFound},
		{"freeze", proto.OfCell{Cell: "c-none"}, cell.NotFound},
		{"remove", proto.Ending{Cell: "c-none"}, cell.NotFound},
	} {
		if r := k.says(c, x.op, x.body, k.null(), k.null()); r.Error == nil || r.Error.Kind != x.want || r.Error.Message == "" {
			t.Errorf("%.20q: %+v, want an error of kind %q", x.op, r, x.want)
		}
	}
	for op := range verbs() { // without a message
		if op == proto.Shutdown.Name {
			continue
		}
		if err := c.Send(proto.Request{Op: op}); err != nil {
			t.Fatal(err)
		}
		var r proto.Response[json.RawMessage]
		if _, err := c.Recv(&r); err != nil || r.Error == nil || r.Error.Kind != cell.Invalid {
			t.Errorf("%s without a message: %+v, %v", op, r, err)
		}
	}
	for _, v := range []int{proto.Version - 1, proto.Version, proto.Version + 1} {
		if err := proto.Hello.Ask(c, proto.Greeting{Version: v}); err != nil {
			t.Fatal(err)
		}
		if a, err := proto.Hello.Hear(c, nil); err != nil || a.Refused != nil || a.Value.Version != proto.Version || len(a.Value.Cells) != 1 {
			t.Errorf("version %d: %+v, %v", v, a, err)
		}
	}
	if err := k.c.Files(k.ctx, proto.Archive{Cell: one, Path: "/"}, nil, io.Discard); cell.KindOf(err) != cell.Unsupported {
		t.Errorf("files: %v", err)
	}
}

// Files that come with a request for no use are closed.
func TestServerClosesFilesItDoesNotUse(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes files without references
	k := newKit(t)
	f, null := k.null(), k.null()
	k.start("taken", "sleep")
	ok(k, proto.Hello, proto.Greeting{Version: proto.Version}) // so that a connection is there
	before := descriptors()
	for range 20 {
		fly, nothing := rubbish("fly")
		fails(k, fly, nothing, cell.Unsupported, f, null)
		fails(k, proto.Create, proto.NewCell{Cell: one, Watch: &proto.Watch{Limit: 1, Dirs: 1}}, cell.Exists, f, null)
		fails(k, proto.Create, proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1, Dirs: 3}}, cell.Invalid, f, null)
		fails(k, proto.Fork, proto.NewFork{Of: one, NewCell: proto.NewCell{Cell: "c-2", Watch: &proto.Watch{Limit: 1, Dirs: 1}}}, cell.NotFound, f, null)
		fails(k, proto.Branch, proto.OfCell{Cell: one}, cell.NotFound, f, null)
		fails(k, proto.Start, proto.NewProcess{Cell: one, Proc: "p"}, cell.Invalid, f, null)
		fails(k, proto.Start, proto.NewProcess{Cell: one, Proc: "p", Start: cell.Start{Process: cell.Process{Args: []string{"nowhere"}}}}, cell.NoSuchBinary, f, null)
		fails(k, proto.Start, proto.NewProcess{Cell: one, Proc: "taken", Start: cell.Start{Process: cell.Process{Args: []string{"true"}}}}, cell.Exists, f, null)
		ok(k, proto.List, proto.OfCell{Cell: one}, f, null)
	}
	k.until("files were closed", func() bool { return descriptors() <= before })
}

func TestServerServesManyAtOnce(t *testing.T) {
	k := newKit(t)
	k.start("long", "sleep")
	other := k.dial()
	defer other.Close()
	waited := make(chan error, 1)
	go func() {
		_, err := client.Ask(k.ctx, other, proto.Wait, proto.OfProcess{Proc: "long"})
		waited <- err
	}()
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for n := range 40 {
		wg.Go(func() {
			c := k.c
			if n%2 == 0 {
				c = other
			}
			_, err := client.Ask(k.ctx, c, proto.Start, proto.NewProcess{Cell: one, Proc: fmt.Sprint("p", n/4), Start: cell.Start{Process: cell.Process{Args: []string{"seven"}}, LogLimit: 100}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if cell.KindOf(err) != cell.Exists {
				t.Errorf("start %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	if won != 10 {
		t.Errorf("%d of 10 names were taken", won)
	}
	for n := range 10 {
		if st := k.wait(fmt.Sprint("p", n)); st.Exit.Code != 7 || st.Stdout.Bytes != 4 {
			t.Errorf("p%d ended as %+v", n, st)
		}
	}
	select {
	case err := <-waited:
		t.Fatalf("a request that waits was answered: %v", err)
	default:
	}
	ok(k, proto.Signal, proto.ToProcess{Proc: "long", Signal: "SIGTERM"})
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

// A client that goes away, whatever it was at, takes nothing with it.
func TestServerOutlivesItsClients(t *testing.T) {
	k := newKit(t)
	k.start("cat", "cat")
	waiting := k.raw()
	proto.Wait.Ask(waiting, proto.OfProcess{Proc: "cat"})
	var attached []*reexec.Conn
	for _, input := range []bool{true, false} {
		c := k.raw()
		if r := k.says(c, "attach", proto.Attachment{Proc: "cat", Input: input}); r.Error != nil {
			t.Fatalf("%+v", r)
		}
		attached = append(attached, c)
	}
	half := k.raw()
	half.Raw().Write([]byte{200, 0, 0, 0, '{'})
	files := k.raw()
	proto.Files.Ask(files, proto.Archive{Cell: one, Path: "/", Write: true})
	attached[0].Raw().Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdin, Payload: []byte("half a")}))
	k.until("it came", func() bool { return ok(k, proto.Status, proto.OfProcess{Proc: "cat"}).Status.Stdout.Bytes == 6 })
	for _, c := range append(attached, waiting, half, files) {
		c.Close()
	}
	// Another one goes on where the first was.
	c, err := k.c.Attach(k.ctx, proto.Attachment{Proc: "cat", Input: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdin, Payload: []byte(" line\n")}))
	c.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdinEOF}))
	got, st := k.read(c)
	if got != "half a line\n" || st.Exit == nil || *st.Exit != (cell.Exit{}) {
		t.Errorf("%q, %+v", got, st)
	}
	k.until("connections were let go of", func() bool {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		return k.s.conns <= 2
	})
}

// read reads a stream to its end; a gap is "[N]".
func (k *kit) read(c io.Reader) (stdout string, st *cell.Status) {
	k.Helper()
	var buf []byte
	var out strings.Builder
	for {
		f, err := api.ReadFrame(c, &buf)
		if err != nil {
			k.Fatalf("the stream broke: %v after %d bytes", err, out.Len())
		}
		switch f.Type {
		case api.FrameStdout:
			_, b, err := f.OutputData()
			if err != nil {
				k.Fatal(err)
			}
			out.Write(b)
		case api.FrameGap:
			out.WriteString("[" + string(f.Payload) + "]")
		case api.FrameExit:
			if st, err = client.DecodeStatus(f.Payload); err != nil {
				k.Fatal(err)
			}
			return out.String(), st
		}
	}
}

// A client that is told to stop waiting hangs up, and the next request has a
// connection of its own.
func TestClientObeysItsContext(t *testing.T) {
	k := newKit(t)
	k.start("p", "sleep")
	why := fmt.Errorf("enough")
	ctx, cancel := context.WithCancelCause(k.ctx)
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if _, err := client.Ask(ctx, k.c, proto.Wait, proto.OfProcess{Proc: "p"}); err != why {
		t.Errorf("Do: %v", err)
	}
	if st := ok(k, proto.Status, proto.OfProcess{Proc: "p"}).Status; !st.Running {
		t.Error("the process ended with the request that waited")
	}
	if _, err := client.Ask(k.ctx, k.c, proto.Note, proto.OfCell{Cell: cell.ID(strings.Repeat("x", reexec.MaxMessage))}); err == nil {
		t.Error("a request that is too large was sent")
	}
	ok(k, proto.Status, proto.OfProcess{Proc: "p"})
}

// Output beyond the limit is counted and digested, not kept; a client that attaches
// late is told how much is missing.
func TestF08OutputIsBoundedAndCounted(t *testing.T) {
	var all []byte
	for n := range 1024 {
		all = append(all, bytes.Repeat([]byte{byte(n)}, 1024)...)
	}
	for _, logged := range []bool{true, false} {
		k := newKit(t)
		req := proto.NewProcess{Cell: one, Proc: "p", Start: cell.Start{Process: cell.Process{Args: []string{"flood"}}, LogLimit: 10000}}
		path := k.file("log", 0)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if !logged {
			req.NoLogs = []int{0}
		}
		ok(k, proto.Start, req, f, k.null(), k.null())
		st := k.wait("p")
		if st.Stdout.Bytes != 1<<20 || st.Stdout.Kept != 10000 || st.Stdout.Digest != cell.Sum(all) {
			t.Errorf("logged %v: %+v", logged, st.Stdout)
		}
		kept, _ := os.ReadFile(path)
		if logged && !bytes.Equal(kept, all[:10000]) || !logged && len(kept) > 0 {
			t.Errorf("logged %v: the file has %d bytes", logged, len(kept))
		}
		for _, from := range []int64{0, 9000, 10000} {
			c, err := k.c.Attach(k.ctx, proto.Attachment{Proc: "p", Stdout: from})
			if err != nil {
				t.Fatal(err)
			}
			got, _ := k.read(c)
			c.Close()
			want := string(all[from:10000]) + fmt.Sprintf(`[{"stream":"stdout","bytes":%d}]`, 1<<20-10000)
			if got != want {
				t.Errorf("logged %v: from %d came %d bytes, want %d", logged, from, len(got), len(want))
			}
		}
	}
}

// A process that is asked for as a whole is answered at its end, with what is
// kept of its output, has no input, and is forgotten.
func TestWholeProcesses(t *testing.T) {
	k := newKit(t)
	whole := func(name, prog string, limit int64) proto.Done {
		return ok(k, proto.Run, proto.NewProcess{Cell: one, Proc: name, Start: cell.Start{Process: cell.Process{Args: []string{prog}}, LogLimit: limit}})
	}
	resp := whole("p", "flood", 5000)
	if st := resp.Status; st.Running || st.Exit == nil || st.Stdout.Bytes != 1<<20 || len(resp.Stdout) != 5000 || len(resp.Stderr) != 0 {
		t.Errorf("%d and %d bytes came, %+v", len(resp.Stdout), len(resp.Stderr), resp.Status)
	}
	fails(k, proto.Status, proto.OfProcess{Proc: "p"}, cell.NotFound)
	if resp = whole("p", "cat", 100); resp.Status.Exit.Code != 0 {
		t.Errorf("a reader of empty input ended: %+v", resp.Status.Exit)
	}
	if resp = whole("p", "seven", 100); resp.Status.Exit.Code != 7 {
		t.Errorf("%+v", resp.Status.Exit)
	}
}

// Whether a keeper is there is known without asking it.
func TestAliveIsSeen(t *testing.T) {
	k := newKit(t)
	c := k.dial()
	defer c.Close()
	for range 3 {
		if there, _ := c.There(k.ctx); !there {
			t.Error("it is there")
		}
	}
	client.Ask(k.ctx, c, proto.Shutdown, proto.None{})
	k.until("it was gone", func() bool { there, _ := c.There(k.ctx); return !there })
}

// Held output waits for its first listener, but not for ever.
func TestHeldOutputWaitsForItsListener(t *testing.T) {
	k := newKit(t)
	k.start("p", "flood", func(s *cell.Start) { s.LogLimit, s.Hold = 1000, true })
	time.Sleep(100 * time.Millisecond)
	if st := ok(k, proto.Status, proto.OfProcess{Proc: "p"}).Status; !st.Running || st.Stdout.Bytes > 128<<10 {
		t.Errorf("nothing listens, and it has written %d bytes; runs: %v", st.Stdout.Bytes, st.Running)
	}
	c, err := k.c.Attach(k.ctx, proto.Attachment{Proc: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, st := k.read(c); len(got) != 1<<20 || st.Stdout.Bytes != 1<<20 {
		t.Errorf("%d bytes came of %d", len(got), st.Stdout.Bytes)
	}
}

// How a process ended is what the kernel told, with our part in it.
func TestExitsAndCauses(t *testing.T) {
	k := newKit(t)
	k.start("by itself", "seven")
	k.start("in time", "sleep", func(s *cell.Start) { s.Timeout = 20 * time.Millisecond })
	k.start("too early", "true", func(s *cell.Start) { s.Timeout = time.Minute })
	k.wait("too early")
	ok(k, proto.End, proto.EndProcess{Proc: "too early", Cause: "interrupted"})
	k.start("asked", "sleep")
	ok(k, proto.End, proto.EndProcess{Proc: "asked", Cause: "interrupted"})
	k.start("signalled", "sleep")
	ok(k, proto.Signal, proto.ToProcess{Proc: "signalled", Signal: "SIGINT"})
	fails(k, proto.Signal, proto.ToProcess{Proc: "signalled", Signal: "SIGNOPE"}, cell.Invalid)
	term := cell.Exit{Code: 143, Signal: "SIGTERM"}
	for name, want := range map[string]cell.Exit{
		"by itself": {Code: 7}, "too early": {}, "in time": {Code: 143, Signal: "SIGTERM", Cause: "timeout"},
		"asked": {Code: 143, Signal: "SIGTERM", Cause: "interrupted"}, "signalled": term,
	} {
		if st := k.wait(name); *st.Exit != want || st.Usage.UserMS != 7 || st.Ended.Before(st.Started) {
			t.Errorf("%s ended as %+v (%+v), want %+v", name, *st.Exit, st, want)
		}
	}
	k.start("killed", "sleep")
	if n := ok(k, proto.KillAll, proto.Ending{Cell: one, Cause: "stopped"}).Count; n != 1 {
		t.Errorf("%d were killed", n)
	}
	if st := k.wait("killed"); *st.Exit != (cell.Exit{Code: 137, Signal: "SIGKILL", Cause: "stopped"}) {
		t.Errorf("killed ended as %+v", *st.Exit)
	}
	if st := k.wait("by itself"); st.Exit.Cause != "" {
		t.Errorf("what had ended before got the cause %q", st.Exit.Cause)
	}
	k.start("last", "sleep", func(s *cell.Start) { s.EndsCell = true })
	k.start("beside it", "sleep")
	ok(k, proto.Signal, proto.ToProcess{Proc: "last", Signal: "SIGTERM"})
	if st := k.wait("last"); st.LeftOver != 1 {
		t.Errorf("%d were left over", st.LeftOver)
	}
	k.wait("beside it")
	fails(k, proto.End, proto.EndProcess{Proc: "none", Cause: "x"}, cell.NotFound)
	ok(k, proto.Forget, proto.OfProcess{Proc: "last"})
	fails(k, proto.Status, proto.OfProcess{Proc: "last"}, cell.NotFound)
}

// What has ended by itself is not made a time-out by a timer that is late.
func TestNothingIsTheCauseOfAnEarlierEnd(t *testing.T) {
	f := &fakeProcess{signals: make(chan string, 1), killed: make(chan struct{})}
	p := &Proc{started: Started{Process: f}}
	p.endGroup()
	p.end("timeout", 0)
	if p.wasEnded() || len(f.signals) > 0 {
		t.Errorf("its cause is %q, it got %d signals", p.cause, len(f.signals))
	}
	p = &Proc{started: Started{Process: f}, cause: "timeout"}
	p.endGroup()
	select {
	case <-f.killed:
	default:
		t.Error("what the time-out left of the group was not ended")
	}
}

// The stream of events is begun before the command, ends after it, and is
// sealed also when there was none.
func TestEventsOfARun(t *testing.T) {
	k := newKit(t)
	k.start("p", "sleep")
	ok(k, proto.Signal, proto.ToProcess{Proc: "p", Signal: "SIGTERM"})
	k.wait("p")
	if kinds, sealed := k.events.all(); kinds != "process.start process.running process.signal process.exit" || !sealed {
		t.Errorf("%s; sealed: %v", kinds, sealed)
	}
	k = newKit(t)
	fails(k, proto.Start, proto.NewProcess{Cell: one, Proc: "p", Start: cell.Start{Process: cell.Process{Args: []string{"nowhere"}}}}, cell.NoSuchBinary, k.null(), k.null(), k.null())
	if kinds, sealed := k.events.all(); kinds != "process.start process.failed" || !sealed {
		t.Errorf("%s; sealed: %v", kinds, sealed)
	}
	k.start("p", "true") // the name is free
}

// What a command does before the keeper hears that it has begun is in its record: that
// it looked for a network. What its canaries did is not.
func TestX48WhatIsDoneAtOnceIsRecorded(t *testing.T) {
	k := newKit(t)
	k.start("p", "seek")
	k.wait("p")
	if kinds, _ := k.events.all(); kinds != "process.start process.running network.none process.exit" {
		t.Errorf("the record has %s", kinds)
	} else if got := fmt.Sprint(k.events.fields[2]); got != "map[tries:2]" {
		t.Errorf("network.none has %s", got)
	}
	k = newKit(t)
	k.start("p", "true")
	k.wait("p")
	if kinds, _ := k.events.all(); strings.Contains(kinds, "network.none") {
		t.Errorf("the record of a command that did nothing has %s", kinds)
	}
}

func TestRemoveEndsWhatIsInTheCell(t *testing.T) {
	k := newKit(t)
	ok(k, proto.Create, proto.NewCell{Cell: two, Note: []byte(`{"a":1}`)})
	if n := ok(k, proto.Note, proto.OfCell{Cell: two}); string(n.Note) != `{"a":1}` || string(n.Measured) != `{"files":0}` {
		t.Errorf("noted %s and %s", n.Note, n.Measured)
	}
	ok(k, proto.Remove, proto.Ending{Cell: two})
	k.start("p", "sleep")
	fails(k, proto.Forget, proto.OfProcess{Proc: "p"}, cell.Conflict)
	ok(k, proto.Remove, proto.Ending{Cell: one, Cause: "removed"})
	if st := k.wait("p"); st.Exit.Cause != "removed" || st.Exit.Signal != "SIGKILL" {
		t.Errorf("ended as %+v", *st.Exit)
	}
	fails(k, proto.Note, proto.OfCell{Cell: one}, cell.NotFound)
	fails(k, proto.List, proto.OfCell{Cell: one}, cell.NotFound)
	fails(k, proto.Stats, proto.OfCell{Cell: one}, cell.NotFound)
	fails(k, proto.Remove, proto.Ending{Cell: one}, cell.NotFound)
	if h := ok(k, proto.Hello, proto.Greeting{Version: proto.Version}); len(h.Cells) > 0 {
		t.Errorf("cells %v", h.Cells)
	}
}

// A keeper without use ends: nothing runs, and no daemon has come for
// long.
func TestAbandoned(t *testing.T) {
	k := newKit(t)
	long := func() bool {
		k.s.mu.Lock()
		k.s.lastSeen = time.Now().Add(-daemonWait - time.Second)
		k.s.mu.Unlock()
		return k.s.abandoned()
	}
	if long() {
		t.Error("abandoned with a client")
	}
	k.start("p", "sleep")
	k.c.Close()
	k.until("the client was gone", func() bool {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		return k.s.conns == 0
	})
	if long() {
		t.Error("abandoned with a process")
	}
	k.d.KillAll(one)
	k.until("it was abandoned", long)
	k.s.mu.Lock()
	k.s.lastSeen = time.Now()
	k.s.mu.Unlock()
	if k.s.abandoned() {
		t.Error("abandoned at once")
	}
	k.c = k.dial()
}

// A cell above its limit is frozen, ended for that cause, and thawed; one
// below it, and one that is not watched any more, are left alone.
func TestWatchEndsACellAboveItsLimit(t *testing.T) {
	k := newKit(t)
	dir := t.TempDir()
	watch := func(limit int64) {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.s.watch(one, &proto.Watch{Limit: limit}, []*os.File{d}); err != nil {
			t.Fatal(err)
		}
	}
	open := func() (n int) {
		list, _ := filepath.Glob("/proc/self/fd/*")
		for _, l := range list {
			if to, _ := os.Readlink(l); to == dir {
				n++
			}
		}
		return n
	}
	k.start("p", "sleep")
	watch(4 << 20)
	watch(8 << 20) // instead of the first
	k.until("the first was let go of", func() bool { return open() == 1 })
	write := func(name string, size int) {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(bytes.Repeat([]byte("pando"), size/5)); err != nil {
			t.Fatal(err)
		}
		f.Sync()
	}
	write("below", 6<<20)
	time.Sleep(10 * watchTick)
	if st := ok(k, proto.Status, proto.OfProcess{Proc: "p"}).Status; !st.Running {
		t.Fatalf("ended below its limit: %+v", st.Exit)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("d/above", 6<<20)
	if st := k.wait("p"); st.Exit.Cause != "disk limit" || st.Exit.Signal != "SIGKILL" {
		t.Errorf("ended as %+v", *st.Exit)
	}
	for _, what := range []string{"freeze ", "kill ", "thaw "} {
		k.until("the driver was asked to "+what, func() bool { return k.d.was(what + string(one)) })
	}
	if kinds, _ := k.events.all(); !strings.Contains(kinds, "limit.disk") {
		t.Errorf("events: %s", kinds)
	}
	ok(k, proto.Remove, proto.Ending{Cell: one})
	k.until("directories were closed", func() bool { return open() == 0 })
}

// A cell that is far from its limit is looked at seldom, and one of which that is not
// known as often as one that is near it.
func TestWatchLooksSeldomFarFromTheLimit(t *testing.T) {
	for _, x := range []struct {
		limit, used int64
		want        time.Duration
	}{
		{20 << 30, -1, watchTick},
		{20 << 30, 0, quietTick},
		{20 << 30, 17 << 30, 437 * time.Millisecond}, // 1.75 GiB are left, 1.25 of them unseen
		{20 << 30, 19 << 30, watchTick},
		{20 << 30, 21 << 30, watchTick},
		{100 << 20, 0, watchTick},
	} {
		w := &watch{limit: x.limit, used: x.used}
		if got := w.pause(); got != x.want {
			t.Errorf("%d of %d: %v, want %v", x.used, x.limit, got, x.want)
		}
	}
	d, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{limit: 20 << 30, used: -1, dirs: countedIn(t, d), free: freeBytes(countedIn(t, d))}
	defer w.close()
	if (&Server{}).look(w, false); w.used < 0 {
		t.Error("what was not counted for long is not counted now")
	}
}

// No bytes from a connection end the keeper.
func FuzzServer(f *testing.F) {
	for _, s := range []string{`{"op":"hello","body":{"version":1}}`, `{"op":"create","body":{"cell":"c-2","spec":{},"watch":{"limit":1}}}`, `{"op":"start","body":{"cell":"c-0000000000000001","proc":"p","start":{"process":{"args":["true"]}}}}`,
		`{"op":"attach","body":{"proc":"p","stdout":-1}}`, `{"op":"branch","body":{"cell":"c-0000000000000001"}}`, `{"op":"files","body":{"path":"/","write":true}}`, `{"op":"note"}`, `[]`, `null`} {
		f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(len(s))), s...))
	}
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0x30, 0, 'x'}) // a length of three megabytes, and little behind it
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte("shutdown")) || bytes.Contains(b, []byte("remove")) {
			return
		}
		k := newKit(t)
		c := k.raw()
		boundtest.Allocates(t, len(b), func() {
			c.Raw().Write(b)
			c.Raw().CloseWrite()
			io.Copy(io.Discard, c.Raw())
		})
		ok(k, proto.List, proto.OfCell{Cell: one})
	})
}
