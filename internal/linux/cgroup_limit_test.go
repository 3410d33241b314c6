package linux

import (
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process that takes more memory than the limit is killed, and it is told.
func TestCgroupMemoryLimit(t *testing.T) {
	eachLayout(t, []string{"host", "v1"}, func(t *testing.T, g *Cgroups) {
		c, unapplied := createCgroup(t, g, "c-mem", CgroupLimits{Memory: 64 << 20})
		if len(unapplied) != 0 {
			t.Skipf("needs a memory limit: %v", unapplied)
		}
		var wg sync.WaitGroup
		var told int64
		var toldErr error
		wg.Go(func() { told, toldErr = c.WaitOOM(t.Context(), 0) })
		time.Sleep(20 * time.Millisecond) // so that it really waits
		cmd := startIn(t, c, cgroupChild("memory"))
		err := cmd.Wait()
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("ended with %v", err)
		}
		wg.Wait()
		s := c.Stats()
		if told < 1 || toldErr != nil || s.OOMKills < 1 {
			t.Errorf("told of %d (%v), counted %d", told, toldErr, s.OOMKills)
		}
		if s.MemoryPeak < 32<<20 || s.MemoryPeak > 65<<20 { // the dying take a little more
			t.Errorf("peak %d", s.MemoryPeak)
		}
		if bad := c.Limit(CgroupLimits{Memory: 1 << 30}); len(bad) != 0 { // up
			t.Errorf("raise: %v", bad)
		}
		if bad := c.Limit(CgroupLimits{Memory: 32 << 20}); len(bad) != 0 { // and down
			t.Errorf("lower: %v", bad)
		}
	})
}

// A fork bomb stays within the limit and dies at once.
func TestCgroupPIDsLimit(t *testing.T) {
	eachLayout(t, []string{"host", "v1"}, func(t *testing.T, g *Cgroups) {
		c, unapplied := createCgroup(t, g, "c-pids", CgroupLimits{PIDs: 20})
		if len(unapplied) != 0 {
			t.Skipf("needs a limit on processes: %v", unapplied)
		}
		cmd := exec.Command("sh", "-c", `b() { b | b & }; while :; do b 2>/dev/null; sleep 0.01; done`)
		startIn(t, c, cmd)
		waitFor(t, "a refused fork", func() bool { return c.Stats().PIDsRefused > 0 })
		for range 20 {
			if s := c.Stats(); s.PIDs > 20 || s.PIDsPeak > 20 {
				t.Errorf("%d now, %d at most", s.PIDs, s.PIDsPeak)
			}
		}
		if err := c.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		cmd.Wait()
		if p, err := c.Populated(); p || err != nil {
			t.Errorf("populated after kill: %v, %v", p, err)
		}
	})
}

// A busy process gets the CPU time of the limit, not more.
func TestCgroupCPULimit(t *testing.T) {
	eachLayout(t, []string{"host", "v1"}, func(t *testing.T, g *Cgroups) {
		c, unapplied := createCgroup(t, g, "c-cpu", CgroupLimits{CPUs: 0.05})
		if len(unapplied) != 0 {
			t.Skipf("needs a CPU limit: %v", unapplied)
		}
		begin := time.Now()
		cmd := startIn(t, c, exec.Command("sh", "-c", "while :; do :; done"))
		waitFor(t, "the limit to bite", func() bool { return c.Stats().Throttled > 2 })
		time.Sleep(time.Second - time.Since(begin))
		s, wall := c.Stats(), time.Since(begin)
		if most := wall.Microseconds() * 3 / 10; s.CPUUsec > most || s.CPUUsec < 1000 {
			t.Errorf("%d µs of CPU in %s, want at most %d", s.CPUUsec, wall, most)
		}
		if s.ThrottledUsec < 1 {
			t.Errorf("throttled for %d µs", s.ThrottledUsec)
		}
		c.Kill(t.Context())
		cmd.Wait()
	})
}
