package vmmtest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/vmm"
)

// Bench measures the cost of copies of machines: a boot until the guest answers, the pause
// while devices are saved, a copy from scratch and one with a waiting program, each until its
// guest answers, and the memory of a copy then.
func Bench(t *testing.B, d vmm.Driver, accel vmm.Accel) {
	s := newSuite(t, d, accel)
	t.Run("Boot", func(t *testing.B) {
		for t.Loop() {
			k := s.bench(t)
			b := k.start(k.spec(k.ram()))
			b.ask("ping x", "pong x")
			t.StopTimer()
			b.kill()
			t.StartTimer()
		}
	})
	k := s.bench(t)
	ram := k.ram()
	parent := k.start(k.spec(ram))
	parent.ask("ping x", "pong x")
	t.Run("StopSave", func(t *testing.B) {
		var devices bytes.Buffer
		for t.Loop() {
			devices.Reset()
			k.must(parent.m.Stop(k.ctx))
			k.must(parent.m.Save(k.ctx, &devices))
			t.StopTimer()
			k.must(parent.m.Continue(k.ctx))
			parent.ask("ping x", "pong x")
			t.StartTimer()
		}
		t.ReportMetric(float64(devices.Len()), "device-B")
	})
	devices := parent.saved()
	t.Run("Copy", func(t *testing.B) {
		var pss, private float64
		for t.Loop() {
			k := s.bench(t)
			b := k.child(ram)
			b.load(devices)
			b.ask("ping x", "pong x")
			t.StopTimer()
			p, d := b.costs()
			pss, private = pss+p, private+d
			b.kill()
			t.StartTimer()
		}
		t.ReportMetric(pss/float64(t.N), "pss-KiB")
		t.ReportMetric(private/float64(t.N), "private-KiB")
	})
	t.Run("WaitingCopy", func(t *testing.B) {
		for t.Loop() {
			t.StopTimer()
			k := s.bench(t)
			b := k.child(ram)
			b.must(b.m.Load(b.ctx, bytes.NewReader(devices)))
			t.StartTimer()
			k.must(b.m.Continue(k.ctx))
			b.ask("ping x", "pong x")
			t.StopTimer()
			b.kill()
			t.StartTimer()
		}
	})
	t.Run("Load", func(t *testing.B) {
		for t.Loop() {
			t.StopTimer()
			k := s.bench(t)
			b := k.child(ram)
			t.StartTimer()
			b.must(b.m.Load(b.ctx, bytes.NewReader(devices)))
			t.StopTimer()
			b.kill()
			t.StartTimer()
		}
	})
}

// costs returns the process's proportional and private memory, in KiB.
func (b *box) costs() (pss, private float64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid))
	b.must(err)
	for line := range strings.Lines(string(text)) {
		var n float64
		name, value, _ := strings.Cut(line, ":")
		fmt.Sscan(value, &n)
		switch name {
		case "Pss":
			pss = n
		case "Private_Clean", "Private_Dirty":
			private += n
		}
	}
	return pss, private
}
