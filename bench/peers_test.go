package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

func TestAbsentPeersAreNamed(t *testing.T) {
	l := testLab(t, Options{Path: t.TempDir()})
	ctx, out := t.Context(), &AxisResult{}
	for _, peer := range []func(context.Context, *AxisResult, *installation, string, ...string) ([]contestant, error){l.bwrap, l.crunRun, l.runscDo, l.engines} {
		if list, err := peer(ctx, out, nil, l.dir, "x", "y"); err != nil || len(list) > 0 {
			t.Errorf("got %v, %v", list, err)
		}
	}
	exec, end := l.crunExec(ctx, out, nil, l.dir, "x", "y")
	end()
	copies := slices.Concat(exec, l.copying(ctx, out, l.dir, extent{}), l.stashing(ctx, out, l.dir, extent{}), l.copyTree(ctx, out, l.dir, 0), l.syncTree(ctx, out, l.dir, 0))
	if more, err := l.worktree(ctx, out, l.dir, 0); err != nil || len(more)+len(copies) > 0 {
		t.Errorf("got %v, %v, %v", copies, more, err)
	}
	var names []string
	for _, a := range out.Absent {
		names = append(names, a.Peer)
		if a.Why == "" {
			t.Errorf("%s is absent for no reason", a.Peer)
		}
	}
	if got, want := strings.Join(names, ", "), "bwrap, crun run, runsc do, docker run, podman run, crun exec, cp -a, git stash, rsync -a, git worktree add"; got != want {
		t.Errorf("absent: %s\nwant: %s", got, want)
	}
}

func TestProgramThatDoesNotWorkIsAbsent(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"broken": "#!/bin/sh\necho does not work here >&2\nexit 1\n",
		"docker": "#!/bin/sh\n[ $1 = --version ] && echo Docker version 1 && exit 0\necho no daemon >&2\nexit 1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := testLab(t, Options{Path: dir})
	if p := l.find(t.Context(), "broken"); !strings.Contains(p.why, "does not work here") {
		t.Errorf("broken: %+v", p)
	}
	if p := l.daemonOf(t.Context(), "docker"); !strings.Contains(p.why, "no daemon") || p.version != "Docker version 1" {
		t.Errorf("docker: %+v", p)
	}
}

func TestCommandGetsPipes(t *testing.T) {
	// crun gives its standard streams away: that must never be a device.
	out, err := command{args: []string{"/bin/sh", "-c", "for n in 0 1 2; do readlink /proc/$$/fd/$n; done; cat"}}.run(t.Context())
	if err != nil || strings.Count(string(out), "pipe:") != 3 {
		t.Errorf("got %q, %v", out, err)
	}
	_, err = command{args: []string{"/bin/sh", "-c", "echo why >&2; exit 3"}}.run(t.Context())
	if err == nil || err.Error() != "sh: exit status 3: why" {
		t.Errorf("got %v", err)
	}
	left := filepath.Join(t.TempDir(), "output")
	c := command{args: []string{"/bin/sh", "-c", "sleep 60 & echo $!"}, leave: left}
	if _, err := c.run(t.Context()); err != nil {
		t.Error(err)
	}
	pid, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	exec.Command("kill", strings.TrimSpace(string(pid))).Run()
}

func TestWords(t *testing.T) {
	c := command{args: []string{"/usr/bin/git", "commit", "-m", "it's", ""}}
	if got, want := c.words(), `git commit -m 'it'\''s' ''`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// testView is a cell's view with one mount of each kind.
func testView(t *testing.T, l *lab, owner int) *cellView {
	t.Helper()
	source := must(l.own(1, 100))
	cache := must(l.fresh("cache"))
	own := func(n int) string { return filepath.Join(l.dir, "view", fmt.Sprint(n), "fs") }
	v := &cellView{dir: filepath.Join(l.dir, "view"), source: source, owner: owner, env: []string{"PATH=/usr/bin:/bin"}}
	for _, m := range []viewMount{
		{Mount: api.Mount{Target: "/bin", Source: "usr/bin", Kind: "link"}},
		{Mount: api.Mount{Target: "/lib", Source: "usr/lib", Kind: "link"}},
		{Mount: api.Mount{Target: "/lib64", Source: "usr/lib64", Kind: "link"}},
		{Mount: api.Mount{Target: "/etc/hostname", Kind: "bind", ReadOnly: true}, from: "/etc/hostname"},
		{Mount: api.Mount{Target: "/root", Kind: "bind"}, from: own(1)},
		{Mount: api.Mount{Target: "/root/cache", Kind: "cache"}, from: cache, upper: own(2), work: own(3)},
		{Mount: api.Mount{Target: "/run", Kind: "tmpfs"}},
		{Mount: api.Mount{Target: source, Kind: "overlay"}, from: source, upper: own(4), work: own(5)},
		{Mount: api.Mount{Target: "/usr", Kind: "bind", ReadOnly: true}, from: "/usr"},
	} {
		if m.from == own(1) {
			if err := v.folder(m.from); err != nil {
				t.Fatal(err)
			}
		}
		v.mounts = append(v.mounts, m)
	}
	if err := v.renew(); err != nil {
		t.Fatal(err)
	}
	return v
}

// lookAround is what a cell of ours lets a command do, and not.
const lookAround = `set -e
test "$(cat marker.txt)" = 0
grep -q '^NoNewPrivs:.1$' /proc/self/status
grep -q '^Seccomp:.2$' /proc/self/status
grep -q '^CapEff:.0000000000000000$' /proc/self/status
echo made > made
! touch /usr/made 2>/dev/null
! unshare --user true 2>/dev/null
test "$(ls /sys/class/net 2>/dev/null | wc -l)" -le 1`

func TestCrunTakesTheConfig(t *testing.T) {
	testenv.Root(t)
	path := testenv.Program(t, "crun")
	l := testLab(t, Options{})
	ids := ociMapping{ContainerID: 0, HostID: linux.FreeIDRange(65536), Size: 65536}
	v := testView(t, l, ids.HostID)
	c := &crunPeer{path: path, view: v, state: filepath.Join(v.dir, "state")}
	if why := l.prepareHost(&AxisResult{}, c); why != "" {
		t.Fatal(why)
	}
	if err := os.Mkdir(c.state, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, gaps, err := v.bundle(ids, "sh", "-c", lookAround)
	if err != nil {
		t.Fatal(err)
	}
	c.bundle = dir
	if err := c.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(gaps) != 1 || !strings.HasPrefix(gaps[0], "ioctl ") {
		t.Errorf("gaps: %v", gaps)
	}
	if _, err := os.Stat(filepath.Join(v.source, "made")); err == nil {
		t.Error("the workspace is no overlay: its source was written")
	}
	if st, err := os.Stat(os.DevNull); err != nil || st.Sys() == nil {
		t.Fatal(err)
	} else if b, _ := exec.Command("stat", "-c", "%u", os.DevNull).Output(); strings.TrimSpace(string(b)) != "0" {
		t.Errorf("%s belongs to %s", os.DevNull, b)
	}
}

func TestBwrapTakesTheFilter(t *testing.T) {
	path := testenv.Program(t, "bwrap")
	l := testLab(t, Options{})
	v := testView(t, l, os.Geteuid())
	filter := must(os.Open(must(l.filterFile())))
	defer filter.Close()
	copied := must(l.own(1, 100))
	c := command{env: v.env, files: []*os.File{filter}, args: append([]string{path}, v.bwrapArgs(copied)...)}
	c.args = append(c.args, "--seccomp", "3", "--chdir", v.source, "--", "sh", "-c", lookAround)
	if _, err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(copied, "made")); err != nil {
		t.Error("the workspace is not the copy")
	}
}

// TestFilterSaysTheTable compares the rules with the table, for each call the
// table allows, on arguments around its checks.
func TestFilterSaysTheTable(t *testing.T) {
	f, gaps := ociFilter()
	if len(gaps) != 1 {
		t.Errorf("gaps: %v", gaps)
	}
	allows := func(call string, args [6]uint32) bool {
		for _, s := range f.Syscalls {
			if s.Action != "SCMP_ACT_ALLOW" || !slices.Contains(s.Names, call) {
				continue
			}
			ok, seen := true, map[int]bool{}
			for _, a := range s.Args {
				if seen[a.Index] {
					t.Fatalf("%s: two conditions on argument %d: runtimes refuse that", call, a.Index)
				}
				seen[a.Index] = true
				v := uint64(args[a.Index])
				ok = ok && (a.Op == "SCMP_CMP_EQ" && v == a.Value || a.Op == "SCMP_CMP_MASKED_EQ" && v&a.Value == a.ValueTwo)
			}
			if ok {
				return true
			}
		}
		return false
	}
	numbers := linux.SeccompNumbers(linux.NativeArch)
	for _, g := range linux.SeccompTable() {
		for _, call := range strings.Fields(g.Calls) {
			if _, known := numbers[call]; !known || call == "ioctl" {
				continue
			}
			values := []uint32{0, 1, 2, 3, 5, 10, 15, 16, 17, 40, 58, 1 << 16, 0x20000, 0x20008, 0xffffffff, 0x10000000, 0x8000, 0x1000, 0xc000, 0x6000}
			for _, x := range values {
				for _, y := range values {
					for _, z := range values {
						args := [6]uint32{x, y, z, x, y, z}
						if got, want := allows(call, args), tableAllows(g, args); got != want {
							t.Fatalf("%s%v: allowed %t, the table says %t", call, args, got, want)
						}
						if len(g.Check) == 0 {
							break
						}
					}
				}
			}
		}
	}
}

func tableAllows(g linux.SeccompGroup, args [6]uint32) bool {
	match := func(m linux.SeccompMatch) bool {
		v := args[m.Arg]
		if m.Mask != 0 {
			v &= m.Mask
		}
		return slices.Contains(m.In, v) != m.Not
	}
	if g.Fate != linux.SeccompAllow {
		return false
	}
	for _, c := range g.Check {
		if (c.If == nil || match(*c.If)) && !match(c.Must) {
			return false
		}
	}
	return true
}

func TestTreesAreTheSame(t *testing.T) {
	l := testLab(t, Options{})
	a, b := must(l.own(250, 1000)), must(l.tree(250, 1000))
	bytesOf := func(dir string) (total int, all []byte) {
		for i := range 250 {
			x := must(os.ReadFile(member(dir, i)))
			total, all = total+len(x), append(all, x...)
		}
		return total, all
	}
	n, x := bytesOf(a)
	m, y := bytesOf(b)
	if n != m || !bytes.Equal(x, y) {
		t.Error("two trees of the same size differ")
	}
	if n < 225_000 || n > 275_000 {
		t.Errorf("%d bytes, not about 250,000", n)
	}
	if again := must(l.tree(250, 1000)); again != b {
		t.Error("a tree was made twice")
	}
	if err := edit(a, 250, "x"); err != nil {
		t.Fatal(err)
	}
	changed := 0
	for i := range 250 {
		if !bytes.Equal(must(os.ReadFile(member(a, i))), must(os.ReadFile(member(b, i)))) {
			changed++
		}
	}
	if changed != changedFiles {
		t.Errorf("%d files changed", changed)
	}
}

func TestLabRemovesOnlyItsOwn(t *testing.T) {
	l := testLab(t, Options{})
	other := t.TempDir()
	for _, dir := range []string{other, l.dir, "/", filepath.Dir(l.dir)} {
		if err := l.discard(dir); err == nil {
			t.Errorf("%s was removed", dir)
		}
	}
	hard := must(l.fresh("hard"))
	if err := os.MkdirAll(filepath.Join(hard, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(hard, "a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := l.discard(hard); err != nil {
		t.Error(err)
	}
}

func TestChoose(t *testing.T) {
	for _, names := range [][]string{{"nothing"}, {"run", "nothing"}, {}} {
		if _, err := choose(names, ""); err == nil || !strings.Contains(err.Error(), strings.Join(Names(), ", ")) {
			t.Errorf("%v: %v", names, err)
		}
	}
	if axes, err := choose([]string{"cli", "run", "cli"}, ""); err != nil || len(axes) != 2 || axes[0].Name != "cli" {
		t.Errorf("got %v, %v", axes, err)
	}
	if axes, err := choose([]string{"all"}, ""); err != nil || len(axes) != len(Axes()) {
		t.Errorf("got %v, %v", axes, err)
	}
}

func TestMachine(t *testing.T) {
	m := thisMachine(t.TempDir())
	b := must(json.Marshal(m))
	for _, f := range []string{`"cpu":"unknown"`, `"cores":0`, `"memory":0`, `"kernel":""`, `"file_system":"unknown"`} {
		if strings.Contains(string(b), f) {
			t.Errorf("%s in %s", f, b)
		}
	}
	then := cpuTime{total: 100, stolen: 10}
	if got := (cpuTime{total: 300, stolen: 20}).since(then); got != 5 {
		t.Errorf("stolen %v", got)
	}
}
