package linux

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The controllers we use, and on v1 the one that freezes and the one that
// counts, which v2 does without a controller.
var (
	cgroupControllers  = []string{"memory", "pids", "cpu", "io"}
	cgroupControllers1 = []string{"memory", "pids", "cpu", "cpuacct", "freezer"}
)

// CgroupSource is the kernel's view of cgroups, for one process.
type CgroupSource struct {
	Mountinfo string // content of /proc/self/mountinfo
	Self      string // content of /proc/self/cgroup
	UID       int    // effective user, for the words of a fix
	Writable  func(path string) bool
}

// FindCgroups finds the cgroups of the host that this process may use: of each hierarchy
// the topmost cgroup at or above its own that it may write to. For root that is the top of
// the hierarchy; for a user it is a delegated one, with systemd usually user@UID.service.
// It changes nothing. It is no error if nothing can be used: Caps says why, and Create will.
func FindCgroups(installation string) (*Cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot find cgroups: %w", err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("cannot find cgroups: %w", err)
	}
	return FindCgroupsIn(installation, CgroupSource{
		Mountinfo: string(mounts), Self: string(self), UID: os.Geteuid(),
		Writable: func(p string) bool { return unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) == nil },
	})
}

// FindCgroupsIn is FindCgroups with the kernel's files given.
func FindCgroupsIn(installation string, src CgroupSource) (*Cgroups, error) {
	if err := checkCgroupName("an installation", installation); err != nil {
		return nil, err
	}
	g := &Cgroups{installation: installation}
	mounts := parseCgroupMounts(src.Mountinfo)
	own := parseOwnCgroups(src.Self)
	refused := map[string]string{} // controller, or "" for v2, to reason

	free := slices.Clone(cgroupControllers1) // not yet found on any hierarchy
	for _, m := range mounts {
		path, ok := m.directory(own[m.key()])
		if !ok {
			continue
		}
		t := &cgroupTree{v2: m.v2, own: path}
		if m.v2 {
			if _, have := g.v2(); have {
				continue
			}
			if t.top, ok = topmostWritable(m.point, path, src.Writable, "cgroup.procs", "cgroup.subtree_control"); !ok {
				refused[""] = fmt.Sprintf("cgroup %s and those above it may not be written to", path)
				continue
			}
			text, _ := readCgroup(t.top, "cgroup.controllers")
			t.controllers = intersect(strings.Fields(text), cgroupControllers)
			g.trees = slices.Insert(g.trees, 0, t)
			continue
		}
		t.controllers = intersect(m.controllers, free)
		if len(t.controllers) == 0 {
			continue
		}
		if t.top, ok = topmostWritable(m.point, path, src.Writable, "tasks"); !ok {
			for _, c := range t.controllers {
				refused[c] = fmt.Sprintf("cgroup %s and those above it may not be written to", path)
			}
			continue
		}
		free = slices.DeleteFunc(free, t.has)
		g.trees = append(g.trees, t)
	}
	g.drop()
	g.describe(src, refused, len(mounts) > 0)
	return g, nil
}

// drop lets go of v1 hierarchies that v2 makes needless.
func (g *Cgroups) drop() {
	v2, ok := g.v2()
	if !ok {
		return
	}
	g.trees = slices.DeleteFunc(g.trees, func(t *cgroupTree) bool {
		if t.v2 {
			return false
		}
		t.controllers = slices.DeleteFunc(t.controllers, func(c string) bool {
			return c == "freezer" || c == "cpuacct" || v2.has(c)
		})
		return len(t.controllers) == 0
	})
}

func (g *Cgroups) v2() (*cgroupTree, bool) {
	if len(g.trees) > 0 && g.trees[0].v2 {
		return g.trees[0], true
	}
	return nil, false
}

// describe fills in Caps.
func (g *Cgroups) describe(src CgroupSource, refused map[string]string, mounted bool) {
	v2, hasV2 := g.v2()
	hasV1 := len(g.trees) > 1 || len(g.trees) == 1 && !hasV2
	c := &g.caps
	switch {
	case hasV2 && hasV1:
		c.Layout = "hybrid"
	case hasV2:
		c.Layout = "v2"
	case hasV1:
		c.Layout = "v1"
	default:
		c.Layout = "none"
	}
	why := func(controller string) string {
		switch {
		case slices.ContainsFunc(g.trees, func(t *cgroupTree) bool { return t.has(controller) }):
			return ""
		case refused[controller] != "":
			return refused[controller]
		case hasV2 && !hasV1:
			return fmt.Sprintf("controller %s is not delegated to cgroup %s", controller, v2.top)
		case !mounted:
			return "no cgroups are mounted"
		case refused[""] != "":
			return refused[""]
		}
		return fmt.Sprintf("no hierarchy with controller %s is mounted", controller)
	}
	c.Memory, c.PIDs, c.CPU = why("memory"), why("pids"), why("cpu")
	if c.IO = why("io"); c.Layout == "hybrid" || c.Layout == "v1" {
		c.IO = "cgroup v1 does not count what is written through the page cache"
	}
	if !hasV2 {
		c.CloneInto = cmp.Or(refused[""], "cgroup v2 is not mounted")
		c.Freeze = why("freezer")
	}
	if c.Layout == "none" {
		c.Group = cmp.Or(refused[""], c.Memory)
		c.Memory, c.PIDs, c.CPU, c.Freeze = c.Group, c.Group, c.Group, c.Group
	}
	switch {
	case c.Group == "" && c.Memory == "" && c.PIDs == "" && c.CPU == "":
	case !mounted:
		c.Fix = "mount cgroup2 on /sys/fs/cgroup"
	case src.UID == 0:
		c.Fix = "run pando where /sys/fs/cgroup is mounted for writing, with the controllers memory, pids and cpu"
	case hasV2:
		c.Fix = `ask the administrator for "Delegate=cpu memory pids" in a drop-in of user@.service`
	default:
		c.Fix = "start pando below the user manager: systemd-run --user -p Delegate=yes --scope pando"
	}
}

// topmostWritable walks from the mount point down to own and returns the first
// directory that may be written to, with all files.
func topmostWritable(point, own string, writable func(string) bool, files ...string) (string, bool) {
	dirs := []string{point}
	if rest, err := filepath.Rel(point, own); err == nil && rest != "." {
		at := point
		for _, part := range strings.Split(rest, "/") {
			at = filepath.Join(at, part)
			dirs = append(dirs, at)
		}
	}
	for _, d := range dirs {
		ok := writable(d)
		for _, f := range files {
			ok = ok && writable(filepath.Join(d, f))
		}
		if ok {
			return d, true
		}
	}
	return "", false
}

type cgroupMount struct {
	v2          bool
	root, point string
	controllers []string // v1
}

// key is the hierarchy's name in /proc/self/cgroup.
func (m cgroupMount) key() string { return strings.Join(m.controllers, ",") }

// directory is where the cgroup path is seen below the mount. A path outside
// what is mounted ("/../x" in a cgroup namespace, or another subtree) is seen
// as the mount point itself when it is a mount of a namespace's root.
func (m cgroupMount) directory(path string) (string, bool) {
	rest, inside := strings.CutPrefix(path+"/", strings.TrimSuffix(m.root, "/")+"/")
	switch {
	case path == "":
		return "", false
	case inside && !strings.HasPrefix(rest, ".."):
		return filepath.Join(m.point, rest), true
	}
	return m.point, true
}

// parseCgroupMounts reads the cgroup mounts of a mountinfo, v2 first, then in
// order; of two mounts of one hierarchy the one that shows more comes first.
func parseCgroupMounts(mountinfo string) []cgroupMount {
	var list []cgroupMount
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			continue
		}
		m := cgroupMount{v2: r[0] == "cgroup2", root: unescapeMount(l[3]), point: unescapeMount(l[4])}
		if r[0] == "cgroup" {
			m.controllers = intersect(strings.Split(r[2], ","), knownControllers)
		}
		if m.v2 || len(m.controllers) > 0 {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b cgroupMount) int {
		if a.v2 != b.v2 {
			return map[bool]int{true: -1, false: 1}[a.v2]
		}
		return len(a.root) - len(b.root)
	})
	return list
}

// knownControllers are the words of a v1 mount's options that name controllers.
var knownControllers = []string{"cpuset", "cpu", "cpuacct", "blkio", "memory", "devices", "freezer", "net_cls", "perf_event", "net_prio", "hugetlb", "pids", "rdma", "misc"}

// parseOwnCgroups reads /proc/self/cgroup: the path for each hierarchy, under
// its controllers joined by commas in the order of knownControllers.
func parseOwnCgroups(self string) map[string]string {
	own := map[string]string{}
	for line := range strings.Lines(self) {
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(part) == 3 {
			own[cgroupMount{controllers: intersect(strings.Split(part[1], ","), knownControllers)}.key()] = part[2]
		}
	}
	return own
}

// intersect returns what is in both, in the order of the second.
func intersect(have, want []string) []string {
	var both []string
	for _, w := range want {
		if slices.Contains(have, w) {
			both = append(both, w)
		}
	}
	return both
}

// unescapeMount undoes mountinfo's octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
