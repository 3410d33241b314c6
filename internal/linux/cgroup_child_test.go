package linux

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// hostCgroups returns the cgroups of this host in a layout: as they are
// ("host"), or as if only one version were mounted. What a test makes there is
// gone at its end, or the test fails.
func hostCgroups(t testing.TB, layout string) *Cgroups {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: cgroups of other users have to be delegated")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(mounts)) {
		if layout == "v1" && strings.Contains(line, " - cgroup2 ") || layout == "v2" && strings.Contains(line, " - cgroup ") {
			continue
		}
		kept.WriteString(line)
	}
	installation := fmt.Sprintf("test-%d-%s", os.Getpid(), layout)
	g, err := FindCgroupsIn(installation, CgroupSource{Mountinfo: kept.String(), Self: string(self),
		Writable: func(p string) bool { return unix.Access(p, unix.W_OK) == nil }})
	if err != nil {
		t.Fatal(err)
	}
	if g.Caps().Group != "" || layout != "host" && g.Caps().Layout != layout {
		t.Skipf("needs cgroups of layout %s: %s", layout, g.Caps().Group)
	}
	t.Cleanup(func() {
		names, _ := g.Leftovers()
		for _, n := range names {
			t.Errorf("cgroup %s is left over", n)
			if c, err := g.Attach(n); err == nil {
				c.Kill(context.Background())
				c.Remove(context.Background())
			}
		}
		g.Prune()
		for _, tree := range g.trees {
			if _, err := os.Stat(g.home(tree)); err == nil {
				t.Errorf("%s is left over", g.home(tree))
			}
		}
	})
	return g
}

var cgroupLayouts = []string{"host", "v1", "v2"}

// createCgroup makes a cgroup that ends with the test.
func createCgroup(t testing.TB, g *Cgroups, name string, want CgroupLimits) (*Cgroup, []Unapplied) {
	t.Helper()
	c, unapplied, err := g.Create(name, want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if len(c.Paths()) == 0 {
			return
		}
		if _, err := os.Stat(c.Paths()[0]); err != nil {
			return
		}
		if err := c.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if err := c.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, unapplied
}

// startIn starts a program in c: it is born in v2 and enters v1 through the
// tasks files before it executes.
func startIn(t testing.TB, c *Cgroup, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	e, err := c.Entry()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	script, args := "", cmd.Args
	for i := range e.Tasks {
		script += fmt.Sprintf("echo 0 >&%d; ", 3+i)
	}
	if cmd.Path, err = exec.LookPath(cmd.Args[0]); err != nil {
		t.Fatal(err)
	}
	cmd.Args = append([]string{"sh", "-c", script + `exec "$@"`, "sh", cmd.Path}, args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.ExtraFiles = e.Tasks
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if e.Into != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(e.Into.Fd())
	}
	runtime.LockOSThread() // Pdeathsig watches the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// cgroupChildEnv names what a re-executed test binary does in a cgroup.
const cgroupChildEnv = "PANDO_TEST_CGROUP_CHILD"

// TestCgroupChild is not a test of its own: the others run it as a child.
func TestCgroupChild(t *testing.T) {
	what, arg, _ := strings.Cut(os.Getenv(cgroupChildEnv), ":")
	switch what {
	case "":
		return
	case "memory": // touch memory until killed
		var hold [][]byte
		for range 512 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hold = append(hold, b)
		}
		fmt.Println("got all", len(hold))
	case "count": // count in a file that the parent looks at
		f, err := os.OpenFile(arg, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for n := uint64(1); ; n++ {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], n)
			f.WriteAt(b[:], 0)
		}
	case "stuck": // a thread that waits for a seccomp listener and can only be killed
		runtime.LockOSThread()
		prog, err := NewSeccompProgram([]unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataNR},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_GETPPID},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		if err != nil {
			t.Fatal(err)
		}
		address, _ := prog.Prog()
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, address)
		if e != 0 {
			fmt.Println(e)
			os.Exit(1)
		}
		go func() { // receive, and never answer
			buffer := reflect.ValueOf(make([]uint64, 64)).Pointer()
			unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, buffer)
			fmt.Println("stuck")
			select {}
		}()
		unix.Getppid()
	case "aside": // pass a controller on from one's own cgroup
		tree := &cgroupTree{v2: true, top: arg, own: arg, controllers: []string{"hugetlb"}}
		fmt.Println(tree.passOn(arg), tree.own)
	case "into": // fork into a cgroup as an unprivileged user
		dir, err := unix.Open(arg, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			cmd := exec.Command("/bin/true")
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: dir}
			err = cmd.Run()
		}
		fmt.Println(err)
	}
	os.Exit(0)
}

func cgroupChild(what string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestCgroupChild$")
	cmd.Env = append(os.Environ(), cgroupChildEnv+"="+what)
	return cmd
}

func eachLayout(t *testing.T, layouts []string, f func(t *testing.T, g *Cgroups)) {
	for _, l := range layouts {
		t.Run(l, func(t *testing.T) { f(t, hostCgroups(t, l)) })
	}
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	testenv.Eventually(t, done, what)
}
