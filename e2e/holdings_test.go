package e2e

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pando-dev/pando/internal/testenv"
)

// held is what `holdings keep` has found, by the directory of a script.
var held sync.Map

// grown is the permitted growth of each kind after much was made and removed: caches fill up,
// heaps vary, and the Go runtime keeps the threads that a hundred forks at once have needed. A
// leak over ten thousand rounds is more than that.
var grown = map[string]int{"descriptors": 16, "threads": 100, "MiB resident": 48, "mounts": 0, "namespaces": 2, "cgroups": 0, "folders of state": 3, "processes": 1}

// holdings records the resources of the script's daemon and keepers ("keep"), or fails when they
// have grown ("no-more"). Idle file descriptors and freed memory have time to go.
func holdings(ts *testscript.TestScript, neg bool, args []string) {
	work := ts.Getenv("WORK")
	if neg || len(args) != 1 || (args[0] != "keep" && args[0] != "no-more") {
		ts.Fatalf("usage: holdings keep|no-more")
	}
	if args[0] == "keep" {
		h := holdingsOf(work)
		ts.Logf("%v", h)
		held.Store(work, h)
		return
	}
	was, ok := held.Load(work)
	if !ok {
		ts.Fatalf("nothing was kept")
	}
	if more := heldMore(work, was.(map[string]int)); more != "" {
		ts.Fatalf("%s", more)
	}
}

// heldMore says what the processes of a script hold for good that they did not.
func heldMore(work string, was map[string]int) string {
	var more []string
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(500 * time.Millisecond) {
		now := holdingsOf(work)
		more = nil
		for _, what := range slices.Sorted(maps.Keys(now)) {
			kind, _, _ := strings.Cut(what, " of pando-")
			if n := now[what] - was[what]; n > grown[kind] {
				more = append(more, fmt.Sprintf("%d more %s", n, what))
			}
		}
		if len(more) == 0 || time.Now().After(end) {
			return strings.Join(more, "; ")
		}
	}
}

// holdingsOf counts what the processes of a script hold, all of one name
// together, and what of theirs is on the host.
func holdingsOf(work string) map[string]int {
	h := map[string]int{}
	// Mounts of the host are in the daemon's namespace, too, and come and go by themselves.
	elsewhere := slices.DeleteFunc(mountPoints("/proc/self/", nil), func(at string) bool { return strings.HasPrefix(at, work+"/") })
	for _, p := range ours(work) {
		name := processName(p)
		if !strings.HasPrefix(name, "pando-daemon") && !strings.HasPrefix(name, "pando-keeper") || name == "pando-keeper" && isSpare(p) {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/", p)
		of := " of " + name
		h["processes"+of]++
		h["descriptors"+of] += entries(dir + "fd")
		h["threads"+of] += entries(dir + "task")
		h["mounts"+of] += len(mountPoints(dir, elsewhere))
		h["MiB resident"+of] += residentMiB(p)
	}
	home := filepath.Join(work, ".pando")
	if b, err := os.ReadFile(filepath.Join(home, "state/installation")); err == nil {
		inst := strings.Fields(string(b))[0]
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			tops, _ := filepath.Glob(filepath.Join(root, "pando", inst))
			for _, top := range tops {
				h["cgroups"] += folders(top)
			}
		}
	}
	for _, dir := range []string{"layers", "cells", "sources", "runs"} {
		h["folders of state"] += entries(filepath.Join(home, "state", dir))
	}
	h["namespaces"] = namespacesBelow(home)
	return h
}

// mountPoints are those of a process, by its directory of /proc; those in without are left out.
func mountPoints(dir string, without []string) (points []string) {
	b, _ := os.ReadFile(dir + "mountinfo")
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 4 && !slices.Contains(without, f[4]) {
			points = append(points, f[4])
		}
	}
	return points
}

// residentMiB is the memory that a process has now, 0 if there is none.
func residentMiB(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for l := range strings.Lines(string(status)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(f[1])
			return kib >> 10
		}
	}
	return 0
}

func entries(dir string) int {
	list, _ := os.ReadDir(dir)
	return len(list)
}

func folders(top string) (n int) {
	filepath.WalkDir(top, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// namespacesBelow counts the mount namespaces of processes that see something
// of an installation, other than this one.
func namespacesBelow(home string) int {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		ns, err := os.Readlink(p + "/ns/mnt")
		if err != nil || ns == own || seen[ns] {
			continue
		}
		b, _ := os.ReadFile(p + "/mountinfo")
		if strings.Contains(string(b), home+"/") {
			seen[ns] = true
		}
	}
	return len(seen)
}
