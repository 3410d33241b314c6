package microvm

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// What runs a machine, and what serves its files, have nothing but what they need:
// code that breaks out of the machine finds no capability, no file of the cell or the host
// that QEMU doesn't read, no network, and a filter. The keeper can look into both.
func TestJail(t *testing.T) {
	b, _, qemu, fuseproxy := running(t)

	confined(t, qemu, 0)
	confined(t, fuseproxy, fuseproxyJail.Caps)
	if r := root(t, qemu); !slices.Equal(r, []string{"lib", "lib64", "proc", "usr"}) {
		t.Errorf("QEMU sees %q", r)
	}
	if r := root(t, fuseproxy); !slices.Equal(r, []string{"cell", "proc"}) {
		t.Errorf("the fuseproxy sees %q", r)
	}
	k, err := b.tools(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, top := range programTops {
		onlyCopies(t, k.root, process(qemu, "root"), top)
	}
	if q, g, own := link(t, qemu, "ns/net"), link(t, fuseproxy, "ns/net"), link(t, os.Getpid(), "ns/net"); q == g || q == own || g == own {
		t.Errorf("networks: QEMU has %s, the fuseproxy %s, and the host %s", q, g, own)
	}
	for _, pid := range []int{qemu, fuseproxy} {
		looks(t, pid)
	}
	if b, err := os.ReadFile(process(fuseproxy, "timerslack_ns")); strings.TrimSpace(string(b)) != "2000000" { // its runtime's monitor would cost as much as its work
		t.Errorf("the fuseproxy's timers may be late by %s ns (%v)", b, err)
	}
}

// running is a cell with a machine that runs until the test ends, and the machine's programs.
func running(t *testing.T) (b *Backend, i backend.Instance, qemu, fuseproxy int) {
	t.Helper()
	cache := t.TempDir()
	b = New(machines(t, cache))
	t.Cleanup(b.Close)
	i, err := b.Create(t.Context(), small(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Remove(context.WithoutCancel(t.Context()), "the test ended") })
	qemu, fuseproxy = programs(t, cache)
	return b, i, qemu, fuseproxy
}

// small is a cell with a file of its own, and nothing else.
func small(t *testing.T) cell.Spec {
	t.Helper()
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "of-the-cell"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return cell.Spec{
		ID: cell.NewID(), Hostname: "jail", Workdir: "/", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: "/"}, Limits: cell.Limits{Disk: 1 << 20},
		Mounts: []cell.Mount{{Kind: cell.Tmpfs, Target: "/run"}, {Kind: cell.Tmpfs, Target: "/tmp"}, {Kind: cell.Tmpfs, Target: "/usr"}, {Kind: cell.Bind, Source: work, Target: "/work", Owned: true}}, Writes: []string{work},
	}
}

// programs finds those of the only machine with an initramfs in a cache.
func programs(t *testing.T, cache string) (qemu, fuseproxy int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{} // a fuseproxy, by its pid namespace
	for _, path := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		args, _ := os.ReadFile(path)
		switch name, _, _ := strings.Cut(string(args), "\x00"); filepath.Base(name) {
		case "pando-fuseproxy":
			if ns, err := os.Readlink(process(pid, "ns/pid")); err == nil {
				found[ns] = pid
			}
		case "qemu-system-x86_64":
			files, _ := filepath.Glob(process(pid, "fd/*"))
			if slices.ContainsFunc(files, func(f string) bool { to, _ := os.Readlink(f); return strings.HasPrefix(to, cache+"/") }) {
				qemu = pid
			}
		}
	}
	if qemu == 0 {
		t.Fatal("no QEMU has a file of this test's open")
	}
	if fuseproxy = found[link(t, qemu, "ns/pid")]; fuseproxy == 0 {
		t.Fatal("there is no fuseproxy beside QEMU")
	}
	return qemu, fuseproxy
}

// confined checks what the kernel says of a process.
func confined(t *testing.T, pid int, caps uint64) {
	t.Helper()
	text, err := os.ReadFile(process(pid, "status"))
	if err != nil {
		t.Fatal(err)
	}
	held := strconv.FormatUint(1<<63|caps, 16)
	want := map[string]string{"NoNewPrivs": "1", "Seccomp": "2"}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		want[set] = "0" + held[1:]
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if w, is := want[name]; is && strings.TrimSpace(value) != w {
			t.Errorf("%s of process %d is %s, want %s", name, pid, strings.TrimSpace(value), w)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("the status of process %d does not have %v", pid, want)
	}
}

// root is what is in a process's root, which is read-only, and below which
// nothing else is mounted, nor over it.
func root(t *testing.T, pid int) (names []string) {
	t.Helper()
	dir := process(pid, "root")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	mounts, err := os.ReadFile(process(pid, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	roots := 0
	for line := range strings.Lines(string(mounts)) {
		at := strings.Fields(line)[4]
		if at == "/" {
			roots++
		} else if !slices.Contains(names, strings.Split(at, "/")[1]) {
			t.Errorf("process %d has something mounted at %s", pid, at)
		}
	}
	if roots != 1 {
		t.Errorf("process %d has %d roots", pid, roots)
	}
	if err := os.Mkdir(filepath.Join(dir, "new"), 0o700); !errors.Is(err, unix.EROFS) {
		t.Errorf("the root of process %d can be written to: %v", pid, err)
	}
	return names
}

// onlyCopies checks that a process sees below top what was copied for it, and
// nothing else.
func onlyCopies(t *testing.T, kit, root, top string) {
	t.Helper()
	files := func(root string) (list []string) {
		err := filepath.WalkDir(root+top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				list = append(list, strings.TrimPrefix(path, root))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return list
	}
	if has, want := files(root), files(kit); len(want) == 0 || !slices.Equal(has, want) {
		t.Errorf("below %s QEMU has %d files, and %d were copied", top, len(has), len(want))
	}
}

// looks checks that a process with all capabilities of the family's user namespace, as the
// keeper, can read a process's memory.
func looks(t *testing.T, pid int) {
	t.Helper()
	if os.Getuid() != 0 { // the owner of the namespace, with all capabilities in it
		for _, name := range []string{"mem", "pagemap"} {
			f, err := os.Open(process(pid, name))
			if err != nil {
				t.Error(err)
			}
			f.Close()
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), testenv.Program(t, "nsenter"), "--user", "--target", strconv.Itoa(pid), "sh", "-c", "exec 3<"+process(pid, "mem")+" 4<"+process(pid, "pagemap"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a process in its user namespace cannot inspect process %d: %v %s", pid, err, out)
	}
}

func process(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

func link(t *testing.T, pid int, name string) string {
	t.Helper()
	to, err := os.Readlink(process(pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return to
}
