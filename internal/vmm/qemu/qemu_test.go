package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm"
)

func TestCommandHasEveryFileAsADescriptor(t *testing.T) {
	file := func() *os.File {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(128 << 20); err != nil {
			t.Fatal(err)
		}
		return f
	}
	s := &vmm.Spec{Kernel: file(), Initramfs: file(), Append: "their=words", CPUs: 2, Memory: 128 << 20, RAM: file(), Private: true,
		Ports: []vmm.Port{{Name: "guest", Socket: file()}, {Name: "files", Socket: file()}}, Monitor: file(), Console: file(), Net: file(), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Accel: vmm.Emulated}
	args, files, err := (&Driver{}).Command(&vmm.Program{Path: "/bin/qemu"}, s)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(args, " ")
	for want, f := range map[string]*os.File{
		"-kernel /proc/self/fd/%d": s.Kernel, "-initrd /proc/self/fd/%d": s.Initramfs, "mem-path=/proc/self/fd/%d,share=off": s.RAM,
		"socket,id=monitor,fd=%d": s.Monitor, "set=1,fd=%d": s.Console, "local.str=%d -device virtio-net-device,netdev=net,mac=02:00:00:00:00:01": s.Net,
		"socket,id=port1,fd=%d -device virtserialport,chardev=port1,nr=1,name=guest": s.Ports[0].Socket,
		"socket,id=port2,fd=%d -device virtserialport,chardev=port2,nr=2,name=files": s.Ports[1].Socket,
	} {
		if want = fmt.Sprintf(want, 3+slices.Index(files, f)); !strings.Contains(line, want) {
			t.Errorf("there is no %q in %s", want, line)
		}
	}
	if args[0] != "/bin/qemu" || len(files) != 8 {
		t.Errorf("%s with %d files", args[0], len(files))
	}
	words := args[slices.Index(args, "-append")+1]
	if !strings.HasSuffix(words, " their=words") || !strings.Contains(words, "console=ttyS0") || !strings.Contains(words, "tsc_early_khz=") {
		t.Errorf("the kernel is told %q", words)
	}
}

func TestCounterIsHalfOfBogoMIPS(t *testing.T) {
	const info = "processor\t: 0\ncpu MHz\t\t: 1200.000\nbogomips\t: 5192.24\n\nprocessor\t: 1\nbogomips\t: 5190.00\n"
	if got, err := counterKHz(strings.NewReader(info)); err != nil || got != 2596120 {
		t.Errorf("it is %d, %v", got, err)
	}
	if got, err := counterKHz(strings.NewReader("cpu MHz : 1200.000\nbogomips : 0.00\n")); cell.KindOf(err) != cell.Unsupported {
		t.Errorf("without a figure it is %d, %v", got, err)
	}
}

func TestProbeFindsWhatTheProgramReads(t *testing.T) {
	testenv.Program(t, "qemu-system-x86_64")
	p, err := (&Driver{}).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Version == "" || !filepath.IsAbs(p.Path) || len(p.Files) < 10 {
		t.Errorf("it is %+v", p)
	}
	for _, f := range p.Files {
		if _, err := os.Stat(f); err != nil || !filepath.IsAbs(f) {
			t.Errorf("it reads %s: %v", f, err)
		}
	}
}

func TestProbeSaysWhatToInstall(t *testing.T) {
	script := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, search := range []string{"/nowhere/qemu", script} {
		_, err := (&Driver{Search: search}).Probe(t.Context())
		if cell.KindOf(err) != cell.Unavailable || !strings.Contains(cell.HintOf(err), "qemu-system-x86") {
			t.Errorf("%s: %v (%s), hint %q", search, err, cell.KindOf(err), cell.HintOf(err))
		}
	}
}

// program is a monitor's end as the program has it.
type program struct {
	*testing.T
	*net.UnixConn
	in *bufio.Scanner
}

func pair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// say sends lines.
func (p *program) say(lines ...string) {
	if _, err := p.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
		p.Error(err)
	}
}

// hears returns the next command's number.
func (p *program) hears(command string) (id int) {
	var x struct {
		Execute string
		ID      int
	}
	if !p.in.Scan() || json.Unmarshal(p.in.Bytes(), &x) != nil || x.Execute != command {
		p.Errorf("the program hears %q, want %s", p.in.Text(), command)
	}
	return x.ID
}

func (p *program) ok(command, result string) {
	p.say(fmt.Sprintf(`{"return": %s, "id": %d}`, result, p.hears(command)))
}

// opened is a machine with a program that a test scripts.
func opened(t *testing.T, does func(*program)) vmm.Machine {
	t.Helper()
	ours, theirs := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		p := &program{t, theirs, bufio.NewScanner(theirs)}
		p.say(`{"QMP": {"version": {}}}`)
		p.ok("qmp_capabilities", "{}")
		p.ok("migrate-set-capabilities", "{}")
		does(p)
	}()
	m, err := (&Driver{}).Open(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		<-done
	})
	return m
}

func TestAnswersFindTheirCommands(t *testing.T) {
	m := opened(t, func(p *program) {
		a, b := p.hears("query-status"), p.hears("query-status")
		p.say(`{"event": "STOP"}`, fmt.Sprintf(`{"return": {"status": "paused"}, "id": %d}`, b), `{"return": {}, "id": 99}`,
			fmt.Sprintf(`{"return": {"status": "running"}, "id": %d}`, a))
	})
	got := make(chan vmm.State, 2)
	for range 2 {
		go func() {
			s, err := m.Status(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- s
		}()
	}
	if a, b := <-got, <-got; a == b {
		t.Errorf("both are %s", a)
	}
}

func TestAMachineThatDoesNotAnswerIsNotWaitedForTooLong(t *testing.T) {
	m := opened(t, func(p *program) {
		id := p.hears("stop")
		p.ok("query-status", `{"status": "running"}`) // goes on with the next
		p.say(fmt.Sprintf(`{"return": {}, "id": %d}`, id))
		p.ok("stop", "{}")
	})
	late := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, late)
	defer cancel()
	if err := m.Stop(ctx); !errors.Is(err, late) {
		t.Errorf("it is %v, want %v", err, late)
	}
	if s, err := m.Status(t.Context()); err != nil || s != vmm.Running {
		t.Errorf("the next answer is %s, %v", s, err)
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRefusalsAndEnds(t *testing.T) {
	m := opened(t, func(p *program) {
		p.say(fmt.Sprintf(`{"error": {"class": "GenericError", "desc": "not today"}, "id": %d}`, p.hears("stop")))
		p.hears("stop")
		p.say(`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}`)
	})
	if err := m.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("a refusal is %v", err)
	}
	if err := m.Stop(t.Context()); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("a program that ends is %v, want %s", err, cell.Unavailable)
	}
	<-m.Done()
	if got := m.Why(); !strings.Contains(got, "restarted") {
		t.Errorf("it ended because %q", got)
	}
}

func TestOpenFailsWithoutAGreeting(t *testing.T) {
	ours, theirs := pair(t)
	theirs.Close()
	if _, err := (&Driver{}).Open(t.Context(), ours); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("a program that is gone is %v, want %s", err, cell.Unavailable)
	}
	ours, _ = pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := (&Driver{}).Open(ctx, ours); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that says nothing is %v, want %v", err, context.DeadlineExceeded)
	}
}

// FuzzMonitor sends invalid answers: the reader ends, and pending commands fail.
func FuzzMonitor(f *testing.F) {
	f.Add([]byte("{\"QMP\": {}}\n{\"return\": {\"status\": 1}, \"id\": 1}\n{\"event\": \"MIGRATION\", \"data\": []}\n"))
	f.Add([]byte("{\"event\": \"SHUTDOWN\", \"data\": null}\n{\"id\": -1}\n[]\n"))
	f.Fuzz(func(t *testing.T, lines []byte) {
		boundtest.Allocates(t, len(lines), func() {
			ours, theirs := pair(t)
			v := &machine{migrated: make(chan string, 8)}
			v.m = newMonitor(ours, v.event)
			go func() {
				theirs.Write(lines)
				theirs.CloseWrite()
			}()
			v.Status(t.Context())
			<-v.Done()
			theirs.Close()
		})
	})
}
