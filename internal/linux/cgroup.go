package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/failpoint"
)

// Cgroups are the places on this host below which we make cgroups: for each
// hierarchy we use a directory, and below it pando/INSTALLATION/NAME. It is
// safe for concurrent use, keeps no state that FindCgroups and Attach could
// not rebuild, and leaves it to the caller to know which names are alive.
//
// With cgroup v2 all goes into one hierarchy. With v1 there is one for each
// controller; where v2 is mounted beside them without controllers, it does the
// grouping (freeze, kill, is anything left) and v1 the limits.
type Cgroups struct {
	installation string
	caps         CgroupCaps
	trees        []*cgroupTree // v2 first

	mu sync.Mutex // guards what trees learn when they are prepared
}

// CgroupCaps holds one entry per ability: "" means present, anything else is
// the sentence shown to the user.
type CgroupCaps struct {
	Layout    string // "v2", "v1", "hybrid" or "none"
	Group     string // cgroups can be made at all
	Memory    string
	PIDs      string
	CPU       string
	IO        string // bytes read and written are counted
	Freeze    string
	CloneInto string // a child can be born in a cgroup (CLONE_INTO_CGROUP)
	Fix       string // one imperative sentence for what is missing; "" when nothing is
}

// A cgroupTree is one hierarchy as we use it.
type cgroupTree struct {
	v2          bool
	top         string            // our directory "pando" is made in this one
	own         string            // the cgroup of this process, as a directory; may be top
	controllers []string          // those we use here
	missing     map[string]string // controller to reason, for v2 controllers that could not be enabled
	ready       bool              // pando/INSTALLATION exists and passes controllers on

	fakeMkdir func(string) error // tests: a kernel fills what it makes
	fakeRmdir func(string) error
}

func (t *cgroupTree) mkdir(dir string) error {
	failpoint.Step("make a cgroup")
	if t.fakeMkdir != nil {
		return t.fakeMkdir(dir)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755) // whatever the umask: keepers of another user pass through it
}

func (t *cgroupTree) rmdir(dir string) error {
	failpoint.Step("remove a cgroup")
	if t.fakeRmdir != nil {
		return t.fakeRmdir(dir)
	}
	return unix.Rmdir(dir)
}

func (t *cgroupTree) has(controller string) bool { return slices.Contains(t.controllers, controller) }

// A Cgroup is one cell's cgroup in all hierarchies we use for it. Its methods
// are safe for concurrent use.
type Cgroup struct {
	Name string
	dirs []cgroupDir // v2 first
}

type cgroupDir struct {
	tree *cgroupTree
	path string
}

var cgroupName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
}) // no dots: the kernel's own files have them

func checkCgroupName(what, name string) error {
	if !cgroupName().MatchString(name) {
		return cell.Errorf(cell.Invalid, "linux.Cgroups", "", "cannot use %q as the name of %s", name, what)
	}
	return nil
}

// Caps tells what works here and, for each thing that does not, why.
func (g *Cgroups) Caps() CgroupCaps { return g.caps }

// Create makes the cgroup name with limits and reads them back. What could not
// be applied is returned; whether to go on without it is the caller's to
// decide. When Create fails, nothing remains. A second Create of a name fails
// with cell.Exists.
func (g *Cgroups) Create(name string, want CgroupLimits) (_ *Cgroup, _ []Unapplied, err error) {
	return g.create(name, want, true)
}

// CreateAside is Create without the hierarchy of version 2 where that does the
// grouping alone: for processes that enter by themselves and not by being born
// there. Moving one into version 2 takes a lock that waits for all processors.
func (g *Cgroups) CreateAside(name string, want CgroupLimits) (*Cgroup, []Unapplied, error) {
	return g.create(name, want, false)
}

func (g *Cgroups) create(name string, want CgroupLimits, grouped bool) (_ *Cgroup, _ []Unapplied, err error) {
	if err := errors.Join(checkCgroupName("a cgroup", name), want.Check()); err != nil {
		return nil, nil, err
	}
	if g.caps.Group != "" {
		return nil, nil, cell.Errorf(cell.Unsupported, "linux.Create", g.caps.Fix, "cannot create cgroup %s: %s", name, g.caps.Group)
	}
	var undo cleanup.Stack
	defer undo.OnError(context.Background(), &err)
	c := &Cgroup{Name: name}
	for _, t := range g.trees {
		if !t.neededFor(want) || !grouped && t.v2 && len(g.trees) > 1 && !slices.ContainsFunc(t.controllers, func(c string) bool { return c == "memory" || c == "pids" }) {
			continue
		}
		dir, err := g.makeDir(t, name)
		if errors.Is(err, os.ErrExist) {
			return nil, nil, cell.Errorf(cell.Exists, "linux.Create", "", "cannot create cgroup %s: it exists", dir)
		} else if err != nil {
			return nil, nil, fmt.Errorf("cannot create cgroup %s: %w", dir, err)
		}
		undo.Add("make "+dir, func(context.Context) error { return t.rmdir(dir) })
		c.dirs = append(c.dirs, cgroupDir{t, dir})
	}
	return c, g.explain(c.Limit(want)), nil
}

// neededFor reports whether a cgroup with these limits has to be in t. On v1
// each hierarchy costs a directory and an entry, so that cpu is joined only
// for a limit; memory and pids are there to be measured as well.
func (t *cgroupTree) neededFor(want CgroupLimits) bool {
	return t.v2 || want.CPUs > 0 || slices.ContainsFunc(t.controllers, func(c string) bool { return c != "cpu" })
}

// makeDir makes the directory of name in t and what is above it.
func (g *Cgroups) makeDir(t *cgroupTree, name string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	dir := filepath.Join(g.home(t), name)
	if t.ready {
		if err := t.mkdir(dir); !errors.Is(err, os.ErrNotExist) { // else another daemon has pruned
			return dir, err
		}
	}
	if err := g.prepare(t); err != nil {
		return dir, err
	}
	t.ready = true
	return dir, t.mkdir(dir)
}

// home is the directory of the installation in t.
func (g *Cgroups) home(t *cgroupTree) string { return filepath.Join(t.top, "pando", g.installation) }

// prepare makes pando/INSTALLATION in t and passes v2 controllers down to it.
func (g *Cgroups) prepare(t *cgroupTree) error {
	t.missing = map[string]string{}
	for _, d := range []string{t.top, filepath.Dir(g.home(t)), g.home(t)} {
		if d != t.top {
			if err := t.mkdir(d); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		if !t.v2 {
			continue
		}
		for c, why := range t.passOn(d) {
			if t.missing[c] == "" { // what refused first is the cause
				t.missing[c] = why
			}
		}
	}
	return nil
}

// explain gives the reason we know where the kernel only said "no such file".
func (g *Cgroups) explain(list []Unapplied) []Unapplied {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := map[string]string{"memory": g.caps.Memory, "swap": g.caps.Memory, "pids": g.caps.PIDs, "cpu": g.caps.CPU}
	for i, u := range list {
		if known[u.Limit] != "" {
			list[i].Reason = known[u.Limit]
		}
		for _, t := range g.trees {
			if why := t.missing[u.Limit]; why != "" {
				list[i].Reason = why
			}
		}
	}
	return list
}

// Attach returns the cgroup an earlier process created, or fails with
// cell.NotFound.
func (g *Cgroups) Attach(name string) (*Cgroup, error) {
	if err := checkCgroupName("a cgroup", name); err != nil {
		return nil, err
	}
	c := &Cgroup{Name: name}
	for _, t := range g.trees {
		dir := filepath.Join(g.home(t), name)
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			c.dirs = append(c.dirs, cgroupDir{t, dir})
		}
	}
	if len(c.dirs) == 0 {
		return nil, cell.Errorf(cell.NotFound, "linux.Attach", "", "cannot find cgroup %s", name)
	}
	return c, nil
}

// Leftovers lists the names of all cgroups of the installation, sorted: those
// of living cells and those that a crash left behind.
func (g *Cgroups) Leftovers() ([]string, error) {
	var names []string
	for _, t := range g.trees {
		entries, err := os.ReadDir(g.home(t))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Gone reports whether the cgroup of an open directory was removed meanwhile.
func Gone(dir *os.File) bool {
	return unix.Faccessat(int(dir.Fd()), "cgroup.procs", unix.F_OK, 0) != nil
}

// Prune removes the installation's own directories where they are empty.
func (g *Cgroups) Prune() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.trees {
		t.ready = false
		if t.rmdir(g.home(t)) == nil {
			t.rmdir(filepath.Dir(g.home(t))) // stays while another installation uses it
		}
	}
}

// DelegateProcs lets uid and gid move processes between the cgroups of the
// installation that are theirs (Delegate): v2 asks for the right to write the
// cgroup.procs of the nearest common ancestor.
func (g *Cgroups) DelegateProcs(uid, gid int) error {
	for _, t := range g.trees {
		if !t.v2 {
			continue
		}
		if err := os.Chown(filepath.Join(g.home(t), "cgroup.procs"), uid, gid); err != nil {
			return fmt.Errorf("cannot delegate cgroups: %w", err)
		}
	}
	return nil
}

// Delegate gives the directories and the files by which processes enter and
// are frozen to uid and gid. The limits stay ours.
func (c *Cgroup) Delegate(uid, gid int) error {
	for _, d := range c.dirs {
		files := []string{"", "cgroup.procs", "tasks", "freezer.state"}
		if d.tree.v2 {
			files = []string{"", "cgroup.procs", "cgroup.threads", "cgroup.freeze"}
		}
		for _, f := range files {
			if err := os.Chown(filepath.Join(d.path, f), uid, gid); err != nil && !(f != "" && errors.Is(err, os.ErrNotExist)) {
				return fmt.Errorf("cannot delegate cgroup %s: %w", d.path, err)
			}
		}
	}
	return nil
}

// Paths returns the directories of the cgroup, the v2 one first.
func (c *Cgroup) Paths() []string {
	var paths []string
	for _, d := range c.dirs {
		paths = append(paths, d.path)
	}
	return paths
}

func (c *Cgroup) v2() (cgroupDir, bool) {
	if len(c.dirs) > 0 && c.dirs[0].tree.v2 {
		return c.dirs[0], true
	}
	return cgroupDir{}, false
}

// with returns the directory in the hierarchy that has a controller.
func (c *Cgroup) with(controller string) (cgroupDir, bool) {
	for _, d := range c.dirs {
		if d.tree.has(controller) {
			return d, true
		}
	}
	return cgroupDir{}, false
}
