package linux

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The life of a cgroup: made, entered, seen, attached to, emptied, removed.
func TestCgroupLife(t *testing.T) {
	eachLayout(t, cgroupLayouts, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-1", CgroupLimits{})
		if _, _, err := g.Create("c-1", CgroupLimits{}); cell.KindOf(err) != cell.Exists {
			t.Errorf("a second time: %v", err)
		}
		if names, err := g.Leftovers(); err != nil || !slices.Equal(names, []string{"c-1"}) {
			t.Errorf("leftovers %q, %v", names, err)
		}
		if p, err := c.Populated(); p || err != nil {
			t.Errorf("populated before anything entered: %v, %v", p, err)
		}
		cmd := startIn(t, c, exec.Command("sleep", "60"))
		again, err := g.Attach("c-1")
		if err != nil || !slices.Equal(again.Paths(), c.Paths()) {
			t.Fatalf("attach: %v", err)
		}
		waitFor(t, "the process in all hierarchies", func() bool {
			for _, p := range c.Paths() {
				if !slices.Equal(listPIDs(p), []int{cmd.Process.Pid}) {
					return false
				}
			}
			return true
		})
		if pids, err := again.PIDs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
			t.Errorf("processes %v, %v", pids, err)
		}
		if p, err := again.Populated(); !p || err != nil {
			t.Errorf("populated: %v, %v", p, err)
		}
		if err := again.Remove(t.Context()); cell.KindOf(err) != cell.Conflict {
			t.Errorf("remove with a process in it: %v", err)
		}
		empty := make(chan error, 1)
		go func() { empty <- c.WaitEmpty(t.Context()) }()
		if err := again.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		if state, _ := cmd.Process.Wait(); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("ended with %v", state)
		}
		if err := <-empty; err != nil {
			t.Errorf("waiting until it is empty: %v", err)
		}
		if err := c.Kill(t.Context()); err != nil {
			t.Errorf("kill of nothing: %v", err)
		}
		if err := startIn(t, c, exec.Command("true")).Wait(); err != nil {
			t.Errorf("a process born after a kill: %v", err)
		}
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Remove(t.Context()); err != nil {
			t.Errorf("a second time: %v", err)
		}
		if _, err := g.Attach("c-1"); cell.KindOf(err) != cell.NotFound {
			t.Errorf("attach to nothing: %v", err)
		}
	})
}

// Freezing stops a counter that runs as fast as it can; thawing lets it go on;
// a frozen process can be killed.
func TestCgroupFreeze(t *testing.T) {
	eachLayout(t, cgroupLayouts, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-freeze", CgroupLimits{})
		name := filepath.Join(t.TempDir(), "count")
		if err := os.WriteFile(name, make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
		count := func() uint64 {
			b, err := os.ReadFile(name)
			if err != nil || len(b) < 8 {
				t.Fatalf("%v %v", b, err)
			}
			return binary.LittleEndian.Uint64(b)
		}
		cmd := startIn(t, c, cgroupChild("count:"+name))
		waitFor(t, "the counter", func() bool { return count() > 0 })
		for range 3 {
			for range 2 { // it is idempotent
				if err := c.Freeze(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			n := count()
			time.Sleep(30 * time.Millisecond)
			if m := count(); m != n {
				t.Errorf("counted from %d to %d while frozen", n, m)
			}
			if err := c.Thaw(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the counter to go on", func() bool { return count() > n })
		}
		if err := c.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		cmd.Wait()
	})
}

// A process can make itself impossible to freeze (which is why the filter of
// cells refuses listeners): Freeze says so in time and leaves it running, and
// Kill ends it all the same.
func TestCgroupUnfreezable(t *testing.T) {
	eachLayout(t, cgroupLayouts, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-stuck", CgroupLimits{})
		cmd := cgroupChild("stuck")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		startIn(t, c, cmd)
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "stuck\n" {
			t.Errorf("the child said %q", line)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("time is up"))
		defer cancel()
		if err := c.Freeze(ctx); err == nil || !strings.Contains(err.Error(), "time is up") {
			t.Errorf("freeze: %v", err)
		}
		for file, want := range map[string]string{"cgroup.freeze": "0", "freezer.state": "THAWED"} {
			for _, p := range c.Paths() {
				if got, err := readCgroup(p, file); err == nil && got != want {
					t.Errorf("%s is %s after a freeze that failed", file, got)
				}
			}
		}
		if err := c.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		cmd.Wait()
	})
}

// A freeze that can't come about in time says so and leaves all running.
func TestCgroupFreezeGivesUp(t *testing.T) {
	g := hostCgroups(t, "host")
	c, _ := createCgroup(t, g, "c-late", CgroupLimits{})
	cmd := startIn(t, c, exec.Command("sleep", "60"))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("too late"))
	if err := c.Freeze(ctx); err != nil && !strings.Contains(err.Error(), "too late") {
		t.Errorf("%v", err)
	}
	if err := c.Thaw(); err != nil {
		t.Error(err)
	}
	if p, _ := c.Populated(); !p {
		t.Error("the process is gone")
	}
	c.Kill(t.Context())
	cmd.Wait()
}

// What a delegated process made below is killed and removed with the rest.
func TestCgroupNested(t *testing.T) {
	eachLayout(t, cgroupLayouts, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-outer", CgroupLimits{})
		below := &Cgroup{Name: "c-inner"}
		for _, d := range c.dirs {
			p := filepath.Join(d.path, "a", "b")
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
			below.dirs = append(below.dirs, cgroupDir{d.tree, p})
		}
		cmd := startIn(t, below, exec.Command("sleep", "60"))
		waitFor(t, "the process below", func() bool { pids, _ := c.PIDs(); return len(pids) == 1 })
		if err := c.Freeze(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		cmd.Wait()
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Waiting ends with its context, and with the cgroup.
func TestCgroupWaitEnds(t *testing.T) {
	eachLayout(t, []string{"host", "v1"}, func(t *testing.T, g *Cgroups) {
		c, _ := createCgroup(t, g, "c-wait", CgroupLimits{})
		if _, ok := c.with("memory"); !ok {
			t.Skip("needs controller memory")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped, gone := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.WaitOOM(ctx, 0); stopped <- err }()
		go func() { _, err := c.WaitOOM(t.Context(), 0); gone <- err }()
		time.Sleep(20 * time.Millisecond)
		cancel(fmt.Errorf("enough"))
		if err := <-stopped; err == nil || err.Error() != "enough" {
			t.Errorf("cancelled: %v", err)
		}
		if err := c.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-gone:
			if cell.KindOf(err) != cell.NotFound {
				t.Errorf("removed: %v", err)
			}
		case <-time.After(3 * cgroupLook):
			t.Error("still waiting for a cgroup that is gone")
		}
	})
}

// Another process of the same installation takes the empty directories away.
func TestCgroupPrunedByAnother(t *testing.T) {
	g, other := hostCgroups(t, "host"), hostCgroups(t, "host")
	for _, name := range []string{"c-1", "c-2"} {
		c, _, err := g.Create(name, CgroupLimits{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		other.Prune()
	}
}

// Twenty at once, with one that prunes between them.
func TestCgroupConcurrently(t *testing.T) {
	g := hostCgroups(t, "host")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c, _, err := g.Create(fmt.Sprintf("c-%d", i), CgroupLimits{PIDs: 5})
			if err != nil {
				t.Error(err)
				return
			}
			if err := c.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			g.Prune()
		})
	}
	wg.Wait()
}
