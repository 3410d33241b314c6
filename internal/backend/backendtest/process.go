package backendtest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/testenv"
)

func testExit(k *bench) {
	i, _ := k.cell()
	for _, x := range []struct {
		script string
		want   cell.Exit
	}{
		{"exit 0", cell.Exit{}},
		{"echo exit status: 0; exit 7", cell.Exit{Code: 7}},
		{"exit 255", cell.Exit{Code: 255}},
		{"kill -KILL $$", cell.Exit{Code: 137, Signal: "SIGKILL"}},
		{"kill -SEGV $$", cell.Exit{Code: 139, Signal: "SIGSEGV"}},
	} {
		st, _ := k.run(i, x.script)
		if *st.Exit != x.want {
			k.Errorf("%q ended as %+v, want %+v", x.script, *st.Exit, x.want)
		}
		if st.Ended.Before(st.Started) {
			k.Errorf("%q ended %v, before it started %v", x.script, st.Ended, st.Started)
		}
	}
}

func testStreams(k *bench) {
	i, _ := k.cell()
	st, c := k.run(i, "echo to stdout; echo to stderr >&2")
	if c.stdout() != "to stdout\n" || c.stderr() != "to stderr\n" {
		k.Errorf("stdout %q, stderr %q", c.stdout(), c.stderr())
	}
	if want := cell.Sum([]byte("to stderr\n")); st.Stderr.Digest != want || st.Stderr.Bytes != 10 || st.Stderr.Kept != 10 {
		k.Errorf("of stderr it says %+v", st.Stderr)
	}
	// Without files, the kept output is sent to each client that attaches, even after the end.
	p, err := i.Start(k.ctx, "unlogged", sh("echo one; echo two >&2; exit 3"), [3]*os.File{})
	k.must(err)
	_, err = p.Wait(k.ctx)
	k.must(err)
	got := k.stream(p, backend.Offsets{Stdout: 2}, false, "", nil)
	if got.stdout != "e\n" || got.stderr != "two\n" || got.status.Exit == nil || got.status.Exit.Code != 3 {
		k.Errorf("attached late: %+v", got)
	}
}

// streamed is the result of an attached process.
type streamed struct {
	stdout, stderr string
	status         cell.Status
}

// stream attaches and reads to the end. talk, unless nil, gets the connection once stdout
// contains the text after.
func (k *bench) stream(p backend.Process, from backend.Offsets, input bool, after string, talk func(w io.Writer)) (got streamed) {
	k.Helper()
	c, err := p.Attach(k.ctx, backend.Attach{Offsets: from, Input: input})
	k.must(err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(testenv.Patience()))
	var buf []byte
	for {
		if talk != nil && strings.Contains(got.stdout, after) {
			talk(c)
			talk = nil
		}
		f, err := api.ReadFrame(c, &buf)
		if err != nil {
			k.Fatalf("the stream broke: %v; so far %+v", err, got)
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			_, b, err := f.OutputData()
			k.must(err)
			if f.Type == api.FrameStdout {
				got.stdout += string(b)
			} else {
				got.stderr += string(b)
			}
		case api.FrameExit:
			st, err := client.DecodeStatus(f.Payload)
			k.must(err)
			got.status = *st
			return got
		}
	}
}

func send(w io.Writer, t api.FrameType, payload string) {
	w.Write(api.AppendFrame(nil, api.Frame{Type: t, Payload: []byte(payload)}))
}

func testInput(k *bench) {
	i, _ := k.cell()
	p, err := i.Start(k.ctx, "cat", sh("cat; echo end"), [3]*os.File{})
	k.must(err)
	got := k.stream(p, backend.Offsets{}, true, "", func(w io.Writer) {
		send(w, api.FrameStdin, "a line\n")
		send(w, api.FrameStdinEOF, "")
	})
	if got.stdout != "a line\nend\n" {
		k.Errorf("stdout %q", got.stdout)
	}
}

func testEnvironment(k *bench) {
	k.Setenv("PANDO_TEST_LEAK", "it is here")
	i, _ := k.cell()
	s := sh("")
	s.Process.Args, s.Process.Path, s.Process.Env = []string{"env"}, []string{"/usr/bin/env"}, []string{"A=1", "B=two words", "C="}
	c := k.start(i, s)
	c.wait()
	if c.stdout() != "A=1\nB=two words\nC=\n" {
		k.Errorf("the environment is %q", c.stdout())
	}
}

func testWorkdir(k *bench) {
	i, s := k.cell()
	k.must(os.WriteFile(filepath.Join(k.folder(s), "here"), []byte("found\n"), 0o644))
	k.must(os.Mkdir(filepath.Join(k.folder(s), "below"), 0o755))
	_, c := k.run(i, "cat here; echo made > f")
	if c.stdout() != "found\n" {
		k.Errorf("stdout %q, stderr %q", c.stdout(), c.stderr())
	}
	st, err := os.Stat(filepath.Join(k.folder(s), "f"))
	k.must(err)
	if uid := int(st.Sys().(*syscall.Stat_t).Uid); uid != os.Getuid() {
		k.Errorf("a file made in the cell belongs to %d, not to the caller", uid)
	}
	below := sh("cat ../here")
	below.Process.Workdir = work + "/below"
	c = k.start(i, below)
	c.wait()
	if c.stdout() != "found\n" {
		k.Errorf("from below: stdout %q, stderr %q", c.stdout(), c.stderr())
	}
}

func testNames(k *bench) {
	i, _ := k.cell()
	a, b := k.start(i, sh("sleep 300")), k.start(i, sh("sleep 300"))
	if a.PID() == b.PID() && a.PID() != 0 { // 0: it has no PID on the host
		k.Errorf("two processes are both %d", a.PID())
	}
	_, err := i.Start(k.ctx, a.name, sh("exit 0"), [3]*os.File{})
	k.wantKind("a name that is taken", err, cell.Exists)
	_, err = i.Process(k.ctx, "missing")
	k.wantKind("an unknown process", err, cell.NotFound)
	k.wantKind("forgetting one that runs", a.Forget(k.ctx), cell.Conflict)
	k.must(a.End(k.ctx, "enough", 0))
	a.wait()
	again, err := i.Process(k.ctx, a.name)
	k.must(err)
	if st, err := again.Status(k.ctx); err != nil || st.Exit == nil || st.Exit.Cause != "enough" {
		k.Errorf("asked again: %+v, %v", st, err)
	}
	k.must(a.Forget(k.ctx))
	_, err = i.Process(k.ctx, a.name)
	k.wantKind("a forgotten process", err, cell.NotFound)
	if st, err := b.Status(k.ctx); err != nil || !st.Running {
		k.Errorf("the other one: %+v, %v", st, err)
	}
}

func testPrograms(k *bench) {
	i, s := k.cell()
	k.must(os.WriteFile(filepath.Join(k.folder(s), "plain"), []byte("x"), 0o644))
	k.must(os.WriteFile(filepath.Join(k.folder(s), "rubbish"), []byte("\x00\x01\x02"), 0o755))
	for _, x := range []struct {
		path []string
		want cell.Kind
	}{
		{[]string{"/no/such/program"}, cell.NoSuchBinary},
		{[]string{work + "/plain"}, cell.NotRunnable},
		{[]string{work + "/rubbish"}, cell.NotRunnable},
		{[]string{work}, cell.NotRunnable},
	} {
		p := sh("exit 0")
		p.Process.Path = x.path
		_, err := i.Start(k.ctx, "never", p, [3]*os.File{})
		k.wantKind(x.path[0], err, x.want)
	}
	// A directory without search permission is not the same as a program without execute
	// permission.
	k.must(os.MkdirAll(filepath.Join(k.folder(s), "closed"), 0o755))
	k.must(os.Chmod(filepath.Join(k.folder(s), "closed"), 0))
	p := sh("exit 0")
	p.Process.Path = []string{work + "/closed/program", "/no/such/program"}
	_, err := i.Start(k.ctx, "never", p, [3]*os.File{})
	k.wantKind("a program that is nowhere", err, cell.NoSuchBinary)
	p = sh("exit 0")
	p.Process.Workdir = work + "/nowhere"
	_, err = i.Start(k.ctx, "never", p, [3]*os.File{})
	k.wantKind("a working directory that is not there", err, cell.NotFound)
	p = sh("exit 9")
	p.Process.Path = []string{work + "/closed/program", "/no/such/program", "/bin/sh"}
	c := k.start(i, p)
	if st := c.wait(); st.Exit.Code != 9 {
		k.Errorf("the second candidate ended as %+v", *st.Exit)
	}
	if !k.empty(i) {
		k.Error("something that did not start is there")
	}
}

func testSignals(k *bench) {
	i, _ := k.cell()
	c := k.start(i, sh("trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.02; done"))
	k.says(c, "ready")
	k.wantKind("a signal that is none", c.Signal(k.ctx, "SIGNOPE"), cell.Invalid)
	k.must(c.Signal(k.ctx, "SIGTERM"))
	if st := c.wait(); *st.Exit != (cell.Exit{Code: 5}) || !strings.Contains(c.stdout(), "got it") {
		k.Errorf("ended as %+v, said %q", *st.Exit, c.stdout())
	}
	k.must(c.Signal(k.ctx, "SIGTERM")) // it has ended: no effect

	c = k.start(i, sh("sleep 300"))
	k.must(c.End(k.ctx, "interrupted", 0))
	if st := c.wait(); *st.Exit != (cell.Exit{Code: 143, Signal: "SIGTERM", Cause: "interrupted"}) || st.KilledAfter != 0 {
		k.Errorf("ended as %+v, killed after %s", *st.Exit, st.KilledAfter)
	}

	c = k.start(i, sh("trap '' TERM; echo ready; while :; do sleep 0.02; done"))
	k.says(c, "ready")
	k.must(c.End(k.ctx, "interrupted", 50*time.Millisecond))
	if st := c.wait(); *st.Exit != (cell.Exit{Code: 137, Signal: "SIGKILL", Cause: "interrupted"}) || st.KilledAfter != 50*time.Millisecond {
		k.Errorf("what ignores SIGTERM ended as %+v, killed after %s", *st.Exit, st.KilledAfter)
	}
}

func testWaitContext(k *bench) {
	i, _ := k.cell()
	c := k.start(i, sh("sleep 300"))
	why := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(k.ctx)
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := c.Wait(ctx); !errors.Is(err, why) {
		k.Errorf("Wait: %v", err)
	}
	if st, err := c.Status(k.ctx); err != nil || !st.Running {
		k.Errorf("the process without a waiter: %+v, %v", st, err)
	}
}

// A process can run in one exchange without leaving a record. If its caller goes away it
// continues, and can be found.
func testDo(k *bench) {
	i, _ := k.cell()
	if !i.Alive(k.ctx) {
		k.Error("a cell that was just made is not alive")
	}
	s := sh("cat; echo out; echo err >&2; exit 7")
	s.LogLimit = 3
	d, err := i.Do(k.ctx, "whole", s)
	k.must(err)
	if e := d.Status.Exit; d.Status.Running || e == nil || e.Code != 7 || string(d.Stdout) != "out" || string(d.Stderr) != "err" || d.Status.Stdout.Bytes != 4 {
		k.Errorf("%q, %q, %+v", d.Stdout, d.Stderr, d.Status)
	}
	if _, err := i.Process(k.ctx, "whole"); cell.KindOf(err) != cell.NotFound {
		k.Errorf("its record: %v", err)
	}
	missing := sh("")
	missing.Process.Path = []string{"/nowhere"}
	if _, err := i.Do(k.ctx, "whole", missing); cell.KindOf(err) != cell.NoSuchBinary {
		k.Errorf("a program that is not there: %v", err)
	}
	ctx, leave := context.WithCancel(k.ctx)
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := i.Do(ctx, "left", sh("sleep 300"))
		left <- err
	}()
	var p backend.Process
	k.eventually("it runs", func() bool {
		p, err = i.Process(k.ctx, "left")
		return err == nil
	})
	leave()
	if err := <-left; err == nil {
		k.Error("it ended with its caller")
	}
	p, err = i.Process(k.ctx, "left")
	k.must(err)
	k.must(p.End(k.ctx, "interrupted", 0))
	k.eventually("it ended, and its record with it", func() bool {
		_, err := i.Process(k.ctx, "left")
		return cell.KindOf(err) == cell.NotFound
	})
	if !i.Alive(k.ctx) {
		k.Error("the cell is not alive any more")
	}
	k.must(i.Remove(k.ctx, "removed"))
	k.eventually("its keeper has ended", func() bool { return !i.Alive(k.ctx) })
}

// A time-out kills processes that ignore SIGTERM and, with isolation, all descendants of the
// command; other processes continue.
func testTimeout(k *bench) {
	i, s := k.cell()
	script := sh("(trap '' TERM; while :; do echo x >> beat; sleep 0.02; done) & wait")
	script.Timeout = 300 * time.Millisecond
	c := k.start(i, script)
	if st := c.wait(); st.Exit.Cause != "timeout" || st.Exit.Code == 0 {
		k.Errorf("ended as %+v", *st.Exit)
	}
	if _, err := os.Stat(filepath.Join(k.folder(s), "beat")); err != nil {
		k.Fatal("the group never lived")
	}
	k.eventually("the group was gone", func() bool { return k.empty(i) })

	if k.caps.Isolation != "" {
		return
	}
	k.run(i, "setsid sleep 300 >/dev/null 2>&1 &")
	script = sh("(setsid sh -c 'sleep 301 & sleep 302' &); sleep 303")
	script.Timeout = 300 * time.Millisecond
	k.start(i, script).wait()
	var list []cell.ProcessInfo
	k.eventually("what the command had put into a session of its own was gone, and nothing else", func() (done bool) {
		var err error
		list, err = i.List(k.ctx) // killed processes may still be ending
		k.must(err)
		return len(list) == 1
	})
	if list[0].Command != "sleep 300" {
		k.Errorf("there are %+v", list)
	}
}

// testFirstThreadEnds: a process goes on when its first thread alone ends, is listed, and is ended with its command
// even when it has left the parent, the group and the session of that.
func testFirstThreadEnds(k *bench) {
	if k.caps.Isolation != "" {
		return
	}
	i, s := k.cell()
	script := sh(testenv.Python(k) + ` -c 'import ctypes, os, threading, time
if os.fork(): os._exit(0)
os.setsid()
threading.Thread(target=time.sleep, args=(300,)).start()
open("apart", "w").close()
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)' & while ! test -e apart; do sleep 0.01; done; sleep 303`)
	c := k.start(i, script)
	k.eventually("what it starts is apart", func() bool { _, err := os.Stat(filepath.Join(k.folder(s), "apart")); return err == nil })
	if l, err := i.List(k.ctx); err != nil || !slices.ContainsFunc(l, func(p cell.ProcessInfo) bool { return strings.Contains(p.Command, "threading") }) {
		k.Errorf("of a process without its first thread: %+v, %v", l, err)
	}
	k.must(c.Process.End(k.ctx, "stopped", time.Millisecond))
	c.wait()
	k.eventually("what the command had put apart was gone", func() bool { return k.empty(i) })
}

func testEndsCell(k *bench) {
	i, _ := k.cell()
	s := sh("sleep 300 >/dev/null 2>&1 & exit 3")
	s.EndsCell = true
	c := k.start(i, s)
	st := c.wait()
	if *st.Exit != (cell.Exit{Code: 3}) || st.LeftOver != 1 {
		k.Errorf("ended as %+v, %d left over", *st.Exit, st.LeftOver)
	}
	k.eventually("the cell was empty", func() bool { return k.empty(i) })
}

func testKillAll(k *bench) {
	i, _ := k.cell()
	k.run(i, "sleep 300 >/dev/null 2>&1 &") // outlives its parent
	c := k.start(i, sh("sleep 301"))
	if k.empty(i) {
		k.Fatal("what a command leaves behind is not there")
	}
	n, err := i.KillAll(k.ctx, "stopped")
	k.must(err)
	if n < 2 || n > 3 { // the shell may have become its sleep
		k.Errorf("there were %d", n)
	}
	if st := c.wait(); *st.Exit != (cell.Exit{Code: 137, Signal: "SIGKILL", Cause: "stopped"}) {
		k.Errorf("ended as %+v", *st.Exit)
	}
	k.eventually("the cell was empty", func() bool { return k.empty(i) })
	if n, err := i.KillAll(k.ctx, "again"); err != nil || n != 0 {
		k.Errorf("again: %d, %v", n, err)
	}
	// A cell with killed processes is as good as new.
	for n := range 20 {
		if st, _ := k.run(i, "exit 6"); *st.Exit != (cell.Exit{Code: 6}) {
			k.Fatalf("command %d afterwards ended as %+v", n, *st.Exit)
		}
	}
}

// Orphans that have ended are no processes of the cell any more.
func testOrphans(k *bench) {
	i, _ := k.cell()
	k.run(i, "(sleep 0.05 &) ; (sleep 0.1 &)")
	k.eventually("orphans were gone", func() bool { return k.empty(i) })
}

func testFreeze(k *bench) {
	i, s := k.cell()
	if k.caps.Freeze != "" {
		k.wantKind("freezing that Caps deny", i.Freeze(k.ctx), cell.Unsupported)
		return
	}
	k.start(i, sh("while :; do echo x >> beat; sleep 0.01; done"))
	beat := filepath.Join(k.folder(s), "beat")
	k.eventually("it lived", grows(beat))
	k.must(i.Freeze(k.ctx))
	k.must(i.Freeze(k.ctx))
	still := grows(beat)
	time.Sleep(150 * time.Millisecond)
	if still() {
		k.Error("it works on while frozen")
	}
	k.must(i.Thaw(k.ctx))
	k.must(i.Thaw(k.ctx))
	k.eventually("it went on", grows(beat))
	// Freeze returns when nothing is under way any more.
	k.start(i, sh("while :; do echo x >> beat; done"))
	for range 15 {
		k.must(i.Freeze(k.ctx))
		still := grows(beat)
		time.Sleep(3 * time.Millisecond)
		if still() {
			k.Fatal("it works on after Freeze")
		}
		k.must(i.Thaw(k.ctx))
	}
	// A frozen cell can be removed (at the end of every test).
	k.must(i.Freeze(k.ctx))
}

func testStats(k *bench) {
	i, _ := k.cell()
	c := k.start(i, sh("echo up; exec sleep 300"))
	k.says(c, "up")
	var list []cell.ProcessInfo
	k.eventually("it slept", func() bool {
		var err error
		list, err = i.List(k.ctx)
		k.must(err)
		return len(list) == 1 && strings.Contains(list[0].Command, "sleep 300")
	})
	if p := list[0]; p.PID <= 0 || time.Since(p.Started).Abs() > time.Minute || p.State == "" {
		k.Errorf("it is listed as %+v", p)
	}
	st, err := i.Stats(k.ctx)
	k.must(err)
	if st.Processes != 1 || len(st.Measured) == 0 || st.Measured[0] != "processes" {
		k.Errorf("stats %+v", st)
	}
	if !slices.Contains(st.Measured, "memory") || st.Memory <= 0 {
		k.Errorf("its memory is %d bytes, measured were %v", st.Memory, st.Measured)
	}
}

func testTerminal(k *bench) {
	i, _ := k.cell()
	s := sh("test -t 0 && test -t 1 && test -t 2 && stty size; : < /dev/tty && echo controlled; read x; stty size")
	s.Process.TTY, s.Process.Rows, s.Process.Cols = true, 33, 77
	s.Process.Env = append(s.Process.Env, "TERM=dumb")
	p, err := i.Start(k.ctx, "tty", s, [3]*os.File{})
	if k.caps.Terminal != "" {
		k.wantKind("a terminal that Caps deny", err, cell.Unsupported)
		return
	}
	k.must(err)
	got := k.stream(p, backend.Offsets{}, true, "controlled", func(w io.Writer) {
		send(w, api.FrameResize, `{"rows":40,"cols":90}`)
		send(w, api.FrameStdin, "\r")
	})
	if !strings.HasPrefix(got.stdout, "33 77\r\ncontrolled\r\n") || !strings.HasSuffix(got.stdout, "40 90\r\n") || got.stderr != "" {
		k.Errorf("the terminal showed %q; stderr %q", got.stdout, got.stderr)
	}
}

// A process is identified by its PID and start time. A later process with the same PID is
// another one.
func testReusedPID(k *bench) {
	i, _ := k.cell()
	c := k.start(i, sh("exit 0"))
	c.wait()
	if c.PID() == 0 {
		return // it never had a PID on the host
	}
	testenv.Root(k)
	k.eventually("its number was free", func() bool { return syscall.Kill(c.PID(), 0) == syscall.ESRCH })
	other := k.takeNumber(c.PID())
	defer other.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	k.must(c.Signal(k.ctx, "SIGKILL"))
	k.must(c.End(k.ctx, "stopped", 0))
	_, err := i.KillAll(k.ctx, "stopped")
	k.must(err)
	k.must(i.Freeze(k.ctx))
	k.must(i.Thaw(k.ctx))
	k.must(i.Remove(k.ctx, "done"))
	select {
	case err := <-ended:
		k.Errorf("the process that has the PID %d now was killed: %v", c.PID(), err)
	case <-time.After(100 * time.Millisecond):
	}
}

// takeNumber starts a session leader with the PID pid.
func (k *bench) takeNumber(pid int) *exec.Cmd {
	k.Helper()
	for range 500 {
		err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0)
		if err != nil {
			k.Skipf("needs to choose a process's number: %v", err)
		}
		c := exec.Command("sleep", "60")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		k.must(c.Start())
		if c.Process.Pid == pid {
			return c
		}
		c.Process.Kill()
		c.Wait()
	}
	k.Skipf("needs the number %d, which others were always given first", pid)
	return nil
}
