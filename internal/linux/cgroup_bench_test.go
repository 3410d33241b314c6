package linux

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

var cgroupBenchLimits = CgroupLimits{Memory: 1 << 30, PIDs: 1000, CPUs: 1}

func eachBenchLayout(b *testing.B, f func(b *testing.B, g *Cgroups)) {
	for _, l := range cgroupLayouts {
		b.Run(l, func(b *testing.B) { f(b, hostCgroups(b, l)) })
	}
}

func BenchmarkCgroupCreate(b *testing.B) {
	eachBenchLayout(b, func(b *testing.B, g *Cgroups) {
		for i := 0; b.Loop(); i++ {
			c, _, err := g.Create(fmt.Sprint("c-", i), cgroupBenchLimits)
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			c.Remove(context.Background())
			b.StartTimer()
		}
	})
}

func BenchmarkCgroupRemove(b *testing.B) {
	eachBenchLayout(b, func(b *testing.B, g *Cgroups) {
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			c, _, err := g.Create(fmt.Sprint("c-", i), cgroupBenchLimits)
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := c.Remove(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Freezing 20 processes that are busy, and thawing them.
func BenchmarkCgroupFreezeThaw(b *testing.B) {
	eachBenchLayout(b, func(b *testing.B, g *Cgroups) {
		c, _ := createCgroup(b, g, "c-bench", CgroupLimits{})
		cmd := startIn(b, c, exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do (while :; do :; done) & done; while :; do :; done"))
		waitFor(b, "20 processes", func() bool { p, _ := c.PIDs(); return len(p) == 20 })
		time.Sleep(50 * time.Millisecond)
		var frozen time.Duration
		n := 0
		for b.Loop() {
			begin := time.Now()
			if err := c.Freeze(context.Background()); err != nil {
				b.Fatal(err)
			}
			frozen += time.Since(begin)
			n++
			if err := c.Thaw(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(frozen.Microseconds())/float64(n), "µs/freeze")
		c.Kill(context.Background())
		cmd.Wait()
	})
}

func BenchmarkCgroupStats(b *testing.B) {
	eachBenchLayout(b, func(b *testing.B, g *Cgroups) {
		c, _ := createCgroup(b, g, "c-bench", cgroupBenchLimits)
		for b.Loop() {
			c.Stats()
		}
	})
}

func BenchmarkFindCgroups(b *testing.B) {
	for b.Loop() {
		if _, err := FindCgroups("bench"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSeccompFilter(b *testing.B) {
	for b.Loop() {
		if _, err := SeccompFilter(SeccompOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
