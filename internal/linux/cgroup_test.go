package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// fakeCgroups is a directory tree that looks like cgroups: directories that
// are made get the files a kernel would give them.
type fakeCgroups struct {
	dir      string
	readOnly []string // paths below dir that may not be written to, with all below
	except   []string // paths below those that may
}

func (f *fakeCgroups) fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(f.dir, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(f.dir, dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fakeCgroups) writable(path string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	below := func(list []string) int {
		longest := -1
		for _, p := range list {
			if p = filepath.Join(f.dir, p); path == p || strings.HasPrefix(path, p+"/") {
				longest = max(longest, len(p))
			}
		}
		return longest
	}
	return below(f.readOnly) <= below(f.except)
}

// v2Files are the files of a v2 directory below a parent that passes controllers on.
func v2Files(controllers string) map[string]string {
	files := map[string]string{"cgroup.procs": "", "cgroup.threads": "", "cgroup.controllers": strings.ReplaceAll(controllers, "+", ""), "cgroup.subtree_control": "",
		"cgroup.freeze": "0", "cgroup.kill": "", "cgroup.events": "populated 0\nfrozen 0\n", "cpu.stat": "usage_usec 7\n"}
	more := map[string][]string{"memory": {"memory.max", "memory.swap.max", "memory.current", "memory.peak"}, "pids": {"pids.max", "pids.current"}, "cpu": {"cpu.max"}}
	for _, c := range strings.Fields(strings.ReplaceAll(controllers, "+", "")) {
		for _, name := range more[c] {
			files[name] = "max"
		}
	}
	return files
}

// adopt makes the trees of g behave like a kernel's.
func (f *fakeCgroups) adopt(t *testing.T, g *Cgroups) {
	for _, tree := range g.trees {
		tree.fakeMkdir = func(p string) error {
			if err := os.Mkdir(p, 0o755); err != nil {
				return err
			}
			files := map[string]string{"tasks": "", "cgroup.procs": "", "memory.limit_in_bytes": "", "memory.memsw.limit_in_bytes": "", "pids.max": "", "cpu.cfs_quota_us": "", "cpu.cfs_period_us": ""}
			if tree.v2 {
				passed, _ := readCgroup(filepath.Dir(p), "cgroup.subtree_control")
				if files = v2Files(passed); passed == "" {
					delete(files, "cgroup.subtree_control") // as good as: the kernel would refuse the words
				}
			}
			rel, _ := filepath.Rel(f.dir, p)
			f.fill(t, rel, files)
			return nil
		}
		tree.fakeRmdir = os.RemoveAll
	}
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// userHost is a systemd host with cgroup v2, seen by user 1000.
func userHost(t *testing.T, own, controllers string, writable ...string) (*fakeCgroups, *Cgroups) {
	f := &fakeCgroups{dir: t.TempDir(), readOnly: []string{""}, except: writable}
	dir := ""
	for _, part := range strings.Split(own, "/") {
		dir = filepath.Join(dir, part)
		f.fill(t, dir, v2Files(controllers))
	}
	g, err := FindCgroupsIn("test", CgroupSource{
		Mountinfo: "31 23 0:28 / " + f.dir + " rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
		Self:      "0::" + own + "\n", UID: 1000, Writable: f.writable})
	if err != nil {
		t.Fatal(err)
	}
	f.adopt(t, g)
	return f, g
}

const userService = "/user.slice/user-1000.slice/user@1000.service"

// A user's cgroups go below the topmost delegated one, with the limits it has
// controllers for; the rest is named.
func TestCgroupsOfUser(t *testing.T) {
	f, g := userHost(t, userService+"/app.slice/term.scope", "memory pids", userService)
	if c := g.Caps(); c.Layout != "v2" || c.Group != "" || c.Memory != "" || c.PIDs != "" || c.Freeze != "" || c.CloneInto != "" ||
		!strings.Contains(c.CPU, "controller cpu is not delegated") || c.IO == "" || !strings.Contains(c.Fix, "Delegate=") {
		t.Errorf("%+v", c)
	}
	top := f.dir + userService
	c, unapplied, err := g.Create("c-1", CgroupLimits{Memory: 10<<20 + 1, PIDs: 7, CPUs: 1.5})
	if err != nil {
		t.Fatal(err)
	}
	// The fake takes 10 MiB + 1 as it is; a kernel would round to pages.
	want := []string{"memory", "cpu"}
	var got []string
	for _, u := range unapplied {
		got = append(got, u.Limit)
	}
	if !slices.Equal(got, want) || !strings.Contains(unapplied[0].Reason, "memory.max is 10485761 after") || unapplied[1].Reason != g.Caps().CPU {
		t.Errorf("unapplied %v", unapplied)
	}
	dir := top + "/pando/test/c-1"
	if !slices.Equal(c.Paths(), []string{dir}) {
		t.Errorf("%q", c.Paths())
	}
	if bad := c.Limit(CgroupLimits{Memory: 10 << 20, PIDs: 7}); len(bad) != 0 {
		t.Errorf("%v", bad)
	}
	for file, want := range map[string]string{
		top + "/cgroup.subtree_control":            "+memory +pids",
		top + "/pando/cgroup.subtree_control":      "+memory +pids",
		top + "/pando/test/cgroup.subtree_control": "+memory +pids",
		dir + "/memory.max":                        "10485760",
		dir + "/memory.swap.max":                   "0",
		dir + "/pids.max":                          "7",
		dir + "/cgroup.subtree_control":            "",
	} {
		if got := fileText(t, file); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if _, err := os.Stat(dir + "/cpu.max"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file was made that the kernel did not give")
	}
}

// A limit that the kernel takes and does not keep is not applied.
func TestCgroupLimitsAreReadBack(t *testing.T) {
	_, g := userHost(t, userService, "memory pids cpu io", userService)
	if c := g.Caps(); c.Memory+c.PIDs+c.CPU+c.IO+c.Fix != "" {
		t.Errorf("%+v", c)
	}
	c, unapplied, err := g.Create("c-1", CgroupLimits{Memory: 1 << 30, PIDs: 100, CPUs: 2.5})
	if err != nil || len(unapplied) != 0 {
		t.Fatal(unapplied, err)
	}
	if got := fileText(t, c.Paths()[0]+"/cpu.max"); got != "250000 100000" {
		t.Errorf("cpu.max %q", got)
	}
	for _, file := range []string{"memory.max", "pids.max", "cpu.max"} {
		p := filepath.Join(c.Paths()[0], file)
		if err := errors.Join(os.Remove(p), os.Symlink("/dev/null", p)); err != nil {
			t.Fatal(err)
		}
	}
	var limits []string
	for _, u := range c.Limit(CgroupLimits{Memory: 1 << 30, PIDs: 100, CPUs: 2.5}) {
		limits = append(limits, u.Limit)
	}
	if !slices.Equal(limits, []string{"memory", "pids", "cpu"}) {
		t.Errorf("unapplied: %v", limits)
	}
}

// What can't be passed on is said with the directory that refuses.
func TestCgroupControllerNotPassedOn(t *testing.T) {
	f, g := userHost(t, userService, "memory pids", userService)
	if err := os.Remove(f.dir + userService + "/cgroup.subtree_control"); err != nil {
		t.Fatal(err)
	}
	_, unapplied, err := g.Create("c-1", CgroupLimits{Memory: 1 << 20, PIDs: 5})
	if err != nil || len(unapplied) != 2 || !strings.Contains(unapplied[0].Reason, userService+" can't pass controller memory on") {
		t.Errorf("%v %v", unapplied, err)
	}
}

// Where nothing may be written, nothing is made, and the way out is named.
func TestCgroupsNotDelegated(t *testing.T) {
	_, g := userHost(t, "/user.slice/user-1000.slice/session-3.scope", "memory pids")
	c := g.Caps()
	if c.Layout != "none" || !strings.Contains(c.Group, "session-3.scope and those above it may not be written to") || c.Memory == "" || c.Freeze == "" || c.CloneInto == "" || !strings.Contains(c.Fix, "systemd-run --user") {
		t.Errorf("%+v", c)
	}
	if _, _, err := g.Create("c-1", CgroupLimits{}); cell.KindOf(err) != cell.Unsupported || cell.HintOf(err) != c.Fix || !strings.Contains(err.Error(), c.Group) {
		t.Errorf("%v", err)
	}
	if names, err := g.Leftovers(); len(names) != 0 || err != nil {
		t.Errorf("%v %v", names, err)
	}
	if _, g := userHost(t, userService, "memory", userService+"/cgroup.procs", userService+"/cgroup.subtree_control"); g.Caps().Group == "" {
		t.Error("a cgroup is taken in which no directory can be made")
	}
	none, err := FindCgroupsIn("test", CgroupSource{Writable: func(string) bool { return true }})
	if err != nil || none.Caps().Group != "no cgroups are mounted" || none.Caps().Fix == "" {
		t.Errorf("%+v %v", none.Caps(), err)
	}
}

// Hierarchies are found in all the ways hosts mount them.
func TestFindCgroups(t *testing.T) {
	f := &fakeCgroups{dir: t.TempDir()}
	for _, d := range []string{"cpu,cpuacct", "memory", "pids", "freezer", "unified", "with blank", "memory/docker/abc"} {
		f.fill(t, d, map[string]string{"tasks": "", "cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.controllers": "hugetlb"})
	}
	mount := func(root, point, kind, options string) string {
		return fmt.Sprintf("1 2 0:3 %s %s rw - %s none rw,%s\n", root, strings.ReplaceAll(filepath.Join(f.dir, point), " ", `\040`), kind, options)
	}
	v1 := mount("/", "cpu,cpuacct", "cgroup", "cpu,cpuacct") + mount("/", "memory", "cgroup", "memory") + mount("/", "pids", "cgroup", "pids") +
		mount("/", "freezer", "cgroup", "xattr,freezer") + mount("/", "systemd", "cgroup", "xattr,name=systemd")
	self := "5:freezer:/\n4:pids:/\n3:memory:/deep/down\n2:cpuacct,cpu:/\n1:name=systemd:/\n0::/\n"
	for _, tc := range []struct {
		name, mounts, self string
		layout             string
		tops               map[string]string // directory to controllers
	}{
		{"v1", v1, self, "v1", map[string]string{"cpu,cpuacct": "cpu cpuacct", "memory": "memory", "pids": "pids", "freezer": "freezer"}},
		{"hybrid", v1 + mount("/", "unified", "cgroup2", "nsdelegate"), self, "hybrid",
			map[string]string{"unified": "", "cpu,cpuacct": "cpu", "memory": "memory", "pids": "pids"}},
		{"a container's own part", mount("/docker/abc", "memory", "cgroup", "memory"), "3:memory:/docker/abc\n", "v1", map[string]string{"memory": "memory"}},
		{"a namespace's root elsewhere", mount("/", "memory", "cgroup", "memory"), "3:memory:/../x\n", "v1", map[string]string{"memory": "memory"}},
		{"mounted twice", mount("/docker/abc", "memory/docker/abc", "cgroup", "memory") + mount("/", "memory", "cgroup", "memory"), "3:memory:/docker/abc\n", "v1",
			map[string]string{"memory": "memory"}},
		{"a blank in the path", mount("/", "with blank", "cgroup2", "x"), "0::/\n", "v2", map[string]string{"with blank": ""}},
	} {
		g, err := FindCgroupsIn("test", CgroupSource{Mountinfo: tc.mounts, Self: tc.self, Writable: f.writable})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, tree := range g.trees {
			rel, _ := filepath.Rel(f.dir, tree.top)
			got[rel] = strings.Join(tree.controllers, " ")
		}
		if g.Caps().Layout != tc.layout || !maps.Equal(got, tc.tops) {
			t.Errorf("%s: %s %q, want %s %q", tc.name, g.Caps().Layout, got, tc.layout, tc.tops)
		}
	}
	for _, bad := range []string{"", "..", "a/b", "a.b", "-x", strings.Repeat("a", 65), "a\x00"} {
		if _, err := FindCgroupsIn(bad, CgroupSource{}); cell.KindOf(err) != cell.Invalid {
			t.Errorf("installation %q: %v", bad, err)
		}
	}
}

// On v1 both numbers of memory are written, and quota with period.
func TestCgroupLimitsOnV1(t *testing.T) {
	f := &fakeCgroups{dir: t.TempDir()}
	var mounts string
	for _, c := range []string{"memory", "pids", "cpu", "freezer", "cpuacct"} {
		f.fill(t, c, map[string]string{"tasks": "", "cgroup.procs": ""})
		mounts += "1 2 0:3 / " + f.dir + "/" + c + " rw - cgroup none rw," + c + "\n"
	}
	g, err := FindCgroupsIn("test", CgroupSource{Mountinfo: mounts, Self: "1:memory:/\n2:pids:/\n3:cpu:/\n4:freezer:/\n5:cpuacct:/\n", Writable: f.writable})
	if err != nil {
		t.Fatal(err)
	}
	f.adopt(t, g)
	c, unapplied, err := g.Create("c-1", CgroupLimits{Memory: 1 << 20, PIDs: 3, CPUs: 0.5})
	if err != nil || len(unapplied) != 0 {
		t.Fatal(unapplied, err)
	}
	for file, want := range map[string]string{"memory/pando/test/c-1/memory.limit_in_bytes": "1048576", "memory/pando/test/c-1/memory.memsw.limit_in_bytes": "1048576",
		"pids/pando/test/c-1/pids.max": "3", "cpu/pando/test/c-1/cpu.cfs_quota_us": "50000", "cpu/pando/test/c-1/cpu.cfs_period_us": "100000"} {
		if got := fileText(t, filepath.Join(f.dir, file)); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	e, err := c.Entry()
	if err != nil || e.Into != nil || e.Procs != nil || len(e.Tasks) != 5 {
		t.Errorf("%+v %v", e, err)
	} else {
		e.Close()
	}
	if _, err := os.Stat(f.dir + "/cpu/pando/test/c-2"); err == nil {
		t.Error("c-2 exists")
	}
	if c, _, err := g.Create("c-2", CgroupLimits{Memory: 1 << 20}); err != nil || len(c.dirs) != 4 {
		t.Errorf("without a CPU limit it is in %q, %v", c.Paths(), err)
	}
	// Half made by another: nothing remains of the second try.
	if err := errors.Join(os.RemoveAll(f.dir+"/memory/pando/test/c-2"), os.RemoveAll(f.dir+"/pids/pando/test/c-2")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.Create("c-2", CgroupLimits{Memory: 1 << 20}); cell.KindOf(err) != cell.Exists {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(f.dir + "/memory/pando/test/c-2"); err == nil {
		t.Error("a cgroup of a failed Create remains")
	}
}

// F31: no number is taken for "unlimited".
func TestF31CgroupLimitsRefused(t *testing.T) {
	for _, l := range []CgroupLimits{{Memory: -1}, {Memory: 100}, {Memory: math.MaxInt64}, {PIDs: -1}, {PIDs: 1 << 40},
		{CPUs: -1}, {CPUs: 0.001}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)}, {CPUs: math.Inf(-1)}, {CPUs: 1e9}} {
		_, g := userHost(t, userService, "memory pids cpu", userService)
		if _, _, err := g.Create("c-1", l); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%+v: %v", l, err)
		}
		if names, _ := g.Leftovers(); len(names) != 0 {
			t.Errorf("%+v left %q", l, names)
		}
	}
	_, g := userHost(t, userService, "memory", userService)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "memory.max", "-a", "a b"} {
		if _, _, err := g.Create(name, CgroupLimits{}); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := g.Attach(name); cell.KindOf(err) != cell.Invalid {
			t.Errorf("attach %q: %v", name, err)
		}
	}
}

// What a host does not count is not shown as nothing.
func TestCgroupStatsNotMeasured(t *testing.T) {
	_, g := userHost(t, userService, "memory pids cpu io", userService)
	c, _, err := g.Create("c-1", CgroupLimits{})
	if err != nil {
		t.Fatal(err)
	}
	dir := c.Paths()[0]
	for file, text := range map[string]string{"memory.current": "5", "memory.events": "low 0\noom_kill 3\n", "cpu.stat": "usage_usec 7\nnr_throttled 2\nthrottled_usec 9\n",
		"io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n", "pids.current": "4", "pids.events": "max 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := CgroupStats{Memory: 5, MemoryPeak: NotMeasured, Swap: NotMeasured, OOMKills: 3, CPUUsec: 7, Throttled: 2, ThrottledUsec: 9,
		PIDs: 4, PIDsPeak: NotMeasured, PIDsRefused: 1, ReadBytes: 11, WrittenBytes: 22}
	if got := c.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	_, g = userHost(t, userService, "", userService)
	if c, _, err = g.Create("c-1", CgroupLimits{}); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Memory != NotMeasured || s.PIDs != NotMeasured || s.OOMKills != NotMeasured || s.ReadBytes != NotMeasured || s.Throttled != NotMeasured || s.CPUUsec != 7 {
		t.Errorf("without controllers: %+v", s)
	}
}
