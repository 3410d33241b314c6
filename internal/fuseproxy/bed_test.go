package fuseproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	insideEnv = "PANDO_TEST_GOFER_INSIDE" // set in the namespace of the tests; says why there is none
	actsEnv   = "PANDO_TEST_GOFER_ACTS"   // a directory to act in
)

// TestMain runs the tests in a mount namespace of their own, and in a user
// namespace where that takes one.
func TestMain(m *testing.M) {
	if dir := os.Getenv(actsEnv); dir != "" {
		act(dir)
		os.Exit(0)
	}
	if _, inside := os.LookupEnv(insideEnv); inside {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Start()
	if err != nil { // without a namespace, what needs none
		os.Setenv(insideEnv, err.Error())
		os.Exit(m.Run())
	}
	if err := cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// bed is a tree that is served and mounted.
type bed struct {
	t       testing.TB
	tree    string // what is served
	mnt     string // where it is seen
	server  *Server
	courier *Courier
	dev     *os.File
	near    net.Conn // the courier's
	far     net.Conn // the server's
	served  chan error
	carried chan error
}

func mounts(t testing.TB) {
	t.Helper()
	if why := os.Getenv(insideEnv); why != "" {
		t.Skip("needs mounts")
	}
	if os.Getenv("E2E_SOAK") == "" { // a process that inspects a mount with a stuck server gets stuck, too
		t.Skip("needs E2E_SOAK")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("needs /dev/fuse")
	} else {
		f.Close()
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

func newBed(t testing.TB) *bed {
	t.Helper()
	mounts(t)
	dir := t.TempDir()
	b := &bed{t: t, tree: filepath.Join(dir, "tree"), mnt: filepath.Join(dir, "mnt"), served: make(chan error, 1), carried: make(chan error, 1)}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		os.Chmod(d, 0o755)
	}
	for _, d := range []string{b.tree, b.mnt} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if b.server, err = New(openDir(t, b.tree), Options{}); err != nil {
		t.Fatal(err)
	}
	b.near, b.far = pair(t)
	dev, err := Mount(b.mnt, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.dev = dev
	b.courier = NewCourier(dev, b.near)
	go func() { b.carried <- b.courier.Run() }()
	b.serve()
	if err := Settle(b.mnt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.mnt, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		select {
		case err := <-b.carried:
			if err != nil {
				t.Errorf("the courier: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("the courier does not end with the mount")
		}
		dev.Close()
		b.near.Close()
		// Unread answers turn the end into a reset.
		if err := b.wait(); err != nil && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
			t.Errorf("the server: %v", err)
		}
		b.server.Close()
	})
	return b
}

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]net.Conn
	for i, fd := range p {
		f := os.NewFile(uintptr(fd), "connection")
		if out[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { out[i].Close() })
	}
	return out[0], out[1]
}

func (b *bed) serve() { go func() { b.served <- b.server.Serve(b.far) }() }

func (b *bed) wait() error {
	select {
	case err := <-b.served:
		return err
	case <-time.After(5 * time.Second):
		return errors.New("does not end with its connection")
	}
}

// hold stops the guest's requests, as before a copy.
func (b *bed) hold() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.courier.Hold(ctx); err != nil {
		b.t.Fatal(err)
	}
}

// replace goes on with a server over a copy of the tree, with its state from Save
// and Load.
func (b *bed) replace() {
	b.t.Helper()
	done := false
	defer func() {
		if !done { // these answers never come
			b.dev.Close()
			b.courier.GoOn()
		}
	}()
	b.hold()
	saved, err := b.server.Save()
	if err != nil {
		b.t.Fatal(err)
	}
	b.far.SetReadDeadline(time.Unix(1, 0))
	if err := b.wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		b.t.Fatal(err)
	}
	b.far.SetReadDeadline(time.Time{})
	copied := b.tree + "+"
	if err := copyTree(b.tree, copied); err != nil {
		b.t.Fatal(err)
	}
	b.server.Close()
	if err := os.Rename(b.tree, b.tree+".old"); err != nil {
		b.t.Fatal(err)
	}
	b.tree = copied
	if b.server, err = Load(openDir(b.t, copied), saved, Options{}); err != nil {
		b.t.Fatal(err)
	}
	b.serve()
	b.courier.GoOn()
	done = true
}

// copyTree copies files with their links, in this process: one that is started
// while requests are held waits for them, when it closes what it doesn't inherit.
func copyTree(from, to string) error {
	links := map[uint64]string{}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dst := to + strings.TrimPrefix(p, from)
		if d.IsDir() {
			return os.Mkdir(dst, 0o755)
		}
		var x unix.Stat_t
		if err := unix.Lstat(p, &x); err != nil {
			return err
		}
		if first, ok := links[x.Ino]; ok {
			return os.Link(first, dst)
		}
		links[x.Ino] = dst
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := os.WriteFile(dst, text, 0o644); err != nil {
			return err
		}
		return os.Chtimes(dst, time.Time{}, time.Unix(x.Mtim.Unix()))
	})
}

// run runs a command in a directory, in a process of its own: a process that waits
// for itself in a page fault can't serve.
func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
