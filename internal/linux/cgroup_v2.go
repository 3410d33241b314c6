package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// passOn lets the children of dir have our controllers, and returns for each
// that they can't have, why.
func (t *cgroupTree) passOn(dir string) map[string]string {
	missing := func() []string {
		have, _ := readCgroup(dir, "cgroup.subtree_control")
		return slices.DeleteFunc(slices.Clone(t.controllers), func(c string) bool { return slices.Contains(strings.Fields(have), c) })
	}
	enable := func(controllers ...string) error {
		return writeCgroup(dir, "cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
	}
	need := missing()
	if len(need) == 0 || enable(need...) == nil {
		return nil
	}
	refused := map[string]string{}
	for _, c := range need { // one bad controller must not cost the others
		err := enable(c)
		if errors.Is(err, unix.EBUSY) && t.stepAside(dir) {
			err = enable(c)
		}
		switch {
		case err == nil:
		case errors.Is(err, unix.EBUSY):
			refused[c] = fmt.Sprintf("cgroup %s has processes of its own, so that it can't pass controller %s on; start pando in a cgroup of its own", dir, c)
		default:
			refused[c] = fmt.Sprintf("cgroup %s can't pass controller %s on: %v", dir, c, err)
		}
	}
	return refused
}

// stepAside moves this process from dir into a leaf below it, when dir is its own cgroup
// and nothing else is there. A cgroup that passes controllers on must hold no processes,
// and the process that received a delegated cgroup is meant to do this.
func (t *cgroupTree) stepAside(dir string) bool {
	procs, err := readCgroup(dir, "cgroup.procs")
	if dir != t.own || err != nil || procs != strconv.Itoa(os.Getpid()) {
		return false
	}
	leaf := filepath.Join(dir, "pando-self")
	if err := t.mkdir(leaf); err != nil && !errors.Is(err, os.ErrExist) {
		return false
	}
	if writeCgroup(leaf, "cgroup.procs", "0") != nil {
		return false
	}
	t.own = leaf
	return true
}

// limitMemory2 bounds memory. memory.oom.group stays 0: the kernel ends the
// process that grew, not every command of the cell. It returns the names of
// limits that do not hold.
func limitMemory2(dir string, bytes int64) []Unapplied {
	var list []Unapplied
	if why := setCgroup(dir, "memory.max", strconv.FormatInt(bytes, 10), sameSize(bytes)); why != "" {
		return []Unapplied{{"memory", why}}
	}
	why := setCgroup(dir, "memory.swap.max", "0", func(s string) bool { return s == "0" })
	if why != "" && hostSwaps() {
		list = append(list, Unapplied{"swap", "what does not fit is swapped out: " + why})
	}
	return list
}

func limitPIDs(dir string, n int64) []Unapplied { // v1 and v2
	text := strconv.FormatInt(n, 10)
	if why := setCgroup(dir, "pids.max", text, func(s string) bool { return s == text }); why != "" {
		return []Unapplied{{"pids", why}}
	}
	return nil
}

// cgroupPeriod is the length of a CPU quota's period in microseconds: the
// kernel's default, short enough that a throttled cell still answers.
const cgroupPeriod = 100_000

func limitCPU2(dir string, cpus float64) []Unapplied {
	text := fmt.Sprintf("%d %d", cpuQuota(cpus), cgroupPeriod)
	if why := setCgroup(dir, "cpu.max", text, func(s string) bool { return s == text }); why != "" {
		return []Unapplied{{"cpu", why}}
	}
	return nil
}

func cpuQuota(cpus float64) int64 { return int64(cpus*cgroupPeriod + 0.5) }

// sameSize accepts what a limit of n bytes is read back as: the kernel counts
// in pages and rounds down.
func sameSize(n int64) func(string) bool {
	page := int64(os.Getpagesize())
	return func(s string) bool {
		got, err := strconv.ParseInt(s, 10, 64)
		return err == nil && got == n/page*page
	}
}

// hostSwaps reports whether there is anything to swap to.
func hostSwaps() bool {
	b, err := os.ReadFile("/proc/swaps")
	return err != nil || strings.Count(string(b), "\n") > 1
}
