package machine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// This process is no machine's first.
func TestNotHere(t *testing.T) {
	t.Setenv("pando", "1")
	if Here() {
		t.Error("a test is taken for the first process of a machine")
	}
}

// Modules are loaded in the order of their names, and those that are compressed by
// the kernel's own means. A kernel without modules has none.
func TestModulesInTheOrderOfTheirNames(t *testing.T) {
	dir := t.TempDir()
	if list, err := modulesIn(filepath.Join(dir, "none")); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	for _, n := range []string{"010-virtio_mmio.ko", "002-virtio_ring.ko.xz", "001-virtio.ko", "README"} {
		write(t, filepath.Join(dir, n), "")
	}
	list, err := modulesIn(dir)
	want := []string{filepath.Join(dir, "001-virtio.ko"), filepath.Join(dir, "002-virtio_ring.ko.xz"), filepath.Join(dir, "010-virtio_mmio.ko")}
	if err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v", list, err)
	}
	if moduleFlags(list[0]) != 0 || moduleFlags(list[1]) != unix.MODULE_INIT_COMPRESSED_FILE {
		t.Error("the kernel is told the wrong thing about compression")
	}
}

// A module that the kernel refuses is named.
func TestRefusedModuleIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "001-nothing.ko"), "this is no module")
	if err := loadModules(dir); err == nil || !strings.Contains(err.Error(), "001-nothing.ko") {
		t.Errorf("%v", err)
	}
}

// Ports are found by their names, also when those come late.
func TestPortsByName(t *testing.T) {
	sys, dev := t.TempDir(), t.TempDir()
	write(t, sys+"/vport1p1/name", "files\n")
	write(t, dev+"/vport1p1", "of files")
	if err := os.Mkdir(sys+"/vport1p2", 0o755); err != nil { // it has no name yet
		t.Fatal(err)
	}
	some, err := openPorts(sys, dev, time.Now(), "guest", "files")
	if cell.KindOf(err) != cell.Unavailable || !strings.HasSuffix(err.Error(), "port guest") || some["files"] == nil {
		t.Fatalf("%v, %v", some, err)
	}
	unix.Close(some["files"].fd)
	go func() {
		time.Sleep(20 * time.Millisecond)
		write(t, dev+"/vport1p2", "of guest")
		write(t, sys+"/vport1p2/name", "guest\n")
	}()
	all, err := openPorts(sys, dev, time.Now().Add(time.Minute), "guest", "files")
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range all {
		b := make([]byte, 100)
		n, err := p.Read(b)
		if err != nil || string(b[:n]) != "of "+name {
			t.Errorf("%s: %q, %v", name, b[:n], err)
		}
		unix.Close(p.fd)
	}
}

// A port without a peer blocks at first, and ends when no peer comes; what is written
// arrives whole.
func TestPortOfNobody(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	p := &port{fd: fds[0], name: "files", patience: 20 * time.Millisecond}
	if err := p.connected(0); err != nil {
		t.Error(err)
	}
	big := strings.Repeat("x", 1<<20)
	f := os.NewFile(uintptr(fds[1]), "other")
	got := make(chan int, 1)
	go func() {
		n, _ := io.CopyN(io.Discard, f, int64(len(big)))
		f.Close()
		got <- int(n)
	}()
	if n, err := p.Write([]byte(big)); n != len(big) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n := <-got; n != len(big) {
		t.Errorf("%d bytes came", n)
	}
	if err := p.connected(0); cell.KindOf(err) != cell.Unavailable {
		t.Fatalf("nobody is there, and: %v", err)
	}
	if _, err := p.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%v", err)
	}
}

// A cell's /dev has what programs expect there, accessible to all users.
func TestDevOfACell(t *testing.T) {
	for _, want := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if !slices.ContainsFunc(devices, func(d device) bool { return d.name == want }) {
			t.Errorf("there is no %s", want)
		}
	}
	testenv.Root(t)
	dev := t.TempDir()
	if err := fillDev(dev); err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		var mine, host unix.Stat_t
		if err := unix.Stat(filepath.Join(dev, d.name), &mine); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat("/dev/"+d.name, &host); err != nil {
			t.Fatal(err)
		}
		if mine.Rdev != host.Rdev || mine.Mode != unix.S_IFCHR|0o666 {
			t.Errorf("%s: %x, mode %o", d.name, mine.Rdev, mine.Mode)
		}
	}
	if to, err := os.Readlink(dev + "/stdin"); err != nil || to != "/proc/self/fd/0" {
		t.Errorf("%s, %v", to, err)
	}
	if st, err := os.Stat(dev + "/.empty"); err != nil || !st.IsDir() {
		t.Errorf("what covers /proc is not there: %v", err)
	}
}

// The kernel's settings are written as they are named, and those that it has not are
// left out; one that it refuses is an error.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/user/max_user_namespaces", "15000")
	if err := settings(dir); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(dir + "/user/max_user_namespaces"); string(b) != "0" {
		t.Errorf("%q", b)
	}
	if _, err := os.Stat(dir + "/kernel"); !errors.Is(err, os.ErrNotExist) {
		t.Error("something was made")
	}
	if err := os.MkdirAll(dir+"/kernel/core_pattern", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := settings(dir); err == nil || !strings.Contains(err.Error(), "kernel.core_pattern") {
		t.Errorf("%v", err)
	}
}
