package guest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// TestMain is the guest, too, where a test has started it as one.
func TestMain(m *testing.M) {
	if os.Getenv("PANDO_TEST_GUEST") != "" {
		kind := os.Getenv("PANDO_TEST_GUEST")
		if kind != "gvisor" { // what it mounts stays here
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				println(err.Error())
				os.Exit(1)
			}
			if err := errors.Join(loopback(), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
				println(err.Error())
				os.Exit(1)
			}
			go receiveSockets()
		}
		begin := Serve
		if kind == "machine" {
			begin = func(fd int) error { return ServeMachine(fd, nil) }
		}
		if err := begin(0); err != nil {
			println("guest:", err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// loopback brings the interface of a network of its own up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// receiveSockets puts sockets that come over descriptor 3 in the place of the
// guest's, as a restored copy finds another one there.
func receiveSockets() {
	for {
		oob := make([]byte, 64)
		_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), oob, 0)
		if err != nil || n == 0 {
			return
		}
		m, _ := unix.ParseSocketControlMessage(oob[:n])
		fds, _ := unix.ParseUnixRights(&m[0])
		unix.Dup3(fds[0], 0, unix.O_CLOEXEC)
		unix.Close(fds[0])
	}
}

var testToken = []byte("0123456789abcdef0123456789abcdef")

// sockets is a connected pair: the keeper's end, and the guest's.
func sockets(t testing.TB) (net.Conn, *os.File) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := os.NewFile(uintptr(p[0]), "keeper"), os.NewFile(uintptr(p[1]), "guest")
	c, err := net.FileConn(mine)
	mine.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); theirs.Close() })
	return c, theirs
}

// bed is a guest, and how it was started.
type bed struct {
	*Client
	conn net.Conn
	gv   *gvisor  // nil on plain Linux
	swap *os.File // to a guest on plain Linux
	ctx  context.Context
	gone <-chan struct{} // closed when the sandbox of a copy has ended
}

// beds runs a test against a guest on plain Linux and one in gVisor.
func beds(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Run("linux", func(t *testing.T) { f(t, onLinux(t)) })
	t.Run("gvisor", func(t *testing.T) { f(t, inGvisor(t)) })
}

func onLinux(t testing.TB) *bed { return onLinuxAs(t, "linux") }

// onLinuxAs is a guest on plain Linux, or one that takes it for a machine of its own.
func onLinuxAs(t testing.TB, kind string) *bed {
	t.Helper()
	testenv.Root(t)
	c, theirs := sockets(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PANDO_TEST_GUEST=" + kind, "PATH=/usr/bin:/bin"}
	cmd.Stdin, cmd.Stderr = theirs, os.Stderr
	swap, swap2, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(int(swap2.Fd()), false)
	t.Cleanup(func() { swap.Close() })
	defer swap2.Close()
	cmd.ExtraFiles = []*os.File{swap2}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	b := start(t, cmd, c, theirs)
	b.swap = swap
	return b
}

func start(t testing.TB, cmd *exec.Cmd, c net.Conn, theirs *os.File) *bed {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		c.Close()
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(testenv.Patience()):
			t.Error("the guest does not end with its connection")
			cmd.Process.Kill()
			<-ended
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cl, err := Boot(ctx, c, testToken)
	if err != nil {
		t.Fatal(err)
	}
	return &bed{Client: cl, conn: c, ctx: ctx}
}

// gvisor is a sandbox.
type gvisor struct {
	runsc, dir, id string
}

func (g *gvisor) command(args ...string) *exec.Cmd {
	return exec.Command(g.runsc, append([]string{"--root", filepath.Join(g.dir, "root"), "--platform=systrap", "--network=none", "--ignore-cgroups",
		"--overlay2=none", "--in-sandbox-cgroup=v2", "--log", filepath.Join(g.dir, "log")}, args...)...)
}

// config writes a sandbox's bundle.
func (g *gvisor) config(t testing.TB) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var caps []string
	for c := range 41 {
		caps = append(caps, capNames[c])
	}
	all := map[string]any{"bounding": caps, "effective": caps, "permitted": caps}
	conf := map[string]any{"ociVersion": "1.2.1", "hostname": "cell",
		"process": map[string]any{"user": map[string]int{"uid": 0, "gid": 0}, "args": []string{exe}, "cwd": "/",
			"env": []string{"PANDO_TEST_GUEST=gvisor", "PATH=/usr/bin:/bin"}, "capabilities": all},
		"root": map[string]any{"path": "/"},
		"mounts": []map[string]any{{"destination": "/proc", "type": "proc"}, {"destination": "/dev", "type": "tmpfs"},
			{"destination": "/sys", "type": "sysfs", "options": []string{"ro"}}},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}}}}
	b, _ := json.Marshal(conf)
	for _, d := range []string{"root", "bundle"} {
		if err := os.MkdirAll(filepath.Join(g.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(g.dir, "bundle", "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func inGvisor(t testing.TB) *bed {
	t.Helper()
	g := &gvisor{runsc: testenv.Runsc(t), dir: t.TempDir(), id: "guest"}
	g.config(t)
	c, theirs := sockets(t)
	cmd := g.command("run", "--bundle", filepath.Join(g.dir, "bundle"), g.id)
	cmd.Stdin, cmd.Stderr = theirs, os.Stderr
	t.Cleanup(func() { unix.Unmount(filepath.Join(g.dir, "root/null-netns"), unix.MNT_DETACH) })
	t.Cleanup(func() { g.command("delete", "--force", g.id).Run() })
	b := start(t, cmd, c, theirs)
	b.gv = g
	return b
}

var capNames = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID
	CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE
	CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME
	CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG
	CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// rootCaps are those of commands that are root.
const rootCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SETFCAP

func sh(id, script string) Command {
	return Command{ID: id, UID: 0, GID: 0, Caps: rootCaps, Process: cell.Process{
		Args: []string{"sh", "-c", script}, Path: []string{"/bin/sh"}, Env: []string{"PATH=/usr/bin:/bin"}, Workdir: "/"}}
}

// running is a process with the keeper's ends of its streams.
type running struct {
	*Process
	in, out, errs *os.File
}

// pipe is a pipe; its first end is the test's.
func pipe(t testing.TB, mine int) (ours, theirs *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(p[mine], true)
	ours, theirs = os.NewFile(uintptr(p[mine]), "ours"), os.NewFile(uintptr(p[1-mine]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// goOn ends a hold, and waits until the guest goes on.
func (b *bed) goOn() error {
	done, err := b.GoOn(b.ctx)
	if err != nil {
		return err
	}
	return done()
}

func (b *bed) start(t testing.TB, c Command, control *os.File) (*running, error) {
	t.Helper()
	in, in2 := pipe(t, 1)
	out, out2 := pipe(t, 0)
	errs, errs2 := pipe(t, 0)
	p, err := b.Start(b.ctx, c, [3]*os.File{in2, out2, errs2}, control)
	in2.Close()
	out2.Close()
	errs2.Close()
	if err != nil {
		return nil, err
	}
	return &running{p, in, out, errs}, nil
}

// run runs a script and returns how it ended and what it wrote.
func (b *bed) run(t testing.TB, c Command, stdin string) (cell.Exit, string, string) {
	t.Helper()
	r, err := b.start(t, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { r.in.WriteString(stdin); r.in.Close() }()
	out, errs := make(chan string, 1), make(chan string, 1)
	go func() { out <- readAll(r.out) }()
	go func() { errs <- readAll(r.errs) }()
	exit, _ := r.Wait(func() {})
	r.Release()
	return exit, <-out, <-errs
}

func readAll(f *os.File) string {
	var b strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}
