package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

const landlockJobEnv = "PANDO_TEST_LANDLOCK_JOB"

// landlockJob is what a re-executed test binary does in a domain. The ruleset
// is its descriptor 3.
type landlockJob struct {
	Dir      string
	Abstract string // an abstract socket outside the domain
	Signal   int    // a process outside the domain
}

// landlockProbes are what a restricted process tries; each says what it
// expects. They run on one thread, so they make system calls only.
var landlockProbes = []struct {
	name string
	want syscall.Errno
	do   func(landlockJob) error
}{
	{"read below ReadExec", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/ro/file", unix.O_RDONLY) }},
	{"list below ReadExec", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/ro", unix.O_RDONLY|unix.O_DIRECTORY) }},
	{"write below ReadExec", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/ro/file", unix.O_WRONLY) }},
	{"create below ReadExec", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/ro/new", unix.O_WRONLY|unix.O_CREAT) }},
	{"remove below ReadExec", unix.EACCES, func(j landlockJob) error { return unix.Unlink(j.Dir + "/ro/file") }},
	{"truncate below ReadExec", unix.EACCES, func(j landlockJob) error { return unix.Truncate(j.Dir+"/ro/file", 0) }},
	{"read below Read", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/r/file", unix.O_RDONLY) }},
	{"read outside", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/out/file", unix.O_RDONLY) }},
	{"list outside", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/out", unix.O_RDONLY|unix.O_DIRECTORY) }},
	{"read through a link out", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/rw/link", unix.O_RDONLY) }},
	{"read through ..", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/rw/../out/file", unix.O_RDONLY) }},
	{"write", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/rw/file", unix.O_WRONLY|unix.O_TRUNC) }},
	{"create", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/rw/new", unix.O_WRONLY|unix.O_CREAT) }},
	{"truncate", 0, func(j landlockJob) error { return unix.Truncate(j.Dir+"/rw/new", 3) }},
	{"make a directory", 0, func(j landlockJob) error { return unix.Mkdir(j.Dir+"/rw/d", 0o755) }},
	{"rename between directories", 0, func(j landlockJob) error { return unix.Rename(j.Dir+"/rw/new", j.Dir+"/rw/d/new") }},
	{"rename out", unix.EACCES, func(j landlockJob) error { return unix.Rename(j.Dir+"/rw/file", j.Dir+"/out/new") }},
	{"link out", unix.EACCES, func(j landlockJob) error { return unix.Link(j.Dir+"/rw/file", j.Dir+"/ro/new") }},
	{"symlink", 0, func(j landlockJob) error { return unix.Symlink("x", j.Dir+"/rw/s") }},
	{"fifo", 0, func(j landlockJob) error { return unix.Mkfifo(j.Dir+"/rw/p", 0o600) }},
	{"device node", unix.EACCES, func(j landlockJob) error { return unix.Mknod(j.Dir+"/rw/null", unix.S_IFCHR|0o600, 0x103) }},
	{"whiteout node", unix.EACCES, func(j landlockJob) error { return unix.Mknod(j.Dir+"/rw/wh", unix.S_IFCHR|0o600, 0) }},
	{"the one file of a rule", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/one", unix.O_RDWR) }},
	{"its neighbour", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/two", unix.O_RDONLY) }},
	{"a device", 0, func(j landlockJob) error { return tryOpen("/dev/null", unix.O_RDWR) }},
	{"another device", unix.EACCES, func(j landlockJob) error { return tryOpen("/dev/full", unix.O_RDONLY) }},
	{"ioctl on a device", 0, func(j landlockJob) error { return tryIoctl("/dev/ptmx", unix.O_RDWR) }},
	{"ioctl on a device only to be read", unix.EACCES, func(j landlockJob) error { return tryIoctl("/dev/zero", unix.O_RDONLY) }},
	{"change among devices", 0, func(j landlockJob) error { return tryOpen(j.Dir+"/dev/file", unix.O_RDWR) }},
	{"create among devices", unix.EACCES, func(j landlockJob) error { return tryOpen(j.Dir+"/dev/new", unix.O_WRONLY|unix.O_CREAT) }},
	{"memfd", 0, func(j landlockJob) error {
		fd, err := unix.MemfdCreate("x", 0)
		unix.Close(fd)
		return err
	}},
	{"signal outside the domain", 0, func(j landlockJob) error { return unix.Kill(j.Signal, 0) }},
	{"abstract socket outside the domain", unix.EPERM, func(j landlockJob) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: j.Abstract})
	}},
}

func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func tryIoctl(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
	return err
}

// TestLandlockChild is not a test of its own: the others run it as a child.
func TestLandlockChild(t *testing.T) {
	var job landlockJob
	if json.Unmarshal([]byte(os.Getenv(landlockJobEnv)), &job) != nil {
		return
	}
	runtime.LockOSThread()
	r := &LandlockRuleset{File: os.NewFile(3, "ruleset")}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err = errors.Join(err, r.Restrict()); err != nil {
		fmt.Println("child:", err)
		os.Exit(3)
	}
	for _, p := range landlockProbes {
		got := syscall.Errno(0)
		if err := p.do(job); err != nil && !errors.As(err, &got) {
			got = 255
		}
		fmt.Printf("%s=%d\n", p.name, got)
	}
	os.Exit(0)
}

func landlockTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"ro", "r", "rw", "out", "dev"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"ro/file", "r/file", "rw/file", "out/file", "dev/file", "one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../out/file", filepath.Join(dir, "rw/link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runLandlockChild returns the errno of each probe in a domain of r.
func runLandlockChild(t *testing.T, r *LandlockRuleset, dir string) map[string]syscall.Errno {
	t.Helper()
	name := fmt.Sprintf("@pando-test-%d", os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text, _ := json.Marshal(landlockJob{Dir: dir, Abstract: name, Signal: os.Getpid()})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLandlockChild$")
	cmd.Env = append(os.Environ(), landlockJobEnv+"="+string(text))
	cmd.ExtraFiles = []*os.File{r.File}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := map[string]syscall.Errno{}
	for line := range strings.Lines(string(out)) {
		if name, n, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			var e int
			fmt.Sscan(n, &e)
			got[name] = syscall.Errno(e)
		}
	}
	if len(got) != len(landlockProbes) {
		t.Fatalf("%d of %d probes answered:\n%s", len(got), len(landlockProbes), out)
	}
	return got
}

func testLandlockPaths(dir string) landlockPaths {
	return landlockPaths{Read: []string{dir + "/r", "/dev/zero"}, ReadExec: []string{dir + "/ro", "/usr"}, Write: []string{dir + "/rw", dir + "/one"}, Devices: []string{dir + "/dev", "/dev/null", "/dev/ptmx"}}
}

func needLandlock(t *testing.T, abi int) {
	t.Helper()
	if have := LandlockABI(); have < abi {
		t.Skipf("needs Landlock ABI %d, this kernel has %d", abi, have)
	}
}

func TestLandlockRestricts(t *testing.T) {
	needLandlock(t, 1)
	dir := landlockTree(t)
	r, err := newLandlockAt(testLandlockPaths(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.ABI >= 6 && len(r.Lacks) != 0 {
		t.Errorf("ABI %d lacks: %q", r.ABI, r.Lacks)
	}
	checkLandlock(t, runLandlockChild(t, r, dir), r.ABI, false)
}

// checkLandlock compares the answers of probes with what a kernel with abi has
// to give.
func checkLandlock(t *testing.T, got map[string]syscall.Errno, abi int, shareAbstract bool) {
	t.Helper()
	for _, p := range landlockProbes {
		want := p.want
		switch {
		case abi < 2 && strings.HasPrefix(p.name, "rename") && want == 0:
			want = unix.EXDEV
		case abi < 5 && strings.HasSuffix(p.name, "only to be read"):
			want = unix.ENOTTY
		case abi < 3 && strings.HasPrefix(p.name, "truncate"):
			want = 0
		case (abi < 6 || shareAbstract) && strings.HasPrefix(p.name, "abstract"):
			want = 0
		case os.Geteuid() != 0 && strings.HasSuffix(p.name, " node") && got[p.name] == unix.EPERM:
			want = unix.EPERM // the kernel's own check comes first
		}
		if got[p.name] != want {
			t.Errorf("ABI %d: %s: %v, want %v", abi, p.name, error(got[p.name]), error(want))
		}
	}
}

// Rules made of descriptors do the same.
func TestLandlockFromFiles(t *testing.T) {
	needLandlock(t, 1)
	dir := landlockTree(t)
	open := func(names ...string) (files []*os.File) {
		for _, n := range names {
			fd, err := unix.Open(n, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, os.NewFile(uintptr(fd), n))
		}
		return files
	}
	paths := testLandlockPaths(dir)
	files := LandlockFiles{Read: open(paths.Read...), ReadExec: open(paths.ReadExec...), Write: open(paths.Write...), Devices: open(paths.Devices...)}
	files.ShareAbstract = true
	r, err := NewLandlockFiles(files)
	for _, f := range slices.Concat(files.Read, files.ReadExec, files.Write, files.Devices) {
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	checkLandlock(t, runLandlockChild(t, r, dir), r.ABI, true)
}

// A ruleset made as for an older kernel handles what that has and says what it
// lacks.
func TestLandlockOlderABIs(t *testing.T) {
	needLandlock(t, 1)
	lacks := map[int]int{1: 4, 2: 3, 3: 2, 4: 2, 5: 1, 6: 0, 7: 0, 9: 0}
	for abi, n := range lacks {
		if abi > LandlockABI() {
			continue
		}
		dir := landlockTree(t)
		var files LandlockFiles
		paths := testLandlockPaths(dir)
		for _, p := range []struct {
			from []string
			to   *[]*os.File
		}{{paths.Read, &files.Read}, {paths.ReadExec, &files.ReadExec}, {paths.Write, &files.Write}, {paths.Devices, &files.Devices}} {
			for _, name := range p.from {
				f, err := os.Open(name)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				*p.to = append(*p.to, f)
			}
		}
		r, err := newLandlock(files, abi)
		if err != nil {
			t.Errorf("ABI %d: %v", abi, err)
			continue
		}
		if len(r.Lacks) != n {
			t.Errorf("ABI %d: %q, want %d", abi, r.Lacks, n)
		}
		checkLandlock(t, runLandlockChild(t, r, dir), abi, false)
		r.Close()
	}
	if _, err := newLandlock(LandlockFiles{}, 0); cell.KindOf(err) != cell.Unsupported || cell.HintOf(err) == "" {
		t.Errorf("without Landlock: %v", err)
	}
}

func TestLandlockNamesTheMissingPath(t *testing.T) {
	needLandlock(t, 1)
	if _, err := newLandlockAt(landlockPaths{Read: []string{"/no/such/place"}}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/no/such/place") {
		t.Errorf("%v", err)
	}
}

func BenchmarkLandlockRuleset(b *testing.B) {
	for b.Loop() {
		r, err := newLandlockAt(landlockPaths{ReadExec: []string{"/usr", "/etc", "/bin", "/lib", "/proc"}, Write: []string{"/tmp", "/var/tmp"}, Devices: []string{"/dev"}})
		if err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
}

// landlockPaths name what a restricted process may reach, and how. A directory
// stands for everything beneath it. The file named must exist.
type landlockPaths struct {
	Read     []string // read files, list directories
	ReadExec []string // and execute
	Write    []string // and change, create (but not devices), remove, rename
	Devices  []string // read, write and ioctl, create nothing: for /dev
	LandlockScope
}

// newLandlockAt builds a ruleset from paths as this process sees them.
func newLandlockAt(paths landlockPaths) (_ *LandlockRuleset, err error) {
	files := LandlockFiles{LandlockScope: paths.LandlockScope}
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	for _, part := range []struct {
		paths []string
		files *[]*os.File
	}{{paths.Read, &files.Read}, {paths.ReadExec, &files.ReadExec}, {paths.Write, &files.Write}, {paths.Devices, &files.Devices}} {
		for _, p := range part.paths {
			fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("cannot make a Landlock rule for %s: %w", p, err)
			}
			f := os.NewFile(uintptr(fd), p)
			opened = append(opened, f)
			*part.files = append(*part.files, f)
		}
	}
	return NewLandlockFiles(files)
}
