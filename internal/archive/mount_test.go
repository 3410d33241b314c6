package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// inNamespace runs this test again in a mount namespace of its own, where mount mounts what it
// wants below dir, and returns dir as that process sees it. In the process itself it does not
// return.
func inNamespace(t *testing.T, dir string, mount func(dir string) error) (root *os.File, mounts func() string) {
	t.Helper()
	const place = "PANDO_TEST_MOUNTS"
	if at := os.Getenv(place); at != "" {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), mount(at)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("mounted")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), place+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Fatalf("%q, %v", line, err)
	}
	proc := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	root, err = os.OpenFile(proc+"/root"+dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, func() string {
		b, err := os.ReadFile(proc + "/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for line := range strings.Lines(string(b)) {
			if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
				list = append(list, strings.TrimPrefix(at, dir))
			}
		}
		return strings.Join(list, " ")
	}
}

// What a cell has mounted is not taken away from it, by whatever act of its keeper. The kernel
// protects a mount only in the mount namespace of the caller.
func TestMountsOfACellStay(t *testing.T) {
	dir := os.Getenv("PANDO_TEST_MOUNTS")
	if dir == "" {
		dir = t.TempDir()
		for _, d := range []string{"a/b/in", "a/other", "mem"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"a/kept", "shown"} {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	root, mounts := inNamespace(t, dir, func(dir string) error {
		return errors.Join(
			unix.Mount("tmpfs", dir+"/a/b/in", "tmpfs", 0, ""),
			os.WriteFile(dir+"/a/b/in/f", []byte("in the mount"), 0o644),
			unix.Mount(dir+"/shown", dir+"/a/kept", "", unix.MS_BIND, ""),
			unix.Mount("tmpfs", dir+"/mem", "tmpfs", 0, ""),
		)
	})
	const want = "/a/b/in /a/kept /mem"
	if got := mounts(); got != want {
		t.Fatalf("mounts: %s", got)
	}
	take := func(name string) error {
		return Take(root, "/a", os.Getuid(), os.Getgid(), pack(t, tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "x"}))
	}
	do := func(what, p, to string) func() error {
		return func() error {
			_, err := act(root, cell.FileAct{Act: what, Path: p, To: to}, "")
			return err
		}
	}
	for what, f := range map[string]func() error{
		"remove":               do(cell.FileRemove, "/a/kept", ""),
		"remove what is above": do(cell.FileRemove, "/a/b", ""),
		"move":                 do(cell.FileMove, "/a/kept", "/a/k"),
		"move onto":            do(cell.FileMove, "/shown", "/a/kept"),
		"move across":          do(cell.FileMove, "/a", "/mem/a"),
		"rename":               func() error { return Rename(root, "/a/kept", "/a/k") },
		"rename onto":          func() error { return Rename(root, "/shown", "/a/kept") },
		"symlink":              func() error { return take("kept") },
		"symlink of a folder":  func() error { return take("b/in") },
	} {
		err := f()
		if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "/a/kept") && !strings.Contains(err.Error(), "/a/b/in") {
			t.Errorf("%s: %v, want denied with the place", what, err)
		}
		if got := mounts(); got != want {
			t.Fatalf("%s: the mounts are %q, want %q", what, got, want)
		}
	}
	for f, want := range map[string]string{"/a/kept": "shown", "/a/b/in/f": "in the mount"} {
		if got, err := act(root, cell.FileAct{Act: cell.FileRead, Path: f}, ""); err != nil || got != want {
			t.Errorf("%s: %q, %v", f, got, err)
		}
	}
	if left, err := act(root, cell.FileAct{Act: cell.FileList, Path: "/mem", Depth: 1}, ""); err != nil || left != "" {
		t.Errorf("a refused move left %q, %v", left, err)
	}
	// All else is removed, and moved between file systems.
	if err := errors.Join(do(cell.FileMove, "/a/other", "/mem/other")(), do(cell.FileRemove, "/mem/other", "")()); err != nil {
		t.Error(err)
	}
}

// A symlink at the path that is written leads to where it would lead a process of the cell: into the
// cell's own files, as with docker cp and E2B, and not into what is read-only there, the kernel's
// files, or out of the cell.
func TestWritesFollowLinksWithinTheCell(t *testing.T) {
	dir := os.Getenv("PANDO_TEST_MOUNTS")
	if dir == "" {
		dir = t.TempDir()
		for _, d := range []string{"a", "ro", "root/proc", "beside"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"root/own", "ro/kept", "beside/host"} {
			if err := os.WriteFile(filepath.Join(dir, f), []byte("as it was"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []string{"root/a", "root/ro"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, to := range map[string]string{
			"own": "/own", "ro": "/ro/kept", "new": "/ro/new", "host": filepath.Join(dir, "beside/host"), "up": "../../beside/host",
			"kernel": "/proc/self/comm",
		} {
			if err := os.Symlink(to, filepath.Join(dir, "root/a", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	top, _ := inNamespace(t, dir, func(dir string) error {
		return errors.Join(
			unix.Mount(dir+"/ro", dir+"/root/ro", "", unix.MS_BIND, ""),
			unix.Mount("", dir+"/root/ro", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
			unix.Mount("/proc", dir+"/root/proc", "", unix.MS_BIND|unix.MS_REC, ""),
		)
	})
	root, err := Open(top, "/root", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for how, write := range map[string]func(name string) error{
		"an archive": func(name string) error {
			return Take(root, "/a", os.Getuid(), os.Getgid(), pack(t, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}))
		},
		"a file": func(name string) error {
			_, err := act(root, cell.FileAct{Act: cell.FileWrite, Path: "/a/" + name, UID: os.Getuid(), GID: os.Getgid()}, "changed")
			return err
		},
	} {
		for _, name := range []string{"ro", "new", "kernel", "host"} {
			if err := write(name); err == nil && name != "host" { // which the cell may have, too: it is made there
				t.Errorf("%s goes through the link %s", how, name)
			}
		}
		write("up")
		if err := write("own"); err != nil {
			t.Errorf("%s: a link to a file of the cell: %v", how, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "root/own")); err != nil || string(b) == "as it was" {
			t.Errorf("%s does not follow a link: %q, %v", how, b, err)
		}
		if st, err := os.Lstat(filepath.Join(dir, "root/a/own")); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s replaces the link: %v", how, err)
		}
	}
	for _, f := range []string{"ro/kept", "beside/host"} {
		if b, err := os.ReadFile(filepath.Join(dir, f)); err != nil || string(b) != "as it was" {
			t.Errorf("%s is %q, %v", f, b, err)
		}
	}
	for _, f := range []string{"ro", "beside"} {
		if list, err := os.ReadDir(filepath.Join(dir, f)); err != nil || len(list) != 1 {
			t.Errorf("in %s there are %v, %v", f, list, err)
		}
	}
}
