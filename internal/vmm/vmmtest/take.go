package vmmtest

import (
	"bytes"
	"os"

	"github.com/pando-dev/pando/internal/vmm/ram"
)

// private is a machine that counts, with memory that it maps privately.
func (k *bench) private(ram *os.File) *box {
	k.Helper()
	s := k.spec(ram)
	s.Private = true
	b := k.start(s)
	b.ask("count", "counting")
	b.counts()
	return b
}

// take takes a running machine's memory and devices, and lets it go on.
func (b *box) take(base *os.File) (*os.File, []byte, ram.Stats) {
	b.Helper()
	to := b.ram()
	k, err := ram.Begin(b.ctx, b.cmd.Process.Pid, base, memory, to)
	b.must(err)
	defer k.Close()
	b.must(b.m.Stop(b.ctx))
	var devices bytes.Buffer
	b.must(b.m.Save(b.ctx, &devices))
	s, err := k.Finish(b.ctx)
	b.must(err)
	b.must(b.m.Continue(b.ctx))
	return to, devices.Bytes(), s
}

// testTakes takes the memory of machines that count: that of one that has booted, of a
// copy, of a copy of that, and ten times of one.
func testTakes(k *bench) {
	base := k.ram()
	b := k.private(base)
	for i := range 10 {
		image, devices, s := b.take(base)
		k.Logf("%d: %+v", i, s)
		c := k.child(image)
		c.load(devices)
		c.counts()
		b.counts()
		if i%5 == 4 { // the next five are of the copy
			b.kill()
			b, base = c, image
			continue
		}
		c.kill()
	}
}
