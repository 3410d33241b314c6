package linux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors opened by root let an unprivileged process enter. To be born in
// a cgroup it needs rights on that cgroup and on the common ancestor, which
// Delegate and DelegateProcs give.
func TestCgroupDelegate(t *testing.T) {
	const nobody = 65534
	eachLayout(t, cgroupLayouts, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-mine", CgroupLimits{})
		e, err := c.Entry()
		if err != nil {
			t.Fatal(err)
		}
		script := ""
		files := e.Tasks
		if e.Procs != nil {
			files = append(files, e.Procs)
		}
		for i := range files {
			script += fmt.Sprintf("echo 0 >&%d || exit 9; ", 3+i)
		}
		cmd := exec.Command("sh", "-c", script+"exec sleep 60")
		cmd.ExtraFiles = files
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		e.Close()
		waitFor(t, "an unprivileged process in all hierarchies", func() bool {
			return !slices.ContainsFunc(c.Paths(), func(p string) bool { return !slices.Equal(listPIDs(p), []int{cmd.Process.Pid}) })
		})
		if err := c.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		cmd.Wait()

		if err := c.Delegate(nobody, nobody); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.dirs {
			for _, file := range []string{"memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us"} {
				var st unix.Stat_t
				if unix.Stat(filepath.Join(d.path, file), &st) == nil && st.Uid != 0 {
					t.Errorf("%s is given away", file)
				}
			}
		}
		if _, ok := c.v2(); !ok {
			return
		}
		keeper, _ := createCgroup(t, g, "k-mine", CgroupLimits{})
		for _, delegated := range []bool{false, true} {
			if delegated {
				if err := g.DelegateProcs(nobody, nobody); err != nil {
					t.Fatal(err)
				}
			}
			cmd := cgroupChild("into:" + c.Paths()[0])
			into, err := keeper.Entry()
			if err != nil {
				t.Fatal(err)
			}
			binary := filepath.Join(t.TempDir(), "test")
			if err := os.Link(os.Args[0], binary); err != nil {
				b, err := os.ReadFile(os.Args[0])
				if err == nil {
					err = os.WriteFile(binary, b, 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			f, err := os.Open(binary)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{f} // an unprivileged user may not walk to it
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, UseCgroupFD: true, CgroupFD: int(into.Into.Fd())}
			cmd.Dir = "/"
			out, err := cmd.CombinedOutput()
			f.Close()
			into.Close()
			if want := map[bool]string{true: "<nil>", false: "permission denied"}[delegated]; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("delegated %v: born in a cgroup: %v %s", delegated, err, out)
			}
		}
	})
}

// A cgroup that holds only ourselves can pass controllers on after we have
// stepped aside; one that holds others says what to do.
func TestCgroupStepsAside(t *testing.T) {
	g := hostCgroups(t, "v2")
	text, _ := readCgroup(g.trees[0].top, "cgroup.controllers")
	if !slices.Contains(strings.Fields(text), "hugetlb") {
		t.Skip("needs controller hugetlb on cgroup v2")
	}
	before, _ := readCgroup(g.trees[0].top, "cgroup.subtree_control")
	t.Cleanup(func() { // as it was
		for _, dir := range []string{g.home(g.trees[0]), filepath.Dir(g.home(g.trees[0])), g.trees[0].top} {
			if dir != g.trees[0].top || !strings.Contains(before, "hugetlb") {
				writeCgroup(dir, "cgroup.subtree_control", "-hugetlb")
			}
		}
	})
	top := &cgroupTree{controllers: []string{"hugetlb"}}
	for _, dir := range []string{g.trees[0].top, filepath.Dir(g.home(g.trees[0])), g.home(g.trees[0])} {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if refused := top.passOn(dir); len(refused) != 0 {
			t.Fatal(refused)
		}
	}
	c, _ := createCgroup(t, g, "c-aside", CgroupLimits{})
	var out strings.Builder
	cmd := cgroupChild("aside:" + c.Paths()[0])
	cmd.Stdout = &out
	if err := startIn(t, c, cmd).Wait(); err != nil || out.String() != "map[] "+c.Paths()[0]+"/pando-self\n" {
		t.Errorf("alone: %v %s", err, out.String())
	}
	if have, _ := readCgroup(c.Paths()[0], "cgroup.subtree_control"); have != "hugetlb" {
		t.Errorf("passes %q on", have)
	}
	crowded, _ := createCgroup(t, g, "c-crowded", CgroupLimits{})
	other := startIn(t, crowded, exec.Command("sleep", "60"))
	out.Reset()
	cmd = cgroupChild("aside:" + crowded.Paths()[0])
	cmd.Stdout = &out
	if err := startIn(t, crowded, cmd).Wait(); err != nil || !strings.Contains(out.String(), "start pando in a cgroup of its own") {
		t.Errorf("not alone: %v %s", err, out.String())
	}
	if _, err := os.Stat(crowded.Paths()[0] + "/pando-self"); err == nil {
		t.Error("stepped aside although others are there")
	}
	if err := crowded.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	other.Wait()
}
